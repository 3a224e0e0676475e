"""Which users failed, at what, and why: for the operator's eyes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_MOST_CHARACTERS: Final = 500


@dataclass(frozen=True)
class UserFailure:
    """A user whose contribution to a round was the zero vector. It tells about data: as secret as the ledger.

    Args:
        user: the user's id; empty where a reply names nobody.
        stage: at what: "sizes", "limit", "loading", "training", "update", "isolation", "evaluation",
            "reply" or "quarantine".
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
