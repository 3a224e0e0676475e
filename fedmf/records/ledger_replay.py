"""Reading a whole ledger back: participation patterns and the check of every row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import ParticipationSummary, PatternTable
from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.participation import Participation
from fedmf.records.ledger_schema import SCHEMA
from fedmf.records.ledger_users import read_names


def packed(keys: NDArray[np.integer]) -> bytes:
    """User keys as a round keeps them: ascending, 32 bits each, little-endian."""
    return np.sort(keys).astype("<u4").tobytes()


def cohorts(connection: sqlite3.Connection) -> Iterator[NDArray[np.uint32]]:
    """The user keys of each committed round, in the order of rounds."""
    for index, content in connection.execute("SELECT round, participants FROM rounds ORDER BY round"):
        if len(content) % 4:
            raise LedgerError(f"the participants of round {index} are damaged: {len(content)} bytes.")
        yield np.frombuffer(content, dtype="<u4")


def read_patterns(connection: sqlite3.Connection) -> PatternTable:
    """The participation pattern of every user, equal ones counted together."""
    return PatternTable.of_histories(*by_user(list(cohorts(connection))))


def replay(connection: sqlite3.Connection, participation: Participation) -> ParticipationSummary:
    """Check schema, rounds and every participation against the contract."""
    _check_file(connection)
    table = connection.execute("SELECT round, users, status FROM rounds ORDER BY round").fetchall()
    _check_rounds(table, participation)
    found = list(cohorts(connection))
    names = read_names(connection)
    _check_names(names)
    _check_cohorts(table, found, len(names))
    rounds, keys = by_user(found)
    counts = np.bincount(keys, minlength=len(names))
    if (idle := np.flatnonzero(counts == 0)).size:
        raise LedgerError(f"user {names[idle[0]]!r} is in the ledger without any round.")
    _check_users(names, participation, rounds, keys)
    separations = np.diff(rounds)[np.diff(keys) == 0]
    return ParticipationSummary(
        rounds=len(table),
        empty_rounds=sum(status == "empty" for _, _, status in table),
        users=counts.size,
        participations=keys.size,
        max_participations=int(counts.max(initial=0)),
        min_separation=int(separations.min()) if separations.size else None,
        largest_cohort=max((users for _, users, _ in table), default=0),
    )


def by_user(found: list[NDArray[np.uint32]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(rounds, user keys) of all participations sorted by user, then by round.

    Sorting one integer key·n + round is several times faster than sorting indices, and needs half the memory.
    """
    n = max(1, len(found))
    joined = np.empty(sum(keys.size for keys in found), dtype=np.int64)
    start = 0
    for index, keys in enumerate(found):
        np.multiply(keys, n, out=joined[start : start + keys.size], dtype=np.int64)
        joined[start : start + keys.size] += index
        start += keys.size
    joined.sort()
    keys = (joined // n).astype(np.int32)
    joined -= keys * np.int64(n)
    return joined.astype(np.int32), keys


def _check_file(connection: sqlite3.Connection) -> None:
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise LedgerError(f"the ledger file is damaged: {' '.join(verdict.split())}.")
    present = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    missing = [statement for statement in SCHEMA if statement not in present]
    if missing:
        name = missing[0].split("(")[0].split(" BEFORE ")[0]
        raise LedgerError(f"the ledger's schema was altered: no '{name}' as written by this format version.")


def _check_rounds(table: list[tuple[int, int, str]], participation: Participation) -> None:
    for expected, (index, users, status) in enumerate(table):
        if index != expected:
            raise ParticipationViolation(
                f"round {expected} is missing from the ledger; it goes on with {index}."
            )
        if status == "empty" and users:
            raise ParticipationViolation(f"round {index} is marked empty and has {users} users.")
    if len(table) > participation.rounds:
        raise ParticipationViolation(
            f"the ledger holds {len(table)} rounds, past the horizon of n={participation.rounds}."
        )


def _check_cohorts(table: list[tuple[int, int, str]], found: list[NDArray[np.uint32]], users: int) -> None:
    for (index, number, _), keys in zip(table, found, strict=True):
        if keys.size != number:
            raise ParticipationViolation(
                f"round {index} was committed with {number} users and holds {keys.size}."
            )
        if keys.size and keys[-1] >= users:
            raise LedgerError(f"round {index} names the user key {keys[-1]}, which is not in the ledger.")
        if (keys[1:] <= keys[:-1]).any():
            raise LedgerError(f"round {index} names its users out of order or twice.")


def _check_names(names: list[str]) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))
        raise LedgerError(f"user {twice!r} has two keys in the ledger.")
    if "" in names:
        raise LedgerError(f"user key {names.index('')} has an empty name.")


def _check_users(
    names: list[str],
    participation: Participation,
    rounds: NDArray[np.int32],
    keys: NDArray[np.int32],
) -> None:
    k, b = participation.max_participations, participation.min_separation
    close = np.flatnonzero((np.diff(keys) == 0) & (np.diff(rounds) < b))
    if close.size:
        first = int(close[0])
        raise ParticipationViolation(
            f"user {names[keys[first]]!r} took part in rounds {rounds[first]} and "
            f"{rounds[first + 1]}: b (min_separation) is {b}."
        )
    many = np.flatnonzero(keys[k:] == keys[:-k]) if keys.size > k else np.empty(0, dtype=np.int64)
    if many.size:
        key = keys[int(many[0])]
        joined = ", ".join(map(str, rounds[keys == key][: k + 1]))
        raise ParticipationViolation(
            f"user {names[key]!r} took part in rounds {joined}: k (max_participations) is {k}."
        )
