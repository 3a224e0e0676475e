"""The file of a stream's releases: blocks of float64 numbers, each with a check in the state's tables.

The labels of a block's releases stand in its row there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from fedmf.records import Opening, Seal, read_at, write_at
from fedmf.streaming.position import Releases
from fedmf.streaming.state.schema import StateError


class ReleaseFile:
    """Every release as float64 numbers, little-endian, one after the other.

    Args:
        path: of the file; made if it is missing.
        width: numbers of a release.
        connection: to the state, which keeps a row for each block: where it begins, how many releases it
            has, under which opening, their labels, and what binds all that and its bytes to the stream's key.
        seal: of the state.
        plan: the plan's chain value.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(
        self, path: Path, width: int, connection: sqlite3.Connection, seal: Seal, plan: bytes
    ) -> None:
        self.path, self._size = path, 8 * width
        self._connection, self._seal, self._plan = connection, seal, plan
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def holds(self, count: int) -> bool:
        """Whether the file is long enough for so many releases."""
        return os.fstat(self._file).st_size >= self._size * count

    def append(self, releases: Releases) -> bytes:
        """Write the numbers of a block durably at their place; their digest, for `note`."""
        content = np.ascontiguousarray(releases.numbers, "<f8").tobytes()
        write_at(self._file, content, self._size * releases.first)
        os.fsync(self._file)
        return hashlib.sha256(content).digest()

    def note(self, releases: Releases, opening: Opening, digest: bytes) -> None:
        """Put a block's row into the transaction that commits it."""
        row = releases.first, len(releases), opening.number, json.dumps(releases.labels, ensure_ascii=False)
        sealed = self._seal.sealed(b"block", self._plan, *row, opening.fresh, digest)
        self._connection.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?, ?)", (*row, *sealed))

    def read(self, start: int, stop: int, openings: Sequence[Opening]) -> Releases:
        """Releases start … stop − 1, each checked with its whole block.

        Raises:
            StateError: the file does not hold what was committed.
        """
        parts, labels = [np.empty((0, self._size // 8))], []
        for block in self._blocks(start, stop, openings):
            wanted = slice(max(0, start - block.first), stop - block.first)
            parts.append(block.numbers[wanted])
            labels += block.labels[wanted]
        return Releases(start, np.concatenate(parts), labels)

    def _blocks(self, start: int, stop: int, openings: Sequence[Opening]) -> Iterator[Releases]:
        """The blocks that cover a range."""
        if start >= stop:
            return
        due: int | None = None
        query = (
            "SELECT first, count, opening, labels, chain, mac FROM blocks "
            "WHERE first >= (SELECT MAX(first) FROM blocks WHERE first <= ?) AND first < ? ORDER BY first"
        )
        for first, count, number, texts, *sealed in self._connection.execute(query, (start, stop)).fetchall():
            if (due is not None and first != due) or not 0 <= number < len(openings):
                raise self._damaged(stop)
            content = self._content(first, count, stop)
            digest, opening = hashlib.sha256(content).digest(), openings[number]
            chain, mac = sealed
            fault = self._seal.fault(
                (chain, mac), b"block", self._plan, first, count, number, texts, opening.fresh, digest
            )
            if fault is not None:
                raise StateError(
                    f"{self.path} is not as it was committed: block of release {first}: {fault}. "
                    "Restore the directory from a copy."
                )
            labels = [tuple(row) for row in json.loads(texts)]
            yield Releases(first, np.frombuffer(content, "<f8").reshape(count, -1), labels)
            due = first + count
        if due is None or due < stop:
            raise self._damaged(stop)

    def _content(self, first: int, count: int, stop: int) -> bytes:
        whole = self.holds(first + count)  # before so much is asked for
        content = read_at(self._file, self._size * count, self._size * first) if whole else b""
        if len(content) < self._size * count:
            raise self._damaged(stop)
        return content

    def _damaged(self, stop: int) -> StateError:
        return StateError(f"{self.path} must hold {stop} releases; it is cut short or lacks a block.")
