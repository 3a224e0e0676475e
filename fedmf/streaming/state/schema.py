"""The tables of a stream's state, and the check that they are as they were committed."""

from __future__ import annotations

import copy
import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedmf.records import Opening, RecordKind, Seal, Sealed, UserRow, opening_rows


class StateError(ValueError):
    """A state directory cannot be created, opened or used; the message is one line."""


_TABLES: Final = """
CREATE TABLE plan(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, digest_key BLOB NOT NULL,
  chain BLOB NOT NULL, mac BLOB NOT NULL) STRICT;
CREATE TABLE openings(number INTEGER PRIMARY KEY, version INTEGER NOT NULL, first_step INTEGER NOT NULL,
  fresh BLOB NOT NULL, note TEXT NOT NULL, previous BLOB NOT NULL, chain BLOB NOT NULL,
  mac BLOB NOT NULL) STRICT;
CREATE TABLE position(id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL, stream BLOB NOT NULL,
  opening INTEGER NOT NULL, previous BLOB NOT NULL, chain BLOB NOT NULL, mac BLOB NOT NULL) STRICT;
CREATE TABLE blocks(first INTEGER PRIMARY KEY, count INTEGER NOT NULL, opening INTEGER NOT NULL,
  labels TEXT NOT NULL, chain BLOB NOT NULL, mac BLOB NOT NULL) STRICT;
CREATE TABLE users(user TEXT PRIMARY KEY, count INTEGER NOT NULL, last INTEGER NOT NULL) STRICT, WITHOUT ROWID
"""
#: "fdms" in ASCII.
STREAM_STATE: Final = RecordKind(
    "stream state",
    0x66646D73,
    version=1,
    error=StateError,
    schema=tuple(line.strip() for line in _TABLES.split(";")),
)


class UserSum:
    """The sum modulo 2²⁵⁶ of keyed digests of all users' histories, which changes as fast as they do.

    It is in the chain value of the position and nowhere else, so nobody without the key knows any digest.
    """

    def __init__(self, seal: Seal, rows: Iterable[UserRow] = ()) -> None:
        assert seal.key is not None
        self._key, self._total = seal.key, 0
        self._add(rows, 1)

    def changed(self, before: Iterable[UserRow], after: Iterable[UserRow]) -> UserSum:
        """The sum once histories are replaced."""
        result = copy.copy(self)
        result._add(before, -1)
        result._add(after, 1)
        return result

    def _add(self, rows: Iterable[UserRow], sign: int) -> None:
        for user, count, last in rows:
            text = f"{count!r} {last!r} {user!r}".encode(errors="surrogatepass")
            digest = hashlib.blake2b(text, key=self._key, digest_size=32).digest()
            self._total = (self._total + sign * int.from_bytes(digest)) % 2**256

    def to_bytes(self) -> bytes:
        """32 bytes, as secret as the key."""
        return self._total.to_bytes(32)


class PositionRow(NamedTuple):
    """How far the stream is, as the table holds it, without its place in the chain.

    Args:
        json: of the `Position`.
        stream: the packed state of the `MomentStream`.
        opening: number of the opening in force, −1 before the first.
        previous: the chain value that this one follows.
    """

    json: str
    stream: bytes
    opening: int
    previous: bytes

    def sealed(self, seal: Seal, plan: bytes, users: UserSum) -> Sealed:
        """Chain value and code, given the plan's chain value."""
        return seal.sealed(b"position", plan, users.to_bytes(), *self)


def build_database(path: Path, plan: Mapping[str, Any], position: str, seal: Seal) -> None:
    """Make the database of a new stream.

    Args:
        path: where.
        plan: what the plan's `to_dict` gives.
        position: JSON of the first `Position`.
        seal: of the state.

    Raises:
        StateError: the disk failed.
    """
    text = json.dumps(plan, ensure_ascii=False, allow_nan=False)

    def fill(connection: sqlite3.Connection) -> None:
        content = text, secrets.token_bytes(32)
        chain, mac = seal.sealed(b"plan", *content)
        connection.execute("INSERT INTO plan VALUES (0, ?, ?, ?, ?)", (*content, chain, mac))
        start = PositionRow(position, b"", -1, chain)
        sealed = start.sealed(seal, chain, UserSum(seal))
        connection.execute("INSERT INTO position VALUES (0, ?, ?, ?, ?, ?, ?)", (*start, *sealed))

    with STREAM_STATE.one_line_errors(path):
        STREAM_STATE.build(path, fill)


def read_plan(connection: sqlite3.Connection, seal: Seal) -> tuple[dict[str, Any], bytes, bytes]:
    """(what the plan's `to_dict` wrote, the key of digests of rows, the plan's chain value).

    Raises:
        StateError: it is missing or was altered.
    """
    row = connection.execute("SELECT json, digest_key, chain, mac FROM plan").fetchone()
    if row is None:
        raise StateError("the stream state has no plan.")
    *content, chain, mac = row
    require("plan", seal.fault((chain, mac), b"plan", *content))
    return json.loads(content[0]), content[1], chain


def read_openings(
    connection: sqlite3.Connection, seal: Seal, plan: bytes
) -> list[tuple[Opening, bytes, bytes]]:
    """Each opening in order, with the chain value that it follows and its own.

    Raises:
        StateError: one was altered, added or taken out of their midst.
    """
    found: list[tuple[Opening, bytes, bytes]] = []
    for row, (previous, chain, mac) in opening_rows(connection, STREAM_STATE):
        fault = seal.fault((chain, mac), b"opening", plan, previous, *row)
        if row[0] != len(found):
            fault = "one before it is missing"
        require(f"opening {row[0]}", fault)
        found.append((Opening.of_row(row), previous, chain))
    return found


def read_position(
    connection: sqlite3.Connection, seal: Seal, plan: bytes, users: UserSum
) -> tuple[PositionRow, bytes]:
    """(the position, its chain value), checked together with the histories of all users.

    Raises:
        StateError: it is missing, or it or a history was altered.
    """
    row = connection.execute("SELECT json, stream, opening, previous, chain, mac FROM position").fetchone()
    if row is None:
        raise StateError("the stream state has no position.")
    *content, chain, mac = row
    fault = seal.fault((chain, mac), b"position", plan, users.to_bytes(), *content)
    require("position (or a user's history)", fault)
    return PositionRow(*content), chain


def require(name: str, fault: str | None) -> None:
    """Refuse what a check found."""
    if fault is not None:
        raise StateError(
            f"the stream state is not as it was committed: {name}: {fault}. "
            "Restore the directory from a copy."
        )
