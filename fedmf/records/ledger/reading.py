"""A ledger as it is read: by a writer and by everyone who accounts for a run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import Fault, ParticipationSummary, PatternTable
from fedmf.errors import LedgerError, rebuilding
from fedmf.noise import NoiseKey
from fedmf.records.histories import Histories
from fedmf.records.ledger.replay import (
    by_user,
    cohorts,
    read_metrics,
    read_names,
    replay,
)
from fedmf.records.ledger.schema import LEDGER, TAIL, read_header
from fedmf.records.ledger.tail import Tail, make_tables, rows_of, show_tail
from fedmf.records.lock import WriterLock
from fedmf.records.record import Opening, Record, opening_rows


class LedgerReading(Record):
    """What an open ledger answers, from its database and from its tail (see `Tail`).

    Args:
        path: of the file.
        connection: to it.
        lock: the right to write; None for reading.
        key: of the run, if it is at hand.

    Attributes:
        participation: the contract.
        header: the description of the run.
    """

    kind, words = LEDGER, ("rounds", "run")

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None, key: NoiseKey | None
    ) -> None:
        super().__init__(path, connection, lock, key)
        self.participation, self.header, self._header_chain = read_header(connection, path, self._seal)
        self._tail = Tail(path)
        make_tables(connection)
        self._histories: Histories | None = None

    @property
    def authenticated(self) -> bool:
        """Whether the key is at hand, so that codes are checked and not chain values alone."""
        return self._seal.key is not None

    def last_round(self) -> int | None:
        """The last committed round, or None before the first."""
        return self._last()[0]

    @property
    def released(self) -> int:
        """Rounds that were committed."""
        last = self.last_round()
        return 0 if last is None else last + 1

    def checkpoint(self) -> tuple[int, str, str] | None:
        """(round, checkpoint, digest) of the last committed round, or None before the first."""
        rows = self._rows("SELECT round, checkpoints FROM rounds ORDER BY round DESC LIMIT 1")
        with rebuilding(f"the last round in {self.path}", LedgerError):
            states = [(int(index), json.loads(slots)["state"]) for index, slots in rows]
            return next(((t, str(state["file"]), str(state["digest"])) for t, state in states), None)

    def openings(self) -> list[Opening]:
        """All openings so far, in order."""
        with self.snapshot(), rebuilding("openings of the ledger", LedgerError):
            return [Opening.of_row(row) for row, _ in opening_rows(self._connection, LEDGER)]

    def head(self) -> bytes:
        """See `Record.head`."""
        with self.snapshot():
            last, chain = self._last()
            query = "SELECT first_round, chain FROM openings ORDER BY number DESC LIMIT 1"
            for first, opening in self._rows(query):
                if last is None or first > last:
                    return opening
            return chain

    def holds(self, chain: bytes) -> bool:
        """Whether the header, an opening or a round has this chain value."""
        query = (
            "SELECT EXISTS (SELECT 1 FROM rounds WHERE chain = ?1) OR "
            "EXISTS (SELECT 1 FROM openings WHERE chain = ?1)"
        )
        ((found,),) = self._rows(query, chain)
        return bool(found) or chain == self._header_chain

    def participations(self) -> Iterator[tuple[int, str]]:
        """(round, user) of every participation committed so far, in the order of rounds."""
        with self.snapshot():
            names, rounds = read_names(self._connection), list(cohorts(self._connection))
        for index, keys in enumerate(rounds):
            for key in keys.tolist():
                yield index, names[key]

    def participants(self, round_index: int) -> list[str]:
        """The users of one committed round, in the order in which the ledger first met them."""
        ((content,),) = self._rows("SELECT participants FROM rounds WHERE round = ?", round_index)
        names = self._names()
        return [names[key] for key in np.frombuffer(content, dtype="<u4").tolist()]

    def by_user(self) -> tuple[list[str], NDArray[np.int32], NDArray[np.int32]]:
        """(users by key, rounds, keys): every participation, sorted by key, then by round."""
        with self.snapshot():
            return read_names(self._connection), *by_user(list(cohorts(self._connection)))

    def patterns(self) -> PatternTable:
        """How many users share each participation pattern; made for millions of users."""
        with self.snapshot():
            return PatternTable.of_histories(*by_user(list(cohorts(self._connection))))

    def pattern_counts(self) -> dict[tuple[int, ...], int]:
        """``patterns`` as a dict from tuples of 0-based rounds to numbers of users, sorted."""
        return self.patterns().to_counts()

    def replay(self) -> ParticipationSummary:
        """Verify the whole file from its rows, trusting nothing that was checked when they were written.

        Returns:
            What was found: rounds, users, realised participation and separation.

        Raises:
            ParticipationViolation: rows that break the contract.
            LedgerError: a damaged file, missing triggers, rows that contradict each other, or that were not
                written with the run's key (where it is at hand).
        """
        with self.snapshot():
            return replay(self._connection, self.participation, self._header_chain, self._seal)

    def faults(self) -> list[tuple[Fault, str]]:
        """What of this copy is seen to be missing, from what the database says of the files beside it.

        Guarantees:
            A process records its opening once a file of the tail is on the disk, and no file is removed
            before a newer one has its rows and the last state. So where no file is as new as an opening says,
            files were lost, and rows with them unless the process ended before its first.
        """
        with self.snapshot():
            openings, rounds, newest = self.openings(), self.released, self._tail.newest()
            committed, noted = self.checkpoint(), max(self.metrics(), default=0)
        found, name = list[tuple[Fault, str]](), self.path.name
        begun = [opening.note.get(TAIL, 0) for opening in openings]
        if max(map(int, begun), default=-1) > (-1 if newest is None else newest):
            said = f"{name} knows of files {name}-tail-* that are not here, which hold its newest rows"
            found.append((Fault.TAIL_MISSING, f"{said}: more may have been released than it says"))
        if noted > rounds:
            said = f"{name} has metrics of the model after {noted} rounds, and rows of {rounds} alone"
            found.append((Fault.TAIL_MISSING, said))
        if committed is not None and committed[2] not in self._tail.states:
            said = f"no file beside {name} holds the state that its last row names"
            found.append((Fault.STATE_MISSING, f"{said}: newer rows were cut off, or the files do not fit"))
        return found

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads inside see the same rounds, even while another process commits more."""
        with self._mutex, LEDGER.one_line_errors(self.path):
            nested = self._connection.in_transaction
            if not nested:
                self._show_news()
                self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if not nested:
                    self._connection.execute("ROLLBACK")

    def metrics(self) -> dict[int, dict[str, Any]]:
        """All stored metrics by round, in order."""
        with self.snapshot():
            return read_metrics(self._connection, self._header_chain, self._seal)

    def state(self, digest: str) -> list[bytes] | None:
        """The pieces of the state with this SHA-256 that was committed with a round, None if it is not there.

        Raises:
            LedgerError: it is damaged.
        """
        with self._mutex, LEDGER.one_line_errors(self.path):
            return self._tail.state(digest)

    def _show_news(self) -> None:
        """Take note of rows that were committed since the last look, before a transaction that reads them.

        The tail is read before the database: rows that are moved from one to the other meanwhile are in both.
        """
        frames = self._tail.news()
        if frames is not None:
            show_tail(self._connection, rows_of(frames))

    def _rows(self, query: str, *values: int | bytes) -> list[Any]:
        with self.snapshot():
            return self._connection.execute(query, values).fetchall()

    def _last(self) -> tuple[int | None, bytes]:
        """The last committed round, if any, and its chain value, or the header's."""
        rows = self._rows("SELECT round, chain FROM rounds ORDER BY round DESC LIMIT 1")
        return rows[0] if rows else (None, self._header_chain)

    def _sealed_opening(self, *row: int | str | bytes) -> tuple[bytes, ...]:
        return self._seal.sealed(b"opening", self.head(), self._header_chain, *row)

    def _names(self) -> list[str]:
        """The users by key: at hand for a writer that has committed, read by everyone else."""
        with self.snapshot():
            return read_names(self._connection) if self._histories is None else self._histories.names
