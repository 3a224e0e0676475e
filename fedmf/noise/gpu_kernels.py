"""ChaCha20, Box-Muller and the pass over a vector in Triton; `gpu` imports this module when it needs it.

The machine code of a division or a square root of float64 numbers tests whether its operands are of ordinary
size and calls a subroutine if not; threads part and meet again around each test. For Box–Muller they are
always of ordinary size, so `quotient` and `root` do without, and their bits agree with IEEE 754.

Theorem. For every float64 number m in [√½, √2), f = m − 1 and b = f + 2 rounded, `quotient` gives the
float64 number nearest to f/b; for every float64 number w in [2⁻⁴⁰, 2¹⁰], `root` gives the nearest to √w.

Proof. RN rounds to nearest, ties to even; u = 2⁻⁵³; an ulp is the spacing of float64 numbers around the
result. No operation overflows or underflows: remainders are multiples of 2⁻²⁰⁰.

Quotient, f ≠ 0 (for f = 0 all products are 0).

1. The polynomial y₀ has |1 − b·y₀| < 2⁻¹²·⁷, and < 2⁻¹⁹ where |f| ≤ 2⁻¹⁰: its constant is ½ = 1/b at f = 0.
   The cubic step leaves e = 1 − b·y₁ with |e| < 2⁻³⁸, and |e| < 2u where |f| ≤ 2⁻¹⁰.
2. y = RN(y₁ + y₁·RN(e)), so |b·y − 1| ≤ ε = b·h + c: h = 2⁻⁵⁴ for b ≤ 2 and 2⁻⁵⁵ for b > 2 is half the
   spacing around 1/b, and c = e² + u|e| < 2⁻⁷⁵, or < 2⁻¹⁰³ where |f| ≤ 2⁻¹⁰. So ε < 1.01u.
3. s₀ = RN(f·y) is within 1.6 ulp of f/b. With the first correction the number before rounding is off by less
   than 2⁻⁵⁰ ulp, so s₁ is within ½ + 2⁻⁵⁰ ulp. r = f − b·s₁ is then a multiple of ulp(b)·ulp(s₁), less than
   2⁵³ times it: computed exactly.
4. Before the last rounding, s₁ + r·y = f/b + (f/b − s₁)(b·y − 1): off by at most (½ + 2⁻⁵⁰)·ε ulp. It rounds
   to the number nearest to f/b unless f/b is as near to the middle of two neighbours.
5. With B = b/ulp(b), an integer in [2⁵², 2⁵³), A < 2⁵³ that of f, and M, odd and of 54 bits, the middle: f/b
   is away from it by |A·2ⁱ − B·M|/B half ulps. The numerator is an integer and not 0, since B·M has an odd
   part above 2⁵³ and A·2ⁱ has none. So by at least 1/(2B) ulp.
6. Left to show: (1 + 2⁻⁴⁹)·ε·B < 1. For b > 2, B = 2⁵¹b and ε·B < b²/16 + 2⁻²¹ < ½. For f ≤ −2⁻¹⁰, B = 2⁵²b
   and ε·B < b²/4 + 2⁻²² < 1 − 2⁻¹¹. For −2⁻¹⁰ < f < 0 and b = 2 − x, ε·B < 1 − x + x²/4 + 2⁻⁵⁰: enough for x
   > 2⁻⁴⁷. Numbers m that are nearer to 1, at most 64, are among the 2,048 next to 1 that the test tries.

Root.

7. y₀ has |1 − w·y₀²| < 0.07, looked at in one period 1 ≤ w < 4: w → 4w halves y₀ exactly, and all after it
   scales by powers of 2. One step of order 4 and one of order 2 leave e = 1 − w·y², |e| < 2⁻³².
8. With g₀ = RN(w·y) = √w·√(1−e)·(1 + η), |η| ≤ u, and h₀ = y/2, r = ½ − g₀h₀ is ½(e − η + eη) but for 2⁻⁸⁵.
   So 2h₁√w = 1 − η/2 + ρ + δ with |ρ| ≤ u, |δ| < 2⁻⁶⁴, and g₁ is √w·(1 + η/2 + δ′), |δ′| < 2⁻⁶⁴, rounded:
   before rounding that is off by less than ½ + 2⁻¹⁰ ulp.
9. So g₁ is within 1 + 2⁻¹⁰ ulp of √w. Before the last rounding, g₁ + (w − g₁²)·h₁ = √w + (√w − g₁)((√w +
   g₁)h₁ − 1), which with the rounding of w − g₁² is off by at most 1.01·(1.5u + 1.01u + u + 2⁻⁶⁴) < 2⁻⁵¹
   ulp. That rounds to the number nearest to √w unless √w is as near to a middle.
10. If it is, g₁ is one of the two neighbours by step 8, and |√w − g₁| ≤ ½ + 2⁻⁵¹ ulp. In half ulps √w =
    √(W·2ᵏ), W of 53 bits, k = 54 or 55, and the middle is an odd M < 2⁵⁴. w − g₁² is an integer in units of
    ulp² and exact if it is below 2⁵³, which it is for M < 2⁵⁴ − 16. For the other M, κ = W·2ᵏ − M² is −(2⁵⁴
    − M)²: the test tries all W with |κ| ≤ 401. Where it is exact, the number before rounding is off by at
    most (½ + 2⁻⁵¹)(1.5u + 0.51u + 2⁻⁶⁴) < 8.1·2⁻⁵⁶ ulp.
11. √w is away from the middle by |κ|/(√(W·2ᵏ) + M) > |κ|·2⁻⁵⁵ half ulps, and κ ≡ −1 modulo 8: by more than
    9·2⁻⁵⁶ ulp but for κ = −1 and κ = 7. Those are tried too (roots of M² ≡ −κ modulo 2ᵏ, lifted bit by bit,
    give all W). ∎
"""
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false, reportOptionalOperand=false, reportReturnType=false, reportInvalidTypeForm=false

from __future__ import annotations

import triton
import triton.language as tl

import fedmf.noise.box_muller as constants
from fedmf.noise.row_pass import REFINED_BELOW

BLOCKS = 128
"""Keystream blocks per program, one to a thread: 2,048 elements."""

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False, "maxnreg": 128}
"""Multiplications and additions stay apart unless a kernel says `fma`: the bits of CPUs depend on it.
With 128 registers a thread, 512 threads fit on a multiprocessor."""

SECRET = (*(f"k{i}" for i in range(8)), "tag", "counter", "rows", "reads", "writes")
"""Arguments on which Triton may not specialise: their values would reach its cache on disk, or make it
compile again in every other round."""

_BELOW = tl.constexpr(REFINED_BELOW)
_REFINEMENT = tl.constexpr(0x80000000)
_S0, _S1, _S2, _S3, _S4, _S5 = map(tl.constexpr, constants.SIN)
_C0, _C1, _C2, _C3, _C4, _C5 = map(tl.constexpr, constants.COS)
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = map(tl.constexpr, constants.LOG)
_HALF_PI = tl.constexpr(constants.HALF_PI)
_LN2_HIGH = tl.constexpr(constants.LN2_HIGH)
_LN2_LOW = tl.constexpr(constants.LN2_LOW)
_ROOT_HALF = tl.constexpr(constants.ROOT_HALF)
_EXPONENT_SHIFT = tl.constexpr(constants.EXPONENT_SHIFT)
_EXPONENT_BIAS = tl.constexpr(constants.EXPONENT_BIAS)
_FRACTION = tl.constexpr((1 << 52) - 1)
_TWO_52 = tl.constexpr(2.0**52)
_TWO_52_BITS = tl.constexpr(0x4330000000000000)  # float64 whose last bit is worth 1
_TWO_21_BITS = tl.constexpr(0x4140000000000000)  # float64 whose last bit is worth 2⁻³¹
_R1, _R2, _R3 = map(tl.constexpr, (-0.2503469213479934, 0.12761423759441376, -0.056903559418761136))
_MAGIC = tl.constexpr(0x5FE6EB50)  # less half of the upper bits of w: those of 1/√w, to 3.5 %


@triton.jit
def double(value: tl.constexpr):
    """A float64 constant: where Triton makes tensors of Python numbers itself it rounds them to float32."""
    return tl.full([], value, tl.float64)


@triton.jit
def quotient(f):
    """f/(f + 2) for √½ − 1 ≤ f ≤ √2 − 1, with f + 2 rounded first."""
    b = f + double(2.0)
    y = tl.fma(tl.fma(tl.fma(f, double(_R3), double(_R2)), f, double(_R1)), f, double(0.5))
    e = tl.fma(-b, y, double(1.0))
    y = tl.fma(y, tl.fma(e, e, e), y)
    e = tl.fma(-b, y, double(1.0))
    y = tl.fma(y, e, y)
    s = f * y
    s = tl.fma(tl.fma(-b, s, f), y, s)
    return tl.fma(tl.fma(-b, s, f), y, s)


@triton.jit
def root(w):
    """√w for 2⁻⁴⁰ ≤ w ≤ 2¹⁰."""
    high = _MAGIC - (w.to(tl.uint64, bitcast=True) >> 33).to(tl.uint32)
    y = (high.to(tl.uint64) << 32).to(tl.float64, bitcast=True)
    e = tl.fma(-(w * y), y, double(1.0))
    p = tl.fma(tl.fma(e, double(0.3125), double(0.375)), e, double(0.5))
    y = tl.fma(y * e, p, y)
    e = tl.fma(-(w * y), y, double(1.0))
    y = tl.fma(y * double(0.5), e, y)
    g, h = w * y, y * double(0.5)
    r = tl.fma(-h, g, double(0.5))
    g, h = tl.fma(g, r, g), tl.fma(h, r, h)
    return tl.fma(tl.fma(-g, g, w), h, g)


@triton.jit
def _exactly(word):
    """float64(word) + 2⁵² for uint32 words, without the slow conversion instruction."""
    return (word.to(tl.uint64) | _TWO_52_BITS).to(tl.float64, bitcast=True)


@triton.jit
def _next(sum, t, coefficient: tl.constexpr):
    """One step of Horner's rule."""
    return tl.fma(sum, t, double(coefficient))


@triton.jit
def _quarter(a, b, c, d):
    """RFC 8439 §2.1; the rotations are funnel shifts."""
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _keystream(k0, k1, k2, k3, k4, k5, k6, k7, counter, n0, n1, n2):
    """RFC 8439 §2.3: the words of the blocks named by `counter`, as two tensors (blocks, 8)."""
    zero = counter & 0
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7 = zero + k0, zero + k1, zero + k2, zero + k3
    x8, x9, x10, x11 = zero + k4, zero + k5, zero + k6, zero + k7
    x12, x13, x14, x15 = counter, zero + n0, zero + n1, zero + n2
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    low = _eight(
        x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574, x4 + k0, x5 + k1, x6 + k2, x7 + k3
    )
    high = _eight(x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + counter, x13 + n0, x14 + n1, x15 + n2)
    return low, high


@triton.jit
def _eight(x0, x1, x2, x3, x4, x5, x6, x7):
    """Column k of the result is x_k."""
    even = tl.join(tl.join(x0, x4), tl.join(x2, x6))
    odd = tl.join(tl.join(x1, x5), tl.join(x3, x7))
    return tl.reshape(tl.join(even, odd), [x0.shape[0], 8])


@triton.jit
def _radius(v):
    """√(−2 ln(2⁻³²v)), in the order of operations of `box_muller`."""
    b = v.to(tl.uint64, bitcast=True) + _EXPONENT_SHIFT
    e = _exactly((b >> 52).to(tl.uint32)) - double(_TWO_52 + _EXPONENT_BIAS)
    m = ((b & _FRACTION) + _ROOT_HALF).to(tl.float64, bitcast=True)
    f = m - double(1.0)
    s = quotient(f)
    t = s * s
    p = _next(_next(_next(double(_L6), t, _L5), t, _L4), t, _L3)
    p = _next(_next(_next(p, t, _L2), t, _L1), t, _L0)
    tail = tl.fma(e, double(_LN2_LOW), s * _next(p, t, -4.0))
    return root(tl.fma(e, double(_LN2_HIGH), tail))


@triton.jit
def _pair(v, angle):
    """(r cos φ, r sin φ) for v = 2³²u and angle words, in the order of operations of `box_muller`."""
    turned = angle + 0x20000000  # its top two bits are the quadrant, the other thirty (x + ½)·2³⁰ − ½
    twice = turned << 1
    fraction = ((twice & 0x7FFFFFFF) | 1).to(tl.uint64) | _TWO_21_BITS
    x = fraction.to(tl.float64, bitcast=True) - double(2.0**21 + 0.5)
    t = x * x
    p = _next(_next(_next(_next(_next(double(_S5), t, _S4), t, _S3), t, _S2), t, _S1), t, _S0)
    sine = x * _next(p, t, _HALF_PI)
    p = _next(_next(_next(_next(_next(double(_C5), t, _C4), t, _C3), t, _C2), t, _C1), t, _C0)
    cosine = _next(p, t, 1.0)
    odd = (turned & 0x40000000) != 0
    r = _radius(v)
    return (
        _negate(r * tl.where(odd, sine, cosine), turned ^ twice),
        _negate(r * tl.where(odd, cosine, sine), turned),
    )


@triton.jit
def _negate(x, word):
    """−x where bit 31 of the word is set."""
    sign = (word & 0x80000000).to(tl.uint64) << 32
    return (x.to(tl.uint64, bitcast=True) ^ sign).to(tl.float64, bitcast=True)


@triton.jit
def _normals(k0, k1, k2, k3, k4, k5, k6, k7, tag, counter, t):
    """z(t, 16c + p) for all c in `counter` as (blocks, 16)."""
    early = (t & 0xFFFFFFFF).to(tl.uint32)
    late = (t >> 32).to(tl.uint32)
    w, angle = _keystream(k0, k1, k2, k3, k4, k5, k6, k7, counter, tag, early, late)
    v = _exactly(w) - double(_TWO_52 - 0.5)
    if tl.min(tl.min(w, 1), 0) < _BELOW:
        low, high = _keystream(k0, k1, k2, k3, k4, k5, k6, k7, counter, tag | _REFINEMENT, early, late)
        v = tl.where(w < _BELOW, _refined(w, low, high), v)
    cosine, sine = _pair(v, angle)
    both = tl.permute(tl.join(cosine, sine), [0, 2, 1])
    return tl.reshape(both, [w.shape[0], 16])


@triton.jit
def _refined(w, low, high):
    """2³²u with the k-th little-endian uint64 of the refinement block, words 2k and 2k + 1."""
    even, odd = tl.split(tl.reshape(tl.join(low, high).permute([0, 2, 1]), [w.shape[0], 8, 2]))
    x = ((odd.to(tl.uint64) << 32) | even.to(tl.uint64)).to(tl.float64)
    return tl.fma(x + double(0.5), double(2.0**-64), _exactly(w) - double(_TWO_52))


@triton.jit
def _read(row, at, length, inside):
    """Elements of a vector as float64."""
    if inside:  # noqa: SIM108
        x = tl.load(row + at)
    else:
        x = tl.load(row + at, mask=(at >= 0) & (at < length), other=0)
    return x.to(tl.float64)


@triton.jit
def _write(row, at, length, inside, x):
    if inside:
        tl.store(row + at, x)
    else:
        tl.store(row + at, x, mask=(at >= 0) & (at < length))


@triton.jit
def _tile(counter, shift, length, BLOCKS: tl.constexpr):
    """This program's block counters, its elements' indices in `out`, and whether all are inside it."""
    tile = tl.program_id(0)
    first = tile.to(tl.int64) * (16 * BLOCKS) - shift
    at = first + (16 * tl.arange(0, BLOCKS)[:, None] + tl.arange(0, 16)[None, :])
    inside = (first >= 0) & (first + 16 * BLOCKS <= length)
    blocks = _unsigned(counter) + tile.to(tl.uint32) * BLOCKS + tl.arange(0, BLOCKS).to(tl.uint32)
    return blocks, at, inside


@triton.jit
def _round(place, blocks):
    """t, loaded by every thread: Triton keeps the layout of a load, here a block to a thread, for all that is
    computed from it, whereas it spreads what has no such origin over the threads by way of shared memory."""
    return tl.load(place + (blocks & 0).to(tl.int32)).to(tl.uint64, bitcast=True)


@triton.jit
def _two_words(place):
    """The 32-bit words of one of 64, the low one first."""
    both = tl.load(place).to(tl.uint64, bitcast=True)
    return (both & 0xFFFFFFFF).to(tl.uint32), (both >> 32).to(tl.uint32)


@triton.jit
def _weighted(total, k0, k1, k2, k3, k4, k5, k6, k7, tag, blocks, table, rows, keys, MANY: tl.constexpr):
    """total + Σ_j weight_j·z(t_j, ·), one term after the other; the table holds all t, then all weights.

    Where rows are of MANY keys, `keys` holds four 64-bit words for each.
    """
    for j in range(rows):
        t = _round(table + j, blocks)
        weight = tl.load(table + rows + j).to(tl.float64, bitcast=True)
        if MANY:
            own = keys + 4 * j
            c0, c1 = _two_words(own)
            c2, c3 = _two_words(own + 1)
            c4, c5 = _two_words(own + 2)
            c6, c7 = _two_words(own + 3)
            z = _normals(c0, c1, c2, c3, c4, c5, c6, c7, tag, blocks, t)
        else:
            z = _normals(k0, k1, k2, k3, k4, k5, k6, k7, tag, blocks, t)
        total = tl.fma(weight, z, total)
    return total


@triton.jit(do_not_specialize=SECRET)
def add_row(
    out, stored, length, shift, table, rows, reads, writes, counter, tag, k0, k1, k2, k3, k4, k5, k6, k7,
    BLOCKS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """A pass, as `RowPass` says; y is summed from 0.

    The table holds all t, all weights, the scale, the places read, their weights, the places written, their
    decays and the keys. Without places nothing of ``stored`` is touched.
    """
    tag, k0, k1, k2, k3 = _unsigned(tag), _unsigned(k0), _unsigned(k1), _unsigned(k2), _unsigned(k3)
    k4, k5, k6, k7 = _unsigned(k4), _unsigned(k5), _unsigned(k6), _unsigned(k7)
    blocks, at, inside = _tile(counter, shift, length, BLOCKS)
    y = tl.zeros([BLOCKS, 16], tl.float64)
    keys = table + 2 * (rows + reads + writes) + 1
    y = _weighted(y, k0, k1, k2, k3, k4, k5, k6, k7, tag, blocks, table, rows, keys, MANY)
    table += 2 * rows
    scale = tl.load(table).to(tl.float64, bitcast=True)
    table += 1
    for m in range(reads):
        vector = stored + tl.load(table + m) * length
        weight = tl.load(table + reads + m).to(tl.float64, bitcast=True)
        y = tl.fma(-weight, _read(vector, at, length, inside), y)
    table += 2 * reads
    for m in range(writes):
        vector = stored + tl.load(table + m) * length
        decay = tl.load(table + writes + m).to(tl.float64, bitcast=True)
        sum = y
        if decay != 0.0:
            sum = tl.fma(decay, _read(vector, at, length, inside), y)
        _write(vector, at, length, inside, sum)
    total = tl.fma(scale, y, _read(out, at, length, inside))
    _write(out, at, length, inside, total.to(out.dtype.element_ty))


@triton.jit
def _unsigned(word):
    return word.to(tl.uint32, bitcast=True)
