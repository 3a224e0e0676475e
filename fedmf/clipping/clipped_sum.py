"""Exact sums of clipped updates: the only input of a release in a run.

Engines and workers add updates to a `ClippedSum`; the server merges sums, and adds noise to the
integers (`fedmf.release.noisy_sum`). `SumSpec` describes a sum before it exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.bounded_add import FRACTION_BITS, add_integers
from fedmf.clipping.clipped_rows import add_rows, check_clip_norm
from fedmf.clipping.features import FeatureSum
from fedmf.clipping.memory import on_all_cores, parts_of, zero_vector
from fedmf.clipping.user_statistics import StatisticSums, UserScalar
from fedmf.matrices.second_moment import SecondMoment

#: 2³⁰ users of at most 2³¹ each stay inside an int64, with room for noise.
MAX_USERS: Final = 1 << 30
#: Most entries, and most users, that become integers and features at a time.
_AT_ONCE: Final = 1 << 22
_USERS_AT_ONCE: Final = 1 << 15
_NOTHING: Final[Mapping[str, NDArray[np.float64]]] = MappingProxyType({})


def _add(total: Tensor, added: Tensor, bits: int) -> float:
    """Add integers to a total in one pass on all cores, and return their norm in units of ζ."""
    unit = 2.0**-bits
    if total.device.type != "cpu":
        total += added
        return float(torch.linalg.vector_norm(added.to(torch.float64).mul_(unit)))
    target = total.numpy()
    source = added.contiguous().numpy()

    def add_part(part: slice) -> float:
        return add_integers(target[part], source[part], unit)

    squares = on_all_cores(add_part, parts_of(target.size))
    return math.sqrt(sum(squares))


class ClippedSum:
    """The sum of clipped updates in exact integer arithmetic, with statistics of the users.

    Args:
        dimension: d.
        clip_norm: ζ.
        device: of the total.
        second_moment: squares or block energies that are summed as well; None for none.
        statistics: scalars of each user that are summed as well.
        bits: B ≤ 31, which makes ζ·2⁻ᴮ the unit.
        feature_bits: F ≤ 2B, which makes ζ²·2⁻ᶠ the unit of features.

    Guarantees:
        Each user moves the total by at most ζ in ℓ2 norm, each statistic by at most its bound, and
        the features by those of the same integers, rounded towards zero to multiples of ζ²·2⁻ᶠ:
        every user of every engine enters by `add_bounded`, on a GPU by its twin. An update that
        fails in any way moves nothing, and neither does a reported number that is not finite. The
        sum does not depend on the order of users, and its memory is O(d) whatever their number.

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
        """Return the sum of a statistic."""
        return self._scalars.total(statistic)

    def like(self) -> Self:
        """Return an empty sum of the same kind, for a worker."""
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
    def add_updates(
        self,
        updates: Tensor,
        origin: Tensor | None = None,
        reported: Mapping[str, NDArray[np.float64]] = _NOTHING,
    ) -> Tensor:
        """Clip and add updates; those that are not finite add zero vectors, and count as users.

        Args:
            updates: one row for each user, shape (users, d).
            origin: shape (d,), float32; if given, rows are models and the updates are rows −
                origin.
            reported: numbers of the same users by name, shape (users,), for each `ReportedNumber`;
                they count whatever the update is.

        Returns:
            The mask of rows that are finite.

        Raises:
            ValueError: wrong shape, or more users than an int64 total can hold.
        """
        self._check_rows(updates, reported)
        self._check_room(len(updates))
        if self._features and self._total.device.type != "cpu":
            counted = self._add_apart(updates, origin)
        else:
            added = add_rows(
                updates, origin, self.clip_norm, self.bits, self._total[None], self._features
            )
            self._scalars.add_users(added.signs, added.squares, reported)
            counted = added.counted
        self.users += len(updates)
        return counted

    def _add_apart(self, updates: Tensor, origin: Tensor | None) -> Tensor:
        """Add updates and their features on a GPU, by integers of each user, which take memory."""
        counted = torch.zeros(len(updates), dtype=torch.bool, device=self._total.device)
        step = max(1, min(_AT_ONCE // max(1, self._total.numel()), _USERS_AT_ONCE))
        for begin in range(0, len(updates), step):
            part = slice(begin, begin + step)
            rows = updates[part]
            integers = self._total.new_zeros(rows.shape)
            added = add_rows(rows, origin, self.clip_norm, self.bits, integers)
            self._total += integers.sum(dim=0)
            self._features.add_rows(integers)
            self._scalars.add_users(added.signs, added.squares, _NOTHING)
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
        """Add the total of another sum, of ``users`` clipped updates.

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

    def _check_rows(self, updates: Tensor, reported: Mapping[str, NDArray[np.float64]]) -> None:
        if updates.ndim != 2 or updates.shape[1] != self._total.numel():
            raise ValueError(
                f"updates must have shape (users, {self._total.numel()}); got"
                f" {tuple(updates.shape)}. Send one flat row per user."
            )
        for name, numbers in reported.items():
            if numbers.shape != (len(updates),):
                raise ValueError(
                    f"reported {name} must be {len(updates)} numbers; got shape {numbers.shape}."
                )

    def merge(self, other: ClippedSum) -> None:
        """Add the sum of a worker of this process.

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
        """ζ, B and F, which make the units ζ·2⁻ᴮ of the sum and ζ²·2⁻ᶠ of its features."""
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
        """Arrays that a worker sends for a slice, int64, by name."""
        return {"sum": self._total, **self._features.parts, **self._scalars.parts}

    def add_parts(self, parts: Mapping[str, Tensor], users: int) -> None:
        """Add the `parts` of another sum of ``users`` clipped updates.

        Raises:
            ValueError: as `add_clipped_sum`; or features or statistics have a wrong shape or type,
                or values that no clipped updates of so many users have. Nothing was added.
        """
        scalars = self._scalars.read(parts, users)
        features = self._features.read(parts, users)
        self.add_clipped_sum(parts["sum"], users)
        self._features.total.add_(features)
        self._scalars.merge(scalars)

    def check_bounds(self) -> None:
        """Check the sum of a worker as a server does before it adds it.

        Raises:
            ValueError: as `add_parts`: no clipped updates of so many users add up to this.
        """
        self.like().add_parts(self.parts, self.users)

    @property
    def unit(self) -> float:
        """ζ·2⁻ᴮ, the unit of `fixed_point`."""
        return self.clip_norm * 2.0**-self.bits

    def total(self) -> Tensor:
        """Return Σ_u clip(x_u), float64, shape (d,)."""
        return self.part(slice(None))

    def part(self, part: slice) -> Tensor:
        """Return the entries of `total` in a range, in memory of their own."""
        integers = self._total[part]
        if integers.device.type != "cpu":
            return integers.to(torch.float64).mul_(self.unit)
        return torch.from_numpy(integers.numpy() * self.unit)

    @property
    def second_fixed_point(self) -> Tensor:
        """The exact sum of features in units of ζ²·2⁻ᶠ, int64, shape (m,)."""
        return self._features.total

    def second_total(self) -> Tensor:
        """Return Σ_u features(x_u), float64, shape (m,)."""
        return self._features.values(self.clip_norm)


@dataclass(frozen=True)
class SumSpec:
    """The description of a `ClippedSum`, which workers and server share.

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
        """ζ, B and F, as `ClippedSum.units`."""
        return self.clip_norm, self.bits, self.feature_bits

    def with_clip_norm(self, clip_norm: float | None) -> SumSpec:
        """Return the description with another ζ; None leaves it as it is."""
        if clip_norm is None or clip_norm == self.clip_norm:
            return self
        return replace(self, clip_norm=clip_norm)

    def in_units(self, bits: int, feature_bits: int) -> SumSpec:
        """Return the description with other units."""
        return replace(self, bits=bits, feature_bits=feature_bits)

    def empty(self, device: torch.device | str = "cpu") -> ClippedSum:
        """Return a sum of no updates."""
        return ClippedSum(
            self.dimension,
            self.clip_norm,
            device,
            self.second_moment,
            self.statistics,
            self.bits,
            self.feature_bits,
        )
