"""Rows of a tensor through `add_bounded` or its twin on a GPU: into one sum, or into integers of
each row.
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
class Added:
    """What is known of rows that were added, in the order of the rows.

    Args:
        signs: +1 within the clip norm, −1 above or at it, 0 for zeros and for a row that adds
            nothing.
        squares: Σ n² of the row's integers; −1 for one that adds nothing.
        counted: which rows were added, bool; the others are not finite.
    """

    signs: NDArray[np.int64]
    squares: NDArray[np.float64]
    counted: Tensor


def _flat_rows(rows: Tensor) -> tuple[NDArray[np.floating], int]:
    """All of (users, d) as one array, and how far one row begins after the other."""
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
) -> Added:
    """Clip each row − origin to ζ and add its integers in units of ζ·2⁻ᴮ, rounded towards zero.

    Args:
        rows: shape (users, d), any type; all but float64 are taken as float32.
        origin: shape (d,), or None for zero.
        clip_norm: ζ.
        bits: B ≤ 31.
        totals: int64; of shape (1, d) for the sum of all rows, or (users, d) for one of each.
            Changed.
        features: to which second moments of the same integers are added; on a GPU there must be
            none.
    """
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    rows = rows.detach().to(totals.device, dtype)
    start = None if origin is None else origin.detach().to(totals.device, dtype)
    dimension = rows.shape[1]
    scale = margin(dimension) * 2.0**bits
    limit = square_limit(dimension, bits)
    if totals.device.type != "cpu":
        signs, squares, counted = add_clipped_on_gpu(rows, start, clip_norm, scale, limit, totals)
        return Added(signs.cpu().numpy(), squares.cpu().numpy(), counted)
    signs = np.empty(len(rows), np.int64)
    squares = np.empty(len(rows))
    begin = rows.new_zeros(0) if start is None else start.contiguous()
    bounded_add.add_clipped(
        *_flat_rows(rows),
        begin.numpy(),
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
    return Added(signs, squares, torch.from_numpy(squares >= 0.0))


def clip_to_fixed_point(
    updates: Tensor, clip_norm: float, bits: int = FRACTION_BITS
) -> tuple[Tensor, Tensor]:
    """Clip each row to ℓ2 norm ζ and express it in units of ζ·2⁻ᴮ, rounding towards zero.

    Args:
        updates: shape (users, d), any floating type.
        clip_norm: ζ > 0.
        bits: B ≤ 31.

    Returns:
        Integers, shape (users, d), int64, and a boolean mask (users,) of the rows that were finite.
        A
        row holding NaN or infinity becomes zeros: such a user contributes nothing.

    Guarantees:
        In exact arithmetic every integer row has ℓ2 norm at most 2ᴮ, which stands for ζ. Integer
        sums are associative, so a total does not depend on the order or grouping of the rows.

    >>> rows, finite = clip_to_fixed_point(torch.tensor([[3.0, 4.0], [float("nan"), 1.0]]), clip_norm=1.0)
    >>> (rows[0].double() / 2**31).tolist(), rows[1].tolist(), finite.tolist()
    ([0.599..., 0.799...], [0, 0], [True, False])
    """
    check_clip_norm(clip_norm)
    integers = torch.zeros(updates.shape, dtype=torch.int64, device=updates.device)
    added = add_rows(updates, None, clip_norm, bits, integers)
    return integers, added.counted


def clip_factors(rows: NDArray[np.float64], clip_norm: float) -> NDArray[np.float64]:
    """Return what scales each row of finite numbers to norm ζ at most: min(1, ζ/‖row‖).

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
    """Refuse a clip norm with which sums would overflow, or with which ζ·2⁻³¹ has no bits left: at
    3e-312 one user would change a sum by 1.8 ζ.
    """
    if not 2.0**-900 <= clip_norm <= 2.0**900:
        raise ValueError(f"ζ (clip norm) must lie in [2⁻⁹⁰⁰, 2⁹⁰⁰]; got {clip_norm}.")


class ClippedRows:
    """A block of clipped updates, one row a user.

    Guarantees: a row holds the bits that a `ClippedSum` of that update alone has as float32. It
    depends on no other row.

    Args:
        users: r, how many rows; those that nothing is put into are zero vectors.
        dimension: d.
        clip_norm: ζ.
        device: where the rows live.

    >>> rows = ClippedRows(users=2, dimension=2, clip_norm=1.0)
    >>> rows.put([1], torch.tensor([[3.0, 4.0]])).tolist(), rows.block.double().numpy().round(6).tolist()
    ([True], [[0.0, 0.0], [0.6, 0.8]])
    """

    def __init__(
        self, users: int, dimension: int, clip_norm: float, device: torch.device | str = "cpu"
    ) -> None:
        check_clip_norm(clip_norm)
        self.block = torch.zeros(users, dimension, dtype=torch.float32, device=device)
        self.clip_norm = clip_norm

    def put(self, places: Sequence[int], updates: Tensor, origin: Tensor | None = None) -> Tensor:
        """Clip updates and keep them; returns the mask of those that were finite. The others are
        zeros.

        Args:
            places: of their users, 0..r−1.
            updates: shape (len(places), d).
            origin: shape (d,), float32; if given, the updates are ``updates − origin``.
        """
        finite = torch.zeros(len(places), dtype=torch.bool)
        unit = self.clip_norm * 2.0**-FRACTION_BITS
        for row, place in enumerate(places):
            integers = torch.zeros_like(self.block[:1], dtype=torch.int64)
            added = add_rows(
                updates[row : row + 1], origin, self.clip_norm, FRACTION_BITS, integers
            )
            finite[row] = added.counted[0]
            self.block[place] = integers[0].to(torch.float64) * unit
        return finite

    def like(self) -> Self:
        """For a worker of this process: rows of several workers are put into one block."""
        return self

    def merge(self, other: Self) -> None:
        """Nothing to do: it is the same block."""
