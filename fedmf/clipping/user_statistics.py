"""Statistics of each user in addition to its update: bounded integers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class UserScalar(ABC):
    """One integer a user, a function of what `add_bounded` returns of it: the same in every engine.

    A user with a zero update, or that fails in any way, adds 0.

    Attributes:
        name: of its sum among what a worker sends.
        bound: the largest absolute value of one user's integer.
    """

    name: ClassVar[str]
    bound: ClassVar[int]

    @abstractmethod
    def of(self, sign: int, norm: float) -> int:
        """That of one user, which no other user's can change: it is asked user by user.

        Args:
            sign: +1 within the clip norm, −1 above or at it.
            norm: of the clipped update, in units of the clip norm, at most 1.
        """

    def total(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> int:
        """The sum over users: each cut to ±`bound`, 0 where the function fails or the sign is 0."""
        users = zip(signs.tolist(), norms.tolist(), strict=True)
        return sum(self._bounded(sign, norm) for sign, norm in users if sign)

    def _bounded(self, sign: int, norm: float) -> int:
        try:
            return max(-self.bound, min(self.bound, int(self.of(sign, norm))))
        except KeyboardInterrupt:  # which only the operator can have caused
            raise
        except BaseException:  # of that user's result alone; nobody else may notice
            return 0

    def check(self, total: int, users: int) -> None:
        """Refuse what no users add up to.

        Raises:
            ValueError: it is above ``users`` times `bound`.
        """
        if not -users * self.bound <= total <= users * self.bound:
            raise ValueError(
                f"slice {self.name} must add up to at most {users * self.bound}; got {total}."
            )


@dataclass(frozen=True)
class Signs(UserScalar):
    """How many users are within the clip norm less how many are not."""

    name: ClassVar[str] = "signs"
    bound: ClassVar[int] = 1

    def of(self, sign: int, norm: float) -> int:
        """See `UserScalar.of`."""
        del norm
        return sign

    def total(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> int:
        """The same, of all users at once."""
        del norms
        return int(signs.sum())


SIGNS: Final = Signs()


class StatisticSums:
    """Running sums of statistics, one integer each.

    Args:
        statistics: what is summed.
        bits: B of the users' integers.
    """

    def __init__(self, statistics: Sequence[UserScalar], bits: int) -> None:
        self._totals = dict.fromkeys(statistics, 0)
        self._bits = bits

    def note(self, signs: NDArray[np.int64], squares: NDArray[np.float64]) -> None:
        """Add the users that were added; the others have a sign of 0.

        Args:
            signs: as `add_clipped` sets them.
            squares: Σ n² of each user's integers, or −1.
        """
        norms = np.minimum(np.sqrt(np.maximum(squares, 0.0)) * 2.0**-self._bits, 1.0)
        for statistic in self._totals:
            self._totals[statistic] += statistic.total(signs, norms)

    def total(self, statistic: UserScalar) -> int:
        """The sum of one statistic."""
        return self._totals[statistic]

    def merge(self, other: StatisticSums) -> None:
        """Add the sums of another with the same statistics."""
        for statistic, total in other._totals.items():
            self._totals[statistic] += total

    @property
    def parts(self) -> dict[str, Tensor]:
        """The sums by name, int64, as workers send them."""
        return {
            statistic.name: torch.tensor([total], dtype=torch.int64)
            for statistic, total in self._totals.items()
        }

    def read(self, parts: Mapping[str, Tensor], users: int) -> StatisticSums:
        """The sums that a worker sent of so many users.

        Raises:
            ValueError: a wrong shape or type, or more than so many users add up to.
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
