"""The one place where a user enters a sum: it bounds what one can change, whatever engine made the row."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmf.compiled import compiled, inlined
from fedmf.training.blocks import LANES, WIDEST, add_whole, at, at_integer

#: Σ n² of an update of norm ζ in units of ζ·2⁻⁴⁰.
SQUARE: Final = 2.0**80
_HALF, _LOW = 20, (1 << 20) - 1


class Into(NamedTuple):
    """What one user's integers are added to.

    Attributes:
        total: Σ n, shape (d,), int64.
        second: Σ ⌊Σ_{i∈B} n_i²·2⁻⁴⁰⌋ of every block B, shape (m,), int64; empty where nobody asks for it.
        ends: one past the last entry of each block, shape (m,); empty if every entry is a block.
        signs: of those users that stay, in their order, shape (users,), int64.
        squares: their Σ n², float64, likewise: what is told of a user beside the sums is a function of these.
        stayed: how many users stayed, shape (1,), int64.
    """

    total: NDArray[np.int64]
    second: NDArray[np.int64]
    ends: NDArray[np.int64]
    signs: NDArray[np.int64]
    squares: NDArray[np.float64]
    stayed: NDArray[np.int64]


@inlined
def square_limit(dimension):
    """Up to which computed Σ n² the true one is at most 2⁸⁰: see `merge`."""
    return SQUARE * (1.0 - (dimension + 64) * 2.0**-53)


@compiled
def merge(row, origin, factor, sign, into):
    """Add the integers n_i = trunc((row_i − origin_i)·factor) of one user; False if nothing was added.

    Whatever row, origin, factor and sign are, the sums move by one user's worth at most: Σ n² ≤ 2⁸⁰, so
    norm ζ; features of the same n; one more user that stays, with its sign in {−1, 0, 1} and that Σ n². An
    entry of absolute value above 2⁴¹, or NaN, is never converted: ±2⁴¹ takes its place, whose square alone
    is above 2⁸⁰. Every n is then an integer that float64 has, and a user whose computed sum of squares is
    above `square_limit` is taken out again by the same integers; int64 wraps, so the total is what it was
    to the bit.

    Proof that Σ n² ≤ 2⁸⁰ for a user who stays: Σ n² is summed from non-negative terms with at most d + 17
    roundings between a term and the result, each of relative size at most 2⁻⁵³ (squares of at most 2⁸²
    neither over- nor underflow). The computed s is thus at least Σ n²·(1 − (d + 17)·2⁻⁵³), and
    s ≤ 2⁸⁰·(1 − (d + 64)·2⁻⁵³), which float64 has exactly, gives Σ n² ≤ 2⁸⁰ for d < 2⁵². ∎

    Args:
        row: shape (d,), float32 or float64, contiguous.
        origin: shape (d,), float32 like the row, or None for zero.
        factor: finite or not; the same for all entries.
        sign: of the user.
        into: changed.
    """
    square = _add(row, origin, factor, into.total)
    if not (square <= square_limit(into.total.size) and -1 <= sign <= 1):
        _take_out(row, origin, factor, into.total)
        return False
    place = into.stayed[0]
    into.signs[place], into.squares[place] = sign, square
    into.stayed[0] = place + 1
    if into.second.size > 0:
        _add_features(row, origin, factor, into)
    return True


@compiled
def _add(row, origin, factor, total):
    """total += n; the computed Σ n²."""
    whole, zero = total.size - total.size % LANES, np.int64(0)
    into = at_integer(total, zero)
    if origin is None:
        square = add_whole(at(row, zero), None, factor, into, whole)
    else:
        square = add_whole(at(row, zero), at(origin, zero), factor, into, whole)
    for i in range(whole, total.size):
        integer = _integer(row, origin, i, factor)
        total[i] += integer
        square += np.float64(integer) * np.float64(integer)
    return square


@compiled
def _take_out(row, origin, factor, total):
    """total −= n."""
    for i in range(total.size):
        total[i] -= _integer(row, origin, i, factor)


@inlined
def _integer(row, origin, i, factor):
    """n_i: the same as in `add_whole`."""
    x = row[i]
    if origin is not None:
        x = x - origin[i]
    scaled = np.float64(x) * factor
    scaled = scaled if scaled < WIDEST else WIDEST  # NaN too
    return np.int64(scaled if scaled > -WIDEST else -WIDEST)


@compiled
def _add_features(row, origin, factor, into):
    """⌊Σ n²·2⁻⁴⁰⌋ of each block, exactly: n = 2²⁰h + l, and what lies below 2⁴⁰ is summed in two parts."""
    begin = 0
    for block in range(into.second.size):
        end = into.ends[block] if into.ends.size > 0 else block + 1
        high, middle, low = np.int64(0), np.int64(0), np.int64(0)
        for i in range(begin, end):
            integer = _integer(row, origin, i, factor)
            h, l = abs(integer) >> _HALF, abs(integer) & _LOW  # noqa: E741
            cross = h * l << 1
            rest = ((cross & _LOW) << _HALF) + l * l
            high += h * h + (cross >> _HALF)
            middle += rest >> _HALF
            low += rest & _LOW
        into.second[block] += high + (middle + (low >> _HALF) >> _HALF)
        begin = end
