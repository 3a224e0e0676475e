"""The participation ledger: the durable record of who took part in which round."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.records.frames import Field, State
from fedmf.records.histories import Histories
from fedmf.records.ledger.reading import LedgerReading
from fedmf.records.ledger.replay import read_histories
from fedmf.records.ledger.schema import LEDGER, METRICS_VERSION, TAIL, build, round_row
from fedmf.records.ledger.tail import fold, rows_of, show_row, show_tail, tail_rows
from fedmf.records.lock import WriterLock
from fedmf.records.seal import Seal


def check_turn(participation: Participation, round_index: int, last: int | None) -> None:
    """Refuse a round that is not the next one, or is past the horizon."""
    turn = 0 if last is None else last + 1
    if not is_index(round_index) or round_index != turn:
        raise ParticipationViolation(f"round must be {turn}, the next to commit; got {round_index!r}.")
    if round_index >= participation.rounds:
        raise ParticipationViolation(
            f"round {round_index} is past the horizon: all n={participation.rounds} rounds are committed. "
            "A longer run needs a new factorization and a new budget."
        )


def check_ids(users: Sequence[str], round_index: int) -> None:
    """Refuse ids that cannot be stored and compared exactly, and a user named twice."""
    if isinstance(users, str):
        raise LedgerError(f"users must be a sequence of ids; got the single string {users!r}.")
    for user in users:
        if not isinstance(user, str) or not user or "\x00" in user or not _encodable(user):
            raise LedgerError(
                f"user (id) must be a non-empty string of valid Unicode without NUL; got {user!r} in round "
                f"{round_index}."
            )
    if len(set(users)) != len(users):
        seen: set[str] = set()
        twice = next(user for user in users if user in seen or seen.add(user))
        raise ParticipationViolation(f"user {twice!r} appears twice in round {round_index}.")


def is_index(value: object) -> bool:
    """Whether a value is an integer and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _encodable(user: str) -> bool:
    try:
        user.encode()
    except UnicodeEncodeError:
        return False
    return True


class Ledger(LedgerReading):
    """An append-only record with one row per committed round, which names its participants.

    Committing a round here is what makes the round happen, its state with it, and only then may anyone see
    the new model. The newest rows are in files of frames beside a SQLite file (`Tail`), which has them all
    when the ledger is closed. Rounds are 0-based and have no gaps: a round that failed is committed as
    "empty" and consumes its row of noise.

    Guarantees:
        * A commit that returned survives kill -9 and power loss. One that was refused left no trace. One that
          failed ends this opening (`ReleaseRight`): the round is there as a whole or not at all, nothing of
          it is taken back, and opening the ledger again tells.
        * Every committed round obeys the participation contract given at creation.
        * One process at a time can extend a ledger; the right to do so ends with the process.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.sqlite"
    >>> key = NoiseKey.from_seed(1)
    >>> with Ledger.create(path, Participation(10, 2, 4), header={"name": "demo"}, key=key) as ledger:
    ...     opening = ledger.opening()
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

    @classmethod
    def create(
        cls, path: str | Path, participation: Participation, header: Mapping[str, Any], key: NoiseKey
    ) -> Ledger:
        """Create the ledger of a new run and keep it open for writing.

        Args:
            path: where; the directory exists, the file does not.
            participation: the contract every round is checked against.
            header: the description of the run, JSON-able with finite numbers; stored once.
            key: of the run; every row gets a code under its sub-key "records".

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
                build(path, participation, dict(header), Seal.of(LEDGER, key))
            return cls._opened(path, lock, lambda: key)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | Path, key: NoiseKey | None = None, read_only: bool = False) -> Ledger:
        """Open an existing ledger; for writing, as the only writer.

        Args:
            path: of the file.
            key: of the run. Without it a ledger can only be read: its chain is checked, its codes are not.
            read_only: whether other processes may write meanwhile.

        Raises:
            LedgerError: no such file, not a ledger, another format version, a header that was altered or
                written with another key, no key to write with, or a second writer.
        """
        path = Path(os.path.realpath(path))
        if key is None and not read_only:
            raise LedgerError(f"key (of the run) must be given to write to ledger {path}; got none.")
        if not path.is_file():
            raise LedgerError(f"ledger {path} does not exist.")
        return cls._opened(path, None if read_only else WriterLock(LEDGER, path), lambda: key)

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None, key: NoiseKey | None
    ) -> None:
        super().__init__(path, connection, lock, key)
        self._looked = False
        #: The last record, if it is a round that this process committed.
        self._tip: tuple[int, bytes] | None = None

    @property
    def committed(self) -> bytes | None:
        """The chain value of the last round, if this process committed it and nothing after it."""
        return None if self._tip is None else self._tip[1]

    def head(self) -> bytes:
        """See `LedgerReading.head`."""
        return self.committed or super().head()

    def _last(self) -> tuple[int | None, bytes]:
        return self._tip or super()._last()

    def close(self) -> None:
        """Close the file and give the right to write back. Closing twice is harmless."""
        if self._lock is not None and os.getpid() == self._process:
            # The rows are on the disk already. What failed is left as it is to the next opening.
            with contextlib.suppress(LedgerError):
                if self.right.holds:
                    self._fold_at_the_end()
        self._tip = None
        self._tail.end_file()
        super().close()

    def _noted(self, note: Mapping[str, Any]) -> dict[str, Any]:
        """With the number of the tail's file, which is begun.

        What a process that was killed or failed left at the end of the tail is taken over first: its rows are
        in the database and its last state is written again, since a flush that failed once may be told to
        others as one that ended well.
        """
        with self._written("an opening"):
            if self._opening is None:
                self._take_over()
            self._tip = None
            return {**note, TAIL: self._tail.begin()}

    def commit_round(
        self,
        round_index: int,
        users: Sequence[str],
        checkpoint: str,
        digest: str,
        status: Literal["released", "empty"] = "released",
        state: State | None = None,
    ) -> None:
        """Record one round durably, by one append and one flush, or not at all.

        Args:
            round_index: exactly one more than the last committed round (0 for the first), below n.
            users: the ids of the users whose updates are in the round; not empty strings, no duplicates.
            checkpoint: the name of the state after this round, or of the last before it that was kept.
            digest: its checksum.
            state: the state itself, if it is committed with this round.
            status: "released", or "empty" for a round that released nothing of its users' updates.

        Raises:
            ParticipationViolation: a round out of turn or past the horizon, a user twice in the round, less
                than b rounds after that user's previous participation, or more than k times.
            LedgerError: the ledger is read-only, this process recorded no opening, or the disk failed: then,
                and only then, the round may be there, and nothing more can be written.
        """
        self._writable()
        if self._opening is None:
            raise LedgerError(
                f"opening (of this process) must be recorded before round {round_index}; got none."
            )
        if status not in ("released", "empty"):
            raise LedgerError(f"status (of a round) must be 'released' or 'empty'; got {status!r}.")
        if status == "empty" and len(users) > 0:
            raise ParticipationViolation(
                f"an empty round has no users; got {len(users)} in round {round_index}."
            )
        if not (isinstance(checkpoint, str) and isinstance(digest, str)):
            raise LedgerError(f"checkpoint (file and digest) must be text; got {checkpoint!r}, {digest!r}.")
        slots = {"state": {"file": checkpoint, "digest": digest}}
        with self._mutex, LEDGER.one_line_errors(self.path):
            histories, keys, newcomers = self._allowed(round_index, users)
            with self._written(f"round {round_index + 1}"):
                row = round_row(int(round_index), status, slots, keys, newcomers)
                sealed = self._seal.sealed(b"round", self.head(), self._header_chain, *row)
                self._append(("round", *row, *sealed), state)
                histories.meet(newcomers)
                histories.record_all(row.round, keys)
                self._histories, self._tip = histories, (row.round, sealed[0])

    def check_round(self, round_index: int, users: Sequence[str]) -> None:
        """Refuse what `commit_round` would refuse, before any noise is drawn for it.

        Raises:
            ParticipationViolation, LedgerError: as there.
        """
        self._writable()
        with self._mutex, LEDGER.one_line_errors(self.path):
            self._histories, *_ = self._allowed(round_index, users)

    def _allowed(
        self, round_index: int, users: Sequence[str]
    ) -> tuple[Histories, NDArray[np.int64], list[str]]:
        check_ids(users, round_index)
        check_turn(self.participation, round_index, self.last_round())
        histories = self._current_histories()
        keys, newcomers = histories.keys(users)
        histories.check(int(round_index), keys)
        return histories, keys, newcomers

    def admissible(self, round_index: int, users: Sequence[str]) -> list[str]:
        """Those of ``users`` whom the contract lets take part in the coming round, in the same order."""
        with self._mutex, LEDGER.one_line_errors(self.path):
            histories = self._histories = self._current_histories()
        return [user for user in users if histories.admits(user, round_index)]

    def _current_histories(self) -> Histories:
        """Who took part when, up to the last committed round."""
        if self._histories is not None:  # an empty one is false
            return self._histories
        return read_histories(self._connection, self.participation)

    def keep_state(self, state: State) -> None:
        """Record a state durably that rounds to come will name.

        Raises:
            LedgerError: the ledger is read-only, or the disk failed.
        """
        with self._written("the first state"):
            self._append(("state",), state)

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
        with self._written(f"metrics after {round_index} rounds"):
            row = int(round_index), METRICS_VERSION, text
            sealed = self._seal.sealed(b"metrics", self._header_chain, *row)
            self._append(("metrics", *row, *sealed))

    def _append(self, row: tuple[Field, ...], state: State | None = None) -> None:
        self._show_news()
        if self._tail.heavy:
            with self._transaction():
                pass
        self._tail.append(row, state)
        show_row(self._connection, row)

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """See `Record._written`."""
        with super()._written(what):
            try:
                yield
            except BaseException:
                self._histories = self._tip = None
                self._looked = False
                raise

    def _show_news(self) -> None:
        if self._lock is None:
            super()._show_news()
        elif not self._looked:  # nobody else writes: what comes is known
            rows, self._tip = rows_of(self._tail.frames()), None
            show_tail(self._connection, rows)
            self._tail.hold(rows)
            self._looked = True

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One of the database that begins with the rows of the tail."""
        with LEDGER.one_line_errors(self.path):
            self._show_news()
            with super()._transaction():
                fold(self._connection)
                yield
            show_tail(self._connection, [])
            self._tail.hold([])

    def _take_over(self) -> None:
        """Move what another process left in the tail into the database, and write its last state again."""
        self._show_news()
        if tail_rows(self._connection):
            with self._transaction():
                pass
            self._keep_last_state(anew=True)

    def _fold_at_the_end(self) -> None:
        with self._written("closing"):
            if self._looked and tail_rows(self._connection):
                self._connection.execute("PRAGMA busy_timeout=1000")  # whoever reads may go on reading
                with self._transaction():
                    pass
                self._keep_last_state()

    def _keep_last_state(self, anew: bool = False) -> None:
        committed = self.checkpoint()
        if committed is not None:
            self._tail.keep_only(committed[2], anew)
