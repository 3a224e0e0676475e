"""Users by key: how a ledger names a million of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import LedgerError

__all__ = ["UserKeys", "packed_names", "read_names"]

_END = b"\x00"


class UserKeys:
    """Keys count up from 0 in the order in which the ledger first met the users.

    Args:
        names: the users met so far, all different.

    >>> users = UserKeys(["ann", "bob"])
    >>> users.keys(["eve", "bob"])
    (array([2, 1]), ['eve'])
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self._key_of = {name: key for key, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def keys(self, users: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
        """The keys of distinct users, and those among them that are new: they get the next keys."""
        found = np.array([self._key_of.get(user, -1) for user in users], dtype=np.int64)
        unknown = np.flatnonzero(found < 0)
        found[unknown] = np.arange(len(self), len(self) + unknown.size)
        return found, [users[position] for position in unknown.tolist()]

    def add(self, newcomers: Sequence[str]) -> None:
        """Give newcomers the next keys."""
        self._key_of.update(zip(newcomers, range(len(self), len(self) + len(newcomers)), strict=True))
        self.names.extend(newcomers)


def packed_names(newcomers: Sequence[str]) -> bytes:
    """Names as a round keeps them: UTF-8, in the order of their keys, each ended by a NUL."""
    return b"".join(name.encode() + _END for name in newcomers)


def read_names(connection: sqlite3.Connection) -> list[str]:
    """All users in the order of their keys.

    Raises:
        LedgerError: the names of a round are damaged.
    """
    names: list[str] = []
    for index, content in connection.execute("SELECT round, newcomers FROM rounds ORDER BY round"):
        if not content:
            continue
        if content[-1:] != _END:
            raise LedgerError(
                f"the names of the newcomers of round {index} are damaged: the last has no end."
            )
        try:
            names.extend(content[:-1].decode().split("\x00"))
        except UnicodeDecodeError:
            raise LedgerError(
                f"the names of the newcomers of round {index} are damaged: not UTF-8."
            ) from None
    return names
