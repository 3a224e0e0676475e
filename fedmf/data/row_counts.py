"""Counts of the rows that count and of those that do not, by reason and column.

Counts of private rows are for the operator only; those of a public test part are said aloud.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger("fedmf")
#: The file of a run directory with the counts.
OPERATOR: Final = "operator.json"
_MOST_REASONS: Final = 3
_MOST_NAMES: Final = 6


@dataclass(frozen=True)
class RowCounts:
    """Counts of rows and users without noise: for the operator, not to be published.

    Args:
        rows: rows of the table.
        examples: rows that users of the run train on.
        users: users of the run.
        users_without_examples: those of them who train on no row.
        test_rows: rows of the test part.
        columns: types of the columns that are used, by name.
        left_out: rows that do not count, by reason; a row with several faults has several reasons.
    """

    rows: int
    examples: int
    users: int
    users_without_examples: int
    test_rows: int
    columns: Mapping[str, str]
    left_out: Mapping[str, int]

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the counts as names and values for the operator's screen."""
        yield "rows", f"{self.rows:,}, of which users train on {self.examples:,}"
        yield "users", f"{self.users:,}, of whom {self.users_without_examples:,} have no row"
        yield "test rows", f"{self.test_rows:,}"
        names = [f"{name} ({kind})" for name, kind in self.columns.items()]
        yield "columns", names_in_words(names)
        yield "rows left out", reasons_in_words(self.left_out) or "none"


def names_in_words(names: Sequence[str]) -> str:
    """Return the names of columns, or the first two and the number of all.

    >>> names_in_words(["age", "ward"]), names_in_words([f"x{i}" for i in range(280)])
    ('age, ward', 'x0, x1 … (280 columns)')
    """
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} … ({len(names):,} columns)"


def reasons_in_words(left_out: Mapping[str, int]) -> str:
    """Return the reasons with their numbers of rows, the most frequent first.

    >>> reasons_in_words({"age: missing": 2, "ward: none of its categories": 1000})
    '1,000 (ward: none of its categories), 2 (age: missing)'
    """
    most_first = sorted(left_out.items(), key=lambda reason: -reason[1])
    parts = [f"{count:,} ({reason})" for reason, count in most_first[:_MOST_REASONS]]
    if len(most_first) > _MOST_REASONS:
        parts.append(f"and {len(most_first) - _MOST_REASONS} more reasons")
    return ", ".join(parts)


def counted(faults: Mapping[str, NDArray[np.bool_]], among: NDArray[np.bool_]) -> dict[str, int]:
    """Return how many of some rows have each fault, without those that no row has.

    Args:
        faults: masks of rows by reason.
        among: mask of the rows.
    """
    counts: dict[str, int] = {}
    for reason, mask in faults.items():
        rows = int((mask & among).sum())
        if rows:
            counts[reason] = rows
    return counts


def check_public_tests(rows: int, usable: int, left_out: Mapping[str, int], place: str) -> None:
    """Log how many rows of a public test part do not count, and reject one if most do not.

    Args:
        rows: rows of the test part.
        usable: how many of them count.
        left_out: reasons of the others.
        place: where the rows come from.

    Raises:
        ValueError: fewer than half of the rows count.
    """
    if usable == rows:
        return
    if 2 * usable < rows:
        raise ValueError(
            f"test part ({place}) must have rows of which at least half count; got {usable:,} of"
            f" {rows:,}. Left out: {reasons_in_words(left_out)}. Check the spelling of classes and"
            " categories, and that numbers have a decimal point."
        )
    _log.warning(
        "test part (%s): %s of %s rows count; left out: %s",
        place,
        f"{usable:,}",
        f"{rows:,}",
        reasons_in_words(left_out),
    )
