"""The only door into a sum: it bounds how far one user moves the sum, whatever the user's row is.

`add_bounded` turns a row into integers, adds them, and takes them out again where they are too
large. It is the whole proof that a sum has the sensitivity for which noise is calibrated.
`clip_factor` is the clip. It decides only how a row is scaled: a mistake in it can cost a user its
contribution, never the bound.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fedmf.noise.jit import compiled, compiled_for, jit_inline, jit_reassoc

#: Most bits B of a unit: a clipped coordinate x is held as the integer trunc(x·2ᴮ/ζ), so |integer|
#: ≤ 2ᴮ.
FRACTION_BITS: Final = 31
#: No larger entry becomes an integer: its square alone is more than that of an update of norm ζ.
WIDEST: Final = 2.0**32
#: An update of a larger norm, in ζ, may have been clipped to ζ before and rounded to float32.
NEAR: Final = 1.0 - 2.0**-20
#: Smaller sums of squares may have underflowed. No float32 row but zero has one.
_SMALLEST_SQUARE: Final = 2.0**-900
#: Rows of float64 whose squares leave its range are multiplied or divided by this for their norm.
_SHRINK: Final = 2.0**-600


def margin(dimension: int) -> float:
    """Return the factor that makes "norm at most ζ" hold in exact arithmetic after a clip.

    A float64 norm of d entries, summed in any order, is wrong by at most about d·2⁻⁵⁴ of itself.
    """
    return 1.0 - (dimension + 64) * 2.0**-52


def square_limit(dimension: int, bits: int) -> float:
    """Return the largest computed Σ n² for which the true one is at most 2²ᴮ (`add_bounded`)."""
    return 2.0 ** (2 * bits) * (1.0 - (dimension + 64) * 2.0**-53)


@jit_inline
def _change(row: Any, origin: Any, i: Any) -> Any:
    """Return x_i = row_i − origin_i in the type of the row."""
    return row[i] - origin[i] if origin.size > 0 else row[i]


@jit_inline
def _integer(row: Any, origin: Any, i: Any, factor: Any) -> Any:
    """Return trunc(x_i·factor), or ±2³² where that is wider, and for NaN."""
    scaled = np.float64(_change(row, origin, i)) * factor
    scaled = scaled if scaled < WIDEST else WIDEST  # NaN too
    return np.int64(scaled if scaled > -WIDEST else -WIDEST)


@jit_reassoc
def _add(row: Any, origin: Any, factor: Any, total: Any) -> Any:
    """Add n to the total, and return the computed Σ n²."""
    square = 0.0
    for i in range(total.size):
        integer = _integer(row, origin, i, factor)
        total[i] += integer
        square += np.float64(integer) * np.float64(integer)
    return square


@jit_inline
def _take_out(row: Any, origin: Any, factor: Any, total: Any) -> None:
    """Subtract n from the total."""
    for i in range(total.size):
        total[i] -= _integer(row, origin, i, factor)


@jit_inline
def _add_features(row: Any, origin: Any, factor: Any, second: Any, shift: Any, ends: Any) -> None:
    """Add ⌊Σ n²·2⁻ˢʰⁱᶠᵗ⌋ of each block to ``second``; Σ n² ≤ 2⁶² for a user who stays."""
    begin = 0
    for block in range(second.size):
        end = ends[block] if ends.size > 0 else block + 1
        square = np.int64(0)
        for i in range(begin, end):
            integer = _integer(row, origin, i, factor)
            square += integer * integer
        second[block] += square >> shift
        begin = end


@jit_inline
def add_bounded(
    row: Any, origin: Any, factor: Any, limit: Any, total: Any, second: Any, shift: Any, ends: Any
) -> Any:
    """Add the integers n_i = trunc((row_i − origin_i)·factor) of one user.

    Whatever row, origin and factor are, the total moves by Σ n² ≤ 2²ᴮ at most, which is norm ζ, and
    ``second`` by features of the same n. An entry of absolute value above 2³², or NaN, is never
    converted: ±2³² takes its place, whose square alone is above 2²ᴮ. Every n is then an integer
    that float64 represents exactly. A user with a computed sum of squares above `square_limit` is
    taken out again by the same integers; int64 wraps, so the total is what it was to the bit.

    Proof that Σ n² ≤ 2²ᴮ for a user who stays: Σ n² is summed, in any order, from non-negative
    terms with at most d + 17 roundings between a term and the result, each of relative size at most
    2⁻⁵³ (squares of at most 2⁶⁴ neither over- nor underflow). The computed s is thus at least
    Σ n²·(1 − (d + 17)·2⁻⁵³), and s ≤ 2²ᴮ·(1 − (d + 64)·2⁻⁵³), which float64 represents exactly,
    gives Σ n² ≤ 2²ᴮ for d < 2⁵². ∎

    Args:
        row: shape (d,), float32 or float64, contiguous.
        origin: shape (d,), of the same type, or (0,) for zero.
        factor: multiplies all entries; finite or not.
        limit: `square_limit` of d and B ≤ 31.
        total: Σ n over users, shape (d,), int64; changed.
        second: Σ ⌊Σ_{i∈B} n_i²·2⁻ˢʰⁱᶠᵗ⌋ over users of every block, shape (m,), int64, or empty;
            changed.
        shift: 2B − F, where F is the bits of the unit of features.
        ends: one past the last entry of each block, shape (m,); empty if every entry is a block.

    Returns:
        Σ n², or −1 if nothing was added.
    """
    square = _add(row, origin, factor, total)
    if not square <= limit:
        _take_out(row, origin, factor, total)
        return -1.0
    if second.size > 0:
        _add_features(row, origin, factor, second, shift, ends)
    return square


@jit_reassoc
def _square(row: Any, origin: Any) -> Any:
    """Return Σ x² in float64.

    The square of a float32 number is exact there, and neither over- nor underflows.
    """
    square = 0.0
    for i in range(row.size):
        x = np.float64(_change(row, origin, i))
        square += x * x
    return square


@jit_inline
def clip_factor(row: Any, origin: Any, clip_norm: Any, scale: Any) -> Any:
    """Return the factor scale / max(‖x‖, ζ) that clips x = row − origin, and whether ‖x‖ ≤ ζ."""
    shrink = 1.0
    square = _square(row, origin)
    if square == np.inf:
        shrink = _SHRINK
    elif square < _SMALLEST_SQUARE and clip_norm < 1.0:
        shrink = 1.0 / _SHRINK
    if shrink != 1.0:
        square = _square(row * shrink, origin * shrink)
    norm = np.sqrt(square)
    bound = clip_norm * shrink
    return scale / max(norm, bound) * shrink, norm <= NEAR * bound


@compiled_for(
    ("float32", "float64"),
    "void({0}[::1], int64, {0}[::1], float64, float64, float64, int64[:,::1], int64[::1], int64,"
    " int64[::1], int64[::1], float64[::1])",
)
def add_clipped(
    rows: Any,
    step: Any,
    origin: Any,
    clip_norm: Any,
    scale: Any,
    limit: Any,
    totals: Any,
    second: Any,
    shift: Any,
    ends: Any,
    signs: Any,
    squares: Any,
) -> None:
    """Clip each row − origin and add it.

    Args:
        rows: float32 or float64; row u is the d entries from u·step on.
        step: distance of two rows, in entries.
        origin: shape (d,), of the same type, or (0,) for zero.
        clip_norm: ζ.
        scale: norm of the integers of a row of norm ζ.
        limit, second, shift, ends: as for `add_bounded`, which alone bounds how far sums move.
        totals: shape (1, d), the sum of all rows; or (users, d), one sum for each row.
        signs: shape (users,); set to +1 within the clip norm, −1 above or at it, 0 for a row of
            zeros and for one that adds nothing.
        squares: shape (users,); set to Σ n² of each row, −1 for one that adds nothing: it is not
            finite.
    """
    dimension = totals.shape[1]
    for u in range(squares.size):
        row = rows[u * step : u * step + dimension]
        total = totals[min(u, totals.shape[0] - 1)]
        factor, within = clip_factor(row, origin, clip_norm, scale)
        squares[u] = add_bounded(row, origin, factor, limit, total, second, shift, ends)
        signs[u] = 0
        if squares[u] > 0.0:
            signs[u] = 1 if within else -1


@compiled("void(float64[:,::1], float64, float64[::1])")
def clip_factors(rows: Any, clip_norm: Any, factors: Any) -> None:
    """Set factors to those that clip rows to norm ζ: 1 for a row that is no longer."""
    for u in range(rows.shape[0]):
        factors[u], _ = clip_factor(rows[u], np.zeros(0), clip_norm, clip_norm)


@jit_reassoc
def _add_all(total: Any, added: Any, unit: Any) -> Any:
    """Add integers to a total, and return ‖unit·added‖²."""
    square = 0.0
    for i in range(total.size):
        x = np.float64(added[i]) * unit
        square += x * x
        total[i] += added[i]
    return square


@compiled("float64(int64[::1], int64[::1], float64)")
def add_integers(total: Any, added: Any, unit: Any) -> Any:
    """Add integers to a total, and return ‖unit·added‖² in float64.

    Args:
        total: shape (d,); changed.
        added: shape (d,).
        unit: a power of 2, so small that no square overflows.
    """
    return _add_all(total, added, unit)
