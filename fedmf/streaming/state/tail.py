"""The newest commits of a stream, in files of frames beside its database: a commit is one append, one flush.

What a frame has is whole or not there at all. The
database gets the commits, all at once, when a file is full, before an opening is recorded, and when a state
is opened or closed; a frame that is in the database already is passed over.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedmf.records import (
    Damaged,
    FrameWriter,
    Sealed,
    State,
    UserRow,
    read_frames,
    read_state,
    sync_directory,
)
from fedmf.streaming.state.schema import STREAM_STATE, PositionRow, StateError

#: A file that is longer, or has more frames, gets no more.
_FULL: Final = 1 << 26
_FRAMES: Final = 1000


class BlockRow(NamedTuple):
    """A block of releases, as the table holds it."""

    first: int
    releases: int
    opening: int
    labels: str
    chain: bytes
    mac: bytes


class Commit(NamedTuple):
    """What makes a block of steps final.

    Args:
        row: the position after it.
        sealed: its chain value and code.
        users: histories that changed.
        blocks: of releases, one or none.
        numbers: what belongs into the file of releases at the block's place; empty where it is on the disk.
        pushes: what belongs into the file of pushed rows, at the places of the last steps.
    """

    row: PositionRow
    sealed: Sealed
    users: Sequence[UserRow]
    blocks: Sequence[BlockRow]
    numbers: bytes | memoryview
    pushes: bytes


class StreamTail:
    """The files of frames beside a database.

    Args:
        database: its path.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._writer: FrameWriter | None = None
        self._count = 0

    @property
    def begun(self) -> bool:
        """Whether this process has a file."""
        return self._writer is not None

    @property
    def full(self) -> bool:
        """Whether the file should get no more."""
        return self._writer is not None and (self._writer.size > _FULL or self._count >= _FRAMES)

    def commits(self) -> Iterator[Commit]:
        """All in order; they are on the disk.

        Raises:
            StateError: a file is damaged.
        """
        for path in self._files():
            try:
                for frame in read_frames(path):
                    stream, numbers, pushes = read_state(path, frame)
                    yield _commit(frame.fields, stream, numbers, pushes)
            except Damaged as error:
                raise StateError(f"{path} is damaged: {error}. Restore the directory from a copy.") from None

    def append(self, commit: Commit) -> None:
        """Add a commit; it is on the disk when this returns.

        Raises:
            OSError: the disk failed. It may be there: nothing more may be added.
        """
        if self._writer is None:
            newest = max((int(path.name[-7:]) for path in self._files()), default=-1)
            self._writer = FrameWriter(self._file(f"{newest + 1:07d}"), STREAM_STATE.mode)
            self._count = 0
            sync_directory(self._database.parent)
        row = commit.row
        blocks = [field for block in commit.blocks for field in block]
        fields = row.json, row.opening, row.previous, *commit.sealed, json.dumps(commit.users), *blocks
        self._writer.append(fields, State.of([row.stream, commit.numbers, commit.pushes]))
        self._count += 1

    def clear(self) -> None:
        """Remove the files, once the database has all they hold."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with contextlib.suppress(OSError):  # one that stays holds what the database has
            for path in self._files():
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and leave it."""
        if self._writer is not None:
            self._writer.close()

    def _files(self) -> list[Path]:
        return sorted(self._database.parent.glob(self._file("[0-9]" * 7).name))

    def _file(self, number: str) -> Path:
        return self._database.with_name(f"{self._database.name}-tail-{number}")


def _commit(fields: Sequence[Any], stream: bytes, numbers: bytes, pushes: bytes) -> Commit:
    text, opening, previous, chain, mac, users, *block = fields
    row = PositionRow(text, stream, opening, previous)
    changed = [(user, count, last) for user, count, last in json.loads(users)]
    return Commit(row, (chain, mac), changed, [BlockRow(*block)] if block else [], numbers, pushes)
