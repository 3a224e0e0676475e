"""The ledger of a run or stream: one SQLite file, to which one process at a time appends.

A commit is one transaction in WAL mode with synchronous FULL: the row that names the participants,
the state after it and the content that it releases are durable together, before anyone sees the new
model. A large state is in one of two files by turns, flushed before the row that names it with its
SHA-256.

Rows form a chain, so that a changed row, a row of another ledger and a row that is missing in the
middle are detected. A row that follows the chain value c has the chain value
c' = SHA-256(kind of row ‖ c ‖ content), each part preceded by its type and length, and the code
HMAC-SHA256(records key, c'). The records key is a sub-key of the noise key, so only someone with
that key can write valid rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import HorizonExceededError, LedgerError, ParticipationViolation, rebuilding
from fedmf.ledger.durable_files import overwrite_durably
from fedmf.ledger.lineage import Lineage
from fedmf.ledger.lock import (
    HighWaterMark,
    Progress,
    ReleaseGuard,
    WriterLock,
    progress_seen_here,
)
from fedmf.ledger.participations import Histories
from fedmf.noise.key import NoiseKey
from fedmf.noise.schedule import SALT_BYTES
from fedmf.participation import Participation

#: "fdmf" in ASCII, by which `file` and SQLite recognize a ledger.
_APPLICATION: Final = 0x66646D66
_FORMAT: Final = 2
#: What to do if the ledger cannot be read or written.
_REMEDY: Final = "If the disk is full, free it; else restore the whole directory from one copy."
#: Key of a step that is no user's.
NO_USER: Final = (1 << 32) - 1
#: A state of more bytes has a file of its own.
INLINE: Final = 1 << 16

_SCHEMA: Final = """
CREATE TABLE header(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, chain BLOB NOT NULL,
  code BLOB NOT NULL) STRICT;
CREATE TABLE openings(number INTEGER PRIMARY KEY, follows INTEGER NOT NULL, first INTEGER NOT NULL,
  salt BLOB NOT NULL, chain BLOB NOT NULL, code BLOB NOT NULL) STRICT;
CREATE TABLE commits(number INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL,
  records INTEGER NOT NULL, participants BLOB NOT NULL, newcomers BLOB NOT NULL,
  about TEXT NOT NULL, pushes BLOB NOT NULL, digest BLOB NOT NULL, chain BLOB NOT NULL,
  code BLOB NOT NULL, content BLOB NOT NULL) STRICT;
CREATE TABLE state(id INTEGER PRIMARY KEY CHECK (id = 0), follows INTEGER NOT NULL,
  digest BLOB NOT NULL, place INTEGER NOT NULL, content BLOB, chain BLOB NOT NULL,
  code BLOB NOT NULL) STRICT;
CREATE TABLE metrics(round INTEGER PRIMARY KEY, json TEXT NOT NULL, chain BLOB NOT NULL,
  code BLOB NOT NULL) STRICT;
CREATE TABLE tally(id INTEGER PRIMARY KEY CHECK (id = 0), states INTEGER NOT NULL,
  metrics INTEGER NOT NULL, chain BLOB NOT NULL, code BLOB NOT NULL) STRICT;
"""

#: Columns of a commit except for its content.
_COLUMNS: Final = "number, first, count, records, participants, newcomers, about, pushes, digest"
_COMMITS: Final = "FROM commits ORDER BY number"


class Opening(NamedTuple):
    """The beginning of releases by one process, which starts or continues a run or stream.

    Attributes:
        number: 0, 1, 2 …
        after: number of commits before it.
        first_round: number of releases before it, which is the next round of a run.
        salt: 32 random bytes of its own, from which the noise of its rounds gets its key.
    """

    number: int
    after: int
    first_round: int
    salt: bytes


class Commit(NamedTuple):
    """A committed round of a run, or block of consecutive steps of a stream, as a row of the table.

    Attributes:
        number: 0, 1, 2 …
        first: its round, or its first step, from 0.
        steps: number of steps; 1 for a round.
        records: number of releases after it.
        participants: keys of the users of the round, ascending, or of each step's user, `NO_USER`
            for none; uint32, little-endian.
        newcomer_names: the users that take part for the first time, each ended by a NUL; their keys
            follow those of earlier users.
        note: facts about it, as JSON.
        pushes: digests of the rows that were pushed.
        digest: SHA-256 of its content, empty if it has none.
    """

    number: int
    first: int
    steps: int
    records: int
    participants: bytes
    newcomer_names: bytes
    note: str
    pushes: bytes
    digest: bytes

    @property
    def keys(self) -> NDArray[np.uint32]:
        """Keys of its participants."""
        return np.frombuffer(self.participants, "<u4")

    @property
    def newcomers(self) -> list[str]:
        """The users that take part for the first time."""
        if not self.newcomer_names:
            return []
        return self.newcomer_names[:-1].decode().split("\x00")

    @property
    def about(self) -> Mapping[str, Any]:
        """Facts about it."""
        return json.loads(self.note)


class Ledger:
    """An open ledger. Use `create` or `open`, as a context manager.

    Attributes:
        participation: the (n, k, b) contract that every commit obeys.
        path: of the file.
        header: the description of the run or stream.
        guard: the right to release, which is lost for good by any failure.
        histories: how often and when last each user took part.
        released: number of committed rounds or steps.
        about: facts about the last commit; empty before the first.

    Guarantees:
        * A commit that returned survives kill -9 and power loss. One that was rejected left no
          trace. One that failed ends this opening: it is there as a whole or not at all, which
          the next opening finds out.
        * Every commit obeys the contract. One process at a time can extend a ledger.
        * A ledger that holds fewer commits than its marks say, or other ones, is not opened; a
          value that was changed is not read.

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

    def __init__(self, path: Path, key: NoiseKey | None, read_only: bool, remembered: bool) -> None:
        self.path = path
        self.guard = ReleaseGuard()
        self.about: Mapping[str, Any] = {}
        self.released = 0
        self._process = os.getpid()
        self._read_only = read_only
        self._key = _records_key(key)
        self._committed_users = 0
        self._records = 0
        self._opening: Opening | None = None
        self._openings = list[Opening]()
        self._chains = list[bytes]()
        self._salts = list[bytes]()
        with contextlib.ExitStack() as held:
            if not read_only:
                held.callback(WriterLock(path).release)
            self._mark = HighWaterMark(path, None if read_only else key, remembered)
            held.callback(self._mark.close)
            with self._faults():
                connection = contextlib.closing(_connect(path, read_only))
                self._connection = held.enter_context(connection)
                self._read(key)
            self._close = weakref.finalize(self, held.pop_all().close)

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
            path: of the file, which does not exist; its directory does.
            participation: the contract that every commit must obey.
            header: the description, JSON-able with finite numbers; stored once.
            key: of the run or stream; every row gets a code under its sub-key "records".
            steps: True if commits are blocks of steps, each of at most one user, instead of rounds
                of cohorts.

        Raises:
            LedgerError: the file exists or cannot be written, or the header is not JSON.
        """
        path = Path(os.path.realpath(path))
        if path.exists():
            raise LedgerError(
                f"ledger {path} exists already. Resume that run or choose another directory."
            )
        n = participation.rounds
        k = participation.max_participations
        b = participation.min_separation
        text = _json({"participation": [n, k, b], "steps": steps, "about": dict(header)}, "header")
        sealed = _seal(_records_key(key), b"header", text)
        with _one_line(path):
            path.touch(mode=0o600)
            with contextlib.closing(_connect(path, read_only=False)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                with _transaction(connection):
                    connection.execute(f"PRAGMA application_id={_APPLICATION}")
                    connection.execute(f"PRAGMA user_version={_FORMAT}")
                    for statement in _SCHEMA.strip().rstrip(";").split(";"):
                        connection.execute(statement)
                    _put(connection, "header", 0, text, *sealed)
                    empty = _seal(_records_key(key), b"tally", sealed[0], 0, 0)
                    _put(connection, "tally", 0, 0, 0, *empty)
            HighWaterMark.begin(path)

    @classmethod
    def open(
        cls,
        path: Path,
        key: NoiseKey | None = None,
        read_only: bool = False,
        remembered: bool = True,
    ) -> Self:
        """Open an existing ledger and verify all of it; for writing, as the only writer.

        Args:
            path: of the file.
            key: of the run. Without it a ledger can only be read, and codes are not checked.
            read_only: True to let other processes write meanwhile; their commits are not seen.
            remembered: whether this machine has a mark of it outside of its directory.

        Raises:
            LedgerError: no such file, not a ledger, no key to write with, a second writer, rows
                that were changed or break the contract, or fewer or other rows than its marks say.
        """
        path = Path(os.path.realpath(path))
        if key is None and not read_only:
            raise LedgerError(
                f"key (of the run) must be given to write to ledger {path}; got none."
            )
        if not path.is_file():
            raise LedgerError(f"ledger {path} does not exist.")
        return cls(path, key, read_only, remembered)

    def close(self) -> None:
        """Close the file and let another process write to it. Closing twice is harmless.

        A ledger that is dropped is closed too, once Python has collected it.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def _read(self, key: NoiseKey | None) -> None:
        """Verify every row, trusting nothing that was checked when it was written."""
        marks = self._mark.read()
        self._seen = self._seen_here(key)  # before the rows, to which a writer may add now
        self._connection.execute("BEGIN")  # a reader keeps this view until it is closed
        self._check_file()
        self._read_header()
        self.histories = Histories(self.participation)
        openings = self._connection.execute("SELECT * FROM openings ORDER BY number").fetchall()
        commits = self._connection.execute(f"SELECT {_COLUMNS}, chain, code {_COMMITS}")
        for *row, chain, code in commits:
            commit = Commit(*row)
            while openings and openings[0][1] <= commit.number:
                self._read_opening(*openings.pop(0))
            self._require((chain, code), f"commit {commit.number}", b"commit", self._head, *commit)
            self._record_participations(commit)
            self._append(commit, chain)
        for opening in openings:
            self._read_opening(*opening)
        self._check_tally()
        self._mark.check(marks, self._chains)
        if not self._read_only:
            self._connection.execute("COMMIT")

    def _seen_here(self, key: NoiseKey | None) -> Progress | None:
        """Return the progress that this machine has seen, by the key or the header."""
        if key is not None and key.public:
            return None
        if key is not None:
            return progress_seen_here(key.fingerprint)
        with contextlib.suppress(sqlite3.Error, ValueError, KeyError, TypeError):
            (text,) = self._connection.execute("SELECT json FROM header").fetchone()
            about = json.loads(text)["about"]
            if not about["key_public"]:
                return progress_seen_here(about["key_fingerprint"])
        return None

    def _check_file(self) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if (application, version) != (_APPLICATION, _FORMAT):
            raise LedgerError(f"{self.path} is not a fedmf ledger of format {_FORMAT}. {_REMEDY}")
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            fault = " ".join(verdict.split())
            raise LedgerError(f"ledger {self.path} is damaged: {fault}. {_REMEDY}")

    def _read_header(self) -> None:
        row = self._connection.execute("SELECT json, chain, code FROM header").fetchone()
        if row is None:
            raise LedgerError(f"{self.path} is not a whole fedmf ledger: its header is missing.")
        text, chain, code = row
        self._require((chain, code), "the header", b"header", text)
        header = json.loads(text)
        self.participation = Participation(*header["participation"])
        self.header: dict[str, Any] = header["about"]
        self._steps: bool = header["steps"]
        self._header_chain = chain
        self._head = chain

    def _check_tally(self) -> None:
        """Reject a ledger that lacks rows which no chain and no mark misses."""
        row = self._connection.execute("SELECT states, metrics, chain, code FROM tally").fetchone()
        if row is None:
            raise LedgerError(f"{self.path} is not a whole fedmf ledger: its tally is missing.")
        *written, chain, code = row
        self._require((chain, code), "the tally", b"tally", self._header_chain, *written)
        held = self._rows_held()
        if held != tuple(written):
            raise LedgerError(
                f"ledger {self.path} lacks rows: it holds {held[0]} states and {held[1]} rows of"
                f" metrics and not the {written[0]} and {written[1]} that were written. Restore"
                " the directory from a copy."
            )

    def _rows_held(self) -> tuple[int, int]:
        """Return the numbers of states and of rows of metrics."""
        (states,) = self._connection.execute("SELECT count(*) FROM state").fetchone()
        (metrics,) = self._connection.execute("SELECT count(*) FROM metrics").fetchone()
        return states, metrics

    def _read_opening(self, *row: Any) -> None:
        """Append an opening that was read; it must be the next one."""
        opening = Opening(*row[:-2])
        sealed = row[-2:]
        expected = (len(self._openings), len(self._chains), self._records)
        if opening[:3] != expected:
            raise LedgerError(f"opening {opening.number} of the ledger is not the next in order.")
        self._require(sealed, f"opening {opening.number}", b"opening", self._head, *opening)
        self._openings.append(opening)
        self._head = sealed[0]

    def _record_participations(self, commit: Commit) -> None:
        """Record the participations of a commit that was read.

        Raises:
            ParticipationViolation: it breaks the contract.
            LedgerError: it contradicts earlier commits.
        """
        name = f"commit {commit.number} of the ledger"
        keys = commit.keys
        newcomers = commit.newcomers
        histories = self.histories
        known = len(histories)
        end = commit.first + commit.steps
        if commit.number != len(self._chains) or (commit.steps and not self._openings):
            raise LedgerError(f"{name} follows no commit or no opening.")
        if (
            commit.first != self.released
            or commit.steps < 0
            or (not self._steps and commit.steps != 1)
        ):
            raise ParticipationViolation(f"{name} is out of turn.")
        if end > self.participation.rounds:
            raise ParticipationViolation(
                f"{name} is past the horizon of n={self.participation.rounds}."
            )
        if self._steps:
            for time, key in zip(range(commit.first + 1, end + 1), keys.tolist(), strict=True):
                if key != NO_USER:
                    user = histories.names[key] if key < known else newcomers[key - known]
                    histories.check(time, [user])
                    histories.record(user, time)
        else:
            if (keys[1:] <= keys[:-1]).any():
                raise LedgerError(f"{name} names its users out of order or twice.")
            if keys[keys >= known].tolist() != list(range(known, known + len(newcomers))):
                raise LedgerError(f"{name} gives keys to other users than it names.")
            histories.record_round(keys, newcomers, commit.first)
        if histories.names[known:] != newcomers:
            raise LedgerError(f"{name} names users who are not in it, or gives one a second key.")

    def _require(self, sealed: tuple[bytes, bytes], name: str, kind: bytes, *content: Any) -> None:
        """Check the chain value of a row, and its code if there is a key.

        Args:
            sealed: chain value and code of the row.
            name: of the row in a message.
            kind: of the row.
            content: the parts of the row, after the chain value that it follows.

        Raises:
            LedgerError: one of them differs.
        """
        chain, code = sealed
        if chain != _chain_value(kind, *content):
            fault = "its chain value differs"
        elif self._key is not None and not hmac.compare_digest(
            hmac.digest(self._key, chain, "sha256"), code
        ):
            fault = "its authentication code does not match the run's key"
        else:
            return
        raise LedgerError(
            f"{name} of ledger {self.path} is not as it was written: {fault}. Restore the directory"
            " from a copy."
        )

    def _append(self, commit: Commit, chain: bytes) -> None:
        """Advance past a durable commit."""
        self._chains.append(chain)
        self._salts.append(self._openings[-1].salt if commit.steps else b"")
        self._head = chain
        self.released = commit.first + commit.steps
        self._records = commit.records
        self._committed_users += commit.newcomer_names.count(0)
        self.about = commit.about

    @property
    def authenticated(self) -> bool:
        """True if codes are checked in addition to chain values, which needs the key."""
        return self._key is not None

    def openings(self) -> list[Opening]:
        """Return all openings so far, in order."""
        return list(self._openings)

    def lineage(self) -> Lineage:
        """Return the commits so far, to be compared with those of copies."""
        seen = self._seen
        if seen is not None and seen.is_held_by(self._chains):
            seen = None
        return Lineage(self._header_chain, tuple(self._chains), tuple(self._salts), seen)

    def commits(self) -> Iterator[Commit]:
        """Return all commits in order."""
        with self._faults():
            for row in self._connection.execute(f"SELECT {_COLUMNS} {_COMMITS}"):
                yield Commit(*row)

    def participations(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the times and the user keys of all participations, sorted by key, then by time.

        Times are rounds or steps, from 0. `histories.names` has the users by key.
        """
        times = [np.empty(0, np.int32)]
        users = [np.empty(0, np.int32)]
        for commit in self.commits():
            places = np.flatnonzero(commit.keys != NO_USER)
            users.append(commit.keys[places].astype(np.int32))
            times.append((commit.first + places * self._steps).astype(np.int32))
        all_times = np.concatenate(times)
        all_users = np.concatenate(users)
        order = np.argsort(all_users, kind="stable")  # times ascend already
        return all_times[order], all_users[order]

    def state(self) -> bytes | None:
        """Return the last state, or None if none was kept; opening missed a deleted one.

        Raises:
            LedgerError: its file is missing, it is damaged, or it follows a commit that the ledger
                does not hold.
        """
        with self._faults():
            row = self._connection.execute(
                "SELECT follows, digest, place, content, chain, code FROM state"
            ).fetchone()
            if row is None:
                return None
            after, digest, place, content, *sealed = row
            if not 0 <= after <= len(self._chains):
                raise LedgerError(
                    f"the state of ledger {self.path} follows a commit that is not there."
                )
            follows = self._chain_after(after)
            self._require(tuple(sealed), "the state", b"state", follows, digest)
            if content is None:
                content = self._read_state_file(place)
            return self._verified(digest, content)

    def _read_state_file(self, place: int) -> bytes:
        file = self._state_file(place)
        try:
            return file.read_bytes()
        except OSError as error:
            raise LedgerError(
                f"state {file} cannot be read: {error.strerror}. Restore the directory from a copy."
            ) from None

    def _chain_after(self, commits: int) -> bytes:
        """Return the chain value of the last of so many commits; that of the header for 0."""
        if commits == 0:
            return self._header_chain
        return self._chains[commits - 1]

    def contents(self, record: int = 0) -> Iterator[tuple[Commit, bytes]]:
        """Return the commits that release something, with their contents, in order.

        Args:
            record: the first release that is wanted; earlier commits are left out.

        Raises:
            LedgerError: a content is damaged.
        """
        query = (
            f"SELECT {_COLUMNS}, content FROM commits WHERE records > ? AND digest <> x'' ORDER BY"
            " number"
        )
        with self._faults():
            for *row, content in self._connection.execute(query, (record,)):
                commit = Commit(*row)
                yield commit, self._verified(commit.digest, content)

    def metrics(self) -> dict[int, dict[str, Any]]:
        """Return all stored metrics by round, in order."""
        metrics = dict[int, dict[str, Any]]()
        with self._faults():
            query = "SELECT round, json, chain, code FROM metrics ORDER BY round"
            for t, text, *sealed in self._connection.execute(query):
                name = f"metrics of round {t}"
                self._require(tuple(sealed), name, b"metrics", self._header_chain, t, text)
                metrics[t] = json.loads(text)
        return metrics

    def _verified(self, digest: bytes, content: bytes) -> bytes:
        """Return a content if its SHA-256 is that of the record."""
        if hashlib.sha256(content).digest() != digest:
            raise LedgerError(
                f"a content of ledger {self.path} differs from its SHA-256. Restore a copy."
            )
        return content

    def _state_file(self, place: int) -> Path:
        """Return the path of one of the two files of large states."""
        return self.path.with_name(f"{self.path.stem}-state-{place}.bin")

    # Writing

    def opening(self) -> Opening:
        """Return the opening of this process, which is recorded durably on the first call.

        It has new random bits.
        """
        if self._opening is None:
            salt = os.urandom(SALT_BYTES)
            opening = Opening(len(self._openings), len(self._chains), self._records, salt)
            sealed = _seal(self._key, b"opening", self._head, *opening)
            with self._written("an opening"):
                _put(self._connection, "openings", *opening, *sealed)
            self._opening = opening
            self._head = sealed[0]
            self._openings.append(opening)
        return self._opening

    def check_round(self, t: int, users: Sequence[str]) -> None:
        """Reject a round that `commit_round` would reject, before any noise is drawn for it.

        Raises:
            ParticipationViolation, HorizonExceededError, LedgerError: as `commit_round`.
        """
        self._check_writable()
        if t != self.released:
            raise ParticipationViolation(
                f"round must be {self.released}, the next to commit; got {t!r}."
            )
        if t >= self.participation.rounds:
            raise HorizonExceededError(
                f"t (round) must be below n (horizon) = {self.participation.rounds}; got {t}. All"
                " are spent."
            )
        if len(set(users)) < len(users):
            twice = next(user for user in users if users.count(user) > 1)
            raise ParticipationViolation(f"user {twice!r} appears twice in round {t}.")
        _, newcomers = self.histories.keys(users)
        _nul_terminated(newcomers)
        self.histories.check(t, users)

    def commit_round(
        self,
        t: int,
        users: Sequence[str],
        state: bytes | None = None,
        about: Mapping[str, Any] | None = None,
        content: bytes = b"",
    ) -> None:
        """Record one round durably, or not at all.

        Args:
            t: exactly one more than the last committed round (0 for the first), below n.
            users: the ids of the users with updates in the round; no duplicates.
            state: the whole state after the round; None leaves the last one.
            about: facts about the round, JSON-able.
            content: the release of the round; empty for none.

        Raises:
            ParticipationViolation: a round out of turn, or a user who takes part twice in the
                round, less than b rounds after the previous participation, or more than k times.
            HorizonExceededError: all n rounds are committed.
            LedgerError: the ledger is read-only, this process recorded no opening, or the disk
                failed. Only in the last case may the round be there, and nothing more can be
                written.
        """
        self.check_round(t, users)
        keys, newcomers = self.histories.keys(users)
        what = f"round {t + 1}"
        self._commit(what, sorted(keys), newcomers, 1, t + 1, state, about, content)
        for user in users:
            self.histories.record(user, t)

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
            users: the user of each step, None for a row that is no user's; the caller recorded them
                in `histories` when they were admitted.
            about: facts about the block, JSON-able.
            content: releases of the block; empty for none.
            records: number of releases after it.
            state: the whole state after the block.
            pushes: digests of the rows that were pushed.

        Raises:
            LedgerError: as `commit_round`.
        """
        named_keys, _ = self.histories.keys([user for user in users if user is not None])
        # Users with later keys were admitted, and their steps are not in this block.
        committed_users = max([self._committed_users, *(key + 1 for key in named_keys)])
        newcomers = self.histories.names[self._committed_users : committed_users]
        remaining_keys = iter(named_keys)
        keys = [NO_USER if user is None else next(remaining_keys) for user in users]
        what = f"step {self.released + len(users)}"
        self._commit(what, keys, newcomers, len(users), records, state, about, content, pushes)

    def keep_state(self, state: bytes) -> None:
        """Record a state durably that follows the last commit.

        Raises:
            LedgerError: the ledger is read-only, or the disk failed.
        """
        after = len(self._chains)
        with self._written("the state"):
            self._put_state(after, self._chain_after(after), state)

    def put_metrics(self, t: int, metrics: Mapping[str, Any]) -> None:
        """Store evaluation results under a number of rounds, replacing earlier ones.

        They are not part of the accounting.

        Args:
            t: the number of rounds trained when the model was evaluated.
            metrics: JSON-able; NaN is allowed, since a diverged run is worth recording.

        Raises:
            LedgerError: metrics that are not JSON, a read-only ledger, a disk error.
        """
        text = _json(metrics, "metrics", allow_nan=True)
        sealed = _seal(self._key, b"metrics", self._header_chain, t, text)
        with self._written(f"metrics after {t} rounds"):
            _put(self._connection, "metrics", t, text, *sealed)
            self._put_tally()

    def _commit(
        self,
        what: str,
        keys: Sequence[int],
        newcomers: Sequence[str],
        steps: int,
        records: int,
        state: bytes | None,
        about: Mapping[str, Any] | None = None,
        content: bytes = b"",
        pushes: bytes = b"",
    ) -> None:
        """Append a commit with its state, in one transaction."""
        if self._opening is None and steps:
            raise LedgerError(
                f"opening (of this process) must be recorded before {what}; got none."
            )
        digest = b""
        if content:
            digest = hashlib.sha256(content).digest()
        commit = Commit(
            number=len(self._chains),
            first=self.released,
            steps=steps,
            records=records,
            participants=np.array(keys, "<u4").tobytes(),
            newcomer_names=_nul_terminated(newcomers),
            note=_json(about or {}),
            pushes=pushes,
            digest=digest,
        )
        chain, code = _seal(self._key, b"commit", self._head, *commit)
        with self._written(what):
            _put(self._connection, "commits", *commit, chain, code, content)
            if state is not None:
                self._put_state(commit.number + 1, chain, state)
        self._append(commit, chain)
        self._mark.write(len(self._chains), chain)

    def _put_state(self, after: int, follows: bytes, state: bytes) -> None:
        """Replace the state in the current transaction.

        A large state goes into the one of two files that the present row does not name: a crash
        leaves that row and its file as they were, and no directory has to be flushed.
        """
        place = 0
        before = self._connection.execute("SELECT place FROM state").fetchone()
        if before is not None:
            place = 1 - before[0]
        inline = state
        if len(state) > INLINE:
            overwrite_durably(self._state_file(place), state)
            inline = None
        digest = hashlib.sha256(state).digest()
        sealed = _seal(self._key, b"state", follows, digest)
        _put(self._connection, "state", 0, after, digest, place, inline, *sealed)
        if before is None:
            self._put_tally()

    def _put_tally(self) -> None:
        """Count states and metrics in the current transaction, so that a missing one is missed."""
        held = self._rows_held()
        sealed = _seal(self._key, b"tally", self._header_chain, *held)
        _put(self._connection, "tally", 0, *held, *sealed)

    def _check_writable(self) -> None:
        if self._read_only:
            raise LedgerError(f"ledger {self.path} was opened read-only.")
        if os.getpid() != self._process:
            raise LedgerError(
                f"ledger {self.path} belongs to the process that opened it, not to a fork of it."
            )
        self.guard.require()

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """Write in a transaction, after whose failure nothing more is written.

        The file then decides what is stored.
        """
        self._check_writable()
        with self.guard.releasing(what), _one_line(self.path), _transaction(self._connection):
            yield

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn any error that a damaged file may cause into one line."""
        with _one_line(self.path), rebuilding(f"ledger {self.path}", LedgerError):
            yield


def _records_key(key: NoiseKey | None) -> bytes | None:
    if key is None:
        return None
    return key.subkey("records")


def _chain_value(kind: bytes, *parts: int | str | bytes | None) -> bytes:
    """Return the chain value of a row; different kinds or parts have different input to SHA-256."""
    pieces = [b"fedmf ledger 1 ", kind]
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        pieces += type(part).__name__.encode(), len(content).to_bytes(8, "little"), content
    return hashlib.sha256(b"".join(pieces)).digest()


def _seal(key: bytes | None, kind: bytes, *parts: int | str | bytes | None) -> tuple[bytes, bytes]:
    """Return the chain value and the authentication code of a row that is to be written."""
    chain = _chain_value(kind, *parts)
    return chain, hmac.digest(key or b"", chain, "sha256")


def _nul_terminated(users: Sequence[str]) -> bytes:
    """Join user ids, each ended by a NUL.

    Raises:
        LedgerError: an id is empty, holds a NUL, or is not valid Unicode.
    """
    try:
        names = [user.encode() for user in users]
    except (AttributeError, UnicodeEncodeError):
        names = [b""]
    if not all(names) or any(b"\x00" in name for name in names):
        raise LedgerError("user ids must be non-empty strings of valid Unicode without NUL.")
    return b"".join(name + b"\x00" for name in names)


def _put(connection: sqlite3.Connection, table: str, *row: Any) -> None:
    """Insert a row; the state, and metrics of a round, replace those before."""
    verb = "INSERT OR REPLACE" if table in ("state", "metrics", "tally") else "INSERT"
    connection.execute(f"{verb} INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _json(value: Mapping[str, Any], what: str = "about", allow_nan: bool = False) -> str:
    try:
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=allow_nan)
    except (TypeError, ValueError) as error:
        raise LedgerError(
            f"{what} (in a ledger) must be JSON with finite numbers: {error}."
        ) from None


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the operating system into errors of one line."""
    try:
        yield
    except sqlite3.Error as error:
        reason = " ".join(str(error).split())
        if reason == "file is not a database":
            raise LedgerError(f"{path} is not a fedmf ledger: {reason}. {_REMEDY}") from None
        raise LedgerError(f"ledger {path} failed: {reason}. {_REMEDY}") from error
    except OSError as error:
        raise LedgerError(f"ledger {path} failed: {error.strerror or error}.") from error


def _flush(connection: sqlite3.Connection) -> None:
    """Commit a transaction; it is on the disk when this returns."""
    connection.execute("COMMIT")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Let writes take effect together or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        _flush(connection)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    """Open a connection on which COMMIT returns only when the transaction survives a power loss.

    A reader opens the file for writing too if it may, since only then can SQLite read the log of a
    writer that was killed; query_only prevents it from writing anything else.
    """
    mode = "rw" if os.access(path.parent, os.W_OK) else "ro"
    if mode == "ro" and not path.with_name(path.name + "-wal").exists():
        mode = "ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    # A writer waits for a long reader rather than fail the run.
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=300.0
    )
    try:
        for pragma in ("synchronous=FULL", "fullfsync=ON", f"query_only={int(read_only)}"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection
