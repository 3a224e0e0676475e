"""Counts of the rows of an input before any is released: for the operator's dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from fedmf.data.row_counts import names_in_words, reasons_in_words
from fedmf.streaming.settings import Settings
from fedmf.streaming.stream_rows import Reader, RowBlock
from fedmf.streaming.stream_run import StreamRun

_ROWS: Final = 4096


def lines_for_operator(run: StreamRun, reader: Reader) -> Iterator[str]:
    """Yield how many rows and users an input has, and how many are invalid, clipped or ignored.

    Args:
        run: new, to be closed without a release.
        reader: at the first row of its input, of which all rows are read.
    """
    settings = run.plan.settings
    rows = 0
    invalid = 0
    outside = 0
    users: set[str] = set()
    reasons: Counter[str] = Counter()
    while (block := reader.read(_ROWS)) is not None:
        rows += len(block)
        invalid += int(block.invalid.sum())
        reasons.update(_reasons(block, reader.layout.numbers, settings))
        outside += int((block.periods < 0).sum())
        run.try_rows(block)
        users.update(user for user in block.users or () if user is not None)
    yield "For the operator only, not to be published:"
    if settings.user_column is None:
        yield f"  rows: {rows:,}, each of another user"
    else:
        yield f"  rows: {rows:,} of {len(users):,} users"
    yield f"  columns: {names_in_words(_columns(reader, settings))}"
    yield f"  invalid rows: {invalid:,}{_because(reasons)}"
    for name, count in run.tried().items():
        yield f"  {name}: {count:,}"
    if settings.calendar is not None:
        yield f"  rows in no period, or with a time that cannot be read: {outside:,}"
        if 0 < rows == outside:
            yield f"  WARNING: no row is in a period. {times_in_words(settings)}"
    if 2 * invalid > rows:
        yield (
            "  WARNING: most rows are invalid. If many columns have missing cells, give them a"
            " public fill = VALUE in a --schema, so that their rows count."
        )


def times_in_words(settings: Settings) -> str:
    """Return the form of the times of a stream of periods, and its calendar."""
    calendar = settings.calendar
    assert calendar is not None
    return (
        f"Times in column {settings.time_column!r} must be ISO 8601, such as 2026-01-31T12:00 (Unix"
        f" seconds are not), from {calendar.start.isoformat()} to before"
        f" {calendar.end.isoformat()}."
    )


def _because(reasons: Counter[str]) -> str:
    if not reasons:
        return ""
    return f": {reasons_in_words(reasons)}"


def _reasons(block: RowBlock, columns: tuple[str, ...], settings: Settings) -> Counter[str]:
    """Return how many rows of a block are invalid, by reason; one with several has them all."""
    reasons = Counter(block.malformed.values())
    owners = columns
    if settings.encoding is not None:
        owners = settings.encoding.owners
    readable = ~np.isnan(block.measured)
    unnamed = block.nameless
    apart = [i for i in range(len(block)) if i not in block.malformed and i not in unnamed]
    if unnamed:
        reasons["no user id"] += len(unnamed)
    for name in dict.fromkeys(owners):
        own = np.array(owners) == name
        unreadable = int((~readable[apart][:, own].all(axis=1)).sum())
        if unreadable:
            reasons[f"{name}: missing or unreadable"] += unreadable
    return reasons


def _columns(reader: Reader, settings: Settings) -> list[str]:
    """Return the columns of the vector with their kinds."""
    if settings.encoding is None:
        return [f"{name} (number)" for name in reader.layout.numbers]
    kinds: list[str] = []
    for name, column in zip(settings.encoding.names, settings.encoding.columns, strict=True):
        kinds.append(f"{name} ({column.kind})")
    return kinds
