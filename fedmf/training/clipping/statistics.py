"""What is told of each user beside its update, as a sum of small integers, each bounded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Statistic(ABC):
    """One integer a user, a function of what `merge` notes of it: the same in every engine.

    A user whose update is the zero vector, or that fails in any way, adds 0.

    Attributes:
        name: of its sum among what a worker sends.
        most: the largest absolute value of one user's integer.
    """

    name: ClassVar[str]
    most: ClassVar[int]

    @abstractmethod
    def of(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Those of users.

        Args:
            signs: +1 within the clip norm, −1 above or at it, 0 for an update that adds nothing; shape (u,).
            norms: of the clipped updates, in units of the clip norm, at most 1; 0 where the sign is 0.
        """

    def total(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> int:
        """Their sum, whatever the function gives: each is cut to ±`most`, and to 0 where the sign is 0."""
        told = np.clip(np.asarray(self.of(signs, norms), np.int64), -self.most, self.most)
        return int(told[signs != 0].sum())

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

    def of(self, signs: NDArray[np.int64], norms: NDArray[np.float64]) -> NDArray[np.int64]:
        """See `Statistic.of`."""
        del norms
        return signs


SIGNS: Final = Signs()
