"""Second moments of clipped updates in exact integer arithmetic."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from fedmf.moments import BlockEnergies, DiagonalMoment, SecondMoment

_HALF: Final = 20
_LOW: Final = (1 << _HALF) - 1


def fixed_point_energies(rows: Tensor, second_moment: SecondMoment) -> Tensor:
    """⌊Σ_{j∈B} n_j²·2⁻⁴⁰⌋ of every row n and block B: features of n·ζ·2⁻⁴⁰ in units of ζ²·2⁻⁴⁰.

    Args:
        rows: integers, shape (users, d), int64, each row of norm at most 2⁴⁰.
        second_moment: squares or energies of blocks.

    Returns:
        Shape (users, m), int64, non-negative; a row's features sum to at most 2⁴⁰.

    Raises:
        ValueError: another kind of second moment, or one of another dimension.

    Guarantees:
        Exact, so the same on every device and in whatever order entries are summed: n² is formed from halves
        n = 2²⁰h + l as h²·2⁴⁰ + 2hl·2²⁰ + l², and what lies below 2⁴⁰ is summed before it is cut off.

    >>> rows = torch.tensor([[3 << 38, -(1 << 39)]])
    >>> (fixed_point_energies(rows, BlockEnergies([2])).double() / 2**40).tolist()
    [[0.8125]]
    """
    second_moment = check_second_moment(second_moment)
    if rows.ndim != 2 or rows.shape[1] != second_moment.dimension:
        raise ValueError(
            f"rows must have shape (users, {second_moment.dimension}) for this second moment; got "
            f"{tuple(rows.shape)}."
        )
    size = rows.abs()
    high, low = size >> _HALF, size & _LOW
    middle = (high * low) << 1
    whole = high * high + (middle >> _HALF)
    rest = ((middle & _LOW) << _HALF) + low * low
    if isinstance(second_moment, DiagonalMoment):
        return whole + (rest >> 2 * _HALF)
    ends = second_moment.sizes.cumsum(0).to(rows.device) - 1
    carried = _block_sums(rest >> _HALF, ends) + (_block_sums(rest & _LOW, ends) >> _HALF)
    return _block_sums(whole, ends) + (carried >> _HALF)


def check_second_moment(second_moment: SecondMoment) -> DiagonalMoment | BlockEnergies:
    """Refuse one that integers have no exact features of.

    Raises:
        ValueError: neither squares nor energies of blocks.
    """
    if not isinstance(second_moment, DiagonalMoment | BlockEnergies):
        raise ValueError(
            f"second moment (of a run) must be squares or block energies; got {type(second_moment).__name__}."
        )
    return second_moment


def _block_sums(values: Tensor, ends: Tensor) -> Tensor:
    """Sums over consecutive blocks that end at these indices."""
    through = values.cumsum(1).index_select(1, ends)
    return torch.diff(through, dim=1, prepend=through.new_zeros(len(through), 1))
