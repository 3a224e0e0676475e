"""Changes of an app's server as data: each line that is replaced must be there, once."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass


class EditError(ValueError):
    """An edit does not fit the file; the message is one line."""


@dataclass(frozen=True)
class Edit:
    """One line of a file and what stands in its place.

    Args:
        line: the whole line, without its end.
        becomes: lines, without the end of the last.
    """

    line: str
    becomes: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text after all edits.

    Raises:
        EditError: a line that an edit replaces is not there, or more than once.
    """
    lines = text.split("\n")
    for edit in edits:
        places = [i for i, line in enumerate(lines) if line == edit.line]
        if len(places) != 1:
            raise EditError(f"{edit.line!r} must be one line of the file; it is there {len(places)} times.")
        lines[places[0] : places[0] + 1] = edit.becomes.split("\n")
    return "\n".join(lines)


def lines_changed(before: str, after: str) -> tuple[int, int]:
    """How many lines were added and how many removed.

    >>> lines_changed("a\\nb\\n", "a\\nB\\nc\\n")
    (2, 1)
    """
    kinds = [line[0] for line in difflib.ndiff(before.splitlines(), after.splitlines())]
    return kinds.count("+"), kinds.count("-")
