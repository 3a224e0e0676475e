"""What can be told of a copy of records: whether it is all that was released, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fedmf.errors import LedgerError

WHOLE: Final = "whole as far as this copy knows"


class Fault(StrEnum):
    """What may keep a copy of records from being evidence of all that was released, the gravest first."""

    BEHIND = "behind what this machine has seen"
    TAIL_MISSING = "tail missing"
    STATE_MISSING = "last state missing"
    UNAUTHENTICATED = "unauthenticated"


#: With these the copy holds less than was released, or may.
_LOSSES: Final = (Fault.BEHIND, Fault.TAIL_MISSING, Fault.STATE_MISSING)


@dataclass(frozen=True)
class Verdict:
    """What whoever opened a copy of records found; nothing if it is whole as far as the copy knows.

    Args:
        faults: each with a sentence.

    >>> str(Verdict()), Verdict().whole
    ('whole as far as this copy knows', True)
    >>> str(Verdict(((Fault.TAIL_MISSING, "files are gone"),)))
    'tail missing: files are gone'
    """

    faults: tuple[tuple[Fault, str], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing speaks against it: its statement can be published then alone."""
        return not self.faults

    @property
    def found(self) -> frozenset[Fault]:
        """The faults without their sentences."""
        return frozenset(fault for fault, _ in self.faults)

    def __str__(self) -> str:
        return "; ".join(f"{fault}: {sentence}" for fault, sentence in self._ordered()) or WHOLE

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the gravest fault, or that there is none, and every sentence by its fault."""
        said: dict[str, list[str]] = {}
        for fault, sentence in self._ordered():
            said.setdefault(str(fault), []).append(sentence)
        faults = {fault: "; ".join(sentences) for fault, sentences in said.items()}
        return {"verdict": next(iter(faults), WHOLE), "faults": faults}

    def require_whole(self, name: str, what: str) -> None:
        """Refuse to make more of records than they are.

        Raises:
            LedgerError: they are not whole.
        """
        if not self.whole:
            raise LedgerError(f"{name} cannot be {what}: its record is not whole, {self}.")

    def require_no_loss(self, name: str, what: str, allowed: Sequence[Fault] = ()) -> None:
        """Refuse records that hold less than was released; without a key they may hold all.

        Raises:
            LedgerError: rows or states are missing.
        """
        lost = tuple(entry for entry in self.faults if entry[0] in _LOSSES)
        if any(fault not in allowed for fault, _ in lost):
            raise LedgerError(f"{name} cannot be {what}: its record is not whole, {Verdict(lost)}.")

    def _ordered(self) -> list[tuple[Fault, str]]:
        return sorted(self.faults, key=lambda entry: [*Fault].index(entry[0]))
