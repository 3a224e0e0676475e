"""The sums of what is told of users beside their updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.clipping.integers import FRACTION_BITS
from fedmf.training.clipping.statistics import RowStatistic, Statistic

_UNIT: Final = 2.0**-FRACTION_BITS


class RowSum(Protocol):
    """What clips rows to a norm and sums them: a `FixedPointSum`."""

    def add_updates(self, updates: Tensor) -> Tensor:
        """Clip and add rows."""
        ...

    def add_clipped_sum(self, total: Tensor, users: int) -> None:
        """Add a sum of so many clipped rows, or refuse it."""
        ...

    @property
    def fixed_point(self) -> Tensor:
        """The total in units of the norm."""
        ...

    def total(self) -> Tensor:
        """The total, float64."""
        ...

    def like(self) -> Self:
        """An empty one of the same kind."""
        ...


class Told:
    """Sums of statistics, one each: numbers as integers, rows clipped through the same `merge` as updates.

    Args:
        numbers: those that are functions of a user's sign and norm.
        rows: those that are functions of its clipped update, each with what sums it.
    """

    def __init__(self, numbers: Sequence[Statistic], rows: Mapping[RowStatistic, RowSum]) -> None:
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
        norms = np.where(signs == 0, 0.0, np.minimum(np.sqrt(squares) * _UNIT, 1.0))
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
        """Add the sums of another, whose statistics are the same."""
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
