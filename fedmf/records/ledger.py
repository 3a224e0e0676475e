"""The ledger of a run or stream: one SQLite file, to which one process at a time appends.

A commit is one transaction in WAL mode with synchronous FULL: the row that names the participants, the state
that goes with it and what it releases are durable together, before anyone sees the new model. Large contents
are in files of their own, named by their SHA-256, and a large state in one of two files by turns; both are
flushed before the row that names them with their SHA-256.

Rows form a chain (`Seal`), so that a changed row, a row of another ledger and a row that is missing in the
middle are detected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import LedgerError, ParticipationViolation, rebuilding
from fedmf.noise import FRESH_BYTES, NoiseKey
from fedmf.participation import Participation
from fedmf.records.durable import overwrite_durably, write_durably
from fedmf.records.histories import Histories
from fedmf.records.lock import ReleaseRight, WriterLock
from fedmf.records.mark import Mark
from fedmf.records.seal import Seal

#: "fdmf" in ASCII, by which `file` and SQLite know a ledger.
_APPLICATION: Final = 0x66646D66
_FORMAT: Final = 1
#: A step of a stream that is no user's.
NOBODY: Final = (1 << 32) - 1
#: Contents of more bytes are kept in files of their own.
_INLINE: Final = 1 << 16

_SCHEMA: Final = """
CREATE TABLE header(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, chain BLOB NOT NULL,
  code BLOB NOT NULL) STRICT;
CREATE TABLE openings(number INTEGER PRIMARY KEY, follows INTEGER NOT NULL, first INTEGER NOT NULL,
  fresh BLOB NOT NULL, note TEXT NOT NULL, chain BLOB NOT NULL, code BLOB NOT NULL) STRICT;
CREATE TABLE commits(number INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL,
  records INTEGER NOT NULL, participants BLOB NOT NULL, newcomers BLOB NOT NULL, about TEXT NOT NULL,
  pushes BLOB NOT NULL, digest BLOB NOT NULL, content BLOB, chain BLOB NOT NULL, code BLOB NOT NULL) STRICT;
CREATE TABLE state(id INTEGER PRIMARY KEY CHECK (id = 0), follows INTEGER NOT NULL, digest BLOB NOT NULL,
  place INTEGER NOT NULL, content BLOB, chain BLOB NOT NULL, code BLOB NOT NULL) STRICT;
CREATE TABLE metrics(round INTEGER PRIMARY KEY, json TEXT NOT NULL, chain BLOB NOT NULL,
  code BLOB NOT NULL) STRICT;
CREATE INDEX commits_by_records ON commits(records);
"""

#: Of a commit, but for its content.
_COLUMNS: Final = "number, first, count, records, participants, newcomers, about, pushes, digest"


@dataclass(frozen=True)
class ParticipationSummary:
    """What a record holds after every row was checked.

    Attributes:
        rounds: committed rounds, "empty" ones included; the rows of noise that are used up.
        empty_rounds: those that released nothing of any user.
        users: users that took part at least once.
        participations: rows of participation.
        max_participations: the largest number of rounds any user joined; 0 if none did.
        min_separation: the smallest distance between two rounds of one user; None if nobody joined twice.
        largest_cohort: the largest number of users in one round.
    """

    rounds: int
    empty_rounds: int
    users: int
    participations: int
    max_participations: int
    min_separation: int | None
    largest_cohort: int


@dataclass(frozen=True)
class Opening:
    """One process's beginning to release, or to continue releasing, a run or stream.

    Args:
        number: 0, 1, 2 …
        after: how many commits were made before it.
        first_round: how many releases there were when it was made: the next round of a run.
        fresh: 32 random bytes of its own, from which the noise of its rounds gets its key.
        note: what else is to be remembered of it, JSON-able.
    """

    number: int
    after: int
    first_round: int
    fresh: bytes
    note: Mapping[str, Any]


@dataclass(frozen=True)
class Commit:
    """One committed round of a run, or block of consecutive steps of a stream.

    Args:
        number: 0, 1, 2 …
        first: its round, or its first step, 0-based.
        count: 1, or how many steps.
        records: how many releases there are after it.
        keys: of the users of the round, ascending, or of each step's user, `NOBODY` for none; uint32.
        newcomers: the users met first here, whose keys follow those known before.
        about: what else is to be remembered of it.
        pushes: digests of the rows that were pushed.
        digest: SHA-256 of its content, empty if it has none.
    """

    number: int
    first: int
    count: int
    records: int
    keys: NDArray[np.uint32]
    newcomers: Sequence[str]
    about: Mapping[str, Any]
    pushes: bytes
    digest: bytes

    def row(self) -> tuple[int | str | bytes, ...]:
        """What the table holds, without the content and its place in the chain."""
        names = b"".join(name.encode() + b"\x00" for name in self.newcomers)
        return (
            self.number,
            self.first,
            self.count,
            self.records,
            self.keys.astype("<u4").tobytes(),
            names,
            _json(self.about),
            self.pushes,
            self.digest,
        )

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """What `row` gave."""
        number, first, count, records, keys, names, about, pushes, digest = row
        users = names[:-1].decode().split("\x00") if names else []
        return cls(
            number,
            first,
            count,
            records,
            np.frombuffer(keys, "<u4"),
            users,
            json.loads(about),
            pushes,
            digest,
        )


class Ledger:
    """An open ledger. Use `create` or `open`, as a context manager.

    Attributes:
        participation: the (n, k, b) contract that every commit obeys.
        header: the description of the run or stream.
        right: to release: lost for good by whatever does not end well.
        note: what the opening of this process will note, JSON-able.
        histories: who took part how often and when last.
        released: rounds, or steps, that were committed.

    Guarantees:
        * A commit that returned survives kill -9 and power loss. One that was refused left no trace. One that
          failed ends this opening: it is there as a whole or not at all, and the next opening tells.
        * Every commit obeys the contract. One process at a time can extend a ledger.
        * A ledger that holds fewer commits than its marks, or other ones, is not opened; a value that was
          changed is not read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ledger.sqlite"
    >>> key = NoiseKey.from_seed(1)
    >>> Ledger.create(path, Participation(10, 2, 4), {"name": "demo"}, key)
    >>> with Ledger.open(path, key) as ledger:
    ...     opening = ledger.opening()
    ...     ledger.commit_round(0, ["ann", "bob"])
    ...     ledger.commit_round(1, ["eve"])
    ...     ledger.commit_round(2, ["ann"])
    Traceback (most recent call last):
        ...
    fedmf.errors.ParticipationViolation: user 'ann' took part in round 0 and may not ...
    >>> with Ledger.open(path, key) as ledger:
    ...     ledger.released, ledger.histories.names
    (2, ['ann', 'bob', 'eve'])
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        lock: WriterLock | None,
        key: NoiseKey | None,
        remembered: bool,
    ) -> None:
        self.path, self._connection, self._lock = path, connection, lock
        self._seal, self.right = Seal.of(key), ReleaseRight()
        self.note: Mapping[str, Any] = {}
        self._process, self._mutex = os.getpid(), threading.RLock()
        self._opening: Opening | None = None
        self._openings: list[Opening] = []
        self._chains: list[bytes] = []
        self.released = self._known = self._records = 0
        self._about: Mapping[str, Any] = {}
        self._mark = Mark(path, None if lock is None else key, remembered)
        try:
            with self._faults():
                self._read()
        except BaseException:
            self._mark.close()
            raise

    @classmethod
    def create(
        cls,
        path: Path,
        participation: Participation,
        header: Mapping[str, Any],
        key: NoiseKey,
        steps: bool = False,
    ) -> None:
        """Create the ledger of a new run or stream; it is closed.

        Args:
            path: where; the directory exists, the file does not.
            participation: the contract that every commit is checked against.
            header: the description, JSON-able with finite numbers; stored once.
            key: of the run or stream; every row gets a code under its sub-key "records".
            steps: whether commits are blocks of steps, each of at most one user, not rounds of cohorts.

        Raises:
            LedgerError: the file exists, the place is not writable, or the header is not JSON.
        """
        path = Path(os.path.realpath(path))
        if path.exists():
            raise LedgerError(f"ledger {path} exists already. Resume that run or choose another directory.")
        n, k, b = participation.rounds, participation.max_participations, participation.min_separation
        text = _json({"participation": [n, k, b], "steps": steps, "about": dict(header)}, "header")
        chain, code = Seal.of(key).sealed(b"header", text)
        with _one_line(path):
            path.touch(mode=0o600)
            connection = _connected(path, read_only=False)
            with contextlib.closing(connection):
                connection.execute("PRAGMA journal_mode=WAL")
                with _transaction(connection):
                    connection.execute(f"PRAGMA application_id={_APPLICATION}")
                    connection.execute(f"PRAGMA user_version={_FORMAT}")
                    for statement in _SCHEMA.strip().rstrip(";").split(";"):
                        connection.execute(statement)
                    connection.execute("INSERT INTO header VALUES (0, ?, ?, ?)", (text, chain, code))
            Mark.begin(path)

    @classmethod
    def open(
        cls, path: Path, key: NoiseKey | None = None, read_only: bool = False, remembered: bool = True
    ) -> Self:
        """Open an existing ledger and verify all of it; for writing, as the only writer.

        Args:
            path: of the file.
            key: of the run. Without it a ledger can only be read, and codes are not checked.
            read_only: whether other processes may write meanwhile; what they commit is not seen.
            remembered: whether this machine keeps a mark of it, once its directory is gone.

        Raises:
            LedgerError: no such file, not a ledger, no key to write with, a second writer, rows that were
                changed or break the contract, or fewer or other rows than its marks say.
        """
        path = Path(os.path.realpath(path))
        if key is None and not read_only:
            raise LedgerError(f"key (of the run) must be given to write to ledger {path}; got none.")
        if not path.is_file():
            raise LedgerError(f"ledger {path} does not exist.")
        with contextlib.ExitStack() as undo:
            lock = None if read_only else WriterLock(path)
            if lock is not None:
                undo.callback(lock.release)
            with _one_line(path):
                connection = _connected(path, read_only)
                undo.callback(connection.close)
                ledger = cls(path, connection, lock, key, remembered)
            undo.pop_all()
        return ledger

    def close(self) -> None:
        """Close the file and give the right to write back. Closing twice is harmless."""
        self._connection.close()
        self._mark.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def _read(self) -> None:
        """Verify every row, trusting nothing that was checked when it was written."""
        found = self._mark.read()
        self._connection.execute("BEGIN")  # a reader keeps this view until it is closed
        self._check_file()
        self._read_header()
        openings = self._read_openings()
        self.histories = Histories(self.participation)
        head, before, self._empty, self._largest = self._header_chain, 0, 0, 0
        for commit, chain, code in self._commits():
            if commit.number != len(self._chains):
                raise LedgerError(f"commit {len(self._chains)} is missing from the ledger.")
            head, before = self._open_until(commit.number, openings, head, before)
            if not before and commit.count:
                raise LedgerError(f"commit {commit.number} follows no opening.")
            self._require((chain, code), f"commit {commit.number}", b"commit", head, *commit.row())
            self._follow(commit)
            self._take(commit, chain)
            head = chain
        self._head, before = self._open_until(len(self._chains), openings, head, before)
        if before < len(openings):
            raise LedgerError(f"opening {before} of the ledger does not follow its last commit.")
        self._openings = [opening for opening, *_ in openings]
        self._mark.check(found, self._chains)
        if self._lock is not None:
            self._connection.execute("COMMIT")

    def _check_file(self) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise LedgerError(f"{self.path} is not a fedmf ledger.")
        if version != _FORMAT:
            raise LedgerError(f"ledger {self.path} has format {version}; this fedmf reads format {_FORMAT}.")
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise LedgerError(f"ledger {self.path} is damaged: {' '.join(verdict.split())}.")

    def _read_header(self) -> None:
        rows = self._connection.execute("SELECT json, chain, code FROM header").fetchall()
        if len(rows) != 1:
            raise LedgerError(f"{self.path} is not a whole fedmf ledger: its header is missing.")
        text, chain, code = rows[0]
        self._require((chain, code), "the header", b"header", text)
        described = json.loads(text)
        self.participation = Participation(*described["participation"])
        self.header: dict[str, Any] = described["about"]
        self._steps: bool = described["steps"]
        self._header_chain: bytes = chain

    def _read_openings(self) -> list[tuple[Opening, bytes, bytes]]:
        rows = self._connection.execute("SELECT * FROM openings ORDER BY number").fetchall()
        return [
            (Opening(number, follows, first, fresh, json.loads(note)), chain, code)
            for number, follows, first, fresh, note, chain, code in rows
        ]

    def _open_until(
        self, number: int, openings: Sequence[tuple[Opening, bytes, bytes]], head: bytes, before: int
    ) -> tuple[bytes, int]:
        """The head of the chain, and how many openings precede commit `number`."""
        for opening, chain, code in openings[before:]:
            if opening.after > number:
                break
            if (opening.number, opening.after) != (before, number) or opening.first_round != self._records:
                raise LedgerError(f"opening {opening.number} of the ledger is not the next in order.")
            self._require(
                (chain, code), f"opening {opening.number}", b"opening", head, *_opening_row(opening)
            )
            head, before = chain, before + 1
        return head, before

    def _commits(self) -> Iterator[tuple[Commit, bytes, bytes]]:
        query = f"SELECT {_COLUMNS}, chain, code FROM commits ORDER BY number"
        for *row, chain, code in self._connection.execute(query):
            yield Commit.of_row(row), chain, code

    def _follow(self, commit: Commit) -> None:
        """Take the participations of a commit, unless it breaks the contract or contradicts earlier ones."""
        if commit.first != self.released or commit.count < 0 or (not self._steps and commit.count != 1):
            raise ParticipationViolation(f"commit {commit.number} of the ledger is out of turn.")
        if commit.first + commit.count > self.participation.rounds:
            raise ParticipationViolation(
                f"the ledger goes past its horizon of n={self.participation.rounds}."
            )
        known = len(self.histories) + len(commit.newcomers)
        keys = commit.keys
        if self._steps:
            taken = keys[keys != NOBODY]
            if len(keys) != commit.count or (taken >= known).any():
                raise LedgerError(f"commit {commit.number} of the ledger names users who are not in it.")
        elif (keys[1:] <= keys[:-1]).any() or (keys >= known).any():
            raise LedgerError(f"round {commit.first} of the ledger names its users out of order or twice.")
        check_ids(commit.newcomers, commit.first)
        if any(name in self.histories for name in commit.newcomers):
            raise LedgerError(f"commit {commit.number} of the ledger gives a user a second key.")
        self.histories.meet(commit.newcomers)
        if not self._steps:
            self.histories.check(commit.first, keys)
            self.histories.record_all(commit.first, keys)
            return
        names = self.histories.names
        for step, key in enumerate(keys.tolist(), commit.first + 1):
            if key != NOBODY:
                if not self.histories.admits(names[key], step):
                    raise ParticipationViolation(
                        f"user {names[key]!r} takes step {step} of the ledger against the contract."
                    )
                self.histories.record(names[key], step)

    def _require(self, sealed: tuple[bytes, bytes], name: str, kind: bytes, *content: Any) -> None:
        if (fault := self._seal.fault(sealed, kind, *content)) is not None:
            raise LedgerError(
                f"{name} of ledger {self.path} is not as it was written: {fault}. Restore the directory from "
                "a copy."
            )

    def _take(self, commit: Commit, chain: bytes) -> None:
        """Hold a commit that is durable."""
        self._chains.append(chain)
        self._head = chain
        self.released, self._records = commit.first + commit.count, commit.records
        self._known += len(commit.newcomers)
        self._about = commit.about
        self._empty += not self._steps and not len(commit.keys)
        self._largest = max(self._largest, 1 if self._steps else len(commit.keys))

    @property
    def authenticated(self) -> bool:
        """Whether the key is at hand, so that codes are checked and not chain values alone."""
        return self._seal.key is not None

    @property
    def about(self) -> Mapping[str, Any]:
        """What the last commit remembers; empty before the first."""
        return self._about

    def openings(self) -> list[Opening]:
        """All openings so far, in order."""
        return list(self._openings)

    def participations(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(times, user keys) of all participations so far, in the order of rounds or steps; `histories.names`
        has the users by key."""
        times, users = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with self._faults():
            for commit, *_ in self._commits():
                taken = commit.keys != NOBODY if self._steps else slice(None)
                steps = np.arange(commit.count) if self._steps else np.zeros(len(commit.keys), np.int64)
                times.append(commit.first + steps[taken])
                users.append(commit.keys[taken].astype(np.int64))
        return np.concatenate(times), np.concatenate(users)

    def by_user(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(times, user keys) of all participations, sorted by key, then by time."""
        times, users = self.participations()
        order = np.argsort(users * np.int64(max(1, self.participation.rounds)) + times)
        return times[order].astype(np.int32), users[order].astype(np.int32)

    def summary(self) -> ParticipationSummary:
        """Rounds, users, and the (k, b) that occurred."""
        return ParticipationSummary(
            rounds=self.released,
            empty_rounds=self._empty,
            users=len(self.histories),
            participations=int(self.histories.counts.sum()),
            max_participations=self.histories.max_participations,
            min_separation=self.histories.min_separation,
            largest_cohort=self._largest,
        )

    def state(self) -> bytes | None:
        """The state that was kept last, None if none was.

        Raises:
            LedgerError: it is missing or damaged, or follows a commit that the ledger does not hold.
        """
        with self._faults():
            row = self._connection.execute(
                "SELECT follows, digest, place, content, chain, code FROM state"
            ).fetchone()
            if row is None:
                return None
            after, digest, place, content, *sealed = row
            if not 0 <= after <= len(self._chains):
                raise LedgerError(f"the state of ledger {self.path} follows a commit that is not there.")
            follows = self._chains[after - 1] if after else self._header_chain
            self._require(tuple(sealed), "the state", b"state", follows, digest)
            return self._checked(digest, self._place(place).read_bytes() if content is None else content)

    def commits(self) -> Iterator[Commit]:
        """All commits in order."""
        with self._faults():
            yield from (commit for commit, *_ in self._commits())

    def contents(self, record: int = 0) -> Iterator[tuple[Commit, bytes]]:
        """The commits that release something, with their contents, from the one with this release on.

        Raises:
            LedgerError: a content is missing or damaged.
        """
        query = (
            f"SELECT {_COLUMNS}, content FROM commits WHERE records > ? AND digest <> x'' "
            "ORDER BY records, number"
        )
        with self._faults():
            for *row, content in self._connection.execute(query, (record,)):
                commit = Commit.of_row(row)
                yield commit, self._content(commit.digest, content)

    def metrics(self) -> dict[int, dict[str, Any]]:
        """All stored metrics by round, in order."""
        found: dict[int, dict[str, Any]] = {}
        with self._faults():
            query = "SELECT round, json, chain, code FROM metrics ORDER BY round"
            for round_index, text, *sealed in self._connection.execute(query):
                name = f"metrics of round {round_index}"
                self._require(tuple(sealed), name, b"metrics", self._header_chain, round_index, text)
                found[int(round_index)] = json.loads(text)
        return found

    def _content(self, digest: bytes, inline: bytes | None) -> bytes:
        return self._checked(digest, self._file(digest).read_bytes() if inline is None else inline)

    def _checked(self, digest: bytes, content: bytes) -> bytes:
        if hashlib.sha256(content).digest() != digest:
            raise LedgerError(f"a content of ledger {self.path} differs from its SHA-256. Restore a copy.")
        return content

    def _file(self, digest: bytes) -> Path:
        return self.path.with_name(f"{self.path.stem}-{digest.hex()[:40]}.bin")

    def _place(self, place: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-state-{place}.bin")

    # Writing

    def opening(self) -> Opening:
        """That of this process: recorded durably now, with fresh random bits, if it was not yet."""
        if self._opening is None:
            self._writable()
            number, fresh = len(self._openings), os.urandom(FRESH_BYTES)
            opening = Opening(number, len(self._chains), self._records, fresh, dict(self.note))
            row = _opening_row(opening)
            with self._written("an opening"):
                sealed = self._seal.sealed(b"opening", self._head, *row)
                with _transaction(self._connection):
                    self._insert("openings", (*row, *sealed))
                self._head = sealed[0]
            self._opening = opening
            self._openings.append(opening)
        return self._opening

    def check_round(self, t: int, users: Sequence[str]) -> None:
        """Refuse what `commit_round` would refuse, before any noise is drawn for it.

        Raises:
            ParticipationViolation, LedgerError: as there.
        """
        self._writable()
        check_ids(users, t)
        if not _is_index(t) or t != self.released:
            raise ParticipationViolation(f"round must be {self.released}, the next to commit; got {t!r}.")
        if t >= self.participation.rounds:
            raise ParticipationViolation(
                f"round {t} is past the horizon: all n={self.participation.rounds} rounds are committed. A "
                "longer run needs a new factorization and a new budget."
            )
        self.histories.check(int(t), self.histories.keys(users)[0])

    def admissible(self, t: int, users: Sequence[str]) -> list[str]:
        """Those of ``users`` whom the contract lets take part in round t, in the same order."""
        return [user for user in users if self.histories.admits(user, t)]

    def commit_round(
        self,
        t: int,
        users: Sequence[str],
        state: bytes | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Record one round durably, or not at all.

        Args:
            t: exactly one more than the last committed round (0 for the first), below n.
            users: the ids of the users whose updates are in the round; no duplicates.
            state: the whole state after the round; None leaves the one kept last.
            about: what else is to be remembered of the round, JSON-able.

        Raises:
            ParticipationViolation: a round out of turn or past the horizon, a user twice in the round, less
                than b rounds after that user's previous participation, or more than k times.
            LedgerError: the ledger is read-only, this process recorded no opening, or the disk failed: then,
                and only then, the round may be there, and nothing more can be written.
        """
        with self._mutex:
            self.check_round(t, users)
            t = int(t)
            keys, newcomers = self.histories.keys(users)
            commit = self._next(np.sort(keys), 1, t + 1, newcomers, about or {})
            self._commit(f"round {t + 1}", commit, None, state)
            self.histories.meet(newcomers)
            self.histories.record_all(t, keys)

    def commit_steps(
        self,
        users: Sequence[str | None],
        about: Mapping[str, Any],
        content: bytes,
        records: int,
        state: bytes,
        pushes: bytes = b"",
    ) -> None:
        """Record a block of steps durably, or not at all.

        Args:
            users: of each step, None for a row that is no user's; each is in `histories` already, where the
                caller recorded it when it was admitted.
            about: what is to be remembered of the block, JSON-able.
            content: what the block releases; empty for nothing.
            records: how many releases there are after it.
            state: the whole state after the block.
            pushes: digests of the rows that were pushed.

        Raises:
            LedgerError: as `commit_round`.
        """
        names, key_of = self.histories.names, self.histories.key_of
        keys = np.array([NOBODY if user is None else key_of(user) for user in users], np.int64)
        met = (
            int(keys[keys != NOBODY].max(initial=self._known - 1)) + 1
        )  # others were admitted, not committed
        commit = self._next(keys, len(users), records, names[self._known : met], about, pushes)
        with self._mutex:
            self._commit(f"step {self.released + len(users)}", commit, content or None, state)

    def _next(
        self,
        keys: NDArray[np.int64],
        count: int,
        records: int,
        newcomers: Sequence[str],
        about: Mapping[str, Any],
        pushes: bytes = b"",
    ) -> Commit:
        """The commit that would follow the last."""
        number, taken = len(self._chains), keys.astype(np.uint32)
        return Commit(number, self.released, count, records, taken, newcomers, about, pushes, b"")

    def keep_state(self, state: bytes) -> None:
        """Record a state durably that follows the last commit.

        Raises:
            LedgerError: the ledger is read-only, or the disk failed.
        """
        follows = self._chains[-1] if self._chains else self._header_chain
        with self._written("the state"), _transaction(self._connection):
            self._put_state(len(self._chains), follows, state)

    def put_metrics(self, round_index: int, metrics: Mapping[str, Any]) -> None:
        """Store evaluation results under a round, replacing those stored before. Not part of the accounting.

        Args:
            round_index: 0 … n; by convention the number of rounds trained when the model was evaluated.
            metrics: JSON-able. NaN is kept: a diverged run is worth recording.

        Raises:
            LedgerError: an index outside 0 … n, metrics that are not JSON, a read-only ledger, a disk error.
        """
        self._writable()
        if not _is_index(round_index) or not 0 <= round_index <= self.participation.rounds:
            raise LedgerError(
                f"round (of metrics) must lie in 0..{self.participation.rounds}; got {round_index!r}."
            )
        text = _json(metrics, "metrics", allow_nan=True)
        with self._written(f"metrics after {round_index} rounds"), _transaction(self._connection):
            sealed = self._seal.sealed(b"metrics", self._header_chain, int(round_index), text)
            self._connection.execute(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)", (int(round_index), text, *sealed)
            )

    def _commit(self, what: str, commit: Commit, content: bytes | None, state: bytes | None) -> None:
        if self._opening is None and commit.count:
            raise LedgerError(f"opening (of this process) must be recorded before {what}; got none.")
        with self._written(what):
            digest, inline = (b"", None) if content is None else self._kept(content)
            commit = dataclasses.replace(commit, digest=digest)
            row = commit.row()
            sealed = self._seal.sealed(b"commit", self._head, *row)
            with _transaction(self._connection):
                self._insert("commits", (*row, inline, *sealed))
                if state is not None:
                    self._put_state(commit.number + 1, sealed[0], state)
            self._take(commit, sealed[0])
        self._mark.note(len(self._chains), sealed[0])

    def _put_state(self, after: int, follows: bytes, state: bytes) -> None:
        """Replace the state in the transaction at hand.

        A large one goes into the one of two files that the row at hand does not name: a crash leaves that row
        and its file as they were, and no directory has to be flushed.
        """
        before = self._connection.execute("SELECT place FROM state").fetchone()
        place, inline = 0 if before is None else 1 - before[0], state
        if len(state) > _INLINE:
            overwrite_durably(self._place(place), state)
            inline = None
        digest = hashlib.sha256(state).digest()
        row = (0, after, digest, place, inline, *self._seal.sealed(b"state", follows, digest))
        self._connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _kept(self, content: bytes) -> tuple[bytes, bytes | None]:
        """The digest of a content, and itself if it goes into its row; else it is in a file of its own."""
        digest = hashlib.sha256(content).digest()
        if len(content) <= _INLINE:
            return digest, content
        write_durably(self._file(digest), content)
        return digest, None

    def _insert(self, table: str, row: Sequence[Any]) -> None:
        self._connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def _writable(self) -> None:
        if self._lock is None:
            raise LedgerError(f"ledger {self.path} was opened read-only.")
        if os.getpid() != self._process:
            raise LedgerError(
                f"ledger {self.path} belongs to the process that opened it, not to a fork of it."
            )
        self.right.require()

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """While something is written: if that fails nothing more is, and the file tells what is there."""
        self._writable()
        with self._mutex, self.right.exercise(what), _one_line(self.path):
            yield

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """One line for whatever a damaged file may cause."""
        with self._mutex, _one_line(self.path), rebuilding(f"ledger {self.path}", LedgerError):
            yield


def check_ids(users: Sequence[str], time: int) -> None:
    """Refuse ids that cannot be stored and compared exactly, and a user named twice."""
    if isinstance(users, str):
        raise LedgerError(f"users must be a sequence of ids; got the single string {users!r}.")
    for user in users:
        if not isinstance(user, str) or not user or "\x00" in user or not _encodable(user):
            raise LedgerError(
                f"user (id) must be a non-empty string of valid Unicode without NUL; got {user!r} in round "
                f"{time}."
            )
    if len(set(users)) != len(users):
        seen: set[str] = set()
        twice = next(user for user in users if user in seen or seen.add(user))
        raise ParticipationViolation(f"user {twice!r} appears twice in round {time}.")


def _encodable(user: str) -> bool:
    try:
        user.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_index(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _opening_row(opening: Opening) -> tuple[int | str | bytes, ...]:
    return opening.number, opening.after, opening.first_round, opening.fresh, _json(opening.note)


def _json(value: Mapping[str, Any], what: str = "note", allow_nan: bool = False) -> str:
    try:
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=allow_nan)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"{what} (in a ledger) must be JSON with finite numbers: {error}.") from None


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn what SQLite and the operating system raise into an error of one line."""
    try:
        yield
    except sqlite3.Error as error:
        reason = " ".join(str(error).split())
        if reason == "file is not a database":
            raise LedgerError(f"{path} is not a fedmf ledger: {reason}.") from None
        raise LedgerError(f"ledger {path} failed: {reason}.") from error
    except OSError as error:
        raise LedgerError(f"ledger {path} failed: {error.strerror or error}.") from error


def _flush(connection: sqlite3.Connection) -> None:
    """End a transaction; it is on the disk when this returns."""
    connection.execute("COMMIT")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is written inside takes effect whole or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        _flush(connection)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connected(path: Path, read_only: bool) -> sqlite3.Connection:
    """A connection on which COMMIT returns only when the transaction would survive a power loss.

    A reader opens the file for writing too if it may, since only then can SQLite read the log of a writer
    that was killed; query_only keeps it from writing anything else.
    """
    mode = "rw" if os.access(path.parent, os.W_OK) else "ro"
    if mode == "ro" and not path.with_name(path.name + "-wal").exists():
        mode = "ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    # A writer waits for a long reader rather than fail the run.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=300.0)
    for pragma in ("synchronous=FULL", "fullfsync=ON", f"query_only={int(read_only)}"):
        connection.execute(f"PRAGMA {pragma}")
    return connection
