"""The state directory of a private stream: what it needs to go on after any interruption.

    noise.key        the key, mode 0600
    state.sqlite     the plan, openings, the position after the last commit, the users' histories
    state.sqlite-tail-…  newer commits, while a process has the state open or where one was killed
    releases.bin     every release as float64 numbers, one after the other; their labels are in state.sqlite
    noise.bin        vectors of noise as of some step, from which later ones are drawn again; may be missing
    statement.*      the privacy statement: .json for programs, .txt for people
    operator.json    counts for the operator, not to be published

A block of steps is committed by one frame, appended to the tail and flushed, which moves the position past
its rows and has the releases; only then does the output get them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from fedmf.accounting import Fault, Verdict
from fedmf.errors import rebuilding
from fedmf.moments import MomentStream
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.records import (
    Histories,
    Mark,
    Opening,
    Record,
    Seal,
    Sealed,
    UserRow,
    WriterLock,
    create_directory,
    load_key,
    save_key,
    tighten,
    write_durably,
)
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.position import Position, Releases
from fedmf.streaming.state.files import PushFile, ReleaseFile
from fedmf.streaming.state.packed import VectorFile, pack_state, unpack_state, with_vectors
from fedmf.streaming.state.schema import (
    STREAM_STATE,
    PositionRow,
    StateError,
    UserSum,
    build_database,
    read_openings,
    read_plan,
    read_position,
    require,
)
from fedmf.streaming.state.tail import Commit, StreamTail
from fedmf.streaming.statement_text import stream_text

KEY, DATABASE, VECTORS = "noise.key", "state.sqlite", "noise.bin"
RELEASES, PUSHES = "releases.bin", "pushes.bin"
STATEMENT, OPERATOR = "statement", "operator.json"
#: Releases of more bytes are flushed in their own file before the frame, and not written twice.
_MOST_IN_FRAME: Final = 1 << 19


class StreamState(Record):
    """An open state directory; one process at a time holds it.

    Use `create` or `open`, as a context manager.

    Guarantees:
        A directory either holds a whole state or none. `commit` takes effect whole or not at all, whatever
        stops the process or the machine, and what returned from it is durable. One that failed ends this
        opening (`ReleaseRight`); opening the state again tells whether it took effect.
    """

    kind, words = STREAM_STATE, ("steps", "stream")

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None, key: NoiseKey | None
    ) -> None:
        super().__init__(path, connection, lock, key)
        assert key is not None
        self.key, self.directory = key, path.parent
        STREAM_STATE.check_file(connection)
        with rebuilding(f"stream state {self.directory}", StateError):
            plan, self.digest_key, self._plan_chain = read_plan(connection, self._seal)
            self._users = UserSum(self._seal, self.users())
            self._row, self._head = read_position(connection, self._seal, self._plan_chain, self._users)
            found = read_openings(connection, self._seal, self._plan_chain)
            self.plan, self.position = StreamPlan.from_dict(plan), Position(**json.loads(self._row.json))
        self._openings = [opening for opening, *_ in found]
        # Openings after the position: each follows what was last before it.
        for _, previous, chain in found[self._row.opening + 1 :]:
            require("an opening", None if previous == self._head else "it does not follow the position")
            self._head = chain
        require("position", None if self._row.opening < len(found) else "its opening is missing")
        self.plan.check()
        self._check_blocks()
        self._releases = ReleaseFile(
            self.directory / RELEASES, self.plan.width, connection, self._seal, self._plan_chain
        )
        self._pushes: PushFile | None = None
        #: Of the position, where the database does not have it yet, and histories that it lacks.
        self._sealed: Sealed | None = None
        self._histories: dict[str, UserRow] = {}
        self._tail = StreamTail(path)
        try:
            with rebuilding(f"stream state {self.directory}", StateError):
                self._replay()
            self._check_blocks()
        except BaseException:
            self._releases.close()
            raise
        self._vectors = VectorFile(self.directory / VECTORS, self._seal, self._plan_chain)

    @classmethod
    def create(cls, path: Path, plan: StreamPlan, key: NoiseKey) -> Self:
        """Begin a stream and keep its directory open.

        Args:
            path: absent or an empty directory.
            plan: of the stream.
            key: of its noise.

        Raises:
            StateError: the place is taken or cannot be written.
        """

        def fill(folder: Path) -> None:
            save_key(folder / KEY, key)
            start = json.dumps(dataclasses.asdict(Position()))
            build_database(folder / DATABASE, plan.to_dict(), start, Seal.of(STREAM_STATE, key))

        create_directory(path.absolute(), "state directory", fill, error=StateError)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory of a stream that was begun.

        Raises:
            StateError, ValueError: not a state directory, damaged, or held by another process.
        """
        path = path.absolute()

        def key() -> NoiseKey:
            found = load_key(path / KEY)
            tighten(path)
            return found

        return cls._opened(path / DATABASE, WriterLock(STREAM_STATE, path / DATABASE), key)

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a stream was begun there."""
        return (path / DATABASE).exists()

    def close(self) -> None:
        """Let another process have the directory, whose database has all then, unless something failed."""
        if self._process == os.getpid() and self.right.lost is None:
            with contextlib.suppress(StateError):  # the tail has it
                self._fold()
        self._tail.close()
        self._releases.close()
        if self._pushes is not None:
            self._pushes.close()
        super().close()

    @property
    def released(self) -> int:
        """Steps that were taken."""
        return self.position.step

    def users(self) -> Iterator[UserRow]:
        """Every user's history."""
        yield from self._connection.execute("SELECT user, count, last FROM users")

    def openings(self) -> list[Opening]:
        """All openings so far, in order."""
        return list(self._openings)

    def head(self) -> bytes:
        """See `Record.head`."""
        return self._head

    def open_era(self, fresh: bytes, note: Mapping[str, Any] | None = None) -> Opening:
        """See `Record.open_era`."""
        self._fold()  # rows of the database follow each other
        opening = super().open_era(fresh, note)
        self._openings.append(opening)
        return opening

    def _sealed_opening(self, *row: int | str | bytes) -> tuple[bytes, ...]:
        previous = self._head
        sealed = self._seal.sealed(b"opening", self._plan_chain, previous, *row)
        self._head = sealed[0]  # if it is not committed, nothing is any more
        return previous, *sealed

    def histories(self) -> Histories:
        """Who took part when, up to the last commit."""
        self._fold()
        return Histories.from_rows(self.plan.participation, self.users(), self.position.separation)

    def stream_state(self) -> dict[str, Any] | None:
        """The state of the `MomentStream` as of the last commit, None before the first."""
        with rebuilding(f"stream state {self.directory}", StateError):
            return unpack_state(self._row.stream) if self._row.stream else None

    def moments(self) -> tuple[KeySchedule, MomentStream]:
        """The keys of the noise, and the stream as of the last commit; what its state says is checked."""
        keys = KeySchedule.of_record(self.key, self, self.released)
        stream = self.plan.stream(keys)
        if (saved := self.stream_state()) is not None:
            stream.load_state_dict(with_vectors(saved, self._vectors.read()))
        return keys, stream

    def commit(
        self,
        position: Position,
        releases: Releases,
        stream: Mapping[str, Any],
        users: Sequence[UserRow],
    ) -> None:
        """Make a block of steps final.

        Args:
            position: after it.
            releases: those of the block; they end at `position.records`.
            stream: the state of the `MomentStream` after it.
            users: histories that changed.

        Raises:
            StateError: this process takes a step and recorded no opening; or the disk failed, now or before,
                and whether the block is final is found when the state is opened again.
        """
        if position.step > self.position.step and self._opening is None:
            raise StateError("opening (of this process) must be recorded before a step; got none.")
        row = PositionRow(
            json.dumps(dataclasses.asdict(position)), pack_state(stream), len(self._openings) - 1, self._head
        )
        if self._tail.full:
            self._fold()
        with self._written(f"step {position.step}"):
            blocks, numbers = [], memoryview(b"")
            if len(releases):
                content = np.ascontiguousarray(releases.numbers, "<f8").data.cast("B")
                blocks.append(self._releases.row(releases, self._openings[-1], content))
                self._releases.put(content, releases.first)
                if len(content) <= _MOST_IN_FRAME:
                    numbers = content
                else:
                    self._releases.flush()
            changed = self._users.changed(self._known(users), users)
            sealed = row.sealed(self._seal, self._plan_chain, changed)
            pushes = b"" if self._pushes is None else self._pushes.records(self.position.step, position.step)
            commit = Commit(row, sealed, users, blocks, numbers, pushes)
            self._tail.append(commit)
            self._take(commit, position, changed)

    def _take(self, commit: Commit, position: Position, users: UserSum) -> None:
        """Hold a commit that is on the disk."""
        self.position, self._row, self._head, self._users = position, commit.row, commit.sealed[0], users
        self._sealed = commit.sealed
        self._releases.newest += commit.blocks
        self._histories |= {row[0]: row for row in commit.users}

    def _replay(self) -> None:
        """Take the commits of the tail, and let the database have them."""
        for commit in self._tail.commits():
            row, position = commit.row, Position(**json.loads(commit.row.json))
            if row.previous != self._head:  # an earlier one, unless it comes later
                known = position.row <= self.position.row and position.records <= self.position.records
                require("a commit of the tail", None if known else "it does not follow the position")
                continue
            changed = self._users.changed(self._known(commit.users), commit.users)
            content = b"position", self._plan_chain, changed.to_bytes(), *row
            require("a commit of the tail", self._seal.fault(commit.sealed, *content))
            latest = row.opening == len(self._openings) - 1
            require("a commit of the tail", None if latest else "its opening is not the last")
            if commit.numbers and self._releases.holds(commit.blocks[0].first):
                self._releases.put(commit.numbers, commit.blocks[0].first)
            if commit.pushes:
                self._pushes = self._pushes or PushFile(self.directory / PUSHES, self.digest_key)
                self._pushes.put(commit.pushes, self.position.step)
            self._take(commit, position, changed)
        self._fold()
        if self._pushes is not None:
            self._pushes.close()
            self._pushes = None

    def _fold(self) -> None:
        """Let the database have all commits, and remove the tail."""
        if self._sealed is not None:
            with self._written(f"step {self.position.step}"):
                self._releases.flush()
                if self._pushes is not None:
                    self._pushes.flush()
                with self._transaction():
                    self._connection.execute(
                        "INSERT OR REPLACE INTO position VALUES (0, ?, ?, ?, ?, ?, ?)",
                        (*self._row, *self._sealed),
                    )
                    for table, rows in (
                        ("users VALUES (?, ?, ?)", self._histories.values()),
                        ("blocks VALUES (?, ?, ?, ?, ?, ?)", self._releases.newest),
                    ):
                        self._connection.executemany(f"INSERT OR REPLACE INTO {table}", rows)
            self._sealed = None
            self._histories.clear()
            self._releases.newest.clear()
        self._tail.clear()

    def pushes(self) -> PushFile:
        """The keys of rows that were pushed, from now on committed with their steps.

        Raises:
            StateError: the file lacks records of committed steps.
        """
        with STREAM_STATE.one_line_errors(self.directory / PUSHES):
            self._pushes = PushFile(self.directory / PUSHES, self.digest_key)
            self._pushes.load(self.position.step)
        return self._pushes

    def keep_vectors(self, stream: Mapping[str, Any]) -> None:
        """Put down the state of the `MomentStream` with the vectors of its noise, as of the last commit."""
        self._vectors.write(stream)

    def releases(self, start: int, stop: int) -> Releases:
        """Committed releases start … stop − 1.

        Raises:
            StateError: the file does not hold what was committed.
        """
        with STREAM_STATE.one_line_errors(self.path):
            return self._releases.read(start, stop, self._openings)

    def verdict(self, mark: Mark) -> Verdict:
        """What can be told of this state as evidence of all that its stream released.

        Args:
            mark: how far this machine has seen it.
        """
        found = self.behind(mark)
        if not self._releases.holds(self.position.records):
            said = f"{RELEASES} lacks some of the {self.position.records} releases of the steps taken"
            found.append((Fault.STATE_MISSING, said))
        return Verdict(tuple(found))

    def write_statement(self, statement: Mapping[str, Any]) -> None:
        """Write what `stream_statement` gave, for programs and for people; fit to be published."""
        forms = {".json": _json(statement), ".txt": stream_text(statement)}
        for suffix, text in forms.items():
            write_durably(self.directory / f"{STATEMENT}{suffix}", text.encode())

    def write_counts(self) -> None:
        """Write how many rows were clipped, zeroed and refused, which depends on data: for the operator."""
        write_durably(self.directory / OPERATOR, _json(self.position.counts()).encode())

    def _check_blocks(self) -> None:
        """Blocks and position are committed together, so neither can be put back alone."""
        query = "SELECT first, count FROM blocks ORDER BY first DESC LIMIT 1"
        ends = [first + count for first, count in self._connection.execute(query)] or [0]
        require("blocks", None if ends == [self.position.records] else "they do not end at the position")

    def _known(self, users: Sequence[UserRow]) -> Iterator[UserRow]:
        """The histories of users as they are before they change."""
        for user, *_ in users:
            if user in self._histories:
                yield self._histories[user]
            else:
                query = "SELECT user, count, last FROM users WHERE user = ?"
                yield from self._connection.execute(query, (user,))


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
