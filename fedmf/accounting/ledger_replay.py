"""Reading a whole ledger back: participation patterns and the check of every row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.ledger_schema import SCHEMA, LedgerError, ParticipationViolation
from fedmf.participation import Participation

_BLOCK = 1 << 16


@dataclass(frozen=True)
class LedgerSummary:
    """What a ledger holds after every row was checked.

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


def row_blocks(connection: sqlite3.Connection) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(rounds, user keys) of all participations in the order of rounds, in blocks."""
    cursor = connection.execute("SELECT round, user_key FROM participations ORDER BY round, user_key")
    while rows := cursor.fetchmany(_BLOCK):
        block = np.array(rows, dtype=np.int64)
        yield block[:, 0], block[:, 1]


def count_patterns(connection: sqlite3.Connection) -> dict[tuple[int, ...], int]:
    """How many users share each pattern of rounds, sorted by pattern."""
    rounds, keys = _by_user(connection)
    if keys.size == 0:
        return {}
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    lengths = np.diff(starts, append=keys.size)
    found: dict[tuple[int, ...], int] = {}
    for length in np.unique(lengths):
        table = rounds[starts[lengths == length][:, None] + np.arange(length)]
        patterns, counts = np.unique(table, axis=0, return_counts=True)
        found.update(zip(map(tuple, patterns.tolist()), counts.tolist(), strict=True))
    return dict(sorted(found.items()))


def replay(connection: sqlite3.Connection, participation: Participation) -> LedgerSummary:
    """Check schema, rounds and every participation against the contract."""
    _check_file(connection)
    table = connection.execute("SELECT round, users, status FROM rounds ORDER BY round").fetchall()
    _check_rounds(table, participation)
    rounds, keys = _by_user(connection)
    _check_cohorts(connection, table, rounds)
    same_user = np.diff(keys) == 0
    separations = np.diff(rounds)[same_user]
    _check_users(connection, participation, rounds, keys)
    _, counts = np.unique(keys, return_counts=True)
    return LedgerSummary(
        rounds=len(table),
        empty_rounds=sum(status == "empty" for _, _, status in table),
        users=counts.size,
        participations=keys.size,
        max_participations=int(counts.max(initial=0)),
        min_separation=int(separations.min()) if separations.size else None,
        largest_cohort=max((users for _, users, _ in table), default=0),
    )


def _by_user(connection: sqlite3.Connection) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All participations sorted by user, then by round."""
    blocks = list(row_blocks(connection))
    if not blocks:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    rounds = np.concatenate([block[0] for block in blocks])
    keys = np.concatenate([block[1] for block in blocks])
    order = np.lexsort((rounds, keys))
    return rounds[order], keys[order]


def _check_file(connection: sqlite3.Connection) -> None:
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise LedgerError(f"the ledger file is damaged: {' '.join(verdict.split())}.")
    present = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    missing = [statement for statement in SCHEMA if statement not in present]
    if missing:
        name = missing[0].split("(")[0].split(" BEFORE ")[0]
        raise LedgerError(f"the ledger's schema was altered: no '{name}' as written by this format version.")
    orphan = connection.execute(
        "SELECT round, user_key FROM participations WHERE user_key NOT IN (SELECT key FROM users) LIMIT 1"
    ).fetchone()
    if orphan:
        raise LedgerError(f"round {orphan[0]} names the user key {orphan[1]}, which is not in the ledger.")
    idle = connection.execute(
        "SELECT user FROM users WHERE key NOT IN (SELECT user_key FROM participations) LIMIT 1"
    ).fetchone()
    if idle:
        raise LedgerError(f"user {idle[0]!r} is in the ledger without any round.")


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


def _check_cohorts(
    connection: sqlite3.Connection, table: list[tuple[int, int, str]], rounds: NDArray[np.int64]
) -> None:
    if rounds.size and not 0 <= rounds.min() <= rounds.max() < len(table):
        stray = int(rounds.min()) if rounds.min() < 0 else int(rounds.max())
        raise ParticipationViolation(f"users are recorded in round {stray}, which was never committed.")
    counted = np.bincount(rounds, minlength=len(table))
    for index, users, _ in table:
        if counted[index] != users:
            raise ParticipationViolation(
                f"round {index} was committed with {users} users and holds {counted[index]}."
            )


def _check_users(
    connection: sqlite3.Connection,
    participation: Participation,
    rounds: NDArray[np.int64],
    keys: NDArray[np.int64],
) -> None:
    k, b = participation.max_participations, participation.min_separation
    close = np.flatnonzero((np.diff(keys) == 0) & (np.diff(rounds) < b))
    if close.size:
        first = int(close[0])
        raise ParticipationViolation(
            f"user {_name(connection, keys[first])} took part in rounds {rounds[first]} and "
            f"{rounds[first + 1]}: b (min_separation) is {b}."
        )
    many = np.flatnonzero(keys[k:] == keys[:-k]) if keys.size > k else np.empty(0, dtype=np.int64)
    if many.size:
        key = keys[int(many[0])]
        joined = ", ".join(map(str, rounds[keys == key][: k + 1]))
        raise ParticipationViolation(
            f"user {_name(connection, key)} took part in rounds {joined}: k (max_participations) is {k}."
        )


def _name(connection: sqlite3.Connection, key: np.int64) -> str:
    return repr(connection.execute("SELECT user FROM users WHERE key = ?", (int(key),)).fetchone()[0])
