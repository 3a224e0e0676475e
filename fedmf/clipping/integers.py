"""Clipped updates as rows of integers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedmf.clipping.merge import FRACTION_BITS, WIDEST, margin, square_limit
from fedmf.clipping.rows import clip_rows


def clip_to_fixed_point(
    updates: Tensor, clip_norm: float, bits: int = FRACTION_BITS
) -> tuple[Tensor, Tensor]:
    """Clip each row to ℓ2 norm ζ and express it in units of ζ·2⁻ᴮ, rounding towards zero.

    Args:
        updates: shape (users, d), any floating type.
        clip_norm: ζ > 0.
        bits: B ≤ 31.

    Returns:
        Integers, shape (users, d), int64, and a boolean mask (users,) of the rows that were finite. A
        row holding NaN or infinity becomes zeros: such a user contributes nothing.

    Guarantees:
        In exact arithmetic every integer row has ℓ2 norm at most 2ᴮ, which stands for ζ. Integer sums
        are associative, so a total does not depend on the order or grouping of the rows.

    >>> rows, finite = clip_to_fixed_point(torch.tensor([[3.0, 4.0], [float("nan"), 1.0]]), clip_norm=1.0)
    >>> (rows[0].double() / 2**31).tolist(), rows[1].tolist(), finite.tolist()
    ([0.599..., 0.799...], [0, 0], [True, False])
    """
    check_clip_norm(clip_norm)
    integers, _, counted = clipped_integers(updates, clip_norm, bits)
    return integers, counted


def clipped_integers(updates: Tensor, clip_norm: float, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the integers of `clip_to_fixed_point`, norms of the rows in units of ζ, and which rows count."""
    if updates.device.type != "cpu":
        rows, norms, finite = _scaled(updates, clip_norm, bits)
        integers, bounded = bounded_integers(rows, bits)
        return integers, norms, finite & bounded
    rows = updates.detach().to(torch.float64).contiguous()
    count, dimension = rows.shape
    integers = torch.empty(count, dimension, dtype=torch.int64)
    norms = torch.empty(count, dtype=torch.float64)
    counted = torch.empty(count, dtype=torch.bool)
    scale = margin(dimension) * 2.0**bits
    limit = square_limit(dimension, bits)
    sums = integers.numpy(), norms.numpy(), counted.numpy()
    clip_rows(rows.numpy(), float(clip_norm), scale, limit, *sums)
    return integers, norms, counted


def _scaled(updates: Tensor, clip_norm: float, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Clipped rows in units of ζ·2⁻ᴮ, float64, not yet cut; their norms in units of ζ; which were finite."""
    rows = updates.detach().to(torch.float64)
    finite = torch.isfinite(rows).all(dim=1)
    rows = torch.where(finite[:, None], rows, torch.zeros((), dtype=rows.dtype, device=rows.device))
    # Dividing by the largest entry first keeps the squares of huge or tiny entries in range.
    largest = rows.abs().amax(dim=1) if rows.shape[1] else rows.new_zeros(rows.shape[0])
    rows = rows / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
    shape_norm = torch.linalg.vector_norm(rows, dim=1)
    size = largest / clip_norm
    factor = torch.where(size * shape_norm > 1.0, 1.0 / shape_norm, size) * (
        margin(rows.shape[1]) * 2.0**bits
    )
    return rows.mul_(factor[:, None]), size * shape_norm, finite


def bounded_integers(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """`merge` in torch, for a GPU: integers, and which rows are within the bound; others are zeros.

    Torch sums squares in an order of its own, with fewer roundings than there are entries: see `merge`.
    """
    inside = rows.abs() <= WIDEST
    whole = torch.where(inside, rows, 0.0).trunc_()
    square = torch.where(inside, whole, math.inf).square_().sum(dim=1)
    bounded = square <= square_limit(rows.shape[1], bits)
    return torch.where(bounded[:, None], whole, 0.0).to(torch.int64), bounded


def clip(update: Tensor, clip_norm: float) -> Tensor:
    """One update of any shape (0-d included) clipped to ℓ2 norm ζ over all its entries, float64.

    A zero update stays zero; an update holding NaN or infinity becomes zero.

    >>> clip(torch.tensor(-5.0), clip_norm=2.0).item()
    -1.999...
    """
    rows, _ = clip_to_fixed_point(update.reshape(1, -1), clip_norm)
    return (rows.to(torch.float64) * (clip_norm * 2.0**-FRACTION_BITS)).reshape(update.shape)


def check_clip_norm(clip_norm: float) -> None:
    """Refuse a clip norm with which sums would overflow, or with which ζ·2⁻³¹ has no bits left: at 3e-312
    one user would change a sum by 1.8 ζ."""
    if not 2.0**-900 <= clip_norm <= 2.0**900:
        raise ValueError(f"ζ (clip norm) must lie in [2⁻⁹⁰⁰, 2⁹⁰⁰]; got {clip_norm}.")
