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
class Statistic(ABC):
    """One integer a user, a function of what `merge` notes of it: the same in every engine.

    A user with a zero update, or that fails in any way, adds 0.

    Attributes:
        name: of its sum among what a worker sends.
        most: the largest absolute value of one user's integer.
    """

    name: ClassVar[str]
    most: ClassVar[int]

    @abstractmethod
    def of(self, sign: int, norm: float) -> int:
        """That of one user, which no other user's can change: it is asked user by user.

        Args:
            sign: +1 within the clip norm, −1 above or at it.
            norm: of the clipped update, in units of the clip norm, at most 1.
        """

    def total(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> int:
        """The sum over users: each cut to ±`most`, 0 where the function fails or the sign is 0."""
        users = zip(signs.tolist(), norms.tolist(), strict=True)
        return sum(self._bounded(sign, norm) for sign, norm in users if sign)

    def _bounded(self, sign: int, norm: float) -> int:
        try:
            return max(-self.most, min(self.most, int(self.of(sign, norm))))
        except KeyboardInterrupt:  # which only the operator can have caused
            raise
        except BaseException:  # of that user's result alone; nobody else may notice
            return 0

    def check(self, total: int, users: int) -> None:
        """Refuse what no users add up to.

        Raises:
            ValueError: it is above ``users`` times `most`.
        """
        if not -users * self.most <= total <= users * self.most:
            raise ValueError(f"slice {self.name} must add up to at most {users * self.most}; got {total}.")


@dataclass(frozen=True)
class Signs(Statistic):
    """How many users are within the clip norm less how many are not."""

    name: ClassVar[str] = "signs"
    most: ClassVar[int] = 1

    def of(self, sign: int, norm: float) -> int:
        """See `Statistic.of`."""
        del norm
        return sign

    def total(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> int:
        """The same, of all users at once."""
        del norms
        return int(signs.sum())


SIGNS: Final = Signs()


class Told:
    """Running sums of statistics, one integer each.

    Args:
        statistics: what is summed.
        bits: B of the users' integers.
    """

    def __init__(self, statistics: Sequence[Statistic], bits: int) -> None:
        self._totals = dict.fromkeys(statistics, 0)
        self._bits = bits

    def note(self, signs: NDArray[np.int64], squares: NDArray[np.float64]) -> None:
        """Add the users that stayed.

        Args:
            signs: as `merge` notes them.
            squares: Σ n² of each user's integers.
        """
        norms = np.where(signs == 0, 0.0, np.minimum(np.sqrt(squares) * 2.0**-self._bits, 1.0))
        for statistic in self._totals:
            self._totals[statistic] += statistic.total(signs, norms)

    def total(self, statistic: Statistic) -> int:
        """The sum of one statistic."""
        return self._totals[statistic]

    def merge(self, other: Told) -> None:
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

    def read(self, parts: Mapping[str, Tensor], users: int) -> Told:
        """The sums that a worker sent of so many users.

        Raises:
            ValueError: a wrong shape or type, or more than so many users add up to.
        """
        told = Told(list(self._totals), self._bits)
        for statistic in told._totals:
            given = parts[statistic.name]
            if given.dtype != torch.int64 or given.shape != (1,):
                shape = tuple(given.shape)
                raise ValueError(
                    f"slice {statistic.name} must be int64 of shape (1,); got {given.dtype}, {shape}."
                )
            told._totals[statistic] = int(given)
            statistic.check(int(given), users)
        return told
