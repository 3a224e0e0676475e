"""A private stream from its input to its output.

`open_run` starts or continues the stream of a state directory. `StreamRun.take` then has the four
steps of every block of rows: admit, hold, release and commit; `StreamServer` does the private part
of each.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.clipping.clipped_rows import clip_factors
from fedmf.data.cells import ids, require_wide
from fedmf.data.table_reader import (
    InputError,
    JsonLinesTable,
    ParquetTable,
    TableReader,
)
from fedmf.data.user_files import RowFiles, UserFiles, open_rows
from fedmf.errors import ConfigError
from fedmf.ledger.participations import Histories
from fedmf.noise.key import NoiseKey
from fedmf.participation import LARGEST_HORIZON, Participation
from fedmf.release.private_stream import Admission
from fedmf.statements.composition import PrivacyCost
from fedmf.statements.statement import PrivacyStatement
from fedmf.streaming.output import Output, open_output
from fedmf.streaming.private_release import PrivateRelease, Renderer
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import Position, ReleaseBlock, StreamState, joined
from fedmf.streaming.stream_plan import StreamPlan
from fedmf.streaming.stream_rows import Layout, Reader, RowBlock, open_reader
from fedmf.streaming.stream_statement import checked_costs, costs_of

#: Most rows of a commit.
_MOST_ROWS: Final = 4096
#: Most numbers in the rows of a commit, and in what is computed at once.
_MOST_NUMBERS: Final = 1 << 20
#: Most numbers that a commit releases.
_LARGEST_EMISSION: Final = 1 << 18
#: Most numbers in the rows between two releases, which are held in memory.
_LARGEST_BLOCK: Final = 1 << 25
#: A label counts like so many numbers.
_LABEL: Final = 32
#: Rows this much longer than ζ are not counted as clipped: norms are computed in floating point.
_NORM_ROUNDING: Final = 1e-9
#: Bytes of the digest of a row.
_DIGEST_SIZE: Final = 16
#: Rows of an input that are counted at once.
_COUNTED_AT_ONCE: Final = 1 << 16


class StreamRun:
    """The part of a stream that one process handles.

    Args:
        state: open for writing; it holds the plan.
        output: where releases go.
        progress: called with (t, n) after each commit.

    Attributes:
        plan: of the stream.
        state: its directory.
        users: the steps of each user, committed or not.
        ahead: position after the rows that were admitted, committed or not.
        full: whether no step is left for rows of the input; in a stream of periods, for any rows.

    Guarantees:
        The releases equal, bit for bit, those of a `MomentStream` on the rows of each release,
        however rows are split into blocks. With a public key this holds however often the process
        was killed and started again; with a secret one each process makes its steps with a key of
        its own, from random bits that are durable before the first, so copies of a state directory
        add independent noise. Each row of the input is taken once, and each release uses one row of
        noise.
    """

    def __init__(
        self,
        state: StreamState,
        output: Output,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.plan = state.plan
        self.state = state
        self.output = output
        self._progress = progress
        self.renderer = Renderer(self.plan, output.raw)
        self._server = state.server()
        self.users = state.ledger.histories
        self._emitted = 0
        self._written = 0
        if output.name != state.position.output:
            output.begin(0)
        elif output.begin(state.position.written):
            self._emitted = state.position.emitted
            self._written = state.position.written
        self.ahead = replace(
            state.position, output=output.name, emitted=self._emitted, written=self._written
        )
        self.full = False
        self._held = _HeldRows()
        #: Releases that are not committed, and the position after them.
        self._ready: list[ReleaseBlock] = []
        self._due = self.ahead
        self._latest = joined([], self.position.records, self.plan.width)
        self._emit()

    def __enter__(self) -> Self:
        self.state.write_counts(self.counts())
        self._write_statement()
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()
        with contextlib.suppress(OSError):
            self.state.write_counts(self.counts())

    def counts(self) -> dict[str, Any]:
        """Counts that only the operator may see."""
        return self.state.counts()

    @property
    def position(self) -> Position:
        """The position as of the last commit."""
        return self.state.position

    @property
    def done(self) -> bool:
        """Whether all n rows took their steps."""
        return self.ahead.step == self.plan.rounds

    @property
    def waiting(self) -> int:
        """Number of admitted rows that are in no release yet; they are lost with the process."""
        return self._server.waiting

    @property
    def most_rows(self) -> int:
        """Most rows to take at once: fewer if they are long or if each of them is released."""
        read = _MOST_NUMBERS // self.plan.layout.dimension
        released = self.plan.every * (_LARGEST_EMISSION // self.plan.width)
        return max(1, min(_MOST_ROWS, read, released))

    def feed(
        self,
        reader: Reader,
        whole: bool = False,
        watch: Callable[[RowBlock, int], None] | None = None,
    ) -> None:
        """Take the rows of an input that were not taken before.

        Args:
            reader: at the first row of its input.
            whole: whether the horizon was counted in the input, so that rows after the last step
                are read too.
            watch: called with rows before they are taken, and the number of the first of them.

        Raises:
            InputError: an input that does not continue where the stream is, or one without rows.
            LedgerError: a step failed, now or before. Open the stream again.
        """
        self.state.guard.require()
        if reader.layout != self.plan.layout:
            raise InputError(
                f"input must have rows as before, d = {self.plan.layout.dimension} and the same"
                f" columns; got d = {reader.layout.dimension}."
            )
        self._find_place(reader)
        while whole or not self.done:
            most = self.most_rows
            if watch is not None and self.plan.every > 1:
                # No release lies within the block, so the last one before its rows is known.
                most = min(most, self.plan.every - self.waiting)
            block = reader.read(most)
            if block is None:
                break
            before = self.ahead.row
            if watch is not None:
                watch(block, before + 1)
            self.take(block)
            if self.ahead.row - before < len(block):
                self.full = True
                break
        if not self.ahead.row:
            raise InputError("input must have rows; got an empty one.")

    def take(self, block: RowBlock, pushes: bytes = b"") -> None:
        """Take the next rows of the stream, up to the horizon.

        Rows are admitted and held until their release is due; a release is committed before its
        numbers leave.

        Args:
            block: at most `most_rows`.
            pushes: records of the rows, where they are pushed.

        Raises:
            LedgerError: a step failed, now or before. Open the stream again.
        """
        with self._server.stepping():
            start = 0
            while start < len(block):
                admission = self._admit(block, start)
                if admission.end == start:  # no step is left for the next row
                    break
                self._hold(block, admission.rows)
                if self.plan.every == 1 or self.waiting == self.plan.every or self.done:
                    self._release()
                start = admission.end
            if self._due is not self.position:
                self._commit(pushes)

    def releases(self, start: int, stop: int) -> ReleaseBlock:
        """Committed releases start … stop − 1, those of the last commit from memory.

        Raises:
            LedgerError: the file does not hold what was committed.
        """
        latest = self._latest
        if start < latest.first:
            return self.state.releases(start, stop)
        part = slice(start - latest.first, stop - latest.first)
        return ReleaseBlock(start, latest.t[part], latest.numbers[part], latest.labels[part])

    def last(self) -> PrivateRelease | None:
        """The last release; None before the first."""
        records = self.position.records
        if not records:
            return None
        return self.renderer.release(self.state.releases(records - 1, records))

    def conclude(self) -> PrivacyStatement:
        """Finish the output, write the privacy statement into the directory, and return it."""
        self.output.finish(self.renderer, self.state.releases, self.position.records)
        self._commit()
        return self._write_statement()

    def _write_statement(self) -> PrivacyStatement:
        """Write the privacy statement of the commits so far into the directory, and return it."""
        statement = costs_of(self.state).statement
        statement.write(self.state.directory)
        return statement

    def try_rows(self, block: RowBlock) -> None:
        """Count rows for `tried`, and release none: only for a dry run."""
        users = block.users
        if users is None:
            users = [None] * len(block)
        admission = self._server.admit(users, 0, len(block))
        _, clipped = self._vectors(block.values[admission.rows])
        self.ahead = replace(
            self.ahead,
            clipped=self.ahead.clipped + int(clipped.sum()),
            beyond_k=self.ahead.beyond_k + admission.beyond_k,
            within_b=self.ahead.within_b + admission.within_b,
        )

    def tried(self) -> dict[str, int]:
        """How many rows of `try_rows` are clipped or ignored: for the operator."""
        settings = self.plan.settings
        tried = {f"clipped to norm {settings.clip_norm:g}": self.ahead.clipped}
        if settings.user_column is None:
            return tried
        return {
            **tried,
            "ignored as beyond k": self.ahead.beyond_k,
            "ignored as within b": self.ahead.within_b,
        }

    def _find_place(self, reader: Reader) -> None:
        """Skip the rows that were taken before, and check that the last valid one is unchanged."""
        place = self.position
        first_row = reader.first_row
        passed = 0
        following = (
            f"Append new rows to the earlier input and pass all of it, or pass rows {place.row + 1}"
            f" and later with --from-row {place.row + 1}."
        )
        if first_row > place.row + 1:
            raise InputError(
                f"row {place.row + 1} must come next; the input begins with row {first_row}. Rows"
                f" after the last release are not stored. {following}"
            )
        if first_row <= place.digest_row:
            passed = reader.skip(place.digest_row - first_row)
            last = reader.read(1)
            if last is not None:
                passed += 1
                if self._digest(last, 0) != place.digest:
                    raise InputError(
                        f"the first {place.row} rows must be those that were taken before; got"
                        f" others. {following}"
                    )
        passed += reader.skip(place.row + 1 - first_row - passed)
        if first_row + passed <= place.row:
            raise InputError(
                f"input must have the {place.row} rows that were taken before; it ends with row"
                f" {first_row + passed - 1}. {following}"
            )

    def _admit(self, block: RowBlock, start: int) -> Admission:
        """Give steps to rows from a place on, up to the next release or the horizon.

        The position moves past them. No value decides: users, order and (k, b) do.
        """
        users = block.users
        if users is None:
            users = [None] * len(block)
        room = len(block)
        if self.plan.every > 1:
            room = self.plan.every - self.waiting
        admission = self._server.admit(users, start, room)
        self.ahead = replace(
            self.ahead,
            step=self._server.step,
            row=self.ahead.row + admission.end - start,
            beyond_k=self.ahead.beyond_k + admission.beyond_k,
            within_b=self.ahead.within_b + admission.within_b,
            nameless=self.ahead.nameless + len(block.nameless.intersection(admission.rows)),
        )
        self._note_last_valid(block, start, admission.end)
        return admission

    def _note_last_valid(self, block: RowBlock, start: int, end: int) -> None:
        """Note the digest of the last valid row, by which `_find_place` knows the input.

        An invalid row is no mark: one that was cut short may be whole the next time.
        """
        for i in reversed(range(start, end)):
            if not block.invalid[i]:
                row = self.ahead.row - (end - 1 - i)
                self.ahead = replace(self.ahead, digest=self._digest(block, i), digest_row=row)
                return

    def _hold(self, block: RowBlock, rows: list[int]) -> None:
        """Hold admitted rows until their release, and count those that are clipped or invalid."""
        values, clipped = self._vectors(block.values[rows])
        self._held.add(values, block, rows)
        self.ahead = replace(
            self.ahead,
            clipped=self.ahead.clipped + int(clipped.sum()),
            zeroed=self.ahead.zeroed + int(block.invalid[rows].sum()),
            unreadable=self._unreadable(block, rows),
            malformed=self._malformed(block, rows),
        )

    def _malformed(self, block: RowBlock, rows: list[int]) -> Mapping[str, int]:
        """`Position.malformed` with some admitted rows of a block."""
        counts = dict(self.ahead.malformed)
        for i in rows:
            reason = block.malformed.get(i)
            if reason is not None:
                counts[reason] = counts.get(reason, 0) + 1
        return counts

    def _vectors(
        self, values: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The vectors of rows, which the server clips, and which of them are longer than ζ.

        If the last coordinate counts rows, the numbers of a long row are scaled to ζ here: clipped
        together with their count, they would count as less than one row.
        """
        numbers = values
        if self.plan.settings.count_weight:
            numbers = values[:, :-1]
        factors = clip_factors(numbers, self.plan.settings.clip_norm)
        if self.plan.settings.count_weight:
            values = np.column_stack([numbers * factors[:, None], values[:, -1]])
        return values, factors * (1 + _NORM_ROUNDING) < 1

    def _unreadable(self, block: RowBlock, rows: Sequence[int]) -> Mapping[str, int]:
        """`Position.unreadable` with the admitted rows of a block."""
        columns = self.plan.layout.columns
        if self.plan.settings.encoding is not None:
            columns = self.plan.settings.encoding.owners
        named = [i for i in rows if i not in block.malformed]
        if block.users is not None:
            named = [i for i in named if block.users[i] is not None]
        missing = np.isnan(block.measured[named]).sum(axis=0)
        counts = {}
        for name, count in zip(columns, missing.tolist(), strict=True):
            counts[name] = self.ahead.unreadable.get(name, 0) + count
        return counts

    def _release(self) -> None:
        """Release the rows that are held; a release has the labels of its last row."""
        rows = self._held.values(self.plan.layout.dimension)
        end = self.ahead.step
        if len(rows):
            if self.plan.every > 1:
                numbers = self._numbers(rows, 1)
                t = np.array([end])
            else:
                numbers = self._each(rows)
                t = np.arange(end - len(rows), end) + 1
            labels = self._held.labels[-len(t) :]
            self._ready.append(ReleaseBlock(self.ahead.records, t, numbers, labels))
            self.ahead = replace(self.ahead, records=self.ahead.records + len(t))
        self._held = _HeldRows()
        self._due = self.ahead

    def _each(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Release each row by itself; the numbers have shape (rows, width)."""
        numbers = np.empty((len(rows), self.plan.width))
        room = max(1, _MOST_NUMBERS // self.plan.width)
        for low in range(0, len(rows), room):
            part = rows[low : low + room]
            numbers[low : low + room] = self._numbers(part, len(part))
        return numbers

    def _numbers(self, rows: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
        """Release some steps: clip, add, noise; the numbers have shape (steps, width)."""
        first, second = self._server.release(torch.from_numpy(rows), steps)
        return np.concatenate([first.numpy(), second.numpy()], axis=1)

    def _commit(self, pushes: bytes = b"") -> None:
        """Commit what was released, and then write it to the output.

        The output of earlier commits is durable before this commit says that it is.
        """
        self._written = self.output.flush()
        self._due = replace(self._due, emitted=self._emitted, written=self._written)
        releases = joined(self._ready, self._due.records, self.plan.width)
        self.state.commit(self._server, self._due, releases, pushes)
        self._ready = []
        self._latest = releases
        self._emit()
        if self._progress is not None:
            self._progress(self._due.step, self.plan.rounds)

    def _emit(self) -> None:
        """Write the committed releases that the output lacks."""
        records = self.position.records
        if 0 < len(self._latest) == records - self._emitted:
            self.output.write(self.renderer, self._latest)
            self._emitted = records
        size = self.plan.width + _LABEL * len(self.plan.layout.labels)
        room = max(1, _LARGEST_EMISSION // size)
        while self._emitted < records:
            stop = min(records, self._emitted + room)
            self.output.write(self.renderer, self.state.releases(self._emitted, stop))
            self._emitted = stop

    def _digest(self, block: RowBlock, i: int) -> str:
        """Keyed digest of a row, to recognize it after an interruption."""
        user = None
        if block.users is not None:
            user = block.users[i]
        state = hashlib.blake2b(
            (user or "").encode(), key=self.state.digest_key, digest_size=_DIGEST_SIZE
        )
        state.update(b"\0" + block.values[i].astype("<f8").tobytes())
        if block.labels:
            state.update("\0".join(block.labels[i]).encode())
        return state.hexdigest()


AnyRun = TypeVar("AnyRun", bound=StreamRun)


class _HeldRows:
    """Admitted rows that wait for their release, with their labels."""

    def __init__(self) -> None:
        self._values: list[NDArray[np.float64]] = []
        self.labels: list[tuple[str, ...]] = []

    def add(self, values: NDArray[np.float64], block: RowBlock, rows: Sequence[int]) -> None:
        """Hold some rows of a block, with their vectors."""
        self._values.append(values)
        if block.labels:
            self.labels.extend(block.labels[i] for i in rows)

    def values(self, dimension: int) -> NDArray[np.float64]:
        """The vectors of all rows, shape (rows, d)."""
        return np.concatenate([np.empty((0, dimension)), *self._values])


@contextmanager
def open_run(
    directory: str | Path,
    settings: Settings,
    source: str | RowFiles | None,
    output: str | Path | None,
    file_format: str | None = None,
    first_row: int = 1,
    progress: Callable[[int, int], None] | None = None,
    remembered: bool = True,
    raw: bool = False,
) -> Iterator[tuple[StreamRun, Reader]]:
    """Start or continue the stream of a state directory; returns it with the reader of its input.

    Args:
        directory: the state directory.
        settings: the same as when the stream was started.
        source: file of the rows, or `UserFiles` for a folder with one for each user; None for
            standard input.
        output: file for the releases; None for standard output.
        file_format: of the input, see `open_reader`.
        first_row: which row of the stream the input begins with.
        progress: called with (t, n) after each commit.
        remembered: whether this machine keeps a record of the stream outside its directory.
        raw: whether each release also contains its weighted sums and the covariance before
            projection.

    Raises:
        ConfigError: the directory belongs to other settings or to something else.
        LedgerError: it is in use, or behind what this machine has seen of its stream.
        ValueError: settings, input or output are invalid.
    """
    if settings.calendar is not None:
        raise ValueError("a stream with a time column must be opened by open_periods.")
    directory = Path(directory)
    rows = rows_of(source)
    output_path = optional_path(output)
    with ExitStack() as stack:
        if StreamState.exists(directory):
            state = stack.enter_context(reopen_state(directory, settings))
            layout = state.plan.layout
            opened = open_reader(rows, settings, file_format, layout, first_row)
            reader = stack.enter_context(opened)
        else:
            if first_row != 1:
                raise InputError(
                    "from_row (number of the first row) must be 1 for a new stream; got"
                    f" {first_row}."
                )
            if rows is None and settings.rounds is None:
                raise InputError(
                    "n (rounds) must be given for standard input; got none. Use --rounds N."
                )
            open_output(output_path, True, raw)
            reader = stack.enter_context(open_reader(rows, settings, file_format))
            _require_ids(rows, settings, file_format)
            rounds = settings.rounds or _counted_rows(rows, settings, file_format)
            created = create_state(directory, settings, reader.layout, rounds, remembered)
            state = stack.enter_context(created)
        destination = output_of(state, output_path, raw)
        yield stack.enter_context(StreamRun(state, destination, progress)), reader


def output_of(state: StreamState, path: Path | None, raw: bool) -> Output:
    """The output of a stream, which may be another one than before if it is new.

    Raises:
        ValueError: it exists and is not the output of this stream.
    """
    output = open_output(path, False, raw)
    if state.position.output not in ("", output.name):
        output = open_output(path, True, raw)
    return output


@contextmanager
def open_pushed(
    directory: Path, settings: Settings, layout: Layout, kind: type[AnyRun]
) -> Iterator[AnyRun]:
    """Start or continue a stream of pushed rows; the caller gets the releases.

    Args:
        directory: the state directory.
        settings: with the horizon; the same as when the stream was started.
        layout: of the rows.
        kind: `StreamRun`, or `PeriodRun` for a stream of periods.

    Raises:
        ConfigError, LedgerError: as `open_run`, or the stream was started with rows of another
            layout.
        ValueError: settings are invalid.
    """
    with ExitStack() as stack:
        if StreamState.exists(directory):
            state = stack.enter_context(reopen_state(directory, settings))
            if state.position.output not in ("", Output.name):
                raise ConfigError(
                    f"the stream in {directory} must have been started by pushing rows; it was"
                    " started by `fedmf stream` and continues with that command."
                )
            if state.plan.layout != layout:
                raise ConfigError(
                    f"d (dimension) must be {state.plan.layout.dimension} with the same columns as"
                    f" when the stream in {directory} began; got {layout.dimension}."
                )
        else:
            created = create_state(directory, settings, layout, settings.rounds or 0)
            state = stack.enter_context(created)
        yield stack.enter_context(kind(state, Output()))


def account_stream(directory: str | Path) -> PrivacyStatement:
    """The privacy statement of a state directory, computed again from its commits.

    Raises:
        ConfigError, LedgerError, ValueError: not a state directory, damaged or altered.
    """
    return stream_costs(directory).statement


def stream_costs(directory: str | Path) -> PrivacyCost:
    """The privacy cost of a stream for each of its users, to be composed with other costs.

    Raises:
        ConfigError, LedgerError, ValueError: as for `account_stream`.
    """
    with StreamState.open(Path(directory), read_only=True) as state:
        return checked_costs(state)


def rows_of(source: str | RowFiles | None) -> RowFiles | None:
    """Return the files of the rows; None for standard input."""
    if isinstance(source, UserFiles):
        return source
    return optional_path(source)


def optional_path(path: str | Path | None) -> Path | None:
    """A path that may be absent."""
    if path is None:
        return None
    return Path(path)


def create_state(
    directory: Path, settings: Settings, layout: Layout, rounds: int, remembered: bool = True
) -> StreamState:
    """The state of a new stream."""
    every = settings.rows_of_release
    if every > 1 and every * layout.dimension > _LARGEST_BLOCK:
        raise ValueError(
            f"R (release every) must be at most {_LARGEST_BLOCK // layout.dimension} for d ="
            f" {layout.dimension}, as rows are held until they are released; got {every}."
        )
    plan = StreamPlan.of(settings, layout, rounds)
    key = NoiseKey.from_os() if settings.seed is None else NoiseKey.from_seed(settings.seed)
    return StreamState.create(directory, plan, key, remembered)


def reopen_state(directory: Path, settings: Settings) -> StreamState:
    """The state of an earlier stream, which must have the same settings."""
    state = StreamState.open(directory)
    recorded = state.plan.settings.to_dict()
    given = settings.to_dict()
    for name, value in recorded.items():
        if given[name] == value:
            continue
        state.close()
        required = f"{value!r} as"
        got = repr(given[name])
        if name == "schema":  # too long to be shown
            required = "as it was"
            got = "another one"
        raise ConfigError(
            f"{name} must be {required} when the stream in {directory} began; got {got}. Give the"
            " same settings, or another --state-dir for another stream."
        )
    return state


def _require_ids(source: RowFiles | None, settings: Settings, file_format: str | None) -> None:
    """Reject a file without ids, or with ids as floats that are too narrow for them.

    Ids and their type alone decide. Each row without an id would take its step as a zero vector.

    Raises:
        InputError: JSON lines without an id, or a column of Parquet with narrow floats.
    """
    user = settings.user_column
    if source is None or user is None:
        return
    place = f"column {user!r}"
    with open_rows(source, file_format) as table:
        if not isinstance(table, ParquetTable | JsonLinesTable):
            return  # the header of CSV has shown the column
        table.select([user])
        named = False
        for batch in table.batches():
            column = batch.columns[user]
            named = named or column.null_count < batch.rows
            try:
                require_wide(column, place)
            except ValueError as error:
                raise InputError(str(error)) from None
    if not named:
        raise InputError(f"{place} must hold user ids; got none in any row of {source}.")


def _counted_rows(source: RowFiles | None, settings: Settings, file_format: str | None) -> int:
    """Count the rows of a file that will take a step, which ids and order alone decide."""
    assert source is not None
    with open_rows(source, file_format) as table:
        if settings.user_column is None:
            return _all_rows(table)
        return _admissible_rows(table, settings.user_column, settings)


def _all_rows(table: TableReader) -> int:
    """Read a table to its end; return the number of its rows."""
    rows = 0
    while True:
        skipped = table.skip(_COUNTED_AT_ONCE)
        if not skipped:
            return rows
        rows += skipped


def _admissible_rows(table: TableReader, user_column: str, settings: Settings) -> int:
    """Read a table to its end; return the number of rows that (k, b) admits."""
    users = Histories(Participation(LARGEST_HORIZON, *settings.contract(LARGEST_HORIZON)))
    step = 0
    table.select([user_column])
    while True:
        batch = table.read(_COUNTED_AT_ONCE)
        if batch is None:
            return step
        for user in ids(batch.columns[user_column], f"column {user_column!r}").to_pylist():
            if user is None:
                step += 1
            elif users.admits(user, step + 1):
                step += 1
                users.record(user, step)
