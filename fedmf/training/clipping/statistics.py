"""What is told of each user beside its update: integers of a bound, or rows of a norm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.barrier import pass_interrupt


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
    size: ClassVar[int] = 1

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
        except BaseException as error:  # of that user's result alone; nobody else may notice
            pass_interrupt(error)
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


@dataclass(frozen=True)
class RowStatistic(ABC):
    """A row of numbers a user, a function of its clipped update; `merge` clips each to a norm of its own.

    A user whose update does not count, or whose row cannot be made or is not finite, adds zeros. Sums that
    need rows take users one by one, so that no compiled program trains them (`FixedPointSum.takes_programs`).

    Attributes:
        name: of its sum among what a worker sends.
        size: q, of a row.
        most: c, to which norm one user's row is clipped.
    """

    name: str
    size: int
    most: float

    @abstractmethod
    def of(self, update: Tensor) -> Tensor:
        """That of one user, shape (q,).

        Args:
            update: shape (d,), float64, clipped to ζ; a copy.
        """

    def bounded(self, update: Tensor) -> Tensor:
        """The same as `plain_row`; zeros where the function fails or gives anything else."""
        try:
            return plain_row(self.of(update), self.size)
        except BaseException as error:  # of that user's result alone; nobody else may notice
            pass_interrupt(error)
            return torch.zeros(self.size, dtype=torch.float64)


def plain_row(given: object, size: int) -> Tensor:
    """What a function gave as q float64 numbers in memory of their own.

    Args:
        given: a dense tensor of real numbers, an array of NumPy's or a list, of shape (q,).
        size: q.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if isinstance(given, Tensor) and (type(given), given.layout) != (Tensor, torch.strided):
        raise TypeError(f"row must be a dense torch.Tensor; got {type(given).__name__}, {given.layout}")
    row = torch.as_tensor(given)
    if row.shape != (size,):
        raise ValueError(f"row must have shape ({size},); got {tuple(row.shape)}")
    return torch.tensor(row.tolist(), dtype=torch.float64)
