"""What a ledger and the state of a stream are: rows under a seal, which one process at a time extends."""

from __future__ import annotations

import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from fedmf.accounting import RESTORED, Fault
from fedmf.noise import FRESH_BYTES, NoiseKey
from fedmf.records.guard import Guard, Loss
from fedmf.records.lock import ReleaseRight, WriterLock
from fedmf.records.opening import Opening, OpeningRow
from fedmf.records.seal import Seal
from fedmf.records.sqlite import RecordKind, transaction


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
    def head_after(self, released: int) -> bytes | None:
        """What identifies the first so many rounds; None for none, or if it cannot be told."""

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
                columns = (*row, *self._sealed_opening(row))
                places = ", ".join("?" * len(columns))
                self._connection.execute(f"INSERT INTO openings VALUES ({places})", columns)
        self._opening = opening
        return opening

    def _noted(self, note: Mapping[str, Any]) -> dict[str, Any]:
        """What an opening notes, once all is ready for it."""
        return dict(note)

    @abstractmethod
    def _sealed_opening(self, row: OpeningRow) -> tuple[bytes, ...]:
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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with transaction(self._connection):
            yield

    def losses(self, guard: Guard) -> list[Loss]:
        """What a machine knows was released and is not here."""
        return guard.losses(self.openings(), self.released, self.head_after)

    def behind(self, guard: Guard) -> list[tuple[Fault, str]]:
        """Whether a machine knows of more, for a verdict.

        Args:
            guard: what it remembers, looked at before the record was read.
        """
        lacks = guard.lacks(self.openings(), self.released, self.head_after)
        if lacks is None:
            return []
        here, known = lacks
        released, whole = self.words
        said = f"{known} {released} of this {whole} were released on this machine, of which it holds {here}"
        return [(Fault.BEHIND, f"{said}: it is a copy or a restored backup")]

    def meet_losses(
        self, guard: Guard, told: Callable[[Loss], Mapping[str, Any]] | None, error: type[ValueError]
    ) -> None:
        """See that all is here that the machine knows of, or note what is lost as spent, in an opening.

        Args:
            guard: what it remembers.
            told: what is noted of a loss; None refuses.
            error: raised with one line.

        Raises:
            ValueError: as the error: something is lost and not to be counted.
        """
        losses = self.losses(guard)
        if not losses:
            return
        released, whole = self.words
        if told is None:
            raise error(
                f"{self.path.parent} is a copy or a restored backup: {losses[-1].released} {released} of its "
                f"{whole} were released, of which it holds {losses[-1].first}. Go on where the others are, "
                "or with --restored-from-backup (restored=True), which counts them as spent."
            )
        noted = [dict(told(loss)) for loss in losses]
        self.open_era(os.urandom(FRESH_BYTES), {**self.note, RESTORED: noted})
        guard.note(self.openings(), self.released, self.head_after(self.released), losses)
