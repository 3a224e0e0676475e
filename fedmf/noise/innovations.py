"""Innovations: integers k(t, i), correct roundings of ρ_t·N(t, i) with N exactly standard normal.

U and V are endless strings of random bits, read as binary fractions. A ChaCha20 block has the first
64 bits of four U and of four V; further bits come from another nonce. Box–Muller makes a pair of
normals,

    N = √(−2 ln U)·cos 2πV    and    √(−2 ln U)·sin 2πV.

k is the integer nearest ρN, whatever the computer: float64 decides where ρN is farther from every
half integer than an error bound, pairs of float64 decide most of the rest, and arithmetic of any
precision with more bits decides all else. So k is the same on every machine.

Error of float64, with e = 2⁻⁵³, r = √(−2 ln U) and any use of fused multiply-add:

    U as float64: 1.5e relative.
    f = m − 1: exact. ln m by s = f/(f + 2) and a polynomial: 4.5e relative.
    L = −2 ln U: |dL| ≤ e(7 + 2.5L), so that |dr| ≤ |dL|/2r + er ≤ e(4.5 + 2.5r) for U < √½; else
    |dr| ≤ 4er.
    cos and sin: 4e absolute (argument 1e, polynomial 2e, minimax error with rounded coefficients
    0.6e).
    |dN| ≤ e(4.5 + 2.5r + 4r + r), and the product with ρ adds e·ρ|N|: together at most
    ρe(6 + 9r).

Bits after the first 64 move N by at most 2⁻⁶⁴/(Ur) + 2⁻⁶⁴πr: below 1e for U ≥ 2⁻¹² and 1 − U ≥
2⁻²⁵. A smaller U adds ρ/(w·r) with w = 2⁶⁴U to the bound; a larger U is not decided here.

docs/theory/noise.md has the argument in full; the tests compare with 160 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array
from fedmf.noise.jit import compiled, jit_contract, jit_inline
from fedmf.noise.key import NONCE_BYTES, Domain, NoiseKey, more_bits_nonce, nonce
from fedmf.noise.schedule import KeySchedule

BLOCK: Final = 8
"""Normals of a ChaCha20 block: its words 0–3 are U of four pairs, its words 4–7 their V.

Element 8b + j is the cosine of pair j in block b and element 8b + 4 + j its sine, j = 0 … 3."""

BLOCK_BYTES: Final = 64
MAX_DIMENSION: Final = 2**33
"""Elements of a row: further bits of block b come from blocks 4b … 4b + 3 of a 32-bit counter."""

MAX_SCALE: Final = 2.0**46
"""Largest ρ for which the bounds below were argued. Plans stay below 2³⁶."""

WORDS: Final = 1 << 16
"""Words of keystream that are drawn at a time."""

#: Keystreams that stay open, one an opening of the run.
_OPEN_STREAMS: Final = 64
_ZEROS: Final = memoryview(bytes(8 * WORDS))

# Minimax polynomials in t = x²: sin(πx/2)/x − π/2 and (cos(πx/2) − 1)/x² on |x| < ½,
# and −2 ln((1 + s)/(1 − s))/s + 4 in t = s².
_S0 = -0.645964097506245
_S1 = 0.07969262624606284
_S2 = -0.0046817541326181055
_S3 = 0.0001604411526110612
_S4 = -3.5986493785494804e-06
_S5 = 5.634679217187995e-08
_C0 = -1.233700550136157
_C1 = 0.253669507900054
_C2 = -0.02086348073759147
_C3 = 0.000919259967879802
_C4 = -2.5200192782332062e-05
_C5 = 4.656007804981866e-07
_L0 = -1.3333333333333468
_L1 = -0.799999999988317
_L2 = -0.5714285748427325
_L3 = -0.44444397194394863
_L4 = -0.363671263749004
_L5 = -0.30628153605596936
_L6 = -0.2959142958669891
_HALF_PI: Final = 1.5707963267948966
_HALF_PI_LOW: Final = 6.123233995736766e-17
_LN2: Final = 0.6931471805599453
_LN2_LOW: Final = 2.3190468138462996e-17
_EPSILON: Final = 2.0**-53

_ROOT_HALF = np.uint64(0x3FE6A09E667F3BCD)  # the bits of √½ as float64
_EXPONENT_SHIFT = np.uint64((1023 << 52) - 0x3FE6A09E667F3BCD)
_FRACTION = np.uint64(2**52 - 1)
_FRACTION_BITS = np.uint64(52)
_HALF_WORD = np.uint64(32)
_LOW_WORD = np.uint64(2**32 - 1)
_TWO_52 = np.uint64(0x433 << 52)  # the bits of 2⁵²: an integer below 2⁵² in its fraction adds to it
_TWO_84 = np.uint64(0x453 << 52)
_ALL = np.uint64(2**64 - 1)
_NEAR_ONE = np.uint64(int(2**64 * 0.5**0.5))  # from here on the logarithm is that of 1 − (1 − U)
_SMALL = np.uint64(1 << 52)  # 2⁶⁴·2⁻¹²
_NEAREST_ONE = np.uint64(1 << 39)  # 2⁶⁴·2⁻²⁵
_TWO = np.uint64(2)
_EIGHTH = np.uint64(1 << 61)
_BIT_62 = np.uint64(1 << 62)
_SIGN = np.uint64(1 << 63)
_QUADRANT = np.uint64(62)
#: Added to a number below 2⁵¹ it leaves the nearest integer in the last bits.
_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = np.int64(np.float64(_MAGIC).view(np.int64))
#: Pairs that go through one step after the other: results between steps stay in the fastest cache.
_PAIRS: Final = 256


@jit_inline
def _bits(x: Any) -> Any:
    """Return the bits of a float64 number."""
    return np.float64(x).view(np.uint64)


@jit_inline
def _float(word: Any) -> Any:
    """Return the float64 number with these bits."""
    return np.uint64(word).view(np.float64)


@jit_inline
def _integer(x: Any) -> Any:
    """Return the bits of a float64 number as a signed integer."""
    return np.float64(x).view(np.int64)


@jit_contract
def _as_float(word: Any, less: Any) -> Any:
    """Return word − less, rounded once, where ``less`` is a multiple of 2³².

    Not every processor converts words in vectors.
    """
    high = _float((word >> _HALF_WORD) | _TWO_84) - (2.0**84 + 2.0**52 + less)
    return high + _float((word & _LOW_WORD) | _TWO_52)


@jit_contract
def _radius(word: Any) -> Any:
    """Return √(−2 ln U), U = (word + ½)/2⁶⁴."""
    near_one = word >= _NEAR_ONE
    v = _as_float((word ^ _ALL) if near_one else word, 0.0) + 0.5
    shifted = _bits(v) + _EXPONENT_SHIFT
    exponent = _float((shifted >> _FRACTION_BITS) | _TWO_52) - (2.0**52 + 1023.0 + 64.0)
    f = _float((shifted & _FRACTION) + _ROOT_HALF) - 1.0
    if near_one:
        f = -v * 2.0**-64
        exponent = 0.0
    s = f / (f + 2.0)
    t = s * s
    log = ((((((_L6 * t + _L5) * t + _L4) * t + _L3) * t + _L2) * t + _L1) * t + _L0) * t - 4.0
    return np.sqrt((s * log - exponent * (2.0 * _LN2_LOW)) - exponent * (2.0 * _LN2))


@jit_contract
def _direction(word: Any) -> Any:
    """Return (cos φ, sin φ), φ = 2π(word + ½)/2⁶⁴.

    The first bits are the quadrant, the others a part |x| < ½ of it.
    """
    x = (_as_float((word << _TWO) ^ _SIGN, 2.0**63) + 2.0) * 2.0**-64
    t = x * x
    sine = x * ((((((_S5 * t + _S4) * t + _S3) * t + _S2) * t + _S1) * t + _S0) * t + _HALF_PI)
    cosine = (((((_C5 * t + _C4) * t + _C3) * t + _C2) * t + _C1) * t + _C0) * t + 1.0
    turned = word + _EIGHTH
    odd = turned & _BIT_62
    first = sine if odd else cosine
    second = cosine if odd else sine
    return (
        _float(_bits(first) ^ ((turned + _BIT_62) & _SIGN)),
        _float(_bits(second) ^ (turned & _SIGN)),
    )


@compiled("int64(uint64[::1], float64, int64[::1], int64[::1])")
def round_normals(words: Any, scale: Any, k: Any, open_places: Any) -> Any:
    """Round ρN for all elements of some blocks, and list those that float64 does not decide.

    Args:
        words: keystream, whole blocks.
        scale: ρ, at most `MAX_SCALE`.
        k: as long as words; set to the nearest integers.
        open_places: as long as words; its first entries are set to the places of undecided
            elements.

    Returns:
        The number of undecided elements.
    """
    open_count = 0
    radii = np.empty(_PAIRS)
    bounds = np.empty(_PAIRS)
    radius_words = np.empty(_PAIRS, np.uint64)
    angle_words = np.empty(_PAIRS, np.uint64)
    first = np.empty(_PAIRS, np.int64)
    second = np.empty(_PAIRS, np.int64)
    undecided = np.empty(_PAIRS, np.uint8)
    for start in range(0, words.size, 2 * _PAIRS):
        chunk = words[start : start + 2 * _PAIRS]
        out = k[start : start + 2 * _PAIRS]
        blocks = chunk.size // 8
        least = _ALL
        most = np.uint64(0)
        for b in range(blocks):
            for j in range(4):
                radius_words[4 * b + j] = chunk[8 * b + j]
                angle_words[4 * b + j] = chunk[8 * b + 4 + j]
        for i in range(4 * blocks):
            least = min(least, radius_words[i])
            most = max(most, radius_words[i])
            radii[i] = _radius(radius_words[i])
            bounds[i] = 0.5 - scale * _EPSILON * (6.0 + 9.0 * radii[i])
        if least < _SMALL or (most ^ _ALL) < _NEAREST_ONE:  # one chunk in eight
            for i in range(4 * blocks):
                if radius_words[i] < _SMALL:
                    bounds[i] -= scale / (np.float64(radius_words[i]) * radii[i])
                if (radius_words[i] ^ _ALL) < _NEAREST_ONE:
                    bounds[i] = -1.0
        near_half = 0
        for i in range(4 * blocks):
            cosine, sine = _direction(angle_words[i])
            x = scale * (radii[i] * cosine)
            y = scale * (radii[i] * sine)
            moved_x = x + _MAGIC
            moved_y = y + _MAGIC
            first[i] = _integer(moved_x) - _MAGIC_BITS
            second[i] = _integer(moved_y) - _MAGIC_BITS
            open_x = not abs(x - (moved_x - _MAGIC)) < bounds[i]
            open_y = not abs(y - (moved_y - _MAGIC)) < bounds[i]
            undecided[i] = open_x | (open_y << 1)
            near_half += np.int64(open_x | open_y)
        for b in range(blocks):
            for j in range(4):
                out[8 * b + j] = first[4 * b + j]
                out[8 * b + 4 + j] = second[4 * b + j]
        if near_half:
            for i in range(4 * blocks):
                if undecided[i]:
                    place = start + 8 * (i // 4) + i % 4
                    if undecided[i] & 1:
                        open_places[open_count] = place
                        open_count += 1
                    if undecided[i] & 2:
                        open_places[open_count] = place + 4
                        open_count += 1
    return open_count


# Numbers held as unevaluated sums (high, low) of two float64, good to 2⁻⁹⁸ of the larger operand.


@jit_inline
def _add(a: Any, b: Any) -> Any:
    total = a[0] + b[0]
    back = total - a[0]
    error = ((a[0] - (total - back)) + (b[0] - back)) + (a[1] + b[1])
    high = total + error
    return high, error - (high - total)


@jit_inline
def _multiply(a: Any, b: Any) -> Any:
    product = a[0] * b[0]
    a_high = a[0] * 134217729.0
    a_high = a_high - (a_high - a[0])
    b_high = b[0] * 134217729.0
    b_high = b_high - (b_high - b[0])
    a_low = a[0] - a_high
    b_low = b[0] - b_high
    error = ((a_high * b_high - product) + a_high * b_low) + a_low * b_high
    error = (error + a_low * b_low) + (a[0] * b[1] + a[1] * b[0])
    high = product + error
    return high, error - (high - product)


@jit_inline
def _divide(a: Any, b: Any) -> Any:
    quotient = a[0] / b[0]
    rest = _add(a, _multiply((-quotient, 0.0), b))[0] / b[0]
    high = quotient + rest
    return high, rest - (high - quotient)


@jit_inline
def _pair_of_word(word: Any, less: Any, plus: Any) -> Any:
    """Return word − less + plus as a pair."""
    high = np.float64(word >> _HALF_WORD) * 2.0**32 - less
    return _add((high, 0.0), (np.float64(word & _LOW_WORD) + plus, 0.0))


@jit_inline
def _radius_pair(word: Any) -> Any:
    """Return √(−2 ln U) as a pair.

    The logarithm is that of U = m·2ᵉ, 0.7 < m < 1.42, by its series in s = (m − 1)/(m + 1).
    """
    near_one = word >= _NEAR_ONE
    v = _pair_of_word((word ^ _ALL) if near_one else word, 0.0, 0.5)
    if near_one:
        exponent = 0.0
        f = (-v[0] * 2.0**-64, -v[1] * 2.0**-64)
    else:
        exponent = np.floor(np.log2(v[0] * 1.42))  # an error by one would do no harm
        f = _add((v[0] * 2.0**-exponent, v[1] * 2.0**-exponent), (-1.0, 0.0))
        exponent -= 64.0
    s = _divide(f, _add(f, (2.0, 0.0)))
    t = _multiply(s, s)
    series = (0.0, 0.0)
    for i in range(37, 0, -2):
        series = _add(_multiply(series, t), _divide((1.0, 0.0), (np.float64(i), 0.0)))
    of_fraction = _multiply(_multiply(s, series), (-4.0, 0.0))
    square = _add(of_fraction, _multiply((-2.0 * exponent, 0.0), (_LN2, _LN2_LOW)))
    root = np.sqrt(square[0])
    rest = _add(square, _multiply((-root, 0.0), (root, 0.0)))[0]
    return _add((root, 0.0), (rest / (2.0 * root), 0.0))


@jit_inline
def _direction_pair(word: Any, sine: Any) -> Any:
    """Return cos φ, or sin φ if ``sine`` is 1, as a pair, by Taylor's series in the quadrant."""
    unit = (_HALF_PI * 2.0**-64, _HALF_PI_LOW * 2.0**-64)
    x = _multiply(_pair_of_word((word << _TWO) ^ _SIGN, 2.0**63, 2.0), unit)
    quadrant = np.int64((word + _EIGHTH) >> _QUADRANT)
    odd = (quadrant + sine) & 1
    minus_square = _multiply(_multiply(x, x), (-1.0, 0.0))
    value = (1.0, 0.0)
    for i in range(23 + odd, 0, -2):
        factor = _divide(minus_square, (np.float64(i * (i + 1)), 0.0))
        value = _add(_multiply(factor, value), (1.0, 0.0))
    if odd:
        value = _multiply(value, x)
    negative = quadrant & 2 if sine else (quadrant + 2 * (quadrant & 1)) & 2
    if negative != 0:
        value = (-value[0], -value[1])
    return value


@compiled("int64(uint64[::1], float64, int64[::1], int64[::1], int64)")
def settle_in_pairs(words: Any, scale: Any, k: Any, open_places: Any, count: Any) -> Any:
    """Round the undecided elements again with twice the precision.

    Args:
        words, scale, k: as for `round_normals`.
        open_places: the undecided; those that stay so are moved to the front.
        count: number of undecided elements.

    Returns:
        The number of elements that stay undecided.
    """
    left = 0
    for n in range(count):
        place = open_places[n]
        j = place % 8
        radius_word = words[place - j + j % 4]
        angle_word = words[place - j + j % 4 + 4]
        radius = _radius_pair(radius_word)
        product = _multiply(radius, _direction_pair(angle_word, np.int64(j > 3)))
        x = _multiply(product, (scale, 0.0))
        nearest = np.rint(x[0])
        distance = (x[0] - nearest) + x[1]
        if distance > 0.5:
            nearest += 1.0
            distance -= 1.0
        elif distance < -0.5:
            nearest -= 1.0
            distance += 1.0
        decided = False
        if radius_word > np.uint64(0):
            later_bits = 1.0 / (np.float64(radius_word) * radius[0]) + radius[0] * 2.0**-62
            decided = 0.5 - abs(distance) > scale * (later_bits + 2.0**-80)
        if decided:
            k[place] = np.int64(nearest)
        else:
            open_places[left] = place
            left += 1
    return left


def nearest_integer(u: int, v: int, bits: int, sine: bool, scale: float) -> int | None:
    """Return the integer nearest ρN, or None if the known bits of U and V leave doubt about it.

    Args:
        u: the first ``bits`` bits of U.
        v: the first ``bits`` bits of V.
        bits: number of known bits.
        sine: whether N is the sine of its pair.
        scale: ρ.
    """
    from mpmath import mp, mpf

    if u == 0:
        return None
    with mp.workprec(bits + 64):
        unit = mpf(2) ** -bits
        radius = mp.sqrt(-2 * mp.log((u + mpf(1) / 2) * unit))
        turns = 2 * (v + mpf(1) / 2) * unit
        direction = mp.sinpi(turns) if sine else mp.cospi(turns)
        x = scale * radius * direction
        nearest = mp.nint(x)
        # r(U) moves by at most 2⁻ᵇⁱᵗˢ/(U·r) within the interval, the direction by π·2⁻ᵇⁱᵗˢ.
        doubt = 1 / (u * radius) + 4 * radius * unit + (radius + 1) * unit * mpf(2) ** -40
        if abs(x - nearest) + scale * doubt < mpf(1) / 2:
            return int(nearest)
    return None


class Innovations:
    """The integers k(t, i) as a function of keys, for one purpose of the noise.

    One thread at a time may use an object.

    Args:
        keys: the key of each row; a single key serves all of them.
        domain: purpose of the noise.

    Guarantees:
        k(t, i) is the integer nearest ρ_t·N(t, i), where the N(t, i) are independent and exactly
        standard normal if ChaCha20 is a random function. It depends on key, domain, t, i and ρ_t
        alone: not on the processor, the number of threads, the cut of the vector or the order of
        requests. Different (domain, t, ⌊i/8⌋) use different blocks of keystream.

    References:
        Nir and Langley (2018), RFC 8439. Box and Muller (1958).

    >>> innovations = Innovations(NoiseKey.from_seed(0), Domain.TRAINING)
    >>> whole = innovations.row(3, 1000.0, 20)
    >>> whole.dtype, bool((whole[:16] == innovations.row(3, 1000.0, 16)).all())
    (dtype('int64'), True)
    """

    def __init__(self, keys: NoiseKey | KeySchedule, domain: Domain) -> None:
        self.keys = KeySchedule.of(keys)
        self.domain = domain
        self._streams: dict[int, CipherContext] = {}
        self._words = np.empty(WORDS, np.uint64)
        self._bytes = self._words.data.cast("B")
        self._open_places = np.empty(WORDS, np.int64)

    def row(self, t: int, scale: float, size: int) -> NDArray[np.int64]:
        """Return k(t, 0) … k(t, size − 1)."""
        out = np.empty((1, -(-size // BLOCK) * BLOCK), np.int64)
        for start in range(0, out.shape[1], WORDS):
            stop = min(start + WORDS, out.shape[1])
            tile = np.empty((1, stop - start), np.int64)
            self.draw([t], np.array([scale]), start // BLOCK, tile)
            out[:, start:stop] = tile
        return out[0, :size]

    def draw(self, rounds: Sequence[int], scales: Array, block: int, k: NDArray[np.int64]) -> None:
        """Set k[j] to the innovations of round rounds[j], from those of a block of keystream on.

        Args:
            rounds: t of each row.
            scales: ρ_t of each row, shape (rows,).
            block: index of the block of keystream for the first column.
            k: shape (rows, whole blocks), at most `WORDS` columns, contiguous; set.
        """
        openings = self.keys.opening_indices(rounds)
        width = k.shape[1]
        first = 0
        while first < len(rounds):
            end = _end_of_equal(scales, first, max(1, WORDS // width))
            for j in range(first, end):
                self._draw_words(openings[j], rounds[j], block, (j - first) * width, width)
            self._round(openings, rounds, first, block, float(scales[first]), k[first:end])
            first = end

    def _draw_words(self, opening: int, t: int, block: int, begin: int, count: int) -> None:
        """Put keystream of a round, from a block on, into the memory of words."""
        if opening not in self._streams:
            if len(self._streams) >= _OPEN_STREAMS:
                self._streams.clear()
            self._streams[opening] = self.keys.key(opening).keystream(bytes(NONCE_BYTES), 0)
        stream = self._streams[opening]
        stream.reset_nonce(block.to_bytes(4, "little") + nonce(self.domain, t))
        stream.update_into(_ZEROS[: 8 * count], self._bytes[8 * begin : 8 * (begin + count)])

    def _round(
        self,
        openings: Sequence[int],
        rounds: Sequence[int],
        first: int,
        block: int,
        scale: float,
        k: NDArray[np.int64],
    ) -> None:
        """Turn the words of rounds[first], rounds[first + 1], … into their innovations."""
        flat = k.reshape(-1)
        words = self._words[: flat.size]
        count = round_normals(words, scale, flat, self._open_places)
        count = settle_in_pairs(words, scale, flat, self._open_places, count)
        for place in self._open_places[:count].tolist():
            row, column = divmod(place, k.shape[1])
            j = place % BLOCK
            pair_place = place - j + j % 4
            first_bits = int(words[pair_place]), int(words[pair_place + 4])
            opening = openings[first + row]
            t = rounds[first + row]
            counter = 4 * (block + column // BLOCK) + j % 4
            flat[place] = self._settle(opening, t, counter, first_bits, j >= 4, scale)

    def _settle(
        self,
        opening: int,
        t: int,
        counter: int,
        first_bits: tuple[int, int],
        sine: bool,
        scale: float,
    ) -> int:
        """Append bits to U and V, 64 at a time, until one integer is left.

        Args:
            opening: index of the key.
            t: round.
            counter: block of further bits of this pair.
            first_bits: the first 64 bits of U and V.
            sine: whether N is the sine of its pair.
            scale: ρ.
        """
        u, v = first_bits
        stream = self.keys.key(opening).keystream(more_bits_nonce(self.domain, t), counter)
        further_bits: Any = stream.update(_ZEROS[:BLOCK_BYTES])
        for step in range(5):
            nearest = nearest_integer(u, v, 64 * (step + 1), sine, scale)
            if nearest is not None:
                return nearest
            if step < 4:
                u = u << 64 | int.from_bytes(further_bits[8 * step : 8 * step + 8], "little")
                v = v << 64 | int.from_bytes(further_bits[32 + 8 * step : 40 + 8 * step], "little")
        raise RuntimeError("320 bits do not decide an innovation. No noise was drawn.")


def _end_of_equal(values: Array, first: int, most: int) -> int:
    """Return the end of the run of equal values from ``first`` on, at most ``most`` of them."""
    end = first + 1
    while end < min(len(values), first + most) and values[end] == values[first]:
        end += 1
    return end
