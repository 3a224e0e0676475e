"""The state directory of a private stream: what it needs to go on after any interruption.

    noise.key        the key, mode 0600
    state.sqlite     the plan, the position after the last commit, the users' histories
    releases.bin     every release as float64 numbers, one after the other
    statement.*      the privacy statement: .json for programs, .txt and .html for people
    operator.json    counts for the operator, not to be published

A block of steps is committed in this order: its releases are appended to releases.bin and flushed; one
transaction moves the position past its rows and names the releases; only then does the output get them. See
docs/decisions/0008-what-a-stream-commits.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import rebuilding
from fedmf.noise import NoiseKey
from fedmf.records import (
    RecordKind,
    UserRow,
    WriterLock,
    create_directory,
    load_key,
    save_key,
    tighten,
    write_durably,
)
from fedmf.streaming.packing import pack_state, unpack_state
from fedmf.streaming.position import Position
from fedmf.streaming.statement_text import render_statement, render_statement_page
from fedmf.streaming.stream_plan import StreamPlan

__all__ = ["StateError", "StreamState"]

KEY, DATABASE, RELEASES = "noise.key", "state.sqlite", "releases.bin"
STATEMENT, OPERATOR = "statement", "operator.json"
_TABLES: Final = """
CREATE TABLE plan(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, digest_key BLOB NOT NULL) STRICT;
CREATE TABLE position(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, stream BLOB NOT NULL) STRICT;
CREATE TABLE users(user TEXT PRIMARY KEY, count INTEGER NOT NULL, last INTEGER NOT NULL) STRICT, WITHOUT ROWID
"""


class StateError(ValueError):
    """A state directory cannot be created, opened or used; the message is one line."""


#: "fdms" in ASCII.
STREAM_STATE: Final = RecordKind("stream state", 0x66646D73, version=2, error=StateError, mode=0o600)


class StreamState:
    """An open state directory; one process at a time holds it.

    Use `create` or `open`, as a context manager.

    Guarantees:
        A directory either holds a whole state or none. `commit` takes effect whole or not at all, whatever
        stops the process or the machine, and what returned from it is durable.
    """

    def __init__(
        self, path: Path, lock: WriterLock, connection: sqlite3.Connection, releases: int, key: NoiseKey
    ) -> None:
        self.path, self.key = path, key
        self._lock, self._connection, self._releases = lock, connection, releases
        with rebuilding(f"stream state {path}", StateError):
            text, self.digest_key = connection.execute("SELECT json, digest_key FROM plan").fetchone()
            self.plan = StreamPlan.from_dict(json.loads(text))
            (text,) = connection.execute("SELECT json FROM position").fetchone()
            self.position = Position(**json.loads(text))

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
            _build_database(folder / DATABASE, plan)

        create_directory(path.absolute(), "state directory", fill, error=StateError)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory of a stream that was begun.

        Raises:
            StateError, ValueError: not a state directory, damaged, or held by another process.
        """
        path = path.absolute()
        database = path / DATABASE
        with ExitStack() as undo:
            lock = WriterLock(STREAM_STATE, database)
            undo.callback(lock.release)
            connection = STREAM_STATE.open(database, read_only=False)
            undo.callback(connection.close)
            key = load_key(path / KEY)
            tighten(path)
            with STREAM_STATE.one_line_errors(database):
                releases = os.open(path / RELEASES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, releases)
                state = cls(path, lock, connection, releases, key)
            undo.pop_all()
        return state

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a stream was begun there."""
        return (path / DATABASE).exists()

    def close(self) -> None:
        """Let another process have the directory."""
        self._connection.close()
        os.close(self._releases)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def users(self) -> Iterator[UserRow]:
        """Every user's history."""
        with STREAM_STATE.one_line_errors(self.path):
            yield from self._connection.execute("SELECT user, count, last FROM users")

    def stream_state(self) -> dict[str, Any] | None:
        """The state of the `MomentStream` as of the last commit, None before the first."""
        with STREAM_STATE.one_line_errors(self.path), rebuilding(f"stream state {self.path}", StateError):
            (blob,) = self._connection.execute("SELECT stream FROM position").fetchone()
            return unpack_state(blob) if blob else None

    def commit(
        self,
        position: Position,
        releases: NDArray[np.float64],
        stream: Mapping[str, Any],
        users: Sequence[UserRow],
    ) -> None:
        """Make a block of steps final.

        Args:
            position: after it.
            releases: those of the block, shape (records, width); they end at `position.records`.
            stream: the state of the `MomentStream` after it.
            users: histories that changed.

        Raises:
            ValueError: the disk failed; then nothing has changed.
        """
        with STREAM_STATE.one_line_errors(self.path / DATABASE):
            if len(releases):
                self._append(position.records - len(releases), releases)
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.execute(
                    "UPDATE position SET json = ?, stream = ?",
                    (json.dumps(dataclasses.asdict(position)), pack_state(stream)),
                )
                self._connection.executemany("INSERT OR REPLACE INTO users VALUES (?, ?, ?)", users)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        self.position = position

    def releases(self, start: int, stop: int) -> NDArray[np.float64]:
        """Committed releases start … stop − 1, shape (stop − start, width).

        Raises:
            StateError: the file is shorter than what was committed.
        """
        size = 8 * self.plan.width
        content = bytearray()
        while len(content) < size * (stop - start):
            more = os.pread(self._releases, size * (stop - start) - len(content), size * start + len(content))
            if not more:
                raise StateError(f"{self.path / RELEASES} must hold {stop} releases; it is cut short.")
            content += more
        return np.frombuffer(content, "<f8").reshape(stop - start, self.plan.width)

    def write_statement(self, statement: Mapping[str, Any]) -> None:
        """Write what `stream_statement` gave, for programs and for people; fit to be published."""
        forms = {
            ".json": _json(statement),
            ".txt": render_statement(statement),
            ".html": render_statement_page(statement),
        }
        for suffix, text in forms.items():
            write_durably(self.path / f"{STATEMENT}{suffix}", text.encode())

    def write_counts(self) -> None:
        """Write how many rows were clipped, zeroed and refused, which depends on data: for the operator."""
        write_durably(self.path / OPERATOR, _json(self.position.counts()).encode())

    def _append(self, record: int, releases: NDArray[np.float64]) -> None:
        content = memoryview(np.ascontiguousarray(releases, "<f8").tobytes())
        at = 8 * self.plan.width * record
        while content:
            done = os.pwrite(self._releases, content, at)
            content, at = content[done:], at + done
        os.fsync(self._releases)


def _build_database(path: Path, plan: StreamPlan) -> None:
    text = json.dumps(plan.to_dict(), ensure_ascii=False, allow_nan=False)
    start = json.dumps(dataclasses.asdict(Position()))

    def fill(connection: sqlite3.Connection) -> None:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO plan VALUES (0, ?, ?)", (text, secrets.token_bytes(32)))
        connection.execute("INSERT INTO position VALUES (0, ?, ?)", (start, b""))

    with STREAM_STATE.one_line_errors(path):
        STREAM_STATE.build(path, fill)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
