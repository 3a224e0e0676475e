"""Which parts there are: a part is a file of this room and a line here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fedmf.parts.clip_norm import CLIPPINGS
from fedmf.parts.own_statistic import OwnStatistic
from fedmf.parts.part import Part
from fedmf.values import by_kind, value_of

#: By the name that records give them, then by kind.
PARTS: Final[dict[str, Mapping[str, type[Part]]]] = {
    "clipping": CLIPPINGS,
    "own": by_kind(OwnStatistic),
}

#: Of every run; the others are there if they were chosen.
_ALWAYS: Final = "clipping"


def parts_from(values: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts that a record names among other things.

    Raises:
        KeyError: one that every run has is missing.
        ValueError: an unknown kind, or fields that are not those of the kind.
    """
    return tuple(
        value_of(kinds, values[name]) for name, kinds in PARTS.items() if name in values or name == _ALWAYS
    )


def stated(statement: Mapping[str, Any]) -> Iterator[tuple[type[Part], Mapping[str, Any]]]:
    """The parts of a statement, with what it says of each."""
    for name in PARTS:
        if statement.get(name) is not None:
            yield PARTS[name][statement[name]["kind"]], statement[name]
