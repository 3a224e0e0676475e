"""Reading a whole ledger back: participation patterns and the check of every row."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import ParticipationSummary
from fedmf.errors import LedgerError, ParticipationViolation, rebuilding
from fedmf.participation import Participation
from fedmf.records.histories import Histories
from fedmf.records.ledger.schema import (
    LEDGER,
    METRICS_VERSION,
    ROUND_VERSION,
    RoundRow,
    rows,
)
from fedmf.records.record import opening_rows
from fedmf.records.seal import Seal, Sealed


def cohorts(connection: sqlite3.Connection) -> Iterator[NDArray[np.uint32]]:
    """The user keys of each committed round, in the order of rounds."""
    return (row.keys() for row, _ in rows(connection))


def read_names(connection: sqlite3.Connection) -> list[str]:
    """All users in the order of their keys."""
    return [name for row, _ in rows(connection) for name in row.names()]


def read_histories(connection: sqlite3.Connection, participation: Participation) -> Histories:
    """Of every user after the last committed round, without any check."""
    histories = Histories(participation)
    for row, _ in rows(connection):
        histories.meet(row.names())
        histories.record_all(row.round, row.keys())
    return histories


def replay(
    connection: sqlite3.Connection, participation: Participation, header: bytes, seal: Seal
) -> ParticipationSummary:
    """Check schema, rows, every participation and the chain against the contract, the header and the key.

    Args:
        connection: to the ledger.
        participation: the contract.
        header: the header's chain value.
        seal: of the ledger.
    """
    LEDGER.check_file(connection)
    histories, chain = Histories(participation), _Chain(connection, header, seal)
    released = largest = empty = total = 0
    for expected, (row, sealed) in enumerate(rows(connection)):
        _check_round(row, expected, participation)
        keys = row.keys()
        histories.meet(row.names())
        _check_keys(row, keys, len(histories))
        histories.check(row.round, keys)
        histories.record_all(row.round, keys)
        chain.follow(row, sealed)
        released, total, largest = row.round + 1, total + row.users, max(largest, row.users)
        empty += row.status == "empty"
    _check_names(histories.names)
    if (idle := np.flatnonzero(histories.counts == 0)).size:
        raise LedgerError(f"user {histories.names[idle[0]]!r} is in the ledger without any round.")
    chain.end(released)
    read_metrics(connection, header, seal)
    return ParticipationSummary(
        rounds=released,
        empty_rounds=empty,
        users=len(histories),
        participations=total,
        max_participations=histories.max_participations,
        min_separation=histories.min_separation,
        largest_cohort=largest,
    )


class _Chain:
    """The chain as it should be, followed through openings and rounds; the first row that differs is kept."""

    def __init__(self, connection: sqlite3.Connection, header: bytes, seal: Seal) -> None:
        self._header, self._seal, self._last = header, seal, header
        self._openings, self._number, self._before = opening_rows(connection, LEDGER), 0, 0
        self._broken: str | None = None

    def follow(self, row: RoundRow, sealed: Sealed) -> None:
        """The next round, after the openings made before it."""
        self._open_until(row.round)
        if not self._number:
            self._note("round 0", "no opening is recorded before it")
        self._step(f"round {row.round}", sealed, b"round", *row)

    def end(self, rounds: int) -> None:
        """All rounds are there: the openings after them may follow, and nothing else.

        Raises:
            LedgerError: a row is not as it was committed.
        """
        self._open_until(rounds)
        if self._number < len(self._openings):
            self._note(f"opening {self._number}", "it begins with a round that is not next")
        if self._broken is not None:
            raise LedgerError(self._broken)

    def _open_until(self, index: int) -> None:
        while self._number < len(self._openings):
            row, (chain, mac) = self._openings[self._number]
            number, _, first, *_ = row
            if first > index:
                return
            if number != self._number or first < self._before:
                self._note(f"opening {self._number}", "it is not the next in order")
            self._step(f"opening {self._number}", (chain, mac), b"opening", *row)
            self._number, self._before = self._number + 1, first

    def _step(self, name: str, sealed: Sealed, kind: bytes, *content: int | str | bytes) -> None:
        fault = self._seal.fault(sealed, kind, self._last, self._header, *content)
        if fault is not None:
            self._note(name, fault)
        self._last = sealed[0]

    def _note(self, name: str, fault: str) -> None:
        if self._broken is None:
            self._broken = f"{name} is not as it was committed: {fault}. Restore the ledger from a copy."


def read_metrics(connection: sqlite3.Connection, header: bytes, seal: Seal) -> dict[int, dict[str, Any]]:
    """All metrics by round, in order.

    Raises:
        LedgerError: a row is not as it was written.
    """
    found: dict[int, dict[str, Any]] = {}
    query = "SELECT round, version, json, chain, mac FROM {}metrics ORDER BY round"
    both = [connection.execute(query.format(place)) for place in ("main.", "temp.tail_")]
    for *row, chain, mac in itertools.chain(*both):
        fault = seal.fault((chain, mac), b"metrics", header, *row)
        if row[1] != METRICS_VERSION:
            fault = f"version {row[1]} is not known"
        if fault is not None:
            raise LedgerError(f"metrics of round {row[0]} are not as they were written: {fault}.")
        with rebuilding(f"metrics of round {row[0]}", LedgerError):
            found[int(row[0])] = dict(json.loads(row[2]))
    return dict(sorted(found.items()))


def by_user(rounds: list[NDArray[np.uint32]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(rounds, user keys) of all participations sorted by user, then by round.

    Sorting one integer key·n + round is several times faster than sorting indices, and needs half the memory.
    """
    n = max(1, len(rounds))
    joined = np.empty(sum(keys.size for keys in rounds), dtype=np.int64)
    start = 0
    for index, keys in enumerate(rounds):
        np.multiply(keys, n, out=joined[start : start + keys.size], dtype=np.int64)
        joined[start : start + keys.size] += index
        start += keys.size
    joined.sort()
    keys = (joined // n).astype(np.int32)
    joined -= keys * np.int64(n)
    return joined.astype(np.int32), keys


def _check_round(row: RoundRow, expected: int, participation: Participation) -> None:
    if row.round != expected:
        raise ParticipationViolation(
            f"round {expected} is missing from the ledger; it goes on with {row.round}."
        )
    if row.round >= participation.rounds:
        raise ParticipationViolation(
            f"the ledger holds round {row.round}, past the horizon of n={participation.rounds}."
        )
    if row.version != ROUND_VERSION:
        raise LedgerError(
            f"round {row.round} is a row of version {row.version}; this fedmf reads version {ROUND_VERSION}."
        )
    if row.status == "empty" and row.users:
        raise ParticipationViolation(f"round {row.round} is marked empty and has {row.users} users.")


def _check_keys(row: RoundRow, keys: NDArray[np.uint32], users: int) -> None:
    if keys.size != row.users:
        raise ParticipationViolation(
            f"round {row.round} was committed with {row.users} users and holds {keys.size}."
        )
    if (keys[1:] <= keys[:-1]).any():
        raise LedgerError(f"round {row.round} names its users out of order or twice.")
    if keys.size and keys[-1] >= users:
        raise LedgerError(f"round {row.round} names the user key {keys[-1]}, which is not in the ledger.")


def _check_names(names: list[str]) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))
        raise LedgerError(f"user {twice!r} has two keys in the ledger.")
    if "" in names:
        raise LedgerError(f"user key {names.index('')} has an empty name.")
