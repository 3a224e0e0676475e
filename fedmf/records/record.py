"""What a ledger and the state of a stream are: rows under a seal, which one process at a time extends."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from fedmf.accounting import Fault
from fedmf.noise import FRESH_BYTES, NoiseKey
from fedmf.records.lock import ReleaseRight, WriterLock
from fedmf.records.mark import Mark
from fedmf.records.seal import Seal
from fedmf.records.sqlite import RecordKind, transaction

#: Of an opening's row.
_OPENING_VERSION: Final = 1

#: (number, version, first round or step, fresh bytes, note), as every record's table begins.
OpeningRow = tuple[int, int, int, bytes, str]


@dataclass(frozen=True)
class Opening:
    """One process's beginning to release, or to go on releasing, a run or stream.

    Args:
        number: 0, 1, 2 …
        first_round: the next round, or step, when it was made, 0-based.
        fresh: 32 random bytes of its own, from which the noise of its rounds gets its key.
        note: what else is to be remembered of it, JSON-able.
    """

    number: int
    first_round: int
    fresh: bytes
    note: Mapping[str, Any]

    def row(self) -> OpeningRow:
        """What the table holds, without its place in the chain."""
        note = json.dumps(dict(self.note), ensure_ascii=False, allow_nan=False)
        return self.number, _OPENING_VERSION, self.first_round, self.fresh, note

    @classmethod
    def of_row(cls, row: OpeningRow) -> Self:
        """What `row` gave."""
        number, _, first, fresh, note = row
        return cls(number, first, fresh, dict(json.loads(note)))


def opening_rows(
    connection: sqlite3.Connection, kind: RecordKind
) -> list[tuple[OpeningRow, tuple[bytes, ...]]]:
    """The openings in order, each with what binds it to its record.

    Raises:
        ValueError: as the kind's error: a row is damaged, or of a version that is not known.
    """
    found = connection.execute("SELECT * FROM openings ORDER BY number").fetchall()
    for row in found:
        require_types(kind, "opening", row[:5], (int, int, int, bytes, str))
        if row[1] != _OPENING_VERSION:
            raise kind.error(
                f"opening {row[0]} of the {kind.name} is a row of version {row[1]}; this fedmf reads version "
                f"{_OPENING_VERSION}."
            )
    return [(row[:5], row[5:]) for row in found]


def require_types(kind: RecordKind, what: str, row: Sequence[object], types: Sequence[type]) -> None:
    """Damage can turn a column into one of another type, whatever the schema says."""
    if tuple(map(type, row)) != tuple(types):
        raise kind.error(f"{what} {row[0]!r} of the {kind.name} is damaged: a column is of another type.")


class Record(ABC):
    """An open record; abstract.

    Args:
        path: of the file.
        connection: to it.
        lock: the right to write; None for reading.
        key: of the run or stream, if it is at hand.

    Attributes:
        right: to release, which may be shared with another record.
        note: what the opening of this process will note.
    """

    kind: ClassVar[RecordKind]
    #: What is released, and what all of it is called: ("rounds", "run").
    words: ClassVar[tuple[str, str]]

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None, key: NoiseKey | None
    ) -> None:
        self.path, self._connection, self._lock = path, connection, lock
        self._seal, self.right = Seal.of(self.kind, key), ReleaseRight(self.kind.error)
        self.note: Mapping[str, Any] = {}
        self._opening: Opening | None = None
        self._process, self._mutex = os.getpid(), threading.RLock()

    @classmethod
    def _opened(cls, path: Path, lock: WriterLock | None, key: Callable[[], NoiseKey | None]) -> Self:
        """The record in a file, for reading without a lock; the lock is given back if that fails."""
        with ExitStack() as undo:
            if lock is not None:
                undo.callback(lock.release)
            connection = cls.kind.open(path, read_only=lock is None)
            undo.callback(connection.close)
            found = key()
            with cls.kind.one_line_errors(path):
                record = cls(path, connection, lock, found)
            undo.pop_all()
        return record

    def close(self) -> None:
        """Close the file and give the right to write back. Closing twice is harmless."""
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def released(self) -> int:
        """Rounds, or steps, that were committed."""

    @abstractmethod
    def openings(self) -> list[Opening]:
        """All openings so far, in order."""

    @abstractmethod
    def head(self) -> bytes:
        """The chain value of the last record: the one that the next follows."""

    def opening(self) -> Opening:
        """That of this process: recorded now, with fresh bits of the operating system, if it was not yet."""
        return self._opening or self.open_era(os.urandom(FRESH_BYTES), self.note)

    def open_era(self, fresh: bytes, note: Mapping[str, Any] | None = None) -> Opening:
        """Record durably that this process begins to release, before its first round or step.

        Args:
            fresh: 32 random bytes that no other opening had.
            note: what else is to be remembered of it, JSON-able with finite numbers.

        Raises:
            ValueError: as the kind's error: the bytes or the note are unfit, the record is read-only, or the
                disk failed, now or before.
        """
        self._writable()
        if not (isinstance(fresh, bytes) and len(fresh) == FRESH_BYTES):
            raise self.kind.error(
                f"fresh (bits of an opening) must be {FRESH_BYTES} bytes; got something else."
            )
        with self._mutex:
            noted = self._noted(note or {})
            opening = Opening(len(self.openings()), self.released, fresh, noted)
            try:
                row = opening.row()
            except (TypeError, ValueError) as error:
                raise self.kind.error(f"note (of an opening) must be JSON: {error}.") from None
            with self._written("an opening"), self._transaction():
                columns = (*row, *self._sealed_opening(*row))
                places = ", ".join("?" * len(columns))
                self._connection.execute(f"INSERT INTO openings VALUES ({places})", columns)
        self._opening = opening
        return opening

    def _noted(self, note: Mapping[str, Any]) -> dict[str, Any]:
        """What an opening notes, once all is ready for it."""
        return dict(note)

    @abstractmethod
    def _sealed_opening(self, *row: int | str | bytes) -> tuple[bytes, ...]:
        """What binds an opening that is about to be made to the record."""

    def _writable(self) -> None:
        if self._lock is None:
            raise self.kind.error(f"{self.kind.name} {self.path} was opened read-only.")
        if os.getpid() != self._process:
            raise self.kind.error(
                f"{self.kind.name} {self.path} belongs to the process that opened it, not to a fork of it."
            )
        self.right.require()

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """While something is written: if that fails nothing more is, and the files tell what is there."""
        self._writable()
        with self._mutex, self.right.exercise(what), self.kind.one_line_errors(self.path):
            yield

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._connection)

    def behind(self, mark: Mark) -> list[tuple[Fault, str]]:
        """Whether this machine has seen more than the record holds, for a verdict.

        Args:
            mark: of the run or stream, looked at before the record was read.
        """
        here = self.released
        if mark.matches(self.openings(), here):
            return []
        released, whole = self.words
        said = f"this machine has seen {mark.released} {released} of this {whole}, and "
        said += f"this copy holds {here}" if here < mark.released else "this copy was continued elsewhere"
        return [(Fault.BEHIND, f"{said}. Continue the newest copy here, or start a new {whole}")]
