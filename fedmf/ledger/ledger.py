"""The ledger of a run or stream: one SQLite file, to which one process at a time appends.

A commit is one transaction in WAL mode with synchronous FULL: the row that names the participants,
the state that goes with it and what it releases are durable together, before anyone sees the new
model. A large state is in one of two files by turns, flushed before the row that names it with its
SHA-256.

Rows form a chain, so that a changed row, a row of another ledger and a row that is missing in the
middle are detected. A row that follows the value c has the chain value c' = SHA-256(kind of row ‖ c
‖ content), each part preceded by its type and length, and the code HMAC-SHA256(records key, c').
The records key is a sub-key of the noise key, so only someone with that key can write rows that
fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import HorizonExceededError, LedgerError, ParticipationViolation, rebuilding
from fedmf.ledger.durable_files import overwrite_durably
from fedmf.ledger.lineage import Lineage
from fedmf.ledger.lock import HighWaterMark, Reached, ReleaseGuard, WriterLock, seen_here
from fedmf.ledger.participations import Histories
from fedmf.noise.key import NoiseKey
from fedmf.noise.schedule import SALT_BYTES
from fedmf.participation import Participation

#: "fdmf" in ASCII, by which `file` and SQLite know a ledger.
_APPLICATION: Final = 0x66646D66
_FORMAT: Final = 1
#: A step of a stream that is no user's.
NOBODY: Final = (1 << 32) - 1
#: A state of more bytes is kept in a file of its own.
_INLINE: Final = 1 << 16

_SCHEMA: Final = """
CREATE TABLE header(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, chain BLOB NOT NULL,
  code BLOB NOT NULL) STRICT;
CREATE TABLE openings(number INTEGER PRIMARY KEY, follows INTEGER NOT NULL, first INTEGER NOT NULL,
  salt BLOB NOT NULL, chain BLOB NOT NULL, code BLOB NOT NULL) STRICT;
CREATE TABLE commits(number INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL,
  records INTEGER NOT NULL, participants BLOB NOT NULL, newcomers BLOB NOT NULL, about TEXT NOT NULL,
  pushes BLOB NOT NULL, digest BLOB NOT NULL, chain BLOB NOT NULL, code BLOB NOT NULL,
  content BLOB NOT NULL) STRICT;
CREATE TABLE state(id INTEGER PRIMARY KEY CHECK (id = 0), follows INTEGER NOT NULL, digest BLOB NOT NULL,
  place INTEGER NOT NULL, content BLOB, chain BLOB NOT NULL, code BLOB NOT NULL) STRICT;
CREATE TABLE metrics(round INTEGER PRIMARY KEY, json TEXT NOT NULL, chain BLOB NOT NULL,
  code BLOB NOT NULL) STRICT;
"""

#: Of a commit, but for its content.
_COLUMNS: Final = "number, first, count, records, participants, newcomers, about, pushes, digest"
_COMMITS: Final = "FROM commits ORDER BY number"


class Opening(NamedTuple):
    """One process's beginning to release, or to continue releasing, a run or stream.

    Attributes:
        number: 0, 1, 2 …
        after: how many commits were made before it.
        first_round: how many releases there were when it was made: the next round of a run.
        salt: 32 random bytes of its own, from which the noise of its rounds gets its key.
    """

    number: int
    after: int
    first_round: int
    salt: bytes


class Commit(NamedTuple):
    """One committed round of a run, or block of consecutive steps of a stream, as the table holds
    it.

    Attributes:
        number: 0, 1, 2 …
        first: its round, or its first step, 0-based.
        steps: 1, or how many steps.
        records: how many releases there are after it.
        participants: keys of the users of the round, ascending, or of each step's user, `NOBODY`
            for none; uint32, little-endian.
        met: the users met first here; their keys follow those known before, each ended by a NUL.
        remembered: what else is to be remembered of it, as JSON.
        pushes: digests of the rows that were pushed.
        digest: SHA-256 of its content, empty if it has none.
    """

    number: int
    first: int
    steps: int
    records: int
    participants: bytes
    met: bytes
    remembered: str
    pushes: bytes
    digest: bytes

    @property
    def keys(self) -> NDArray[np.uint32]:
        """Of its participants."""
        return np.frombuffer(self.participants, "<u4")

    @property
    def newcomers(self) -> list[str]:
        """The users met first here."""
        return self.met[:-1].decode().split("\x00") if self.met else []

    @property
    def about(self) -> Mapping[str, Any]:
        """What else is remembered of it."""
        return json.loads(self.remembered)


class Ledger:
    """An open ledger. Use `create` or `open`, as a context manager.

    Attributes:
        participation: the (n, k, b) contract that every commit obeys.
        header: the description of the run or stream.
        right: to release: lost for good by whatever does not end well.
        histories: who took part how often and when last.
        released: rounds, or steps, that were committed.
        about: what the last commit remembers; empty before the first.

    Guarantees:
        * A commit that returned survives kill -9 and power loss. One that was rejected left no
          trace. One that failed ends this opening: it is there as a whole or not at all, and the
          next opening tells.
        * Every commit obeys the contract. One process at a time can extend a ledger.
        * A ledger that holds fewer commits than its marks, or other ones, is not opened; a value
          that was changed is not read.

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
        self.path, self._process, self.guard = path, os.getpid(), ReleaseGuard()
        self._read_only, self._key = read_only, _records_key(key)
        self.about: Mapping[str, Any] = {}
        self.released = self._known = self._records = 0
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
                self._connection = held.enter_context(
                    contextlib.closing(_connected(path, read_only))
                )
                self._read(key)
            self._held = held.pop_all()

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
            steps: whether commits are blocks of steps, each of at most one user, not rounds of
                cohorts.

        Raises:
            LedgerError: the file exists, the place is not writable, or the header is not JSON.
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
        with _one_line(path):
            path.touch(mode=0o600)
            with contextlib.closing(_connected(path, read_only=False)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                with _transaction(connection):
                    connection.execute(f"PRAGMA application_id={_APPLICATION}")
                    connection.execute(f"PRAGMA user_version={_FORMAT}")
                    for statement in _SCHEMA.strip().rstrip(";").split(";"):
                        connection.execute(statement)
                    _put(
                        connection, "header", 0, text, *_sealed(_records_key(key), b"header", text)
                    )
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
            read_only: whether other processes may write meanwhile; what they commit is not seen.
            remembered: whether this machine keeps a mark of it, once its directory is gone.

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
        """Close the file and give the right to write back. Closing twice is harmless."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def _read(self, key: NoiseKey | None) -> None:
        """Verify every row, trusting nothing that was checked when it was written."""
        found = self._mark.read()
        self._seen = self._seen_here(key)  # before the rows, to which a writer may add now
        self._connection.execute("BEGIN")  # a reader keeps this view until it is closed
        self._check_file()
        self._read_header()
        self.histories = Histories(self.participation)
        openings = self._connection.execute("SELECT * FROM openings ORDER BY number").fetchall()
        for *row, chain, code in self._connection.execute(
            f"SELECT {_COLUMNS}, chain, code {_COMMITS}"
        ):
            commit = Commit(*row)
            while openings and openings[0][1] <= commit.number:
                self._read_opening(*openings.pop(0))
            self._require((chain, code), f"commit {commit.number}", b"commit", self._head, *commit)
            self._follow(commit)
            self._take(commit, chain)
        for opening in openings:
            self._read_opening(*opening)
        self._mark.check(found, self._chains)
        if not self._read_only:
            self._connection.execute("COMMIT")

    def _seen_here(self, key: NoiseKey | None) -> Reached | None:
        """What this machine has seen; without a key, of the run that an unchecked header names."""
        if key is not None:
            return None if key.public else seen_here(key.fingerprint)
        with contextlib.suppress(sqlite3.Error, ValueError, KeyError, TypeError):
            (text,) = self._connection.execute("SELECT json FROM header").fetchone()
            about = json.loads(text)["about"]
            if not about["key_public"]:
                return seen_here(str(about["key_fingerprint"]))
        return None

    def _check_file(self) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if (application, version) != (_APPLICATION, _FORMAT):
            raise LedgerError(f"{self.path} is not a fedmf ledger of format {_FORMAT}.")
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise LedgerError(f"ledger {self.path} is damaged: {' '.join(verdict.split())}.")

    def _read_header(self) -> None:
        row = self._connection.execute("SELECT json, chain, code FROM header").fetchone()
        if row is None:
            raise LedgerError(f"{self.path} is not a whole fedmf ledger: its header is missing.")
        text, chain, code = row
        self._require((chain, code), "the header", b"header", text)
        described = json.loads(text)
        self.participation = Participation(*described["participation"])
        self.header: dict[str, Any] = described["about"]
        self._steps: bool = described["steps"]
        self._head = self._header_chain = chain

    def _read_opening(self, *row: Any) -> None:
        """Take an opening that comes next in the chain."""
        opening = Opening(*row[:-2])
        sealed = row[-2:]
        expected = (len(self._openings), len(self._chains), self._records)
        if opening[:3] != expected:
            raise LedgerError(f"opening {opening.number} of the ledger is not the next in order.")
        self._require(sealed, f"opening {opening.number}", b"opening", self._head, *opening)
        self._openings.append(opening)
        self._head = sealed[0]

    def _follow(self, commit: Commit) -> None:
        """Take the participations of a commit, unless it breaks the contract or contradicts earlier
        ones.
        """
        name = f"commit {commit.number} of the ledger"
        keys = commit.keys
        newcomers = commit.newcomers
        seen = self.histories
        known = len(self.histories)
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
        if not self._steps and (keys[1:] <= keys[:-1]).any():
            raise LedgerError(f"{name} names its users out of order or twice.")
        times = range(commit.first + 1, end + 1) if self._steps else [commit.first] * len(keys)
        for time, key in zip(times, keys.tolist(), strict=True):
            if key != NOBODY:
                user = seen.names[key] if key < known else newcomers[key - known]
                seen.check(time, [user])
                seen.record(user, time)
        if seen.names[known:] != newcomers:
            raise LedgerError(f"{name} names users who are not in it, or gives one a second key.")

    def _require(self, sealed: tuple[bytes, bytes], name: str, kind: bytes, *content: Any) -> None:
        chain, code = sealed
        if chain != _chained(kind, *content):
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

    def _take(self, commit: Commit, chain: bytes) -> None:
        """Hold a commit that is durable."""
        self._chains.append(chain)
        self._salts.append(self._openings[-1].salt if commit.steps else b"")
        self._head = chain
        self.released = commit.first + commit.steps
        self._records = commit.records
        self._known += commit.met.count(0)
        self.about = commit.about

    @property
    def authenticated(self) -> bool:
        """Whether the key is at hand, so that codes are checked and not chain values alone."""
        return self._key is not None

    def openings(self) -> list[Opening]:
        """All openings so far, in order."""
        return list(self._openings)

    def lineage(self) -> Lineage:
        """The commits so far, to be compared with those of copies."""
        lineage = Lineage(self._header_chain, tuple(self._chains), tuple(self._salts), self._seen)
        if self._seen is None or lineage.holds(self._seen):
            return dataclasses.replace(lineage, seen=None)
        return lineage

    def commits(self) -> Iterator[Commit]:
        """All commits in order."""
        with self._faults():
            for row in self._connection.execute(f"SELECT {_COLUMNS} {_COMMITS}"):
                yield Commit(*row)

    def participations(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(times, user keys) of all participations, sorted by key, then by time; times are rounds
        or steps, 0-based. `histories.names` has the users by key.
        """
        times = [np.empty(0, np.int64)]
        users = [np.empty(0, np.int64)]
        for commit in self.commits():
            keys = commit.keys
            users.append(keys[keys != NOBODY].astype(np.int64))
            at = np.flatnonzero(keys != NOBODY) if self._steps else np.zeros(len(keys), np.int64)
            times.append(commit.first + at)
        all_times = np.concatenate(times)
        all_users = np.concatenate(users)
        order = np.argsort(all_users * np.int64(max(1, self.participation.rounds)) + all_times)
        return all_times[order].astype(np.int32), all_users[order].astype(np.int32)

    def state(self) -> bytes | None:
        """The state that was kept last, None if none was.

        Raises:
            LedgerError: it is missing or damaged, or follows a commit that the ledger does not
                hold.
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
            follows = self._chains[after - 1] if after else self._header_chain
            self._require(tuple(sealed), "the state", b"state", follows, digest)
            return self._checked(
                digest, self._place(place).read_bytes() if content is None else content
            )

    def contents(self, record: int = 0) -> Iterator[tuple[Commit, bytes]]:
        """The commits that release something, with their contents, from the one with this release
        on.

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
                yield commit, self._checked(commit.digest, content)

    def metrics(self) -> dict[int, dict[str, Any]]:
        """All stored metrics by round, in order."""
        found = dict[int, dict[str, Any]]()
        with self._faults():
            query = "SELECT round, json, chain, code FROM metrics ORDER BY round"
            for t, text, *sealed in self._connection.execute(query):
                name = f"metrics of round {t}"
                self._require(tuple(sealed), name, b"metrics", self._header_chain, t, text)
                found[t] = json.loads(text)
        return found

    def _checked(self, digest: bytes, content: bytes) -> bytes:
        if hashlib.sha256(content).digest() != digest:
            raise LedgerError(
                f"a content of ledger {self.path} differs from its SHA-256. Restore a copy."
            )
        return content

    def _place(self, place: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-state-{place}.bin")

    # Writing

    def opening(self) -> Opening:
        """That of this process: recorded durably now, with fresh random bits, if it was not yet."""
        if self._opening is None:
            place = len(self._openings), len(self._chains), self._records
            opening = Opening(*place, os.urandom(SALT_BYTES))
            sealed = _sealed(self._key, b"opening", self._head, *opening)
            with self._written("an opening"):
                _put(self._connection, "openings", *opening, *sealed)
            self._opening = opening
            self._head = sealed[0]
            self._openings.append(opening)
        return self._opening

    def check_round(self, t: int, users: Sequence[str]) -> None:
        """Refuse what `commit_round` would refuse, before any noise is drawn for it.

        Raises:
            ParticipationViolation, HorizonExceededError, LedgerError: as there.
        """
        self._writable()
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
        _ended(self.histories.keys(users)[1])
        self.histories.check(t, users)

    def commit_round(self, t: int, users: Sequence[str], state: bytes | None = None) -> None:
        """Record one round durably, or not at all.

        Args:
            t: exactly one more than the last committed round (0 for the first), below n.
            users: the ids of the users with updates in the round; no duplicates.
            state: the whole state after the round; None leaves the one kept last.

        Raises:
            ParticipationViolation: a round out of turn, a user twice in the round, less than b
                rounds after that user's previous participation, or more than k times.
            HorizonExceededError: all n rounds are committed.
            LedgerError: the ledger is read-only, this process recorded no opening, or the disk
                failed: then, and only then, the round may be there, and nothing more can be
                written.
        """
        self.check_round(t, users)
        keys, newcomers = self.histories.keys(users)
        self._commit(f"round {t + 1}", sorted(keys), newcomers, 1, t + 1, state)
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
            users: of each step, None for a row that is no user's; each is in `histories` already,
                where the caller recorded it when it was admitted.
            about: a note on the block, JSON-able.
            content: what the block releases; empty for nothing.
            records: how many releases there are after it.
            state: the whole state after the block.
            pushes: digests of the rows that were pushed.

        Raises:
            LedgerError: as `commit_round`.
        """
        found = iter(self.histories.keys([user for user in users if user is not None])[0])
        keys = [NOBODY if user is None else next(found) for user in users]
        met = max((key for key in keys if key != NOBODY), default=self._known - 1) + 1
        newcomers = self.histories.names[
            self._known : met
        ]  # others were admitted and not committed
        what = f"step {self.released + len(users)}"
        self._commit(what, keys, newcomers, len(users), records, state, about, content, pushes)

    def keep_state(self, state: bytes) -> None:
        """Record a state durably that follows the last commit.

        Raises:
            LedgerError: the ledger is read-only, or the disk failed.
        """
        follows = self._chains[-1] if self._chains else self._header_chain
        with self._written("the state"):
            self._put_state(len(self._chains), follows, state)

    def put_metrics(self, t: int, metrics: Mapping[str, Any]) -> None:
        """Store evaluation results under a number of rounds, replacing those stored before. Not
        part of the accounting.

        Args:
            t: the number of rounds trained when the model was evaluated.
            metrics: JSON-able. NaN is kept: a diverged run is worth recording.

        Raises:
            LedgerError: metrics that are not JSON, a read-only ledger, a disk error.
        """
        text = _json(metrics, "metrics", allow_nan=True)
        sealed = _sealed(self._key, b"metrics", self._header_chain, t, text)
        with self._written(f"metrics after {t} rounds"):
            _put(self._connection, "metrics", t, text, *sealed)

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
        if self._opening is None and steps:
            raise LedgerError(
                f"opening (of this process) must be recorded before {what}; got none."
            )
        commit = Commit(
            len(self._chains),
            self.released,
            steps,
            records,
            np.array(keys, "<u4").tobytes(),
            _ended(newcomers),
            _json(about or {}),
            pushes,
            hashlib.sha256(content).digest() if content else b"",
        )
        chain, code = _sealed(self._key, b"commit", self._head, *commit)
        with self._written(what):
            _put(self._connection, "commits", *commit, chain, code, content)
            if state is not None:
                self._put_state(commit.number + 1, chain, state)
        self._take(commit, chain)
        self._mark.note(len(self._chains), chain)

    def _put_state(self, after: int, follows: bytes, state: bytes) -> None:
        """Replace the state in the transaction at hand.

        A large one goes into the one of two files that the row at hand does not name: a crash
        leaves that row and its file as they were, and no directory has to be flushed.
        """
        before = self._connection.execute("SELECT place FROM state").fetchone()
        place = 0 if before is None else 1 - before[0]
        inline = state
        if len(state) > _INLINE:
            overwrite_durably(self._place(place), state)
            inline = None
        digest = hashlib.sha256(state).digest()
        sealed = _sealed(self._key, b"state", follows, digest)
        _put(self._connection, "state", 0, after, digest, place, inline, *sealed)

    def _writable(self) -> None:
        if self._read_only:
            raise LedgerError(f"ledger {self.path} was opened read-only.")
        if os.getpid() != self._process:
            raise LedgerError(
                f"ledger {self.path} belongs to the process that opened it, not to a fork of it."
            )
        self.guard.require()

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """A transaction: if it fails nothing more is written, and the file decides what is
        stored.
        """
        self._writable()
        with self.guard.releasing(what), _one_line(self.path), _transaction(self._connection):
            yield

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """One line for whatever a damaged file may cause."""
        with _one_line(self.path), rebuilding(f"ledger {self.path}", LedgerError):
            yield


def _records_key(key: NoiseKey | None) -> bytes | None:
    return None if key is None else key.subkey("records")


def _chained(row: bytes, *parts: int | str | bytes | None) -> bytes:
    """The chain value of a row of a kind: no two lists of parts read alike."""
    pieces = [b"fedmf ledger 1 ", row]
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        pieces += type(part).__name__.encode(), len(content).to_bytes(8, "little"), content
    return hashlib.sha256(b"".join(pieces)).digest()


def _sealed(key: bytes | None, row: bytes, *parts: int | str | bytes | None) -> tuple[bytes, bytes]:
    """Chain value and authentication code of a row that is to be written."""
    chain = _chained(row, *parts)
    return chain, hmac.digest(key or b"", chain, "sha256")


def _ended(users: Sequence[str]) -> bytes:
    """Ids one after the other, each ended by a NUL."""
    try:
        names = [user.encode() for user in users]
    except (AttributeError, UnicodeEncodeError):
        names = [b""]
    if not all(names) or any(b"\x00" in name for name in names):
        raise LedgerError("user ids must be non-empty strings of valid Unicode without NUL.")
    return b"".join(name + b"\x00" for name in names)


def _put(connection: sqlite3.Connection, table: str, *row: Any) -> None:
    """Insert a row; the one state, and metrics of a round, take the place of those before."""
    verb = "INSERT OR REPLACE" if table in ("state", "metrics") else "INSERT"
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
    """Writes inside it take effect together or not at all."""
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

    A reader opens the file for writing too if it may, since only then can SQLite read the log of a
    writer that was killed; query_only keeps it from writing anything else.
    """
    mode = "rw" if os.access(path.parent, os.W_OK) else "ro"
    if mode == "ro" and not path.with_name(path.name + "-wal").exists():
        mode = "ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    # A writer waits for a long reader rather than fail the run.
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=300.0
    )
    for pragma in ("synchronous=FULL", "fullfsync=ON", f"query_only={int(read_only)}"):
        connection.execute(f"PRAGMA {pragma}")
    return connection
