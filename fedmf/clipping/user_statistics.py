"""Statistics of the users of a sum in addition to their updates: one bounded integer each.

They are released next to the model under the same ε, as adaptive clip norms and the metrics that
clients report need. `ClippedSum` has `StatisticSums` next to its total.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class UserScalar(ABC):
    """One integer for each user.

    Args:
        name: name of the sum among the arrays that a worker sends.
        bound: the largest absolute value of one user's integer.
    """

    name: str
    bound: int

    def check(self, total: int, users: int) -> None:
        """Reject a total that so many users cannot have.

        Raises:
            ValueError: it is above ``users`` times `bound`.
        """
        if not -users * self.bound <= total <= users * self.bound:
            raise ValueError(
                f"slice {self.name} must add up to at most {users * self.bound}; got {total}."
            )


class UpdateScalar(UserScalar):
    """A function of the sign and norm of a user's clipped update.

    It is the same in every engine. A user with a zero update, or that fails in any way, adds 0.
    """

    @abstractmethod
    def of(self, sign: int, norm: float) -> int:
        """Return the integer of one user, which depends on no other user.

        Args:
            sign: +1 within the clip norm, −1 above or at it.
            norm: norm of the clipped update, in units of the clip norm, at most 1.
        """

    def total(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> int:
        """Return the sum over users; a user whose integer fails, or with a sign of 0, adds 0."""
        total = 0
        for sign, norm in zip(signs.tolist(), norms.tolist(), strict=True):
            if sign != 0:
                total += self._bounded(sign, norm)
        return total

    def _bounded(self, sign: int, norm: float) -> int:
        """Return the integer of one user, cut to ±`bound`; 0 if it fails."""
        try:
            return max(-self.bound, min(self.bound, int(self.of(sign, norm))))
        except KeyboardInterrupt:  # which only the operator can have caused
            raise
        except BaseException:  # it concerns this user alone, and no other user may notice
            return 0


@dataclass(frozen=True)
class Signs(UpdateScalar):
    """The number of users within the clip norm less the number of the others."""

    name: str = "signs"
    bound: int = 1

    def of(self, sign: int, norm: float) -> int:
        """Return the sign."""
        del norm
        return sign

    def total(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> int:
        """Return the sum of the signs."""
        del norms
        return int(signs.sum())


SIGNS: Final = Signs()


@dataclass(frozen=True)
class ReportedNumber(UserScalar):
    """A number that each user reports: cut to ±`limit`, and rounded to a multiple of limit/bound.

    Args:
        limit: the largest absolute value of a number that counts in full.
    """

    limit: float

    def total(self, numbers: NDArray[np.float64]) -> int:
        """Return the sum over users; a number that is not finite adds 0.

        Every operation takes one entry at a time, so that a user's number affects its integer only,
        and |x/limit| ≤ 1 also after rounding.
        """
        finite = np.where(np.isfinite(numbers), numbers, 0.0)
        shares = np.clip(finite, -self.limit, self.limit) / self.limit
        return int(np.rint(shares * self.bound).astype(np.int64).sum())


def reported_names(statistics: Sequence[UserScalar]) -> list[str]:
    """Return the names of the numbers that users report."""
    return [each.name for each in statistics if isinstance(each, ReportedNumber)]


class StatisticSums:
    """Running sums of statistics, one integer each.

    Args:
        statistics: the statistics that are summed.
        bits: B of the users' integers.
    """

    def __init__(self, statistics: Sequence[UserScalar], bits: int) -> None:
        self._totals = dict.fromkeys(statistics, 0)
        self._bits = bits

    def add_users(
        self,
        signs: NDArray[np.int64],
        squares: NDArray[np.float64],
        reported: Mapping[str, NDArray[np.float64]],
    ) -> None:
        """Add the statistics of users.

        Args:
            signs: as `add_clipped` sets them; 0 for a user that adds nothing.
            squares: Σ n² of each user's integers, or −1.
            reported: one number of each of these users, by name; a missing name adds 0, and one
                without a statistic is ignored.
        """
        norms = np.minimum(np.sqrt(np.maximum(squares, 0.0)) * 2.0**-self._bits, 1.0)
        for statistic in self._totals:
            if isinstance(statistic, UpdateScalar):
                self._totals[statistic] += statistic.total(signs, norms)
            elif isinstance(statistic, ReportedNumber) and statistic.name in reported:
                self._totals[statistic] += statistic.total(reported[statistic.name])

    def total(self, statistic: UserScalar) -> int:
        """Return the sum of one statistic."""
        return self._totals[statistic]

    def merge(self, other: StatisticSums) -> None:
        """Add the sums of another with the same statistics."""
        for statistic, total in other._totals.items():
            self._totals[statistic] += total

    @property
    def parts(self) -> dict[str, Tensor]:
        """The sums by name, int64, as workers send them."""
        sums = dict[str, Tensor]()
        for statistic, total in self._totals.items():
            sums[statistic.name] = torch.tensor([total], dtype=torch.int64)
        return sums

    def read(self, parts: Mapping[str, Tensor], users: int) -> StatisticSums:
        """Check and return the sums that a worker sent for so many users.

        Raises:
            ValueError: a sum has a wrong shape or type, or is more than so many users add up to.
        """
        sums = StatisticSums(list(self._totals), self._bits)
        for statistic in sums._totals:
            given = parts[statistic.name]
            if given.dtype != torch.int64 or given.shape != (1,):
                shape = tuple(given.shape)
                raise ValueError(
                    f"slice {statistic.name} must be int64 of shape (1,); got {given.dtype},"
                    f" {shape}."
                )
            sums._totals[statistic] = int(given)
            statistic.check(int(given), users)
        return sums
