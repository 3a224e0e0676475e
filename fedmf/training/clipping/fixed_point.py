"""Clipping and exact summation of user updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.clipping.gpu import add_clipped_on_gpu
from fedmf.training.clipping.kernel import add_clipped, add_integers, scale_integers
from fedmf.training.clipping.memory import parts_of, zero_vector
from fedmf.training.workers import on_all_cores

__all__ = ["FRACTION_BITS", "MAX_USERS", "FixedPointSum", "clip", "clip_to_fixed_point"]

#: A clipped coordinate x is held as the integer trunc(x·2^FRACTION_BITS/ζ), so |integer| ≤ 2^40.
FRACTION_BITS = 40
#: 2^22 users of at most 2^40 each stay inside an int64.
MAX_USERS = 1 << 22


def clip_to_fixed_point(updates: Tensor, clip_norm: float) -> tuple[Tensor, Tensor]:
    """Clip each row to ℓ2 norm ζ and express it in units of ζ·2⁻⁴⁰, rounding towards zero.

    Args:
        updates: shape (users, d), any floating type.
        clip_norm: ζ > 0.

    Returns:
        Integers, shape (users, d), int64, and a boolean mask (users,) of the rows that were finite. A
        row holding NaN or infinity becomes zeros: such a user contributes nothing.

    Guarantees:
        In exact arithmetic every integer row has ℓ2 norm at most 2⁴⁰, which stands for ζ. Integer sums
        are associative, so a total does not depend on the order or grouping of the rows.

    >>> rows, finite = clip_to_fixed_point(torch.tensor([[3.0, 4.0], [float("nan"), 1.0]]), clip_norm=1.0)
    >>> (rows[0].double() / 2**40).tolist(), rows[1].tolist(), finite.tolist()
    ([0.599..., 0.799...], [0, 0], [True, False])
    """
    check_clip_norm(clip_norm)
    rows = updates.detach().to(torch.float64)
    finite = torch.isfinite(rows).all(dim=1)
    rows = torch.where(finite[:, None], rows, torch.zeros((), dtype=rows.dtype, device=rows.device))
    # Dividing by the largest entry first keeps the squares of huge or tiny entries in range.
    largest = rows.abs().amax(dim=1) if rows.shape[1] else rows.new_zeros(rows.shape[0])
    rows = rows / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
    shape_norm = torch.linalg.vector_norm(rows, dim=1)
    size = largest / clip_norm
    factor = torch.where(size * shape_norm > 1.0, 1.0 / shape_norm, size) * (
        _margin(rows.shape[1]) * 2.0**FRACTION_BITS
    )
    return (rows * factor[:, None]).trunc().to(torch.int64), finite


def _margin(dimension: int) -> float:
    """Scaling down by this makes "norm at most ζ" hold in exact arithmetic, not just up to rounding.

    A float64 norm of d entries, summed in any order, is wrong by at most about d·2⁻⁵⁴ of itself.
    """
    return 1.0 - (dimension + 64) * 2.0**-52


def clip(update: Tensor, clip_norm: float) -> Tensor:
    """One update of any shape (0-d included) clipped to ℓ2 norm ζ over all its entries, float64.

    A zero update stays zero; an update holding NaN or infinity becomes zero.

    >>> clip(torch.tensor(-5.0), clip_norm=2.0).item()
    -1.999...
    """
    rows, _ = clip_to_fixed_point(update.reshape(1, -1), clip_norm)
    return (rows.to(torch.float64) * (clip_norm * 2.0**-FRACTION_BITS)).reshape(update.shape)


def check_clip_norm(clip_norm: float) -> None:
    """Refuse a clip norm that is not positive and finite."""
    if not (math.isfinite(clip_norm) and clip_norm > 0):
        raise ValueError(f"ζ (clip norm) must be positive and finite; got {clip_norm}.")


def _add(total: Tensor, added: Tensor) -> float:
    """total += added in one pass on all cores; returns the norm of what was added, in units of ζ."""
    unit = 2.0**-FRACTION_BITS
    if total.device.type != "cpu":
        total += added
        return float(torch.linalg.vector_norm(added.to(torch.float64).mul_(unit)))
    into, values = total.numpy(), added.contiguous().numpy()
    squares = on_all_cores(lambda part: add_integers(into[part], values[part], unit), parts_of(into.size))
    return math.sqrt(sum(squares))


def _flat_rows(rows: Tensor) -> tuple[NDArray[np.float32], int]:
    """All of (users, d) as one array, and how far one row begins after the other."""
    users, dimension = rows.shape
    if dimension == 0 or users == 0:
        return np.zeros(0, np.float32), 0
    if rows.stride(1) != 1 or rows.stride(0) < dimension:
        rows = rows.contiguous()
    return rows.as_strided(((users - 1) * rows.stride(0) + dimension,), (1,)).numpy(), rows.stride(0)


class FixedPointSum:
    """The sum of clipped updates in exact integer arithmetic.

    Guarantees: order-independent, memory O(d) whatever the number of users, and each user moves the
    total by at most ζ in ℓ2 norm.

    Args:
        dimension: d.
        clip_norm: ζ.
        device: where the total lives.
    """

    def __init__(self, dimension: int, clip_norm: float, device: torch.device | str = "cpu") -> None:
        check_clip_norm(clip_norm)
        self.clip_norm = clip_norm
        self.users = 0
        self._signs: NDArray[np.int64] = np.zeros(1, np.int64)
        if torch.device(device).type == "cpu":
            self._total = zero_vector(dimension, torch.int64)
        else:
            self._total = torch.zeros(dimension, dtype=torch.int64, device=device)

    def like(self) -> FixedPointSum:
        """An empty sum of the same kind, for a worker."""
        return FixedPointSum(self._total.numel(), self.clip_norm, self._total.device)

    def add_updates(self, updates: Tensor, origin: Tensor | None = None) -> Tensor:
        """Clip and add rows of shape (users, d); returns the mask of rows that were finite.

        The others add zero vectors; all are counted.

        Args:
            updates: one row for each user.
            origin: shape (d,), float32; if given, rows are models and the updates are rows − origin.

        Raises:
            ValueError: wrong shape, or more users than an int64 total can hold.
        """
        self._check_rows(updates)
        self._check_room(len(updates))
        updates = updates.detach().to(self._total.device)
        if updates.dtype == torch.float64:
            shifted = updates if origin is None else updates - origin
            rows, finite = clip_to_fixed_point(shifted, self.clip_norm)
            self._total += rows.sum(dim=0)
            self._note_signs(shifted)
        else:
            finite = self._add_narrow(
                updates.to(torch.float32), None if origin is None else origin.detach().to(torch.float32)
            )
        self.users += len(updates)
        return finite

    def _add_narrow(self, updates: Tensor, origin: Tensor | None) -> Tensor:
        """The same with float32 rows and origin, checked; on every device with the same bits."""
        scale = _margin(self._total.numel()) * 2.0**FRACTION_BITS
        if self._total.device.type != "cpu":
            signs, finite = add_clipped_on_gpu(updates, origin, self.clip_norm, scale, self._total)
            self._signs[0] += int(signs.sum())
            return finite
        finite = torch.empty(len(updates), dtype=torch.bool)
        start = None if origin is None else origin.numpy()
        rows, step = _flat_rows(updates)
        total, mask = self._total.numpy(), finite.numpy()
        add_clipped(rows, step, start, self.clip_norm, scale, total, self._signs, mask)
        return finite

    def _note_signs(self, updates: Tensor) -> None:
        """Nothing here: only `CountedSum` tells what users' norms are."""

    def add_computed(
        self, users: int, compute: Callable[[float, float, NDArray[np.int64], NDArray[np.int64]], None]
    ) -> None:
        """Let a program add the integers of clipped updates itself; on a processor.

        Args:
            users: how many it counts.
            compute: given ζ, what a clipped row of norm ζ is scaled to, the total, shape (d,), to which
                each user's row of integers must be added whole or not at all, and the sum of signs, (1,).

        Raises:
            ValueError: more users than an int64 total can hold.
        """
        self._check_room(users)
        scale = _margin(self._total.numel()) * 2.0**FRACTION_BITS
        compute(self.clip_norm, scale, self._total.numpy(), self._signs)
        self.users += users

    def add_nothing(self, users: int) -> None:
        """Count users whose contribution is the zero vector.

        Raises:
            ValueError: more users than an int64 total can hold.
        """
        self._check_room(users)
        self.users += users

    def add_clipped_sum(self, total: Tensor, users: int) -> None:
        """Add a sum of ``users`` clipped updates that a worker made with another FixedPointSum.

        Raises:
            ValueError: wrong shape or type, or a norm above users·ζ, which no clipped sum can have.
        """
        if total.dtype != torch.int64 or total.shape != self._total.shape:
            raise ValueError(
                f"slice sum must be int64 of shape {tuple(self._total.shape)}; "
                f"got {total.dtype}, {tuple(total.shape)}."
            )
        self._check_room(users)
        total = total.to(self._total.device)
        norm = _add(self._total, total)
        if norm > users:
            self._total -= total  # int64 wraps: what it was, whatever was added
            raise ValueError(f"slice sum must have norm at most {users} clip norms; got {norm:.6g}.")
        self.users += users

    def _check_rows(self, updates: Tensor) -> None:
        if updates.ndim != 2 or updates.shape[1] != self._total.numel():
            raise ValueError(
                f"updates must have shape (users, {self._total.numel()}); got {tuple(updates.shape)}. "
                "Send one flat row per user."
            )

    def merge(self, other: FixedPointSum) -> None:
        """Add what a worker of this process has summed.

        Raises:
            ValueError: more users than an int64 total can hold.
        """
        self._check_room(other.users)
        _add(self._total, other.fixed_point)
        self.users += other.users

    def _check_room(self, users: int) -> None:
        if self.users + users > MAX_USERS:
            raise ValueError(
                f"m (cohort size) must be at most {MAX_USERS} users; the integer sum could overflow."
            )

    @property
    def fixed_point(self) -> Tensor:
        """The exact total in units of ζ·2⁻⁴⁰, int64, shape (d,)."""
        return self._total

    @property
    def lengths(self) -> dict[str, int]:
        """Names and lengths of the arrays that a worker sends for a slice."""
        return {"sum": self._total.numel()}

    @property
    def parts(self) -> dict[str, Tensor]:
        """Those arrays, int64."""
        return {"sum": self._total}

    def add_parts(self, parts: Mapping[str, Tensor], users: int) -> None:
        """Add the `parts` of another sum of ``users`` clipped updates.

        Raises:
            ValueError: as `add_clipped_sum`.
        """
        self.add_clipped_sum(parts["sum"], users)

    def total(self) -> Tensor:
        """Σ_u clip(x_u), float64, shape (d,)."""
        return self.part(slice(None))

    def part(self, part: slice) -> Tensor:
        """The entries of `total` in a range, in memory of their own."""
        unit, integers = self.clip_norm * 2.0**-FRACTION_BITS, self._total[part]
        if integers.device.type != "cpu":
            return integers.to(torch.float64).mul_(unit)
        entries = torch.empty(integers.shape, dtype=torch.float64)
        scale_integers(integers.numpy(), unit, entries.numpy())
        return entries
