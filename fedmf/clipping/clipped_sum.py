"""Exact summation of clipped user updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self, final

import torch
from torch import Tensor

from fedmf.clipping.bounded_add import FRACTION_BITS, add_integers
from fedmf.clipping.clipped_rows import add_rows, check_clip_norm
from fedmf.clipping.features import FeatureSum
from fedmf.clipping.memory import on_all_cores, parts_of, zero_vector
from fedmf.clipping.user_statistics import StatisticSums, UserScalar
from fedmf.matrices.second_moment import SecondMoment

#: 2³⁰ users of at most 2³¹ each stay inside an int64, with room for noise.
MAX_USERS: Final = 1 << 30
#: Entries that become integers and features at a time, and users at most.
_AT_ONCE: Final = 1 << 22
_USERS_AT_ONCE: Final = 1 << 15


def _add(total: Tensor, added: Tensor, bits: int) -> float:
    """total += added in one pass on all cores; returns the norm of what was added, in units of
    ζ.
    """
    unit = 2.0**-bits
    if total.device.type != "cpu":
        total += added
        return float(torch.linalg.vector_norm(added.to(torch.float64).mul_(unit)))
    into = total.numpy()
    values = added.contiguous().numpy()
    squares = on_all_cores(
        lambda part: add_integers(into[part], values[part], unit), parts_of(into.size)
    )
    return math.sqrt(sum(squares))


class ClippedSum:
    """The sum of clipped updates in exact integer arithmetic, and statistics of each user.

    Guarantees: order-independent, memory O(d) whatever the number of users, and each user moves the
    total by at most ζ in ℓ2 norm, each statistic by at most its bound, and the features by those of
    the same integers, rounded towards zero to multiples of ζ²·2⁻ᶠ: every user of every engine
    enters through `add_bounded`, on a GPU through its twin. One that fails in any way moves
    nothing.

    Args:
        dimension: d.
        clip_norm: ζ.
        device: where the total lives.
        second_moment: squares or block energies that are summed as well; None for none.
        statistics: of each user.
        bits: B ≤ 31, which makes ζ·2⁻ᴮ the unit.
        feature_bits: F ≤ 2B, of the unit of features.

    >>> from fedmf.matrices.second_moment import DiagonalMoment
    >>> pair = ClippedSum(2, 1.0, second_moment=DiagonalMoment(2))
    >>> _ = pair.add_updates(torch.tensor([[3.0, -4.0], [0.5, 0.0]]))
    >>> pair.second_total().numpy().round(8).tolist()
    [0.61, 0.64]
    """

    def __init__(
        self,
        dimension: int,
        clip_norm: float,
        device: torch.device | str = "cpu",
        second_moment: SecondMoment | None = None,
        statistics: Sequence[UserScalar] = (),
        bits: int = FRACTION_BITS,
        feature_bits: int = FRACTION_BITS,
    ) -> None:
        check_clip_norm(clip_norm)
        if not 1 <= bits <= FRACTION_BITS or not 1 <= feature_bits <= 2 * bits:
            raise ValueError(
                f"bits (of the units) must lie in 1..{FRACTION_BITS} and 1..2*bits; got {bits} "
                f"and {feature_bits}."
            )
        self.clip_norm = clip_norm
        self.statistics = tuple(statistics)
        self.bits = bits
        self.feature_bits = feature_bits
        self.second_moment = second_moment
        self.users = 0
        self._scalars = StatisticSums(self.statistics, bits)
        device = torch.device(device)
        self._features = FeatureSum(second_moment, device, bits, feature_bits)
        self._total = zero_vector(dimension, torch.int64, device)

    def scalar(self, statistic: UserScalar) -> int:
        """The sum of a statistic."""
        return self._scalars.total(statistic)

    def like(self) -> Self:
        """An empty sum of the same kind, for a worker."""
        return type(self)(
            self._total.numel(),
            self.clip_norm,
            self._total.device,
            self.second_moment,
            self.statistics,
            self.bits,
            self.feature_bits,
        )

    @final
    def add_updates(self, updates: Tensor, origin: Tensor | None = None) -> Tensor:
        """Clip and add rows of shape (users, d); returns the mask of rows that count.

        The others, which are not finite, add zero vectors; all are counted as users.

        Args:
            updates: one row for each user.
            origin: shape (d,), float32; if given, rows are models and the updates are rows −
                origin.

        Raises:
            ValueError: wrong shape, or more users than an int64 total can hold.
        """
        self._check_rows(updates)
        self._check_room(len(updates))
        if self._features and self._total.device.type != "cpu":
            counted = self._add_apart(updates, origin)
        else:
            added = add_rows(
                updates, origin, self.clip_norm, self.bits, self._total[None], self._features
            )
            self._scalars.note(added.signs, added.squares)
            counted = added.counted
        self.users += len(updates)
        return counted

    def _add_apart(self, updates: Tensor, origin: Tensor | None) -> Tensor:
        """The same with features on a GPU: from integers of each user, which take memory."""
        counted = torch.zeros(len(updates), dtype=torch.bool, device=self._total.device)
        step = max(1, min(_AT_ONCE // max(1, self._total.numel()), _USERS_AT_ONCE))
        for begin in range(0, len(updates), step):
            part = slice(begin, begin + step)
            rows = updates[part]
            integers = self._total.new_zeros(rows.shape)
            added = add_rows(rows, origin, self.clip_norm, self.bits, integers)
            self._total += integers.sum(dim=0)
            self._features.add_rows(integers)
            self._scalars.note(added.signs, added.squares)
            counted[part] = added.counted
        return counted

    def add_nothing(self, users: int) -> None:
        """Count users that contribute the zero vector.

        Raises:
            ValueError: more users than an int64 total can hold.
        """
        self._check_room(users)
        self.users += users

    def add_clipped_sum(self, total: Tensor, users: int) -> None:
        """Add a sum of ``users`` clipped updates that a worker made with another ClippedSum.

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
        norm = _add(self._total, total, self.bits)
        if norm > users:
            self._total -= total  # int64 wraps: what it was, whatever was added
            raise ValueError(
                f"slice sum must have norm at most {users} clip norms; got {norm:.6g}."
            )
        self.users += users

    def _check_rows(self, updates: Tensor) -> None:
        if updates.ndim != 2 or updates.shape[1] != self._total.numel():
            raise ValueError(
                f"updates must have shape (users, {self._total.numel()}); got"
                f" {tuple(updates.shape)}. Send one flat row per user."
            )

    def merge(self, other: ClippedSum) -> None:
        """Add what a worker of this process has summed.

        Raises:
            TypeError: the other is of another kind.
            ValueError: more users than an int64 total can hold.
        """
        if (other.lengths, other.units) != (self.lengths, self.units):
            raise TypeError(
                f"other (sum) must hold {list(self.lengths)} in units {self.units}; got "
                f"{list(other.lengths)} in units {other.units}."
            )
        self._check_room(other.users)
        _add(self._total, other.fixed_point, self.bits)
        self._features.total.add_(other._features.total)
        self._scalars.merge(other._scalars)
        self.users += other.users

    @property
    def units(self) -> tuple[float, int, int]:
        """ζ, B and F: what an integer of the sum and of its features stands for."""
        return self.clip_norm, self.bits, self.feature_bits

    def _check_room(self, users: int) -> None:
        if self.users + users > MAX_USERS:
            raise ValueError(
                f"m (cohort size) must be at most {MAX_USERS} users; the integer sum could"
                " overflow."
            )

    @property
    def fixed_point(self) -> Tensor:
        """The exact total in units of ζ·2⁻ᴮ, int64, shape (d,)."""
        return self._total

    @property
    def lengths(self) -> dict[str, int]:
        """Names and lengths of the arrays that a worker sends for a slice."""
        return {name: part.numel() for name, part in self.parts.items()}

    @property
    def parts(self) -> dict[str, Tensor]:
        """Those arrays, int64."""
        return {"sum": self._total, **self._features.parts, **self._scalars.parts}

    def add_parts(self, parts: Mapping[str, Tensor], users: int) -> None:
        """Add the `parts` of another sum of ``users`` clipped updates.

        Raises:
            ValueError: as `add_clipped_sum`; features or statistics of a wrong shape or type, or
                with values that no clipped updates of so many users have. Nothing was added.
        """
        scalars = self._scalars.read(parts, users)
        features = self._features.read(parts, users)
        self.add_clipped_sum(parts["sum"], users)
        self._features.total.add_(features)
        self._scalars.merge(scalars)

    def check_bounds(self) -> None:
        """What a server checks of a worker's sum before it adds it.

        Raises:
            ValueError: as `add_parts`: no clipped updates of so many users add up to this.
        """
        self.like().add_parts(self.parts, self.users)

    @property
    def unit(self) -> float:
        """ζ·2⁻ᴮ, what one of `fixed_point` stands for."""
        return self.clip_norm * 2.0**-self.bits

    def total(self) -> Tensor:
        """Σ_u clip(x_u), float64, shape (d,)."""
        return self.part(slice(None))

    def part(self, part: slice) -> Tensor:
        """The entries of `total` in a range, in memory of their own."""
        integers = self._total[part]
        if integers.device.type != "cpu":
            return integers.to(torch.float64).mul_(self.unit)
        return torch.from_numpy(integers.numpy() * self.unit)

    @property
    def second_fixed_point(self) -> Tensor:
        """The exact sum of features in units of ζ²·2⁻ᶠ, int64, shape (m,)."""
        return self._features.total

    def second_total(self) -> Tensor:
        """Σ_u features(x_u), float64, shape (m,)."""
        return self._features.values(self.clip_norm)


@dataclass(frozen=True)
class SumSpec:
    """What workers and server do with users' updates before any noise: clip each to ζ and add them
    up.

    Args:
        dimension: d.
        clip_norm: ζ.
        second_moment: defines the features that are summed with the updates; None for the updates
            alone.
        statistics: scalars of each user that are summed as well.
        bits: B, which makes ζ·2⁻ᴮ the unit.
        feature_bits: F, of the unit of features.

    Raises:
        ValueError: both a second moment and statistics.
    """

    dimension: int
    clip_norm: float
    second_moment: SecondMoment | None = None
    statistics: tuple[UserScalar, ...] = ()
    bits: int = FRACTION_BITS
    feature_bits: int = FRACTION_BITS

    def __post_init__(self) -> None:
        if self.statistics and self.second_moment is not None:
            raise ValueError(
                "statistics must be none with a second moment: no theorem covers the three."
            )

    @property
    def units(self) -> tuple[float, int, int]:
        """ζ, B and F, as of the sums."""
        return self.clip_norm, self.bits, self.feature_bits

    def with_clip_norm(self, clip_norm: float | None) -> SumSpec:
        """The same with another ζ; None leaves it."""
        return self if clip_norm in (None, self.clip_norm) else replace(self, clip_norm=clip_norm)

    def in_units(self, bits: int, feature_bits: int) -> SumSpec:
        """The same with other units."""
        return replace(self, bits=bits, feature_bits=feature_bits)

    def empty(self, device: torch.device | str = "cpu") -> ClippedSum:
        """A sum of no updates."""
        return ClippedSum(
            self.dimension,
            self.clip_norm,
            device,
            self.second_moment,
            self.statistics,
            self.bits,
            self.feature_bits,
        )
