"""Clipping of the rows of a tensor, into one sum or into integers of each row.

Every row enters by `add_bounded`, on a GPU by its twin. `ClippedSum` sums updates by these
functions, and streams and adaptive clip norms use the integers of single rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping import bounded_add
from fedmf.clipping.bounded_add import FRACTION_BITS, margin, square_limit
from fedmf.clipping.features import FeatureSum
from fedmf.clipping.gpu import add_clipped_on_gpu

_NO_FEATURES: Final = FeatureSum(None, torch.device("cpu"), FRACTION_BITS, FRACTION_BITS)


@dataclass(frozen=True, eq=False)
class AddedRows:
    """Facts about rows that were added, in the order of the rows.

    Args:
        signs: +1 within the clip norm, −1 above or at it, 0 for zeros and for a row that adds
            nothing.
        squares: Σ n² of the row's integers; −1 for a row that adds nothing.
        counted: mask of the rows that were added, bool; the others are not finite.
    """

    signs: NDArray[np.int64]
    squares: NDArray[np.float64]
    counted: Tensor


def _flat_rows(rows: Tensor) -> tuple[NDArray[np.floating], int]:
    """Return rows of shape (users, d) as a flat array, and the distance of two rows in it."""
    users, dimension = rows.shape
    if dimension == 0 or users == 0:
        return rows.new_zeros(0).numpy(), 0
    if rows.stride(1) != 1 or rows.stride(0) < dimension:
        rows = rows.contiguous()
    step = rows.stride(0)
    return rows.as_strided(((users - 1) * step + dimension,), (1,)).numpy(), step


def add_rows(
    rows: Tensor,
    origin: Tensor | None,
    clip_norm: float,
    bits: int,
    totals: Tensor,
    features: FeatureSum = _NO_FEATURES,
) -> AddedRows:
    """Clip each row − origin to ζ and add its integers in units of ζ·2⁻ᴮ, rounded towards zero.

    Args:
        rows: shape (users, d), any type; all but float64 are taken as float32.
        origin: shape (d,), or None for zero.
        clip_norm: ζ.
        bits: B ≤ 31.
        totals: int64, shape (1, d) for the sum of all rows, or (users, d) for a sum of each;
            changed.
        features: sum of second moments of the same integers; changed. It must be empty on a GPU.
    """
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    rows = rows.detach().to(totals.device, dtype)
    if origin is not None:
        origin = origin.detach().to(totals.device, dtype)
    dimension = rows.shape[1]
    scale = margin(dimension) * 2.0**bits
    limit = square_limit(dimension, bits)
    if totals.device.type != "cpu":
        signs, squares, counted = add_clipped_on_gpu(rows, origin, clip_norm, scale, limit, totals)
        return AddedRows(signs.cpu().numpy(), squares.cpu().numpy(), counted)
    signs = np.empty(len(rows), np.int64)
    squares = np.empty(len(rows))
    if origin is None:
        origin = rows.new_zeros(0)
    bounded_add.add_clipped(
        *_flat_rows(rows),
        origin.contiguous().numpy(),
        float(clip_norm),
        scale,
        limit,
        totals.numpy(),
        features.total.numpy(),
        features.shift,
        features.ends,
        signs,
        squares,
    )
    return AddedRows(signs, squares, torch.from_numpy(squares >= 0.0))


def clip_to_fixed_point(
    updates: Tensor, clip_norm: float, bits: int = FRACTION_BITS
) -> tuple[Tensor, Tensor]:
    """Clip each row to ℓ2 norm ζ and express it in units of ζ·2⁻ᴮ, rounding towards zero.

    Args:
        updates: shape (users, d), any floating type.
        clip_norm: ζ > 0.
        bits: B ≤ 31.

    Returns:
        Integers, shape (users, d), int64, and a Boolean mask (users,) of the rows that were finite.
        A row with NaN or infinity becomes zeros: such a user contributes nothing.

    Guarantees:
        In exact arithmetic every integer row has ℓ2 norm at most 2ᴮ, which stands for ζ. Integer
        sums are associative, so a total does not depend on the order or grouping of the rows.

    >>> updates = torch.tensor([[3.0, 4.0], [float("nan"), 1.0]])
    >>> rows, finite = clip_to_fixed_point(updates, clip_norm=1.0)
    >>> (rows[0].double() / 2**31).tolist(), rows[1].tolist(), finite.tolist()
    ([0.599..., 0.799...], [0, 0], [True, False])
    """
    check_clip_norm(clip_norm)
    integers = torch.zeros(updates.shape, dtype=torch.int64, device=updates.device)
    added = add_rows(updates, None, clip_norm, bits, integers)
    return integers, added.counted


def clip_factors(rows: NDArray[np.float64], clip_norm: float) -> NDArray[np.float64]:
    """Return the factors that clip rows of finite numbers to norm ζ: min(1, ζ/‖row‖).

    Args:
        rows: shape (rows, d).
        clip_norm: ζ.

    >>> clip_factors(np.array([[3.0, 4.0], [3e200, 4e200], [0.0, 1.0]]), 5e5).tolist()
    [1.0, 1e-195, 1.0]
    """
    factors = np.empty(len(rows))
    bounded_add.clip_factors(np.ascontiguousarray(rows), float(clip_norm), factors)
    return factors


def check_clip_norm(clip_norm: float) -> None:
    """Reject a clip norm with which sums would overflow, or ζ·2⁻³¹ would lose bits.

    At 3e-312 one user would change a sum by 1.8 ζ.

    Raises:
        ValueError: ζ is outside [2⁻⁹⁰⁰, 2⁹⁰⁰].
    """
    if not 2.0**-900 <= clip_norm <= 2.0**900:
        raise ValueError(f"ζ (clip norm) must lie in [2⁻⁹⁰⁰, 2⁹⁰⁰]; got {clip_norm}.")


class ClippedRows:
    """A block of clipped updates, one row for each user.

    Args:
        users: r, the number of rows; those that nothing is put into are zero vectors.
        dimension: d.
        clip_norm: ζ.
        device: of the rows.

    Guarantees:
        A row holds the bits that a `ClippedSum` of that update alone has as float32. It depends on
        no other row.

    >>> rows = ClippedRows(users=2, dimension=2, clip_norm=1.0)
    >>> rows.put([1], torch.tensor([[3.0, 4.0]])).tolist()
    [True]
    >>> rows.block.double().numpy().round(6).tolist()
    [[0.0, 0.0], [0.6, 0.8]]
    """

    def __init__(
        self, users: int, dimension: int, clip_norm: float, device: torch.device | str = "cpu"
    ) -> None:
        check_clip_norm(clip_norm)
        self.block = torch.zeros(users, dimension, dtype=torch.float32, device=device)
        self.clip_norm = clip_norm

    def put(self, places: Sequence[int], updates: Tensor, origin: Tensor | None = None) -> Tensor:
        """Clip updates and put them into the block; those that are not finite become zeros.

        Args:
            places: rows of the block, 0..r−1.
            updates: shape (len(places), d).
            origin: shape (d,), float32; if given, the updates are ``updates − origin``.

        Returns:
            The mask of updates that are finite.
        """
        finite = torch.zeros(len(places), dtype=torch.bool)
        unit = self.clip_norm * 2.0**-FRACTION_BITS
        for row, place in enumerate(places):
            integers = torch.zeros_like(self.block[:1], dtype=torch.int64)
            update = updates[row : row + 1]
            added = add_rows(update, origin, self.clip_norm, FRACTION_BITS, integers)
            finite[row] = added.counted[0]
            self.block[place] = integers[0].to(torch.float64) * unit
        return finite

    def like(self) -> Self:
        """Return this block, into which all workers of a process put their rows."""
        return self

    def merge(self, other: Self) -> None:
        """Do nothing, since both are the same block."""
