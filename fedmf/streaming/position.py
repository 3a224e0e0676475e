"""How far a private stream is."""

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

    def part(self, start: int, stop: int) -> Releases:
        """Releases start … stop − 1 of the stream, which are among these."""
        part = slice(start - self.first, stop - self.first)
        return Releases(start, self.numbers[part], self.labels[part])

    def label(self, i: int) -> tuple[str, ...]:
        """The labels of a release, by its place here."""
        return self.labels[i] if self.labels else ()


@dataclass(frozen=True)
class Position:
    """How far a stream is, as of a commit.

    Args:
        step: t, steps taken.
        row: rows of the input that were dealt with; step ≤ row.
        records: releases.
        emitted: how many of them were safely in the output before this commit.
        written: bytes of the output that hold those.
        output: which output.
        digest: keyed digest of the last row.
        clipped: rows that were longer than ζ.
        zeroed: unreadable rows that counted as zero vectors.
        refused_users: rows of users beyond (k, b).
        refused_late: rows beyond the horizon.
        may_stop: whether any process of the stream would have stopped at a faulty row.
        columns: names of the columns of the first table that was pushed; none before one.
    """

    step: int = 0
    row: int = 0
    records: int = 0
    emitted: int = 0
    written: int = 0
    output: str = ""
    digest: str = ""
    clipped: int = 0
    zeroed: int = 0
    refused_users: int = 0
    refused_late: int = 0
    may_stop: bool = False
    columns: Sequence[str] = ()

    def counts(self) -> dict[str, int]:
        """What only the operator may see."""
        names = ("row", "step", "clipped", "zeroed", "refused_users", "refused_late")
        return {"rows" if n == "row" else "steps" if n == "step" else n: getattr(self, n) for n in names}
