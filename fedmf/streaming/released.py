"""Consecutive releases of a stream: their numbers, and the labels of the rows that took their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmf.typing import Array


@dataclass(frozen=True, eq=False)
class Releases:
    """Consecutive releases.

    Args:
        first: number of the first among all of the stream, from 0.
        numbers: first and packed second moments, shape (releases, width).
        labels: for each the texts of the row that took its step, in the order of `Settings.labels`; empty
            for a stream without labels.
    """

    first: int
    numbers: Array
    labels: Sequence[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def label(self, i: int) -> tuple[str, ...]:
        """The labels of a release, by its place here."""
        return self.labels[i] if self.labels else ()
