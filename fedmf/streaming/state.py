"""The state directory of a private stream: what it needs to go on after any interruption.

    noise.key        the key, mode 0600
    state.sqlite     the plan, the position after the last commit, the users' histories
    releases.bin     every release as float64 numbers, one after the other
    statement.json   the privacy statement
    operator.json    counts for the operator, not to be published

A block of steps is committed in this order: its releases are appended to releases.bin and flushed; one
transaction moves the position past its rows and names the releases; only then does the output get them. See
docs/decisions/0008-what-a-stream-commits.md.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.noise import NoiseKey
from fedmf.records import WriterLock, connect, one_line_errors
from fedmf.streaming.users import UserRow

__all__ = ["OPERATOR", "STATEMENT", "Position", "StateError", "StreamState", "write_json"]

KEY, DATABASE, RELEASES = "noise.key", "state.sqlite", "releases.bin"
STATEMENT: Final = "statement.json"
OPERATOR: Final = "operator.json"
_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE plan(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, digest_key BLOB NOT NULL) STRICT;
CREATE TABLE position(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, stream BLOB NOT NULL) STRICT;
CREATE TABLE users(user TEXT PRIMARY KEY, count INTEGER NOT NULL, last INTEGER NOT NULL) STRICT, WITHOUT ROWID
"""


class StateError(ValueError):
    """A state directory cannot be created, opened or used; the message is one line."""


@dataclass(frozen=True)
class Position:
    """How far a stream is, as of a commit.

    Args:
        step: t, steps taken.
        row: rows of the input that were dealt with; step ≤ row.
        records: releases.
        emitted: how many of them were safely in the output before this commit.
        written: bytes of the output that hold those.
        output: which output.
        digest: keyed digest of the last row.
        separation: least distance between two steps of a user so far.
        clipped: rows that were longer than ζ.
        zeroed: unreadable rows that counted as zero vectors.
        refused_users: rows of users beyond (k, b).
        refused_late: rows beyond the horizon.
    """

    step: int = 0
    row: int = 0
    records: int = 0
    emitted: int = 0
    written: int = 0
    output: str = ""
    digest: str = ""
    separation: int | None = None
    clipped: int = 0
    zeroed: int = 0
    refused_users: int = 0
    refused_late: int = 0

    def counts(self) -> dict[str, int]:
        """What only the operator may see."""
        names = ("row", "step", "clipped", "zeroed", "refused_users", "refused_late")
        return {"rows" if n == "row" else "steps" if n == "step" else n: getattr(self, n) for n in names}


class StreamState:
    """An open state directory; one process at a time holds it.

    Use `create` or `open`, as a context manager.

    Guarantees:
        A directory either holds a whole state or none. `commit` takes effect whole or not at all, whatever
        stops the process or the machine, and what returned from it is durable.
    """

    def __init__(self, path: Path, width: int | None) -> None:
        self.path = path
        self._lock = WriterLock(path / DATABASE)
        try:
            with one_line_errors(path / DATABASE):
                self._connection = connect(path / DATABASE, read_only=False)
                self._load()
            self.key = _load_key(path / KEY)
            self._releases = os.open(path / RELEASES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            self._lock.release()
            raise
        self._width = width

    @classmethod
    def create(cls, path: Path, plan: Mapping[str, Any], key: NoiseKey) -> Self:
        """Make the directory of a new stream, whole or not at all.

        Raises:
            StateError: the place is taken or cannot be written.
        """
        path = path.absolute()
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise StateError(f"state directory {path} must be new or empty; it holds something else.")
            path.parent.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise StateError(f"cannot create state directory {path}: {error.strerror}.") from None
        try:
            key.save(building / KEY)
            _build_database(building / DATABASE, plan)
            os.replace(building, path)
            _flush_directory(path.parent)
        except (OSError, sqlite3.Error) as error:
            raise StateError(f"cannot create state directory {path}: {error}.") from None
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return cls(path, None)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory of a stream that was begun.

        Raises:
            StateError, ValueError: not a state directory, damaged, or held by another process.
        """
        return cls(path.absolute(), None)

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

    def use(self, width: int) -> None:
        """Say how many numbers a release has, before any is written or read."""
        self._width = width

    def users(self) -> Iterator[UserRow]:
        """Every user's history."""
        yield from self._connection.execute("SELECT user, count, last FROM users")

    def stream_state(self) -> dict[str, Any] | None:
        """The state of the `MomentStream` as of the last commit, None before the first."""
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
        path = self.path / DATABASE
        with one_line_errors(path):
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
        assert self._width is not None
        size = 8 * self._width
        content = b""
        while len(content) < size * (stop - start):
            more = os.pread(self._releases, size * (stop - start) - len(content), size * start + len(content))
            if not more:
                raise StateError(f"{self.path / RELEASES} must hold {stop} releases; it is cut short.")
            content += more
        return np.frombuffer(content, "<f8").reshape(stop - start, self._width)

    def _append(self, record: int, releases: NDArray[np.float64]) -> None:
        assert self._width is not None
        content = memoryview(np.ascontiguousarray(releases, "<f8").tobytes())
        at = 8 * self._width * record
        while content:
            done = os.pwrite(self._releases, content, at)
            content, at = content[done:], at + done
        os.fsync(self._releases)

    def _load(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            raise StateError(f"{self.path} must hold a stream state of version {_VERSION}; got {version}.")
        text, self.digest_key = self._connection.execute("SELECT json, digest_key FROM plan").fetchone()
        self.plan: dict[str, Any] = json.loads(text)
        (text,) = self._connection.execute("SELECT json FROM position").fetchone()
        self.position = Position(**json.loads(text))


def pack_state(state: Mapping[str, Any]) -> bytes:
    """A nested dict of numbers, strings and float64 tensors as a NumPy archive without pickled objects."""
    arrays: dict[str, Any] = {}

    def plain(prefix: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(f"{prefix}{name}.", inner) for name, inner in value.items()}
        if hasattr(value, "numpy"):
            arrays[prefix] = value.numpy()
            return {"array": prefix}
        return value

    text = json.dumps(plain("", state))
    buffer = io.BytesIO()
    np.savez(buffer, json=np.frombuffer(text.encode(), np.uint8), **arrays)
    return buffer.getvalue()


def unpack_state(content: bytes) -> dict[str, Any]:
    """What `pack_state` packed."""
    import torch

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:

        def whole(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            if set(value) == {"array"}:
                return torch.from_numpy(arrays[value["array"]].copy())
            return {name: whole(inner) for name, inner in value.items()}

        return whole(json.loads(arrays["json"].tobytes()))


def write_json(path: Path, values: Mapping[str, Any], mode: int = 0o644) -> None:
    """Write a JSON file that holds either its old content or the new, never a part."""
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _build_database(path: Path, plan: Mapping[str, Any]) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = connect(path, read_only=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA user_version={_VERSION}")
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        text = json.dumps(dict(plan), ensure_ascii=False, allow_nan=False)
        connection.execute("INSERT INTO plan VALUES (0, ?, ?)", (text, secrets.token_bytes(32)))
        start = json.dumps(dataclasses.asdict(Position()))
        connection.execute("INSERT INTO position VALUES (0, ?, ?)", (start, b""))
        connection.execute("COMMIT")
    finally:
        connection.close()


def _load_key(path: Path) -> NoiseKey:
    try:
        return NoiseKey.load(path)
    except OSError as error:
        raise StateError(f"cannot use noise key {path}: {error.strerror or error}.") from None


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
