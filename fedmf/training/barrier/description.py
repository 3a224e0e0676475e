"""What went wrong in a task's own code, in one line."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_MOST_CHARACTERS: Final = 500


@dataclass(frozen=True)
class UserFailure:
    """A user whose contribution to a round was the zero vector. It tells about data: as secret as the ledger.

    Args:
        user: the user's id; empty where a reply names nobody.
        stage: at what: "sizes", "loading", "training", "update", "reply" or "quarantine".
        reason: why, in one line.
    """

    user: str
    stage: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """JSON-able; texts from elsewhere are cut."""
        texts = {"user": self.user, "stage": self.stage, "reason": self.reason}
        return {name: text[:_MOST_CHARACTERS] for name, text in texts.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> UserFailure:
        """What `to_dict` made, or whatever a stranger sent instead."""
        return cls(*(str(values.get(name, ""))[:_MOST_CHARACTERS] for name in ("user", "stage", "reason")))


class Failures:
    """The failures among users who are known by their places; may be noted by several threads."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[str, str]] = {}

    def note(self, place: int, stage: str, reason: str) -> None:
        """The first reason counts."""
        self._at.setdefault(place, (stage, reason))

    def __contains__(self, place: int) -> bool:
        return place in self._at

    def named(self, user_ids: Sequence[str]) -> list[UserFailure]:
        """The failures in the order of the users."""
        return [UserFailure(str(user_ids[place]), *self._at[place]) for place in sorted(self._at)]


#: Packages whose frames are not the task's own.
LIBRARIES = frozenset({"fedmf", "functorch", "numpy", "torch", *sys.stdlib_module_names})
MOST_CHARACTERS = 300


def described(error: BaseException) -> str:
    """Type, message and the deepest place in the task's own code, if it passed through any.

    >>> described(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    message = " ".join(_text(error).split())[:MOST_CHARACTERS].rstrip(".")
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in LIBRARIES:
            return f"{type(error).__name__}: {message} ({frame.f_code.co_filename}:{line})"
    return f"{type(error).__name__}: {message}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:  # an exception of somebody's own may fail at anything
        pass_interrupt(another)
        return "no message"


def pass_interrupt(error: BaseException) -> None:
    """Raise what only the operator can have caused; everything else may come from a user's data."""
    if isinstance(error, KeyboardInterrupt):
        raise error


@contextmanager
def silent() -> Iterator[None]:
    """Without Python's warnings: whether a number overflows, say, is nobody's business but the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
