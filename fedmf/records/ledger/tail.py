"""The newest rows of a ledger, in files of frames beside it: a commit is one append and one flush."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedmf.errors import LedgerError
from fedmf.records.durable import sync_directory
from fedmf.records.frames import Damaged, Field, Frame, FrameWriter, State, read_frames, read_state
from fedmf.records.ledger.schema import LEDGER

#: A file of the tail that is longer, or has more frames, gets no more; the next begins with its rows.
_FULL: Final = 1 << 26
_FRAMES: Final = 1000
#: Rows of more bytes are moved into the database.
_MANY: Final = 1 << 20
#: How often a file is looked at before it counts as damaged.
_LOOKS: Final = 3
_COLUMNS: Final = {"round": 9, "metrics": 5, "state": 0}

_SHOWN: Final = """
PRAGMA temp_store=MEMORY;
CREATE TEMP TABLE tail_rounds(round INTEGER PRIMARY KEY, version, users, status, checkpoints, participants,
  newcomers, chain, mac);
CREATE TEMP TABLE tail_metrics(round INTEGER PRIMARY KEY, version, json, chain, mac);
CREATE TEMP VIEW rounds AS SELECT * FROM main.rounds UNION ALL SELECT * FROM temp.tail_rounds
  WHERE round > (SELECT COALESCE(MAX(round), -1) FROM main.rounds);
"""


class Tail:
    """The files beside a ledger that hold rows not yet in its database, and the states that go with rows.

    Each process that writes begins a file of its own, and another when one is full. The first frame of a file
    repeats the rows that are not in the database, so the files before it can go once a frame has a state.
    Files are named in the order in which they were begun; two frames for one row are the same row.

    Args:
        ledger: path of the database.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._writer: FrameWriter | None = None
        self._seen: list[tuple[str, int, int]] | None = None
        self._rows: list[tuple[Field, ...]] = []
        self._bytes = self._count = 0
        #: SHA-256, hexadecimal, of the states that files held when they were last read.
        self.states: frozenset[str] = frozenset()
        #: Whether no earlier file is left.
        self._alone = False

    @property
    def heavy(self) -> bool:
        """Whether the rows should be folded into the database before the next is appended."""
        return self._full and self._bytes > _MANY

    @property
    def _full(self) -> bool:
        return self._writer is not None and (self._writer.size > _FULL or self._count >= _FRAMES)

    def news(self) -> list[Frame] | None:
        """All frames in order, if files changed since they were read last; they are on the disk.

        Raises:
            LedgerError: a file is damaged.
        """
        seen = [(path.name, status.st_size, status.st_mtime_ns) for path, status in _stated(self._files())]
        if seen == self._seen:
            return None
        frames, self._seen = self.frames(), seen
        return frames

    def frames(self) -> list[Frame]:
        """All frames in order; they are on the disk.

        Raises:
            LedgerError: a file is damaged.
        """
        found: list[Frame] = []
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # tidied away: its rows are in the database
                found += _checked(path)
        self.states = frozenset(frame.digest.hex() for frame in found if frame.sizes)
        return found

    def newest(self) -> int | None:
        """The number of the file that was begun last, None if no file is there."""
        return max((int(path.name[-7:]) for path in self._files()), default=None)

    def begin(self) -> int:
        """Begin a file, if this process has none, before the database says so; its number.

        Raises:
            OSError: the disk failed.
        """
        if self._writer is None:
            self.append(("state",))
        assert self._writer is not None
        return int(self._writer.path.name[-7:])

    def append(self, row: tuple[Field, ...], state: State | None = None) -> None:
        """Add a row; it is on the disk when this returns.

        Args:
            row: its kind and columns.
            state: that belongs to it.

        Raises:
            OSError: the disk failed. The row may be there: nothing more may be added.
        """
        if self._full:
            self.end_file()
        carried = ()
        if self._writer is None:
            newest = self.newest()
            number = 0 if newest is None else newest + 1
            self._writer = FrameWriter(self._file(f"{number:07d}"), LEDGER.mode)
            self._count, self._alone = 0, False
            sync_directory(self._ledger.parent)
            carried = tuple(field for earlier in self._rows for field in earlier)
        self._writer.append((*carried, *row), state)
        self._hold(row)
        self._count += 1
        if state is not None and not self._alone:
            self._tidy(self._writer.path)

    def hold(self, rows: Sequence[tuple[Field, ...]]) -> None:
        """The rows that are not in the database, as a writer finds them."""
        self._rows, self._bytes = [], 0
        for row in rows:
            self._hold(row)

    def _hold(self, row: tuple[Field, ...]) -> None:
        if len(row) == 1:  # says nothing: a state alone, or that a file was begun
            return
        self._rows.append(row)
        self._bytes += sum(len(field) for field in row if not isinstance(field, int))

    def end_file(self) -> None:
        """Let the next row begin a file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def keep_only(self, digest: str, anew: bool = False) -> None:
        """Leave a file with one state alone, once all rows are in the database.

        Args:
            digest: of the state.
            anew: write it again though it is alone: whether it reached the disk is not known.
        """
        for path in self._files()[-1:]:
            frames = _checked(path)
            frame = next((frame for frame in frames if frame.digest.hex() == digest), None)
            if frame is not None and frame.sizes and (anew or len(frames) > 1):
                with _damage(path):
                    state = State(tuple(map(memoryview, read_state(path, frame))), frame.digest)
                self.end_file()
                self.append(("state",), state)

    def state(self, digest: str) -> list[bytes] | None:
        """The pieces of the state with this digest, None if no file has it.

        Raises:
            LedgerError: it is damaged.
        """
        for path in reversed(self._files()):
            with contextlib.suppress(FileNotFoundError):
                for frame in _checked(path):
                    if frame.digest.hex() == digest:
                        with _damage(path):
                            return read_state(path, frame)
        return None

    def _files(self) -> list[Path]:
        return sorted(self._ledger.parent.glob(self._file("[0-9]" * 7).name))

    def _file(self, number: str) -> Path:
        return self._ledger.with_name(f"{self._ledger.name}-tail-{number}")

    def _tidy(self, kept: Path) -> None:
        # The row counts by now: a file that cannot be tidied away must not make it look failed.
        with contextlib.suppress(OSError):
            for path in self._files():
                if path != kept:
                    path.unlink(missing_ok=True)
            self._alone = True


def rows_of(frames: Sequence[Frame]) -> list[tuple[Field, ...]]:
    """The rows of frames, each with its kind.

    Raises:
        LedgerError: a kind is not known.
    """
    found: list[tuple[Field, ...]] = []
    for frame in frames:
        fields = frame.fields
        while fields:
            columns = _COLUMNS.get(str(fields[0]), len(fields))
            if len(fields) <= columns:
                raise LedgerError(f"the tail of the ledger has a row that is not known: {fields[0]!r}.")
            found.append(fields[: columns + 1])
            fields = fields[columns + 1 :]
    return found


def make_tables(connection: sqlite3.Connection) -> None:
    """Let `rounds` of a connection be those of file and tail, and `tail_metrics` those of the tail."""
    with _writing(connection):
        for statement in _SHOWN.split(";"):
            connection.execute(statement)


def show_tail(connection: sqlite3.Connection, rows: Sequence[tuple[Field, ...]]) -> None:
    """Make the tables hold these rows of the tail and no others; the connection is in no transaction."""
    with _writing(connection):
        for table in ("rounds", "metrics"):
            connection.execute(f"DELETE FROM temp.tail_{table}")
        for row in rows:
            show_row(connection, row)


def show_row(connection: sqlite3.Connection, row: tuple[Field, ...]) -> None:
    """One more row, or another in its place."""
    kind, *columns = row
    if columns:
        table = {"round": "tail_rounds", "metrics": "tail_metrics"}[str(kind)]
        places = ", ".join("?" * len(columns))
        connection.execute(f"INSERT OR REPLACE INTO temp.{table} VALUES ({places})", columns)


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    """A connection for reading may write its own tables meanwhile."""
    (query_only,) = connection.execute("PRAGMA query_only").fetchone()
    connection.execute("PRAGMA query_only=0")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA query_only={query_only}")


def tail_rows(connection: sqlite3.Connection) -> bool:
    """Whether the tail shows anything."""
    query = "SELECT EXISTS (SELECT 1 FROM temp.tail_rounds) OR EXISTS (SELECT 1 FROM temp.tail_metrics)"
    return bool(connection.execute(query).fetchone()[0])


def fold(connection: sqlite3.Connection) -> None:
    """Move the rows of the tail into the database, in the transaction at hand."""
    connection.execute(
        "INSERT INTO main.rounds SELECT * FROM temp.tail_rounds "
        "WHERE round > (SELECT COALESCE(MAX(round), -1) FROM main.rounds) ORDER BY round"
    )
    connection.execute("INSERT OR REPLACE INTO main.metrics SELECT * FROM temp.tail_metrics")


def _checked(path: Path) -> list[Frame]:
    with _damage(path):
        for _ in range(_LOOKS):
            with contextlib.suppress(Damaged):
                return read_frames(path)
            time.sleep(0.01)  # a sector may have been seen while it was written
        return read_frames(path)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        raise LedgerError(f"{path} is damaged: {error}. Restore the ledger from a copy.") from None


def _stated(files: Sequence[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            yield path, path.stat()
