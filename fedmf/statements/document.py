"""What every privacy statement says in words, and how it is laid out as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedmf.accounting import at_least

#: Of the names of facts, at least.
_WIDTH: Final = 16
_LISTS: Final = (
    ("Holds only if", "assumptions"),
    ("Does not cover", "not_covered"),
    ("Must stay secret", "secret"),
)
Facts = Sequence[tuple[str, str]]


def in_full(statement: Mapping[str, Any], headline: str, facts: Facts) -> str:
    """A whole statement for a terminal.

    Args:
        statement: all of it.
        headline: the guarantee in one sentence.
        facts: (name, value) of what it says in numbers, most important first; what is not private says so.
    """
    lines = [headline, "", *aligned(facts, _WIDTH)]
    for heading, sentences in lists_of(statement):
        lines += ["", f"{heading}:", *(f"  - {sentence}" for sentence in sentences)]
    return "\n".join(lines) + "\n"


def aligned(facts: Facts, least: int = 0) -> list[str]:
    """A line of each (name, value), with the values below each other."""
    width = max((len(name) for name, _ in facts), default=0)
    return [f"  {name:<{max(least, width)}}  {value}" for name, value in facts]


def lists_of(statement: Mapping[str, Any]) -> list[tuple[str, Sequence[str]]]:
    """(heading, sentences) of the lists that a statement has."""
    inputs = [
        f"{entry['name']}: {entry['value']} ({entry['source']})"
        for entry in statement.get("public_inputs", ())
    ]
    shown = [("Public inputs", inputs)] if inputs else []
    return [*shown, *((title, statement[name]) for title, name in _LISTS if name in statement)]


def in_short(
    statement: Mapping[str, Any], heading: Sequence[str], facts: Facts, rest: str, place: str = ""
) -> str:
    """A statement on one screen.

    Args:
        statement: all of it.
        heading: the guarantee, and before it what must be read first; a line each.
        facts: (name, value), most important first; a value that is empty has nothing to say and is left out.
        rest: where all of it is.
        place: where files are.
    """
    rows = [*facts, ("statement", f"{_what_it_leaves(statement)}: {rest}"), ("files", place)]
    lines = [*heading, *aligned([row for row in rows if row[1]])]
    return "\n".join(lines) + "\n"


def _what_it_leaves(statement: Mapping[str, Any]) -> str:
    """What the records are where nothing speaks against them, and how much there is to read besides."""
    counted = {"assumptions": "assumptions", "not_covered": "things not covered", "secret": "secrets to keep"}
    left = ", ".join(f"{len(statement[name])} {what}" for name, what in counted.items())
    return left


def mechanism(name: str, params: Mapping[str, float]) -> str:
    """With its parameters."""
    given = ", ".join(f"{symbol}={value:g}" for symbol, value in params.items())
    return f"{name} ({given})" if given else name


def sensitivity(statement: Mapping[str, Any]) -> str:
    """And by which rule it was found."""
    s = statement
    return f"{up(s['sensitivity'])} ({s['sensitivity_kind'].replace('_', ' ')}: {s['sensitivity_case']})"


def promise(epsilon: float | None, delta: float, adjacency: str) -> str:
    """What somebody has.

    >>> promise(1.5, 1e-5, "zero-out")
    '(1.5, 1e-05)-differential privacy under zero-out adjacency'
    """
    return f"({up(epsilon)}, {up(delta)})-differential privacy under {adjacency} adjacency"


def up(value: float | None) -> str:
    """Six digits, rounded up, or what None stands for."""
    return "infinite" if value is None else at_least(value)
