"""From words of keystream to normal numbers and rows of noise on processors, in loops compiled by numba.

All operations are elementwise IEEE 754 with explicit fused multiply-adds, so that any vector instructions and
the kernels of a GPU give the same bits. With fma(a, b, c) = a·b + c rounded once, ⟨P⟩(t) for Horner's rule by
fma from the last coefficient down, and bits(·) for the 64 bits of a float64, a pair is made in this order:

    v = w + ½,  or for w < 2¹⁶:  v = fma(float64(x) + ½, 2⁻⁶⁴, w)                     (v = 2³²u)
    b = bits(v) + EXPONENT_SHIFT;  e = float64(b >> 52) − EXPONENT_BIAS
    m = the float64 with bits (b & (2⁵² − 1)) + ROOT_HALF                    (√½ ≤ m < √2, u = m·2ᵉ)
    f = m − 1;  s = f / (f + 2);  t = s·s
    r = sqrt(fma(e, LN2_HIGH, fma(e, LN2_LOW, s·fma(t, ⟨LOG⟩(t), −4))))

    q = ((a + 2²⁹) >> 30) & 3;  x = (float64(int32(a − (q << 30))) + ½)·2⁻³⁰     (|x| < ½, φ = (q + x)·π/2)
    t = x·x;  sin = x·fma(t, ⟨SIN⟩(t), HALF_PI);  cos = fma(t, ⟨COS⟩(t), 1)
    (cos φ, sin φ) = (cos, sin), (−sin, cos), (−cos, −sin), (sin, −cos)   for q = 0, 1, 2, 3
    z(t, 16c + k) = r·cos φ,  z(t, 16c + 8 + k) = r·sin φ

The polynomials are minimax (Remez) for the relative error of sin(πx/2)/x − π/2, (cos(πx/2) − 1)/x² and
−2·log of (1 + s)/(1 − s); the tests compare them with 40-digit arithmetic.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import intrinsic

from fedmf.loops import compiled, fma, part
from fedmf.noise.row_pass import NORMALS_PER_BLOCK, PAIRS_PER_BLOCK, REFINED_BELOW

SIN: Final = (
    -0.645964097506245,
    0.07969262624606284,
    -0.0046817541326181055,
    0.0001604411526110612,
    -3.5986493785494804e-06,
    5.634679217187995e-08,
)
COS: Final = (
    -1.233700550136157,
    0.253669507900054,
    -0.02086348073759147,
    0.000919259967879802,
    -2.5200192782332062e-05,
    4.656007804981866e-07,
)
LOG: Final = (
    -1.3333333333333468,
    -0.799999999988317,
    -0.5714285748427325,
    -0.44444397194394863,
    -0.363671263749004,
    -0.30628153605596936,
    -0.2959142958669891,
)
HALF_PI: Final = 1.5707963267948966
LN2_HIGH: Final = -1.3862943611198906
LN2_LOW: Final = -4.638093627692599e-17
"""LN2_HIGH + LN2_LOW = −2 ln 2 to 107 bits."""

ROOT_HALF: Final = 0x3FE6A09E667F3BCD
"""The bits of √½."""

EXPONENT_SHIFT: Final = (1023 << 52) - ROOT_HALF
"""Added to the bits of v it makes the exponent field that of u relative to [√½, √2), and never negative."""

EXPONENT_BIAS: Final = 1023.0 + 32.0
"""32 because v = 2³²u."""

CHUNK: Final = 1024
"""Elements that go through one step after the other; intermediate results stay in the fastest cache. All
steps of one pair are a chain of a hundred cycles, and a processor looks ahead into few of them at once."""

_S0, _S1, _S2, _S3, _S4, _S5 = SIN
_C0, _C1, _C2, _C3, _C4, _C5 = COS
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = LOG
_SHIFT, _ROOT_HALF = np.uint64(EXPONENT_SHIFT), np.uint64(ROOT_HALF)
_FRACTION, _FRACTION_BITS = np.uint64(2**52 - 1), np.uint64(52)
_TWO_52 = np.uint64(0x4330000000000000)  # float64 2⁵²: an integer below 2⁵² in its fraction adds to it
_BIAS = 2.0**52 + EXPONENT_BIAS
_EIGHTH_TURN, _BIT_30, _TWO = np.uint32(1 << 29), np.uint32(1 << 30), np.uint32(2)
_BIT_62, _SIGN, _WORD_BITS = np.uint64(1 << 62), np.uint64(1 << 63), np.uint64(32)
_BELOW = np.uint32(REFINED_BELOW)
_PAIRS = CHUNK // 2


def _same_bits(source: types.Type, target: types.Type) -> Any:
    """For compiled functions: from a number to that of another type with the same bits."""

    def reinterpret(typing_context: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(reinterpret)


_bits = _same_bits(types.float64, types.uint64)
_float = _same_bits(types.uint64, types.float64)


@part
def radius(v: Any) -> Any:
    """√(−2 ln(2⁻³²v))."""
    b = _bits(v) + _SHIFT
    e = _float((b >> _FRACTION_BITS) | _TWO_52) - _BIAS
    f = _float((b & _FRACTION) + _ROOT_HALF) - 1.0
    s = f / (f + 2.0)
    t = s * s
    log = fma(fma(fma(fma(fma(fma(_L6, t, _L5), t, _L4), t, _L3), t, _L2), t, _L1), t, _L0)
    return np.sqrt(fma(e, LN2_HIGH, fma(e, LN2_LOW, s * fma(t, log, -4.0))))


@part
def direction(a: Any) -> Any:
    """(cos φ, sin φ) for an angle word, φ = 2π(a + ½)·2⁻³²."""
    x = np.float64(np.int32(np.uint32(a << _TWO) | _TWO)) * 2.0**-32  # 4(a + 2²⁹) + 2³¹ + 2 modulo 2³²
    t = x * x
    sin = fma(fma(fma(fma(fma(_S5, t, _S4), t, _S3), t, _S2), t, _S1), t, _S0)
    sin = x * fma(t, sin, HALF_PI)
    cos = fma(fma(fma(fma(fma(_C5, t, _C4), t, _C3), t, _C2), t, _C1), t, _C0)
    cos = fma(t, cos, 1.0)
    turned = np.uint32(a + _EIGHTH_TURN)  # the quadrant q is in its first two bits
    odd, top = turned & _BIT_30, np.uint64(turned) << _WORD_BITS
    first, second = (sin, cos) if odd else (cos, sin)
    return _float(_bits(first) ^ ((top + _BIT_62) & _SIGN)), _float(_bits(second) ^ (top & _SIGN))


@compiled("int64(uint32[::1], int64[::1])")
def find_coarse(words: Any, positions: Any) -> Any:
    """Find the pairs that need refinement, 1 in 65536.

    Args:
        words: keystream, 16 per block.
        positions: one place per pair; its first ones receive the positions 8c + k.

    Returns:
        How many there are.
    """
    count = 0
    for start in range(0, words.size, 2 * CHUNK):
        some = words[start : start + 2 * CHUNK]
        least = np.uint32(0xFFFFFFFF)
        for i in range(some.size):
            least = min(least, some[i])
        if least < _BELOW:
            for i in range(some.size):
                if i % NORMALS_PER_BLOCK < PAIRS_PER_BLOCK and some[i] < _BELOW:
                    positions[count] = (
                        start + i
                    ) // NORMALS_PER_BLOCK * PAIRS_PER_BLOCK + i % NORMALS_PER_BLOCK
                    count += 1
    return count


@compiled("void(uint32[:,::1], int64[::1], uint64[::1], float64[::1], float64[:,::1])")
def add_normals(words: Any, positions: Any, refinements: Any, weights: Any, z: Any) -> None:
    """z[j] += weights[j]·z(t_j, ·), or all of them to z[0] if that is the only one.

    Args:
        words: keystream of each round, whole blocks.
        positions: 8c + k for each pair that needs refinement, counted through all rounds, ascending.
        refinements: the 64 bits of each of them.
        weights: one per round.
        z: as long as a round's words.
    """
    v, angles = np.empty(_PAIRS), np.empty(_PAIRS, np.uint32)
    cos, sin = np.empty(_PAIRS), np.empty(_PAIRS)
    refined, before = 0, 0
    for j in range(weights.size):
        target, weight = z[j if z.shape[0] > 1 else 0], weights[j]
        for start in range(0, words.shape[1], CHUNK):
            some, sums = words[j, start : start + CHUNK], target[start : start + CHUNK]
            blocks = some.size // NORMALS_PER_BLOCK
            pairs = PAIRS_PER_BLOCK * blocks
            for b in range(blocks):
                for k in range(PAIRS_PER_BLOCK):
                    v[PAIRS_PER_BLOCK * b + k] = np.float64(some[NORMALS_PER_BLOCK * b + k]) + 0.5
                    angles[PAIRS_PER_BLOCK * b + k] = some[NORMALS_PER_BLOCK * b + PAIRS_PER_BLOCK + k]
            while refined < positions.size and positions[refined] < before + pairs:
                pair = positions[refined] - before
                v[pair] = fma(np.float64(refinements[refined]) + 0.5, 2.0**-64, v[pair] - 0.5)
                refined += 1
            for i in range(pairs):
                cos[i], sin[i] = direction(angles[i])
            for i in range(pairs):
                v[i] = radius(v[i])
            for b in range(blocks):
                for k in range(PAIRS_PER_BLOCK):
                    i, p = NORMALS_PER_BLOCK * b + k, PAIRS_PER_BLOCK * b + k
                    sums[i] = fma(weight, v[p] * cos[p], sums[i])
                    i += PAIRS_PER_BLOCK
                    sums[i] = fma(weight, v[p] * sin[p], sums[i])
            before += pairs


@compiled("void(float64[::1], float64[:,::1], int64, int64, int64[::1], float64[::1])")
def correlate(y: Any, stored: Any, column: Any, reads: Any, places: Any, factors: Any) -> None:
    """y −= Σ_m weights[m]·s[reads[m]], then s[writes[m]] ← decays[m]·s[writes[m]] + y for every m.

    Args:
        y: some elements of a row.
        stored: the vectors s.
        column: of the first of these elements.
        reads: how many of the places are read, the others being written.
        places: of vectors.
        factors: the weights and decays that belong to the places; a decay of 0 overwrites.
    """
    for m in range(places.size):
        vector, factor = stored[places[m], column : column + y.size], factors[m]
        if m < reads:
            for i in range(y.size):
                y[i] = fma(-factor, vector[i], y[i])
        elif factor == 0.0:
            for i in range(y.size):
                vector[i] = y[i]
        else:
            for i in range(y.size):
                vector[i] = fma(factor, vector[i], y[i])


@compiled("void(float64[::1], float64, float32[::1])", "void(float64[::1], float64, float64[::1])")
def add_scaled(y: Any, scale: Any, out: Any) -> None:
    """out += scale·y, rounded once."""
    for i in range(y.size):
        out[i] = fma(scale, y[i], np.float64(out[i]))


@compiled(
    "void(float64[:,::1], int64, int64, int64, float64[::1], float64[:,:], float64[:,:], float64[:,::1],"
    " float64[:,::1], int64, int64)"
)
def recur(
    z: Any, skip: Any, origin: Any, t: Any, scales: Any, forward: Any, back: Any, stored: Any, out: Any,
    low: Any, high: Any,
) -> None:  # fmt: skip
    """Rounds t, t + 1, … of a recurrence with the operations of `correlate` and `add_scaled` in their order.

    Args:
        z: a row per round; z[origin] is that of round t, and z[:, skip] that of column low of stored and out.
        scales: one per round.
        forward, back: f and g, a row per round or one for all.
        stored: stored[i mod r] holds y_i, r = back.shape[1].
        out: out[i] += scales[i]·y_{t+i} in columns low … high − 1.
    """
    y, ring = np.empty(high - low), back.shape[1]
    for i in range(out.shape[0]):
        f, g = forward[min(i, forward.shape[0] - 1)], back[min(i, back.shape[0] - 1)]
        values, scale = out[i, low:high], scales[i]
        y[:] = 0.0
        for lag in range(min(f.size, t + i + 1)):
            row, weight = z[origin + i - lag, skip : skip + y.size], f[lag]
            if weight != 0.0:
                for j in range(y.size):
                    y[j] = fma(weight, row[j], y[j])
        if ring == 0 and f.size == 1 and f[0] == 1.0:  # a single z is scaled, and rounded, before it is added
            for j in range(y.size):
                values[j] += scale * y[j]
            continue
        for lag in range(min(ring, t + i)):
            row, weight = stored[(t + i - 1 - lag) % ring, low:high], -g[lag]
            if weight != 0.0:
                for j in range(y.size):
                    y[j] = fma(weight, row[j], y[j])
        if ring > 0:
            stored[(t + i) % ring, low:high] = y
        for j in range(y.size):
            values[j] = fma(scale, y[j], values[j])


@compiled(
    "void(float64[:,::1], int64, int64, int64, float64[::1], float64[::1], float64[::1], float64[:,::1],"
    " float64[:,::1], int64, int64)"
)
def decay(
    z: Any, skip: Any, t: Any, period: Any, scales: Any, weights: Any, decays: Any, stored: Any, out: Any,
    low: Any, high: Any,
) -> None:  # fmt: skip
    """Rounds t, t + 1, … of decaying sums with the operations of `correlate` and `add_scaled` in their order.

    Args:
        z: a row per round; z[:, skip] is that of column low of stored and out.
        period: all sums return to 0 before rounds that are multiples of it.
        scales: one per round.
        weights, decays: ω and θ, one per sum.
        stored: the sums.
        out: out[i] += scales[i]·y_{t+i} in columns low … high − 1.
    """
    for i in range(out.shape[0]):
        y, values, scale = z[i, skip : skip + high - low], out[i, low:high], scales[i]
        for m in range(weights.size):
            vector = stored[m, low:high]
            if (t + i) % period == 0:
                vector[:] = 0.0
            for j in range(y.size):
                y[j] = fma(-weights[m], vector[j], y[j])
        for m in range(weights.size):
            vector, factor = stored[m, low:high], decays[m]
            for j in range(y.size):
                vector[j] = y[j] if factor == 0.0 else fma(factor, vector[j], y[j])
        for j in range(y.size):
            values[j] = fma(scale, y[j], values[j])
