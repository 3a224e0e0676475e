"""Statistics of each user in addition to its update: bounded integers, or rows of bounded norm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.barrier import pass_interrupt, silent
from fedmf.training.clipping.merge import FRACTION_BITS

if TYPE_CHECKING:
    from fedmf.training.clipping.fixed_point import FixedPointSum


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

    A user without a valid update, or with a row that cannot be made or is not finite, adds zeros.

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
            with silent():
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


class Told:
    """Sums of statistics, one each: numbers as integers, rows clipped through the same `merge` as updates.

    Args:
        numbers: those that are functions of a user's sign and norm.
        rows: those that are functions of its clipped update, each with what sums it.
    """

    def __init__(self, numbers: Sequence[Statistic], rows: Mapping[RowStatistic, FixedPointSum]) -> None:
        self._numbers = dict.fromkeys(numbers, 0)
        self._rows = dict(rows)

    @property
    def wants_rows(self) -> bool:
        """Whether `note_row` must be told of every user that counts."""
        return bool(self._rows)

    def like(self) -> Told:
        """Empty sums of the same statistics."""
        return Told(list(self._numbers), {statistic: rows.like() for statistic, rows in self._rows.items()})

    def note(self, signs: NDArray[np.int64], squares: NDArray[np.float64]) -> None:
        """Add the numbers of users that stayed.

        Args:
            signs: as `merge` notes them.
            squares: Σ n² of each user's integers.
        """
        norms = np.where(signs == 0, 0.0, np.minimum(np.sqrt(squares) * 2.0**-FRACTION_BITS, 1.0))
        for statistic in self._numbers:
            self._numbers[statistic] += statistic.total(signs, norms)

    def note_row(self, update: Tensor, clip_norm: float) -> None:
        """Add the rows of a user that stayed.

        Args:
            update: shape (d,), float64, on a processor, not clipped.
            clip_norm: ζ.
        """
        clipped = update * min(1.0, clip_norm / max(float(torch.linalg.vector_norm(update)), clip_norm))
        for statistic, rows in self._rows.items():
            rows.add_updates(statistic.bounded(clipped.clone())[None])

    def number(self, statistic: Statistic) -> int:
        """The sum of numbers."""
        return self._numbers[statistic]

    def vector(self, statistic: Statistic | RowStatistic) -> Tensor:
        """The sum of either, float64, shape (size,)."""
        if isinstance(statistic, RowStatistic):
            return self._rows[statistic].total()
        return torch.tensor([float(self._numbers[statistic])], dtype=torch.float64)

    def merge(self, other: Told) -> None:
        """Add the sums of another with the same statistics."""
        for statistic, total in other._numbers.items():
            self._numbers[statistic] += total
        for statistic, rows in other._rows.items():
            self._rows[statistic].fixed_point.add_(rows.fixed_point)

    @property
    def parts(self) -> dict[str, Tensor]:
        """The sums by name, int64, as workers send them."""
        numbers = {
            statistic.name: torch.tensor([total], dtype=torch.int64)
            for statistic, total in self._numbers.items()
        }
        return numbers | {statistic.name: rows.fixed_point for statistic, rows in self._rows.items()}

    def read(self, parts: Mapping[str, Tensor], users: int) -> Told:
        """The sums that a worker sent of so many users.

        Raises:
            ValueError: a wrong shape or type, or more than so many users add up to.
        """
        told = self.like()
        for statistic in told._numbers:
            given = parts[statistic.name]
            if given.dtype != torch.int64 or given.shape != (1,):
                shape = tuple(given.shape)
                raise ValueError(
                    f"slice {statistic.name} must be int64 of shape (1,); got {given.dtype}, {shape}."
                )
            told._numbers[statistic] = int(given)
            statistic.check(int(given), users)
        for statistic, rows in told._rows.items():
            try:
                rows.add_clipped_sum(parts[statistic.name], users)
            except ValueError as error:
                raise ValueError(str(error).replace("slice sum", f"slice {statistic.name}")) from None
        return told
