"""The one place where a user enters a sum: it bounds what one can change, whatever made the update."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from fedmf.noise.loops import compiled, part, summing

#: Most bits B of a unit: a clipped coordinate x is held as the integer trunc(x·2ᴮ/ζ), so |integer| ≤ 2ᴮ.
FRACTION_BITS: Final = 31
#: No larger entry becomes an integer: its square alone is more than that of an update of norm ζ.
WIDEST: Final = 2.0**32
#: An update so near to the clip norm may have been clipped to it before and rounded to float32.
NEAR: Final = 1.0 - 2.0**-20

_INTEGERS, _FLOATS, _ROWS = types.int64[::1], types.float64[::1], types.float32[::1]


def margin(dimension: int) -> float:
    """Scaling down by this makes "norm at most ζ" hold in exact arithmetic, not just up to rounding.

    A float64 norm of d entries, summed in any order, is wrong by at most about d·2⁻⁵⁴ of itself.
    """
    return 1.0 - (dimension + 64) * 2.0**-52


def square_limit(dimension: int, bits: int) -> float:
    """Up to which computed Σ n² the true one is at most 2²ᴮ: see `merge`."""
    return 2.0 ** (2 * bits) * (1.0 - (dimension + 64) * 2.0**-53)


@part
def sign(norm: Any, clip_norm: Any, square: Any) -> Any:
    """+1 within the clip norm, −1 above or at it, 0 for an update that adds nothing."""
    if square == 0.0:
        return 0
    return 1 if norm <= NEAR * clip_norm else -1


@part
def _change(row: Any, origin: Any, i: Any) -> Any:
    """x_i = row_i − origin_i in float32."""
    return row[i] - origin[i] if origin.size > 0 else row[i]


@part
def _integer(row: Any, origin: Any, i: Any, factor: Any) -> Any:
    """trunc(x_i·factor), ±2³² where that is wider and for NaN."""
    scaled = np.float64(_change(row, origin, i)) * factor
    scaled = scaled if scaled < WIDEST else WIDEST  # NaN too
    return np.int64(scaled if scaled > -WIDEST else -WIDEST)


@summing
def _add(row: Any, origin: Any, factor: Any, total: Any) -> Any:
    """total += n; the computed Σ n²."""
    square = 0.0
    for i in range(total.size):
        integer = _integer(row, origin, i, factor)
        total[i] += integer
        square += np.float64(integer) * np.float64(integer)
    return square


@part
def _take_out(row: Any, origin: Any, factor: Any, total: Any) -> None:
    """total −= n."""
    for i in range(total.size):
        total[i] -= _integer(row, origin, i, factor)


@part
def _add_features(row: Any, origin: Any, factor: Any, second: Any, shift: Any, ends: Any) -> None:
    """second += ⌊Σ n²·2⁻ˢʰⁱᶠᵗ⌋ of each block; Σ n² ≤ 2⁶² for a user who stays."""
    begin = 0
    for block in range(second.size):
        end = ends[block] if ends.size > 0 else block + 1
        square = np.int64(0)
        for i in range(begin, end):
            integer = _integer(row, origin, i, factor)
            square += integer * integer
        second[block] += square >> shift
        begin = end


@compiled(
    types.float64(_ROWS, _ROWS, types.float64, types.float64, _INTEGERS, _INTEGERS, types.int64, _INTEGERS)
)
def merge(
    row: Any, origin: Any, factor: Any, limit: Any, total: Any, second: Any, shift: Any, ends: Any
) -> Any:
    """Add the integers n_i = trunc((row_i − origin_i)·factor) of one user.

    Whatever row, origin and factor are, the sums move by one user's worth at most: Σ n² ≤ 2²ᴮ, so norm ζ,
    and features of the same n. An entry of absolute value above 2³², or NaN, is never converted: ±2³² takes
    its place, with a square alone above 2²ᴮ. Every n is then an integer that float64 has, and a user
    with a computed sum of squares above `square_limit` is taken out again by the same integers; int64
    wraps, so the total is what it was to the bit.

    Proof that Σ n² ≤ 2²ᴮ for a user who stays: Σ n² is summed, in any order, from non-negative terms with at
    most d + 17 roundings between a term and the result, each of relative size at most 2⁻⁵³ (squares of at
    most 2⁶⁴ neither over- nor underflow). The computed s is thus at least Σ n²·(1 − (d + 17)·2⁻⁵³), and
    s ≤ 2²ᴮ·(1 − (d + 64)·2⁻⁵³), which float64 has exactly, gives Σ n² ≤ 2²ᴮ for d < 2⁵². ∎

    Args:
        row: shape (d,), float32, contiguous.
        origin: shape (d,), float32, or (0,) for zero.
        factor: finite or not; the same for all entries.
        limit: `square_limit` of d and B ≤ 31.
        total: Σ n over users, shape (d,), int64; changed.
        second: Σ ⌊Σ_{i∈B} n_i²·2⁻ˢʰⁱᶠᵗ⌋ over users of every block, shape (m,), int64, or empty; changed.
        shift: 2B less the bits of the unit of features.
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


@summing
def _square(row: Any, origin: Any) -> Any:
    """Σ x² in float64: the square of a float32 number is exact there, and neither over- nor underflows."""
    square = 0.0
    for i in range(row.size):
        x = np.float64(_change(row, origin, i))
        square += x * x
    return square


#: The types of what `add_clipped` takes after rows, step and origin, and its own.
SUMS: Final = (
    *3 * (types.float64,),
    *2 * (_INTEGERS,),
    types.int64,
    *2 * (_INTEGERS,),
    _FLOATS,
    types.boolean[::1],
)
ADD_CLIPPED: Final = types.void(_ROWS, types.int64, _ROWS, *SUMS)


@compiled(ADD_CLIPPED)
def add_clipped(
    rows: Any, step: Any, origin: Any, clip_norm: Any, scale: Any, limit: Any,
    total: Any, second: Any, shift: Any, ends: Any, signs: Any, squares: Any, counted: Any,
) -> None:  # fmt: skip
    """Clip each row − origin and add it.

    Args:
        rows: float32; row u is d entries from u·step on.
        step: see rows.
        origin: shape (d,), float32, or (0,) for zero.
        clip_norm: ζ.
        scale: what a clipped row of norm ζ is scaled to.
        limit, total, second, shift, ends: see `merge`, which alone bounds by how much sums change.
        signs, squares: shape (users,), zeros; set to the sign and Σ n² of each row that counts.
        counted: shape (users,); set to whether a row counts. One that is not finite adds nothing.
    """
    for u in range(counted.size):
        row = rows[u * step : u * step + total.size]
        square = _square(row, origin)
        counted[u] = np.isfinite(square)
        if counted[u] and square > 0.0:
            norm = np.sqrt(square)
            factor = scale / max(norm, clip_norm)
            merged = merge(row, origin, factor, limit, total, second, shift, ends)
            counted[u] = merged >= 0.0
            if counted[u]:
                signs[u] = sign(norm, clip_norm, merged)
                squares[u] = merged


@summing
def _add_all(total: Any, added: Any, unit: Any) -> Any:
    square = 0.0
    for i in range(total.size):
        x = np.float64(added[i]) * unit
        square += x * x
        total[i] += added[i]
    return square


@compiled(types.float64(_INTEGERS, _INTEGERS, types.float64))
def add_integers(total: Any, added: Any, unit: Any) -> Any:
    """total += added; returns ‖unit·added‖² in float64.

    Args:
        total: changed.
        added: as long.
        unit: a power of 2, so small that no square overflows.
    """
    return _add_all(total, added, unit)
