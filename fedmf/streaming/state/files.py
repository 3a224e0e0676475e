"""The files beside a stream's state: its releases, and the keys of the rows that were pushed.

What they hold counts once the state says so: a block of releases has a row with its check there, a pushed row
its step.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from fedmf.records import Opening, Seal, read_at, write_at
from fedmf.streaming.position import Releases
from fedmf.streaming.state.schema import STREAM_STATE, StateError
from fedmf.streaming.state.tail import BlockRow

_DIGEST: Final = 16
_RECORD: Final = 2 * _DIGEST


class _PlacedFile:
    """A file of records of one size, each at its place; made if it is missing."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._size = path, size
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def put(self, content: bytes | memoryview, record: int) -> None:
        """Write records from a place on, not flushed."""
        write_at(self._file, content, self._size * record)

    def flush(self) -> None:
        """Make what was written durable."""
        os.fsync(self._file)


class ReleaseFile(_PlacedFile):
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
        super().__init__(path, 8 * width)
        self._connection, self._seal, self._plan = connection, seal, plan
        #: Blocks that the database does not have yet, which come after those that it has.
        self.newest: list[BlockRow] = []

    def holds(self, count: int) -> bool:
        """Whether the file is long enough for so many releases."""
        return os.fstat(self._file).st_size >= self._size * count

    def row(self, releases: Releases, opening: Opening, content: bytes | memoryview) -> BlockRow:
        """The row of a block with these bytes."""
        labels = json.dumps(releases.labels, ensure_ascii=False)
        row = releases.first, len(releases), opening.number, labels
        digest = hashlib.sha256(content).digest()
        return BlockRow(*row, *self._seal.sealed(b"block", self._plan, *row, opening.fresh, digest))

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
        for first, count, number, texts, *sealed in self._rows(start, stop):
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

    def _rows(self, start: int, stop: int) -> list[BlockRow]:
        """The rows of the blocks that begin in a range, and of the one before."""
        newest = self.newest[: bisect_left(self.newest, (stop,))]
        if newest and newest[0].first <= start:
            return newest[bisect_left(newest, (start + 1,)) - 1 :]
        query = (
            "SELECT first, count, opening, labels, chain, mac FROM blocks "
            "WHERE first >= (SELECT MAX(first) FROM blocks WHERE first <= ?) AND first < ? ORDER BY first"
        )
        return [*map(BlockRow._make, self._connection.execute(query, (start, stop))), *newest]

    def _content(self, first: int, count: int, stop: int) -> bytes:
        whole = self.holds(first + count)  # before so much is asked for
        content = read_at(self._file, self._size * count, self._size * first) if whole else b""
        if len(content) < self._size * count:
            raise self._damaged(stop)
        return content

    def _damaged(self, stop: int) -> StateError:
        return StateError(f"{self.path} must hold {stop} releases; it is cut short or lacks a block.")


class PushFile(_PlacedFile):
    """For each step the keyed digest of its row's key (zeros without one), and one of step, key and contents.

    A record is durable with the commit of its step, and counts from then on: what lies past the last
    committed step is an attempt that came to nothing, and the next one is written over it.

    Args:
        path: of the file; made if it is missing.
        secret: the key of the digests.
    """

    def __init__(self, path: Path, secret: bytes) -> None:
        super().__init__(path, _RECORD)
        self._secret = secret
        self._steps: dict[bytes, int] = {}

    def load(self, steps: int) -> None:
        """Read the records of the steps that are committed.

        Raises:
            StateError: the file lacks some.
        """
        content = self.records(0, steps)
        if len(content) < _RECORD * steps:
            raise StateError(
                f"{self.path} must hold a record of each of the {steps} steps taken; it has "
                f"{len(content) // _RECORD}. Restore the directory from a copy."
            )
        for step in range(1, steps + 1):
            self.committed(content[_RECORD * (step - 1) :][:_DIGEST], step)

    def digest(self, key: str | None) -> bytes:
        """What stands for a row's key."""
        return bytes(_DIGEST) if key is None else self._keyed(b"key", key.encode(errors="surrogatepass"))

    def place(
        self, step: int, keys: Sequence[str | None], contents: Sequence[bytes]
    ) -> tuple[list[int], list[int]]:
        """The step of each of some rows, and which of them are new: they take the steps after `step`.

        Raises:
            ValueError: a key that another row had, or that comes twice.
        """
        steps: list[int] = []
        fresh: list[int] = []
        met: set[bytes] = set()
        for i, key in enumerate(keys):
            digest = self.digest(key)
            before = self._steps.get(digest)
            if before is not None and not self.holds(before, digest, contents[i]):
                raise ValueError(
                    f"key (of the row) must be new for a new row; got {key!r}, that of step {before} with "
                    "another row or user."
                )
            if before is None:
                if key is not None and digest in met:
                    raise ValueError(f"key (of the row) must be new for a new row; got {key!r} twice.")
                met.add(digest)
                fresh.append(i)
                before = step + len(fresh)
            steps.append(before)
        return steps, fresh

    def holds(self, step: int, digest: bytes, content: bytes) -> bool:
        """Whether the record of a step is that of this key and these contents."""
        return self.records(step - 1, step) == self._record(step, digest, content)

    def write(self, step: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Put down which rows are about to take a step and those after it: (digest, content) each.

        Raises:
            StateError: the disk failed.
        """
        record = b"".join(self._record(step + i, *row) for i, row in enumerate(rows))
        with STREAM_STATE.one_line_errors(self.path):
            self.put(record, step - 1)

    def committed(self, digest: bytes, step: int) -> None:
        """Remember that the step of a key is committed."""
        if any(digest):
            self._steps[digest] = step

    def _record(self, step: int, digest: bytes, content: bytes) -> bytes:
        return digest + self._keyed(b"row", step.to_bytes(8, "little") + digest + content)

    def _keyed(self, kind: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=kind, digest_size=_DIGEST).digest()

    def records(self, start: int, stop: int) -> bytes:
        """Those of steps start + 1 … stop."""
        return read_at(self._file, _RECORD * (stop - start), _RECORD * start)
