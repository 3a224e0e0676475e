"""A private stream from its input to its output: admit, release, commit; begun and continued."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.clipping.clipped_rows import clip_factors
from fedmf.data.cells import ids, require_mostly_exact
from fedmf.data.table_reader import InputError, JsonLinesTable, ParquetTable, open_table
from fedmf.errors import LedgerError
from fedmf.ledger.participations import Histories
from fedmf.noise.key import NoiseKey
from fedmf.participation import LARGEST_HORIZON, Participation
from fedmf.statements.composition import PrivacyCost
from fedmf.statements.statement import PrivacyStatement
from fedmf.streaming.output import Output, open_output
from fedmf.streaming.private_release import PrivateRelease, Renderer
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import Position, ReleaseBlock, StreamState, joined
from fedmf.streaming.stream_plan import StreamPlan
from fedmf.streaming.stream_rows import Layout, Reader, RowBlock, open_reader
from fedmf.streaming.stream_statement import costs_of

#: Rows of a commit; and numbers of its rows, of what is computed at once, and of what a commit
#: releases.
_MOST_ROWS: Final = 4096
_MOST_NUMBERS: Final = 1 << 20
_LARGEST_EMISSION: Final = 1 << 18
#: Numbers of the rows between two releases, which are held in memory.
_LARGEST_BLOCK: Final = 1 << 25
#: A label counts like so many numbers.
_LABEL: Final = 32
#: Rows this much longer than ζ are not said to be long: norms are computed in floating point.
_NORM_ROUNDING: Final = 1e-9


class StreamRun:
    """The part of a stream that one process handles.

    Args:
        state: open for writing; it holds the plan.
        output: where releases go.
        progress: called with (t, n) after each commit.

    Guarantees:
        The releases equal, bit for bit, those of a `MomentStream` on the rows of each release,
        whatever rows came together. With a public key this holds however often the process was
        killed and begun again; with a secret one each process makes its steps with a key of its
        own, from random bits that are durable before the first, so copies of a state directory add
        independent noise. Each row of the input is dealt with once, and each release uses one row
        of noise.
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
        self._progress = progress or (lambda step, rounds: None)
        self.renderer = Renderer(self.plan, output.raw)
        self._server = state.server()
        self.users = state.ledger.histories
        position = state.position
        same = output.name == state.position.output
        if not (output.begin(position.written if same else 0) and same):
            position = replace(position, emitted=0, written=0)
        self._emitted = position.emitted
        self._written = position.written
        #: After the rows that were admitted, and after the last of them that is in a release.
        self.ahead = self._due = replace(position, output=output.name)
        #: Rows and labels that wait for their release; what is released and not committed yet.
        self._waiting = _Rows()
        #: Whether the input has rows that no step is left for.
        self.full = False
        self._ready: list[ReleaseBlock] = []
        self._emit_missing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()
        with contextlib.suppress(OSError):
            self.state.write_counts()

    @property
    def position(self) -> Position:
        """As of the last commit."""
        return self.state.position

    @property
    def done(self) -> bool:
        """Whether all n rows took their steps."""
        return self.ahead.step == self.plan.rounds

    @property
    def waiting(self) -> int:
        """Rows that were admitted and are in no release yet; with this process they are
        forgotten.
        """
        return self._server.waiting

    @property
    def most_rows(self) -> int:
        """Rows to be taken at once: few that are long, and few where each is released."""
        plan = self.plan
        longest = _MOST_NUMBERS // plan.layout.dimension
        return max(1, min(_MOST_ROWS, longest, plan.every * (_LARGEST_EMISSION // plan.width)))

    def feed(
        self,
        reader: Reader,
        whole: bool = False,
        watch: Callable[[RowBlock, int], None] | None = None,
    ) -> None:
        """Take the rows of an input that were not dealt with yet.

        Args:
            reader: at the first row of its input.
            whole: whether the horizon was counted in the input, so that rows after it are dealt
                with too.
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
            every = self.plan.every
            if watch is not None and every > 1:
                most = min(most, every - self.waiting)  # so that the release before them is known
            if (block := reader.read(most)) is None:
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
        """Deal with the next rows of the stream, up to the horizon.

        Args:
            block: at most `most_rows`.
            pushes: records of the rows, where they are pushed.

        Raises:
            LedgerError: a step failed, now or before. Open the stream again.
        """
        with self._server.stepping():
            values, long = self._measured(block.values)
            at = 0
            begun = -1
            while begun < at < len(block):
                begun = at
                rows, at = self._admit(block, at)
                zeroed = [i for i in rows if i in block.faults]
                values[zeroed] = 0.0
                long[zeroed] = False
                self._waiting.add(values[rows], block, rows)
                if at > begun:
                    whole = next(
                        (i for i in reversed(range(begun, at)) if i not in block.faults), None
                    )
                    if whole is not None:  # a row that was cut short may be whole the next time
                        here = self.ahead.row - (at - 1 - whole)
                        self.ahead = replace(
                            self.ahead, digest=self._digest(block, whole), digest_row=here
                        )
                    self.ahead = replace(
                        self.ahead,
                        clipped=self.ahead.clipped + int(long[rows].sum()),
                        zeroed=self.ahead.zeroed + len(zeroed),
                        unreadable=self._unreadable(block, zeroed),
                        malformed=self._malformed(block, zeroed),
                    )
                if self.plan.every == 1 or self.waiting == self.plan.every or self.done:
                    self._release()
            if self.done:
                self._due = self.ahead  # past rows that no step is left for
            if self._due is not self.state.position:
                self._commit(pushes)

    def releases(self, start: int, stop: int) -> ReleaseBlock:
        """Committed releases start … stop − 1, from memory for the last commit.

        Raises:
            LedgerError: the file does not hold what was committed.
        """
        latest = self._latest
        if start < latest.first:
            return self.state.releases(start, stop)
        part = slice(start - latest.first, stop - latest.first)
        return ReleaseBlock(start, latest.t[part], latest.numbers[part], latest.labels[part])

    def last(self) -> PrivateRelease | None:
        """The last release, None if there is none."""
        records = self.position.records
        return self.renderer.release(self.state.releases(records - 1, records)) if records else None

    def conclude(self) -> PrivacyStatement:
        """Finish the output and write the reports; the privacy statement."""
        self.output.finish(self.renderer, self.state.releases, self.position.records)
        self._commit()
        statement = costs_of(self.state).statement
        statement.write(self.state.directory)
        return statement

    def _find_place(self, reader: Reader) -> None:
        """Pass over rows that were dealt with, and see that the last valid one is the one that
        was.
        """
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
            if (last := reader.read(1)) is not None:
                passed += 1
                if self._digest(last, 0) != place.digest:
                    raise InputError(
                        f"the first {place.row} rows must be those that were dealt with before; got"
                        f" others. {following}"
                    )
        passed += reader.skip(place.row + 1 - first_row - passed)
        if first_row + passed <= place.row:
            raise InputError(
                f"input must have the {place.row} rows that were dealt with before; it ends with"
                f" row {first_row + passed - 1}. {following}"
            )

    def _measured(
        self, values: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Rows as they enter the stream, which clips them, and which were longer than ζ.

        Next to a coordinate that counts rows, the numbers of a long row are scaled to ζ here: if
        the stream clipped them together, less than one row would be counted.
        """
        settings = self.plan.settings
        values = values.copy()
        numbers = values[:, :-1] if settings.count_weight else values
        factors = clip_factors(numbers, settings.clip_norm)
        if settings.count_weight:
            numbers *= factors[:, None]
        return values, factors * (1 + _NORM_ROUNDING) < 1

    def _unreadable(self, block: RowBlock, zeroed: Sequence[int]) -> Mapping[str, int]:
        """`Position.unreadable` with the zeroed rows of a block."""
        before = self.ahead.unreadable
        users = block.users
        whole = [i for i in zeroed if i not in block.malformed]
        rows = [i for i in whole if users is None or users[i] is not None]
        found = np.isnan(block.measured[rows]).sum(axis=0).tolist()
        encoding = self.plan.settings.encoding
        columns = self.plan.layout.columns if encoding is None else encoding.owners
        return {
            name: before.get(name, 0) + count for name, count in zip(columns, found, strict=True)
        }

    def _malformed(self, block: RowBlock, zeroed: Sequence[int]) -> Mapping[str, int]:
        """`Position.malformed` with the zeroed rows of a block."""
        counts = dict(self.ahead.malformed)
        for i in zeroed:
            reason = block.malformed.get(i)
            if reason is not None:
                counts[reason] = counts.get(reason, 0) + 1
        return counts

    def _admit(self, block: RowBlock, at: int) -> tuple[list[int], int]:
        """(rows from a place on that take a step, where the block was left), up to the next release
        or the horizon. The position moves past them; no value decides.
        """
        users = [None] * len(block) if block.users is None else block.users
        room = len(block) if self.plan.every == 1 else self.plan.every - self.waiting
        taken = self._server.admit(users, at, room)
        self.ahead = replace(
            self.ahead,
            step=self._server.step,
            row=self.ahead.row + taken.end - at,
            beyond_k=self.ahead.beyond_k + taken.beyond_k,
            within_b=self.ahead.within_b + taken.within_b,
            nameless=self.ahead.nameless + sum(row in block.nameless for row in taken.rows),
        )
        return taken.rows, taken.end

    def _release(self) -> None:
        """Release the rows that wait; a release has the labels of its last row."""
        plan = self.plan
        rows = self._waiting.values(self.plan.layout.dimension)
        end = self.ahead.step
        if len(rows):
            if plan.every > 1:
                numbers = self._numbers(rows, 1)
                t = np.array([end])
            else:
                numbers = self._each(rows)
                t = np.arange(end - len(rows), end) + 1
            self._ready.append(
                ReleaseBlock(self.ahead.records, t, numbers, self._waiting.labels[-len(t) :])
            )
            self.ahead = replace(self.ahead, records=self.ahead.records + len(t))
        self._waiting = _Rows()
        self._due = self.ahead

    def _each(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers of a release a row."""
        numbers = np.empty((len(rows), self.plan.width))
        room = max(1, _MOST_NUMBERS // self.plan.width)
        for low in range(0, len(rows), room):
            part = rows[low : low + room]
            numbers[low : low + room] = self._numbers(part, len(part))
        return numbers

    def _numbers(self, rows: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
        """What is released for some steps, shape (steps, width)."""
        first, second = self._server.release(torch.from_numpy(rows), steps)
        return np.concatenate([first.numpy(), second.numpy()], axis=1)

    def _commit(self, pushes: bytes = b"") -> None:
        """First the output of earlier commits is made durable, then this one, then its output is
        written.
        """
        self._written = self.output.flush()
        self._due = replace(self._due, emitted=self._emitted, written=self._written)
        releases = joined(self._ready, self._due.records, self.plan.width)
        self.state.commit(self._server, self._due, releases, pushes)
        self._ready = []
        self._emit_missing(releases)
        self._progress(self._due.step, self.plan.rounds)

    def _emit_missing(self, fresh: ReleaseBlock | None = None) -> None:
        """Write the committed releases that the output lacks; `fresh` are the last of them, if at
        hand.
        """
        records = self.position.records
        self._latest = joined([], records, self.plan.width) if fresh is None else fresh
        if fresh is not None and len(fresh) == records - self._emitted:
            self.output.write(self.renderer, fresh)
            self._emitted = records
        room = max(
            1, _LARGEST_EMISSION // (self.plan.width + _LABEL * len(self.plan.layout.labels))
        )
        while self._emitted < records:
            stop = min(records, self._emitted + room)
            self.output.write(self.renderer, self.state.releases(self._emitted, stop))
            self._emitted = stop

    def _digest(self, block: RowBlock, i: int) -> str:
        """Keyed digest of a row, to recognise it after an interruption."""
        user = "" if block.users is None else block.users[i] or ""
        state = hashlib.blake2b(user.encode(), key=self.state.digest_key, digest_size=16)
        state.update(b"\0" + block.values[i].astype("<f8").tobytes())
        if block.labels:
            state.update("\0".join(block.labels[i]).encode())
        return state.hexdigest()


class _Rows:
    """Rows that were admitted, with their labels."""

    def __init__(self) -> None:
        self._values: list[NDArray[np.float64]] = []
        self.labels: list[tuple[str, ...]] = []

    def add(self, values: NDArray[np.float64], block: RowBlock, rows: Sequence[int]) -> None:
        """Some of the rows of a block, with given values."""
        self._values.append(values)
        self.labels += [block.labels[i] for i in rows if block.labels]

    def values(self, dimension: int) -> NDArray[np.float64]:
        """Of all rows, shape (rows, d)."""
        return np.concatenate([np.empty((0, dimension)), *self._values])


@contextmanager
def open_run(
    directory: str | Path,
    settings: Settings,
    source: str | Path | None,
    output: str | Path | None,
    file_format: str | None = None,
    first_row: int = 1,
    progress: Callable[[int, int], None] | None = None,
    remembered: bool = True,
    raw: bool = False,
) -> Iterator[tuple[StreamRun, Reader]]:
    """Start or continue the stream of a state directory; returns it with the reader of its input.

    Args:
        directory: of the state.
        settings: the same as when the stream was started.
        source: file of the rows; None for standard input.
        output: file for the releases; None for standard output.
        file_format: of the input, see `open_reader`.
        first_row: which row of the stream the input begins with.
        progress: called with (t, n) after each commit.
        remembered: whether this machine keeps a record of the stream outside its directory.
        raw: whether each release also contains its weighted sums and the covariance before
            projection.

    Raises:
        LedgerError: the directory belongs to other settings, to something else, is in use, or is
            behind what this machine has seen of its stream.
        ValueError: settings, input or output are unfit.
    """
    directory = Path(directory)
    source, output = (None if path is None else Path(path) for path in (source, output))
    fresh = not StreamState.exists(directory)
    if fresh and first_row != 1:
        raise InputError(f"input must begin with row 1 for a new stream; got {first_row}.")
    if fresh and source is None and settings.rounds is None:
        raise InputError("n (rounds) must be given for standard input; got none. Use --rounds N.")
    with ExitStack() as kept:
        if fresh:
            open_output(output, True, raw)
            rows = kept.enter_context(open_reader(source, settings, file_format))
            _require_ids(source, settings, file_format)
            rounds = settings.rounds or _counted(source, settings, file_format)
            state = kept.enter_context(_begun(directory, settings, rows.layout, rounds, remembered))
        else:
            state = kept.enter_context(_continued(directory, settings))
            before = state.plan.layout
            rows = kept.enter_context(open_reader(source, settings, file_format, before, first_row))
        place = open_output(output, False, raw)
        if state.position.output not in ("", place.name):
            place = open_output(output, True, raw)
        yield kept.enter_context(StreamRun(state, place, progress)), rows


@contextmanager
def open_pushed(directory: Path, settings: Settings, layout: Layout) -> Iterator[StreamRun]:
    """The run of a state directory, begun if there is none; the caller gets the releases.

    Args:
        directory: of the state.
        settings: with the horizon; must be those the stream was begun with.
        layout: of the rows.

    Raises:
        LedgerError: as `open_run`, or the stream was begun with rows of another layout.
        ValueError: settings are unfit.
    """
    with ExitStack() as kept:
        if StreamState.exists(directory):
            state = kept.enter_context(_continued(directory, settings))
            if state.position.output not in ("", Output.name):
                raise LedgerError(
                    f"the stream in {directory} must have been begun by pushing rows; it was begun"
                    " by `fedmf stream` and continues with that command."
                )
            if state.plan.layout != layout:
                raise LedgerError(
                    f"d (dimension) must be {state.plan.layout.dimension} with the same columns as"
                    f" when the stream in {directory} began; got {layout.dimension}."
                )
        else:
            state = kept.enter_context(_begun(directory, settings, layout, settings.rounds or 0))
        yield kept.enter_context(StreamRun(state, Output()))


def account_stream(directory: str | Path) -> PrivacyStatement:
    """The privacy statement of the stream in a state directory, computed again from what was
    committed.

    Raises:
        LedgerError, ValueError: not a state directory, damaged or altered, or in use by another
            process.
    """
    return stream_costs(directory).statement


def stream_costs(directory: str | Path) -> PrivacyCost:
    """The privacy cost of a stream for each of its users, for composition with other streams and
    runs.

    Raises:
        LedgerError, ValueError: as for `account_stream`.
    """
    with StreamState.open(Path(directory)) as state:
        return costs_of(state)


def _begun(
    directory: Path, settings: Settings, layout: Layout, rounds: int, remembered: bool = True
) -> StreamState:
    if settings.release_every > 1 and settings.release_every * layout.dimension > _LARGEST_BLOCK:
        raise ValueError(
            f"R (release every) must be at most {_LARGEST_BLOCK // layout.dimension} for d ="
            f" {layout.dimension}, as rows are held until they are released; got"
            f" {settings.release_every}."
        )
    plan = StreamPlan.of(settings, layout, rounds)
    key = NoiseKey.from_os() if settings.seed is None else NoiseKey.from_seed(settings.seed)
    return StreamState.create(directory, plan, key, remembered)


def _continued(directory: Path, settings: Settings) -> StreamState:
    state = StreamState.open(directory)
    before = state.plan.settings.to_dict()
    now = settings.to_dict()
    for name, value in before.items():
        if now[name] != value:
            state.close()
            said = "as it was" if name == "schema" else f"{value!r} as"
            got = "another one" if name == "schema" else repr(now[name])
            raise LedgerError(
                f"{name} must be {said} when the stream in {directory} began; got {got}. Give the"
                " same settings, or another --state-dir for another stream."
            )
    return state


def _require_ids(source: Path | None, settings: Settings, file_format: str | None) -> None:
    """Reject a file without ids, or with ids of which most are floats too large to be told apart.

    Ids alone decide. Each of these rows would take its step as a zero vector.

    Raises:
        InputError: JSON lines without an id, or a column of Parquet with inexact floats.
    """
    user = settings.user_column
    if source is None or user is None:
        return
    place = f"column {user!r}"
    with open_table(source, file_format) as table:
        if not isinstance(table, ParquetTable | JsonLinesTable):
            return  # the header of CSV has shown the column
        table.select([user])
        named = False
        while (batch := table.read(1 << 16)) is not None:
            column = batch.columns[user]
            named = named or column.null_count < batch.rows
            try:
                require_mostly_exact(column, place)
            except ValueError as error:
                raise InputError(str(error)) from None
    if not named:
        raise InputError(f"{place} must hold user ids; got none in any row of {source}.")


def _counted(source: Path | None, settings: Settings, file_format: str | None) -> int:
    """How many rows will count, which depends on ids and order alone."""
    assert source is not None
    user = settings.user_column
    step = 0
    users = Histories(Participation(LARGEST_HORIZON, *settings.contract(LARGEST_HORIZON)))
    with open_table(source, file_format) as table:
        if user is None:
            while passed := table.skip(1 << 16):
                step += passed
            return step
        table.select([user])
        while (batch := table.read(1 << 16)) is not None:
            for one in ids(batch.columns[user], f"column {user!r}").to_pylist():
                if one is None or users.admits(one, step + 1):
                    step += 1
                    if one is not None:
                        users.record(one, step)
    return step
