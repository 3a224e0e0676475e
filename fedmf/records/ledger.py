"""The participation ledger: the durable record of who took part in which round."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import ParticipationSummary, PatternTable
from fedmf.errors import LedgerError, ParticipationViolation, rebuilding
from fedmf.participation import Participation
from fedmf.records.histories import Histories
from fedmf.records.ledger_replay import by_user, cohorts, read_histories, read_names, read_patterns, replay
from fedmf.records.ledger_requests import check_ids, check_turn, is_index
from fedmf.records.ledger_schema import LEDGER, METRICS_VERSION, build, read_header, round_row
from fedmf.records.lock import WriterLock

__all__ = ["Ledger"]


class Ledger:
    """An append-only SQLite file with one row per committed round, which names its participants.

    Committing a round here is what makes the round happen: the checkpoint is written first, the commit
    names it, and only then may anyone see the new model. Rounds are 0-based and have no gaps: a round that
    failed is committed as "empty" and consumes its row of noise.

    Guarantees:
        * A commit that returned survives kill -9 and power loss. One that raised left no trace, unless the
          disk itself failed while committing; then the round is there as a whole or not at all, and
          reopening the ledger tells.
        * Every committed round obeys the participation contract given at creation.
        * One process at a time can extend a ledger; the right to do so ends with the process.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.sqlite"
    >>> with Ledger.create(path, Participation(10, 2, 4), header={"name": "demo"}) as ledger:
    ...     ledger.commit_round(0, ["ann", "bob"], checkpoint="0.pt", digest="9f…")
    ...     ledger.commit_round(1, ["eve"], checkpoint="1.pt", digest="3c…")
    ...     ledger.commit_round(2, ["ann"], checkpoint="2.pt", digest="77…")
    Traceback (most recent call last):
        ...
    fedmf.errors.ParticipationViolation: user 'ann' took part in round 0 and may not ...
    >>> with Ledger.open(path, read_only=True) as ledger:
    ...     ledger.last_round(), ledger.pattern_counts()
    (1, {(0,): 2, (1,): 1})
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        lock: WriterLock | None,
        participation: Participation,
        header: dict[str, Any],
        chain: bytes,
    ) -> None:
        self.path = path
        self.participation = participation
        self.header = header
        self._header_chain = chain
        self._connection = connection
        self._lock = lock
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._histories: Histories | None = None

    @classmethod
    def create(cls, path: str | Path, participation: Participation, header: Mapping[str, Any]) -> Ledger:
        """Create the ledger of a new run and keep it open for writing.

        Args:
            path: where; the directory exists, the file does not.
            participation: the contract every round is checked against.
            header: the description of the run, JSON-able with finite numbers; stored once.

        Raises:
            LedgerError: the file exists, the place is not writable, or the header is not JSON.
        """
        path = Path(os.path.realpath(path))
        lock = WriterLock(LEDGER, path)
        try:
            if path.exists():
                raise LedgerError(
                    f"ledger {path} exists already. Resume that run or choose another directory."
                )
            with LEDGER.one_line_errors(path):
                build(path, participation, dict(header))
            return cls._opened(path, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | Path, read_only: bool = False) -> Ledger:
        """Open an existing ledger; for writing, as the only writer.

        Raises:
            LedgerError: no such file, not a ledger, another format version, or a second writer.
        """
        path = Path(os.path.realpath(path))
        if not path.is_file():
            raise LedgerError(f"ledger {path} does not exist.")
        lock = None if read_only else WriterLock(LEDGER, path)
        try:
            return cls._opened(path, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def _opened(cls, path: Path, lock: WriterLock | None) -> Ledger:
        connection = LEDGER.open(path, read_only=lock is None)
        try:
            with LEDGER.one_line_errors(path):
                return cls(path, connection, lock, *read_header(connection, path))
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the file and give the right to write back. Closing twice is harmless."""
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def commit_round(
        self,
        round_index: int,
        users: Sequence[str],
        checkpoint: str,
        digest: str,
        status: Literal["released", "empty"] = "released",
    ) -> None:
        """Record one round durably, in one transaction, or not at all.

        Args:
            round_index: exactly one more than the last committed round (0 for the first), below n.
            users: the ids of the users whose updates are in the round; not empty strings, no duplicates.
            checkpoint: the name of the checkpoint that holds the state after this round, already on disk.
            digest: its checksum.
            status: "released", or "empty" for a round that released nothing of its users' updates.

        Raises:
            ParticipationViolation: a round out of turn or past the horizon, a user twice in the round, less
                than b rounds after that user's previous participation, or more than k times.
            LedgerError: the ledger is read-only or the disk failed. After any error nothing was written.
        """
        self._writable()
        if status not in ("released", "empty"):
            raise LedgerError(f"status (of a round) must be 'released' or 'empty'; got {status!r}.")
        if status == "empty" and len(users) > 0:
            raise ParticipationViolation(
                f"an empty round has no users; got {len(users)} in round {round_index}."
            )
        check_ids(users, round_index)
        if not (isinstance(checkpoint, str) and isinstance(digest, str)):
            raise LedgerError(f"checkpoint (file and digest) must be text; got {checkpoint!r}, {digest!r}.")
        slots = {"state": {"file": checkpoint, "digest": digest}}
        with self._mutex, self._transaction():
            last, chain = self._last()
            check_turn(self.participation, round_index, last)
            histories = self._loaded_histories()
            keys, newcomers = histories.keys(users)
            histories.check(int(round_index), keys)
            row = round_row(int(round_index), status, slots, keys, newcomers)
            self._connection.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, row.chained(chain, self._header_chain)),
            )
        histories.meet(newcomers)
        histories.record_all(row.round, keys)

    def last_round(self) -> int | None:
        """The last committed round, or None before the first."""
        return self._last()[0]

    def checkpoint(self) -> tuple[int, str, str] | None:
        """(round, checkpoint, digest) of the last committed round, or None before the first."""
        rows = self._rows("SELECT round, checkpoints FROM rounds ORDER BY round DESC LIMIT 1")
        with rebuilding(f"the last round in {self.path}", LedgerError):
            states = [(int(index), json.loads(slots)["state"]) for index, slots in rows]
            return next(((t, str(state["file"]), str(state["digest"])) for t, state in states), None)

    def user_count(self) -> int:
        """How many different users have taken part so far."""
        return len(self._names())

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
            return read_patterns(self._connection)

    def pattern_counts(self) -> dict[tuple[int, ...], int]:
        """``patterns`` as a dict from tuples of 0-based rounds to numbers of users, sorted."""
        return self.patterns().to_counts()

    def replay(self) -> ParticipationSummary:
        """Verify the whole file from its rows, trusting nothing that was checked when they were written.

        Returns:
            What was found: rounds, users, realised participation and separation.

        Raises:
            ParticipationViolation: rows that break the contract.
            LedgerError: a damaged file, missing triggers, or rows that contradict each other.
        """
        with self.snapshot():
            return replay(self._connection, self.participation, self._header_chain)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads inside see the same rounds, even while another process commits more."""
        with self._mutex, LEDGER.one_line_errors(self.path):
            nested = self._connection.in_transaction
            if not nested:
                self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if not nested:
                    self._connection.execute("ROLLBACK")

    def put_metrics(self, round_index: int, metrics: Mapping[str, Any]) -> None:
        """Store evaluation results under a round, replacing those stored before. Not part of the accounting.

        Args:
            round_index: 0 … n; by convention the number of rounds trained when the model was evaluated.
            metrics: JSON-able. NaN is kept: a diverged run is worth recording.

        Raises:
            LedgerError: an index outside 0 … n, metrics that are not JSON, a read-only ledger, a disk error.
        """
        self._writable()
        if not is_index(round_index) or not 0 <= round_index <= self.participation.rounds:
            raise LedgerError(
                f"round (of metrics) must lie in 0..{self.participation.rounds}; got {round_index!r}."
            )
        try:
            text = json.dumps(dict(metrics), ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise LedgerError(f"metrics of round {round_index} must be JSON: {error}.") from None
        with self._mutex, self._transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?)", (int(round_index), METRICS_VERSION, text)
            )

    def metrics(self) -> dict[int, dict[str, Any]]:
        """All stored metrics by round, in order."""
        with rebuilding(f"metrics in {self.path}", LedgerError):
            rows = self._rows("SELECT round, json FROM metrics ORDER BY round")
            return {int(t): dict(json.loads(text)) for t, text in rows}

    def _rows(self, query: str, *values: int) -> list[Any]:
        with self._mutex, LEDGER.one_line_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    def _writable(self) -> None:
        if self._lock is None:
            raise LedgerError(f"ledger {self.path} was opened read-only.")
        if os.getpid() != self._process:
            raise LedgerError(
                f"ledger {self.path} belongs to the process that opened it, not to a fork of it."
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with LEDGER.one_line_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._histories = None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _last(self) -> tuple[int | None, bytes]:
        """The last committed round, if any, and the chain value that the next one follows."""
        rows = self._rows("SELECT round, chain FROM rounds ORDER BY round DESC LIMIT 1")
        return rows[0] if rows else (None, self._header_chain)

    def _loaded_histories(self) -> Histories:
        if self._histories is None:
            self._histories = read_histories(self._connection, self.participation)
        return self._histories

    def _names(self) -> list[str]:
        """The users by key: at hand for a writer that has committed, read by everyone else."""
        with self._mutex, LEDGER.one_line_errors(self.path):
            return read_names(self._connection) if self._histories is None else self._histories.names
