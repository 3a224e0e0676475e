"""Rows of an input: their layout, a block of them, what a reader answers, and the labels of releases."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: How rows and releases are written: each format with the endings of files that have it.
FORMATS: Final = {
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet", ".pq"),
}
#: How many columns a message names, and how much of each.
_MOST_NAMES: Final = 20
_MOST_CHARACTERS: Final = 100
#: Most characters of a label.
LONGEST_LABEL: Final = 256
#: Half of a pair, which JSON can name and UTF-8 cannot hold.
SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: What would end a line or cannot be written: control characters, line separators, halves of surrogate pairs.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: Norms are computed in floating point; what comes within this of ζ is scaled to this below it.
_MARGIN: Final = 1e-9


class InputError(ValueError):
    """An input that cannot be read on; the message is one line and holds no value of a row."""


@dataclass(frozen=True)
class Layout:
    """Which parts of a row are the vector, the user and the labels.

    Args:
        columns: names of the numbers in order; of one column of vectors; empty for rows that are vectors.
        vector: whether a row holds its vector in one piece.
        dimension: d.
        user: name of the column with the user's id, None if there is none.
        labels: names of the columns whose texts are public and go with the releases.
    """

    columns: tuple[str, ...]
    vector: bool
    dimension: int
    user: str | None
    labels: tuple[str, ...] = ()

    @property
    def unlabelled(self) -> tuple[str, ...]:
        """The labels of a row of which none can be read."""
        return ("",) * len(self.labels)


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Consecutive rows.

    Args:
        first: number of the first row, 1 for the first of the stream.
        values: shape (rows, d), float64; zeros where a row has a fault.
        users: the id of each row's user, None where it cannot be read; None without a user column.
        faults: what is wrong with the row at an index of this block.
        labels: the texts of each row's label columns, "" where one cannot be read; empty without columns.
    """

    first: int
    values: NDArray[np.float64]
    users: Sequence[str | None] | None
    faults: Mapping[int, str]
    labels: Sequence[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(self.values)

    def chosen(self, first: int, indices: Sequence[int]) -> RowBlock:
        """Some of the rows, without labels, one after the other from a place in the stream on."""
        users = None if self.users is None else [self.users[i] for i in indices]
        faults = {at: self.faults[i] for at, i in enumerate(indices) if i in self.faults}
        return RowBlock(first, self.values[indices], users, faults)


class RowReader(ABC):
    """Rows of one input, front to back, each once.

    A row with a fault is delivered like any other and says so. Which rows come together depends on when the
    input arrives; what they hold does not.
    """

    layout: Layout
    #: Which row of the stream the input begins with.
    first_row: int
    #: What to do about a row at which the stream stopped.
    advice = "Correct it and give the same command with --state again, or do so without --stop-at-bad-row."

    @abstractmethod
    def read(self, most: int) -> RowBlock | None:
        """Up to that many of the next rows, those at hand if there are any; None at the end.

        Raises:
            InputError: the input breaks off.
        """

    @abstractmethod
    def skip(self, rows: int) -> int:
        """Pass over that many rows without looking at them; how many there were."""

    @abstractmethod
    def where(self, row: int) -> str:
        """How to find a row of the input again."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


def label_of(value: object) -> str:
    """The text of a label as it is released: what is given, made one line of at most 256 characters.

    Args:
        value: text, or a number, which is written the shortest way.

    Guarantees:
        The text depends on nothing but the value, UTF-8 can hold it, and it has no line breaks or other
        control characters: each is written as U+FFFD. Longer text ends with "…". What is neither text nor
        number is empty.

    >>> label_of("22 Nov"), label_of("a\\nb"), label_of(17), label_of(None), len(label_of(999 * "x"))
    ('22 Nov', 'a�b', '17', '', 256)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    try:
        text = str(value)
    except ValueError:  # a whole number of thousands of digits
        return "…"
    if len(text) > LONGEST_LABEL:
        text = text[: LONGEST_LABEL - 1] + "…"
    return _UNFIT.sub("\ufffd", text)


def numbers_of(values: Sequence[object], names: Sequence[str]) -> list[float] | str:
    """The numbers, or what is wrong with the first that is none.

    >>> numbers_of([1, 0.5], ["a", "b"]), numbers_of([1, True], ["a", "b"])
    ([1.0, 0.5], "column 'b' must be a number")
    """
    numbers = []
    for value, name in zip(values, names, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"column {name!r} must be a number"
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            return f"column {name!r} must be finite"
        numbers.append(number)
    return numbers


def wanted_columns(
    names: Sequence[str],
    columns: Sequence[str] | None,
    user: str | None,
    labels: Sequence[str] = (),
    before: Sequence[str] = (),
) -> list[str]:
    """The columns of numbers, all of them present.

    Args:
        names: of all columns that there are.
        columns: which of them are numbers; None for all others.
        user: the users' column.
        labels: columns of labels.
        before: the columns of numbers of earlier rows of the stream. Without `columns` those of these rows
            must be the same; they are taken in the earlier order.

    Raises:
        InputError: a column is missing, there twice, or was not there before.
    """
    others = [*([] if user is None else [user]), *labels]
    wanted = [name for name in names if name not in others] if columns is None else list(columns)
    if columns is None and before:
        if sorted(wanted) != sorted(before):
            raise InputError(
                f"columns (of numbers) must be {shown_names(before)}, as in the rows before; got "
                f"{shown_names(wanted)}."
            )
        wanted = list(before)
    asked = [*wanted, *others]
    times = Counter(names)
    for name in asked:
        if times[name] != 1:
            fault = "appears twice" if times[name] else "is missing"
            raise InputError(f"column {name!r} {fault}; the input has {shown_names(names)}.")
    if not asked or len(set(asked)) != len(asked) or (not wanted and columns != ()):
        raise InputError(
            "columns must be at least one, all different, and not the user's or a label's; got "
            f"{shown_names(asked)}."
        )
    return wanted


def shown_names(names: Sequence[str]) -> str:
    """The first few names, for a message of one line."""
    """The first few names, for a message of one line."""
    few = [repr(name[:_MOST_CHARACTERS]) for name in names[:_MOST_NAMES]]
    more = [f"… ({len(names)} in all)"] if len(names) > _MOST_NAMES else []
    return ", ".join([*few, *more]) or "none"


def clip_rows(
    values: NDArray[np.float64], norm_bound: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Rows x·min(1, ζ/‖x‖), and which were longer than ζ.

    Args:
        values: shape (rows, d), finite.
        norm_bound: ζ > 0.

    Guarantees:
        ‖row‖ ≤ ζ in exact arithmetic for d up to 10⁶, also where squares would overflow or vanish. The bits
        of a row do not depend on the other rows. Rows shorter than (1 − 10⁻⁹)ζ stay as they are.

    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)[0].round(6)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    largest = np.abs(values).max(axis=1, initial=0.0)
    shape = values / np.where(largest > 0, largest, 1.0)[:, None]
    root = np.zeros(len(values))
    for column in np.ascontiguousarray(shape.T):  # one after the other: a fixed order for every row
        root += column * column
    root = np.sqrt(root)
    with np.errstate(over="ignore"):
        norms = largest * root
    target = norm_bound * (1 - _MARGIN)
    over = norms > target
    clipped = values.copy()
    clipped[over] = shape[over] * (target / root[over])[:, None]
    return clipped, norms > norm_bound * (1 + _MARGIN)
