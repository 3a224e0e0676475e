"""A private stream from its input to its output: admit, clip, release, commit; begun and continued."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.table_reader import InputError
from fedmf.errors import LedgerError
from fedmf.noise import NoiseKey
from fedmf.records import Costs, PrivacyStatement
from fedmf.streaming.output import Output, open_output
from fedmf.streaming.plan import StreamPlan
from fedmf.streaming.reader import Reader, open_reader
from fedmf.streaming.release import PrivateRelease, Renderer
from fedmf.streaming.rows import Layout, RowBlock, clip_rows
from fedmf.streaming.settings import Handling, Settings
from fedmf.streaming.state import Openings, Position, Releases, StreamState
from fedmf.streaming.statement import stream_spent, stream_statement

#: Rows of a commit; and numbers of its rows, of what is computed at once, and of what a commit releases.
_MOST_ROWS: Final = 4096
_MOST_NUMBERS: Final = 1 << 20
_LARGEST_EMISSION: Final = 1 << 21
#: Numbers of the rows between two releases, which are held in memory.
_LARGEST_BLOCK: Final = 1 << 25
#: A label counts like so many numbers.
_LABEL: Final = 32


class StreamRun:
    """One process's part of a stream.

    Args:
        state: open for writing; it holds the plan.
        output: where releases go.
        handling: of rows that do not fit.
        progress: called with (t, n) after each commit.

    Guarantees:
        The releases, bit for bit, are those of `MomentStream.update` on the rows of each release, whatever
        rows came together. With a public key this holds however often the process was killed and begun
        again; with a secret one each process makes its steps with a key of its own, from random bits that
        are durable before the first, so copies of a state directory add independent noise.
        Each row of the input is dealt with once, and each release uses one row of noise.
    """

    def __init__(
        self,
        state: StreamState,
        output: Output,
        handling: Handling | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.plan, self.state, self.output = state.plan, state, output
        self.handling = handling or Handling()
        self._progress = progress or (lambda step, rounds: None)
        self.renderer = Renderer(self.plan, output.raw)
        self._keys, self._stream = state.moments()
        self.users = state.ledger.histories
        position, same = state.position, output.name == state.position.output
        if not (output.begin(position.written if same else 0) and same):
            position = replace(position, emitted=0, written=0)
        self._emitted, self._written = position.emitted, position.written
        #: Rows that were admitted and wait for their release, and where the stream is with them.
        self._waiting: list[NDArray[np.float64]] = []
        self._waiting_users: list[str | None] = []
        self._waiting_labels: list[tuple[str, ...]] = []
        self.ahead = replace(position, output=output.name)
        self._emit_missing()
        if self.handling.fail_on_invalid and not position.may_stop:
            self.ahead = replace(self.ahead, may_stop=True)
            self._commit(self._none())  # before the first row, so that the statement knows

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
        """Rows that were admitted and are in no release yet; with this process they are forgotten."""
        return len(self._waiting_users)

    @property
    def most_rows(self) -> int:
        """Rows to be taken at once: few that are long, few where each is released, none beyond a release."""
        plan = self.plan
        most = max(1, min(_MOST_ROWS, _MOST_NUMBERS // plan.layout.dimension))
        if plan.every > 1:
            return min(most, plan.every - self.waiting)
        return max(1, min(most, _LARGEST_EMISSION // plan.width))

    def feed(self, reader: Reader, whole: bool = False) -> None:
        """Take the rows of an input that were not dealt with yet.

        Args:
            reader: at the first row of its input.
            whole: whether the input is all that there will be: its last rows are released even where they are
                fewer than R.

        Raises:
            InputError: an input that does not continue where the stream is, one without rows, or, with
                `Handling.fail_on_invalid`, an invalid row (releases before it are committed).
            LedgerError: a step failed, now or before. Open the stream again.
        """
        self.state.right.require()
        if reader.layout != self.plan.layout:
            raise InputError(
                f"input must have rows as before, d = {self.plan.layout.dimension} and the same columns; "
                f"got d = {reader.layout.dimension}."
            )
        self._find_place(reader)
        while not self.done and (block := reader.read(self.most_rows)) is not None:
            begun = self.ahead.row
            if stopped := self.take(block):
                at, fault = stopped
                raise InputError(
                    f"{reader.where(begun + at + 1)} {fault}. The {self.position.row} rows before the last "
                    "release are done. Correct it and give the same command with --state-dir again, or "
                    "without --fail-on-invalid."
                )
        if whole and self.waiting:
            self._commit(self._released())
        if not self.ahead.row:
            raise InputError("input must have rows; got an empty one.")

    def take(self, block: RowBlock, pushes: bytes = b"") -> tuple[int, str] | None:
        """Deal with the next rows of the stream, up to the horizon or the first that stops it.

        Args:
            block: at most `most_rows`.
            pushes: records of the rows, where they are pushed.

        Returns:
            Which of the rows stopped it and why, if one did: those before it have been taken.

        Raises:
            LedgerError: a step failed, now or before. Open the stream again.
        """
        with self.state.right.exercise(f"step {self.ahead.step + 1}"):
            values, long = self._bounded(block.values)
            faults = dict(block.faults)
            if not self.handling.clip:
                for i in np.flatnonzero(long).tolist():
                    faults.setdefault(i, "must not be longer than the clip norm")
            steps, stop = self._admit(block, faults)
            zeroed = [i for i in steps if i in faults]
            values[zeroed], long[zeroed] = 0.0, False
            if stop:
                digest = "" if stop - 1 in block.faults else self._digest(block, stop - 1)
                counts = {"clipped": int(long[steps].sum()), "zeroed": len(zeroed)}
                counted = {name: getattr(self.ahead, name) + more for name, more in counts.items()}
                self.ahead = replace(self.ahead, digest=digest, **counted)
                self._waiting.append(values[steps])
                self._waiting_users += [None if block.users is None else block.users[i] for i in steps]
                self._waiting_labels += [block.labels[i] for i in steps if block.labels]
                if self.plan.every == 1 or self.waiting == self.plan.every or self.done:
                    self._commit(self._released(), pushes[: len(pushes) * len(steps) // max(1, len(block))])
        return (stop, faults[stop]) if stop < len(block) and not self.done else None

    def releases(self, start: int, stop: int) -> Releases:
        """Committed releases start … stop − 1, those of the last commit as they are at hand.

        Raises:
            LedgerError: the file does not hold what was committed.
        """
        latest = self._latest
        if start < latest.first:
            return self.state.releases(start, stop)
        part = slice(start - latest.first, stop - latest.first)
        return Releases(start, latest.t[part], latest.numbers[part], latest.labels[part])

    def last(self) -> PrivateRelease | None:
        """The last release, None if there is none."""
        records = self.position.records
        return self.renderer.release(self.state.releases(records - 1, records)) if records else None

    def conclude(self) -> PrivacyStatement:
        """Finish the output and write the reports; the privacy statement."""
        self.output.finish(self.renderer, self.state.releases, self.position.records)
        committed = replace(self.position, output=self.output.name, may_stop=self.ahead.may_stop)
        self._written, self._emitted = self.output.flush(), self.position.records
        committed = replace(committed, emitted=self._emitted, written=self._written)
        self.state.commit(committed, self._none(), self._stream, [])
        statement = stream_statement(self.plan, self.position, self.users, self.state.key)
        self.state.write_statement(statement)
        return statement

    def _find_place(self, reader: Reader) -> None:
        """Pass over rows that were dealt with, and see that the last of them is the one that was."""
        row, first_row = self.position.row, reader.first_row
        if first_row > row + 1:
            raise InputError(f"row {row + 1} must come next; the input begins with row {first_row}.")
        if first_row == row + 1:
            return
        before = row - first_row
        passed = reader.skip(before)
        last = reader.read(1) if passed == before else None
        if last is None:
            raise InputError(
                f"input must have the {row} rows that were dealt with before; it ends with row "
                f"{first_row + passed - 1}. Give it whole again, or say with --from-row where it begins."
            )
        if self.position.digest and self._digest(last, 0) != self.position.digest:
            raise InputError(
                f"{reader.where(row)} of the input must be the one that was dealt with before; got another. "
                "Give the same input again, or say with --from-row where it begins."
            )

    def _bounded(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Rows of norm `Settings.vector_norm` at most, whatever the reader gave; which were longer than ζ.

        A coordinate that counts rows is c or 0, and clipped numbers leave it as it is.
        """
        settings = self.plan.settings
        if not settings.count_weight:
            return clip_rows(values, settings.clip_norm)
        clipped, long = clip_rows(values[:, :-1], settings.clip_norm)
        return np.column_stack([clipped, np.where(values[:, -1] > 0, settings.count_weight, 0.0)]), long

    def _admit(self, block: RowBlock, faults: dict[int, str]) -> tuple[list[int], int]:
        """(rows that take a step, where the block ended): the position moves past them, and no value of a row
        decides."""
        users, most, n = self.users, self.plan.participation.max_participations, self.plan.rounds
        step, steps, stop = self.ahead.step, list[int](), len(block)
        refused = {"beyond_k": 0, "within_b": 0}
        for i in range(len(block)):
            if step == n:
                stop = i
                break
            user = None if block.users is None else block.users[i]
            if user is not None and not users.admits(user, step + 1):
                refused["beyond_k" if users.row(user)[1] >= most else "within_b"] += 1
                continue
            if i in faults and self.handling.fail_on_invalid:
                stop = i
                break
            step += 1
            if user is not None:
                users.record(user, step)
            steps.append(i)
        counts = {name: getattr(self.ahead, name) + more for name, more in refused.items()}
        self.ahead = replace(self.ahead, step=step, row=self.ahead.row + stop, **counts)
        return steps, stop

    def _released(self) -> Releases:
        """The releases of the rows that wait; a release has the labels of its last row."""
        plan, rows = self.plan, np.concatenate(self._waiting or [np.empty((0, self.plan.layout.dimension))])
        if not len(rows):
            return self._none()
        self._keys.open_in(Openings(self.state.ledger))
        end, records = self.ahead.step, self.ahead.records
        if plan.every > 1:
            block = self._stream.sum_step(torch.from_numpy(rows))
            numbers, t = torch.cat([block.first, block.second], dim=1).numpy(), np.array([end])
            labels = self._waiting_labels[-1:]
        else:
            numbers, room = np.empty((len(rows), plan.width)), max(1, _MOST_NUMBERS // plan.width)
            for low in range(0, len(rows), room):
                block = self._stream.extend(torch.from_numpy(rows[low : low + room]))
                parts = (block.first.numpy(), block.second.numpy())
                np.concatenate(parts, axis=1, out=numbers[low : low + room])
            t, labels = np.arange(end - len(rows), end) + 1, self._waiting_labels
        self.ahead = replace(self.ahead, records=records + len(numbers))
        return Releases(records, t, numbers, labels)

    def _none(self) -> Releases:
        return Releases(self.ahead.records, np.empty(0, np.int64), np.empty((0, self.plan.width)))

    def _commit(self, releases: Releases, pushes: bytes = b"") -> None:
        """First the output of earlier commits is made durable, then this one, then its output is written."""
        self._written = self.output.flush()
        self.ahead = replace(self.ahead, emitted=self._emitted, written=self._written)
        self.state.commit(self.ahead, releases, self._stream, self._waiting_users, pushes)
        self._waiting, self._waiting_users, self._waiting_labels = [], [], []
        self._emit_missing(releases)
        self._progress(self.ahead.step, self.plan.rounds)

    def _emit_missing(self, fresh: Releases | None = None) -> None:
        """Write the committed releases that the output lacks; `fresh` are the last of them, if at hand."""
        records = self.position.records
        self._latest = self._none() if fresh is None else fresh
        if fresh is not None and len(fresh) == records - self._emitted:
            self.output.write(self.renderer, fresh)
            self._emitted = records
        room = max(1, _LARGEST_EMISSION // (self.plan.width + _LABEL * len(self.plan.layout.labels)))
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


@contextmanager
def open_run(
    directory: Path,
    settings: Settings,
    source: Path | None,
    output: Path | None,
    file_format: str | None = None,
    first_row: int = 1,
    handling: Handling | None = None,
    progress: Callable[[int, int], None] | None = None,
    remembered: bool = True,
    raw: bool = False,
    admit: Callable[[Layout], None] | None = None,
) -> Iterator[tuple[StreamRun, Reader]]:
    """The run of a state directory, begun if there is none, with the reader of its input.

    Args:
        directory: of the state.
        settings: must be those the stream was begun with.
        source: file of the rows; None for standard input.
        output: file for the releases; None for standard output.
        file_format: of the input, see `open_reader`.
        first_row: which row of the stream the input begins with.
        handling: of rows that do not fit.
        progress: called with (t, n) after each commit.
        remembered: whether this machine keeps a mark of the stream, once its directory is gone.
        raw: whether each release also says its weighted sums and the covariance before projection.
        admit: may refuse the layout of the rows of a new stream, before anything is written.

    Raises:
        LedgerError: the directory belongs to other settings, to something else, is in use, or is behind what
            this machine has seen of its stream.
        ValueError: settings, input or output are unfit.
    """
    fresh = not StreamState.exists(directory)
    if fresh and first_row != 1:
        raise InputError(f"input must begin with row 1 for a new stream; got {first_row}.")
    if fresh and source is None and settings.rounds is None:
        raise InputError("n (rounds) must be given for standard input; got none. Say --rounds N.")
    with ExitStack() as kept:
        if fresh:
            open_output(output, True, raw)
            rows = kept.enter_context(open_reader(source, settings, file_format))
            if admit is not None:
                admit(rows.layout)
            rounds = settings.rounds or _counted(source, settings, file_format)
            state = kept.enter_context(_begun(directory, settings, rows.layout, rounds, remembered))
        else:
            state = kept.enter_context(_continued(directory, settings))
            before = state.plan.layout
            rows = kept.enter_context(open_reader(source, settings, file_format, before, first_row))
        place = open_output(output, False, raw)
        if state.position.output not in ("", place.name):
            place = open_output(output, True, raw)
        yield kept.enter_context(StreamRun(state, place, handling, progress)), rows


@contextmanager
def open_pushed(
    directory: Path, settings: Settings, layout: Layout, handling: Handling | None = None
) -> Iterator[StreamRun]:
    """The run of a state directory, begun if there is none, whose releases go to whoever gives the rows.

    Args:
        directory: of the state.
        settings: with the horizon; must be those the stream was begun with.
        layout: of the rows.
        handling: of rows that do not fit.

    Raises:
        LedgerError: as `open_run`, or the stream was begun with rows of another layout.
        ValueError: settings are unfit.
    """
    with ExitStack() as kept:
        if StreamState.exists(directory):
            state = kept.enter_context(_continued(directory, settings))
            if state.position.output not in ("", Output.name):
                raise LedgerError(
                    f"the stream in {directory} must have been begun by pushing rows; it was begun by `fedmf "
                    "stream` and continues with that command."
                )
            if state.plan.layout != layout:
                raise LedgerError(
                    f"d (dimension) must be {state.plan.layout.dimension} with the same columns as when the "
                    f"stream in {directory} began; got {layout.dimension}."
                )
        else:
            state = kept.enter_context(_begun(directory, settings, layout, settings.rounds or 0))
        yield kept.enter_context(StreamRun(state, Output(), handling))


def account_stream(directory: Path) -> PrivacyStatement:
    """The privacy statement of the stream in a state directory, computed again from what was committed.

    Raises:
        LedgerError, ValueError: not a state directory, damaged or altered, or in use by another process.
    """
    with StreamState.open(directory) as state:
        return stream_statement(state.plan, state.position, state.ledger.histories, state.key)


def stream_costs(directory: Path) -> Costs:
    """What a stream cost each of its users, to be composed with other streams and runs.

    Raises:
        LedgerError, ValueError: as for `account_stream`.
    """
    with StreamState.open(directory) as state:
        users = state.ledger.histories
        statement = stream_statement(state.plan, state.position, users, state.key)
        return Costs(str(directory), statement, stream_spent(state.plan, users))


def _begun(
    directory: Path, settings: Settings, layout: Layout, rounds: int, remembered: bool = True
) -> StreamState:
    if settings.release_every > 1 and settings.release_every * layout.dimension > _LARGEST_BLOCK:
        raise ValueError(
            f"R (release every) must be at most {_LARGEST_BLOCK // layout.dimension} for d = "
            f"{layout.dimension}, as rows are held until they are released; got {settings.release_every}."
        )
    plan = StreamPlan.of(settings, layout, rounds)
    key = NoiseKey.from_os() if settings.seed is None else NoiseKey.from_seed(settings.seed)
    return StreamState.create(directory, plan, key, remembered)


def _continued(directory: Path, settings: Settings) -> StreamState:
    state = StreamState.open(directory)
    before, now = state.plan.settings.to_dict(), settings.to_dict()
    for name, value in before.items():
        if now[name] != value:
            state.close()
            said = "as it was" if name == "schema" else f"{value!r} as"
            got = "another one" if name == "schema" else repr(now[name])
            raise LedgerError(
                f"{name} must be {said} when the stream in {directory} began; got {got}. Give the same "
                "settings, or another --state-dir for another stream."
            )
    return state


def _counted(source: Path | None, settings: Settings, file_format: str | None) -> int:
    """How many rows there are."""
    total = 0
    with open_reader(source, settings, file_format) as reader:
        while passed := reader.skip(1 << 16):
            total += passed
    return total
