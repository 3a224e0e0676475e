"""A stream of periods: one release for each week, day or hour of a public calendar.

The calendar is fixed before the first row. A period closes when the operator says so, by a clock or
by a call, and never because of a row: times of rows are private, so a row chooses only the period
that it belongs to, and each period is released, however many rows it has.

The rows of a user in a period enter as one: the mean of the rows and of their second moments, which
moves the sums no further than a single row (docs/theory/moments.md, "Periods"). The (n, k, b) of
the stream count periods. Whatever a user's rows and times are, they change that user's means alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.schema import Time
from fedmf.data.table_reader import InputError
from fedmf.data.user_files import RowFiles
from fedmf.errors import HorizonExceededError
from fedmf.matrices.arrays import Array
from fedmf.matrices.second_moment import SecondMoment
from fedmf.statements.statement import PrivacyStatement
from fedmf.streaming.output import Output, open_output
from fedmf.streaming.private_release import PrivateRelease
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StreamState
from fedmf.streaming.stream_rows import Reader, RowBlock, open_reader
from fedmf.streaming.stream_run import (
    StreamRun,
    create_state,
    optional_path,
    output_of,
    reopen_state,
    rows_of,
)

#: Most rows that are read at once.
_MOST_ROWS: Final = 1 << 16
#: Most numbers of second moments that are computed at once.
_MOST_NUMBERS: Final = 1 << 20
#: The name of the count of periods of users that (k, b) does not admit.
_IGNORED: Final = "users of a period beyond k or within b"
#: The name of the counts of an earlier run.
_LATEST_RELEASE: Final = "latest run with a release"


class PeriodRun(StreamRun):
    """The part of a stream of periods that one process handles.

    Rows are held until their period closes, and lost with the process: pass them again.

    Args:
        state: open for writing; it holds the plan.
        output: where releases go.
        progress: called with (t, n) after each commit.

    Guarantees:
        The number of releases, their times and all that is shown depend on no row. A period is
        released once.
    """

    def __init__(
        self,
        state: StreamState,
        output: Output,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(state, output, progress)
        self._open = dict[int, _Period]()
        self._counts = Counter[str]()
        self._begins_at = self.position.step
        #: The counts of the latest run that released a period, which a run without one keeps.
        self._earlier = state.read_counts()
        if self._begins_at:
            self._earlier = self._earlier.pop(_LATEST_RELEASE, self._earlier)

    @property
    def calendar(self) -> Time:
        """The periods."""
        calendar = self.plan.settings.calendar
        assert calendar is not None
        return calendar

    def feed(self, *_: object, **__: object) -> NoReturn:
        """Reject rows, the order of which would close periods.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "a stream of periods must be fed by collect, which holds the rows of an input, and"
            " close_until, which releases the periods that have ended; got feed or take."
        )

    take = feed

    def counts(self) -> dict[str, Any]:
        """Counts of the rows of this process that only the operator may see.

        Until it releases a period, they end with those of the latest process that did.
        """
        waiting = sum(len(period.users) for period in self._open.values())
        counts: dict[str, Any] = {**self.state.counts(), **self._counts, "waiting rows": waiting}
        if 0 < self._begins_at == self.position.step:
            counts[_LATEST_RELEASE] = self._earlier
        return counts

    def collect(self, reader: Reader) -> None:
        """Read an input to its end, and hold its rows for their periods.

        Args:
            reader: at the first row of its input, which may have rows of periods that were
                released; these are ignored.

        Raises:
            InputError: other columns than before.
            LedgerError: a release failed before. Open the stream again.
        """
        self.state.guard.require()
        if reader.layout != self.plan.layout:
            raise InputError(
                f"input must have the same columns as before, {', '.join(self.plan.layout.cells)};"
                f" got {', '.join(reader.layout.cells)}."
            )
        while (block := reader.read(_MOST_ROWS)) is not None:
            self.hold(block)

    def hold(self, block: RowBlock) -> None:
        """Hold rows for their periods; a row that belongs to no open period adds nothing.

        So does one that cannot be read or has no user.
        """
        counts = self._counts
        counts["rows"] += len(block)
        counts.update(block.malformed.values())
        named = np.ones(len(block), np.bool_)
        if block.users is not None:
            named = np.array([user is not None for user in block.users], np.bool_)
        counts["without a user id"] += int((~named).sum())
        counts["invalid rows"] += int(block.invalid.sum())
        counts["in no period, or with a time that cannot be read"] += int((block.periods < 0).sum())
        late = (block.periods >= 0) & (block.periods < self.position.step)
        counts["in periods that were released"] += int(late.sum())
        counted = named & ~block.invalid & (block.periods >= self.position.step)
        vectors, clipped = self._vectors(block.values)
        counts["clipped"] += int((clipped & counted).sum())
        for period in np.unique(block.periods[counted]).tolist():
            rows = np.flatnonzero(counted & (block.periods == period))
            held = self._open.setdefault(period, _Period())
            held.vectors.append(vectors[rows])
            if block.users is None:
                held.users.extend(len(rows) * [None])
            else:
                held.users.extend(block.users[i] for i in rows.tolist())

    def try_rows(self, block: RowBlock) -> None:
        """Count rows for `tried`, and release none: only for a dry run."""
        self.hold(block)

    def tried(self) -> dict[str, int]:
        """How many rows are clipped, and how often a user's period is ignored: for the operator."""
        settings = self.plan.settings
        tried = {f"clipped to norm {settings.clip_norm:g}": self._counts["clipped"]}
        if settings.user_column is None:
            return tried
        for step in sorted(self._open):
            users, _ = self._admitted(step, self._open[step])
            for user in users:
                self.users.record(user, step)
        return {**tried, _IGNORED: self._counts[_IGNORED]}

    def close_until(self, until: datetime) -> None:
        """Release all periods that ended at a public time or before, one after the other.

        If all were released before, and the calendar has ended by then, the stream is full, whether
        later rows came or not: their times are private.

        Raises:
            LedgerError: a release failed, now or before. Open the stream again.
        """
        self.full = self.done and self.calendar.passed(until) >= self.plan.rounds
        while not self.done and self.position.step < self.calendar.passed(until):
            self.close_period()

    def close_period(self) -> PrivateRelease:
        """Release the next period, whatever rows it has.

        Raises:
            HorizonExceededError: all periods were released.
            LedgerError: a release failed, now or before. Open the stream again.
        """
        if self.done:
            raise HorizonExceededError(
                f"t (period) must be at most n (rounds) = {self.plan.rounds}; all were released."
                " For later rows, start another stream, which has its own epsilon."
            )
        step = self.position.step
        period = self._open.pop(step, _Period())
        users: list[str] | None = None
        places = np.arange(len(period.users))
        if self.plan.settings.user_column is not None:
            users, places = self._admitted(step, period)
        vectors = period.values(self.plan.layout.dimension)[places >= 0]
        with self._server.stepping():
            self._written = self.output.flush()
            due = replace(
                self.position,
                step=step + 1,
                records=step + 1,
                output=self.output.name,
                emitted=self._emitted,
                written=self._written,
            )
            means = _means(vectors, places[places >= 0], self.plan.second_moment)
            self._latest = self.state.release_period(self._server, due, users, means)
            self.ahead = due
            self._emit()
        if self._progress is not None:
            self._progress(step + 1, self.plan.rounds)
        return self.renderer.release(self._latest)

    def conclude(self) -> PrivacyStatement:
        """Finish the output, write the privacy statement into the directory, and return it."""
        self.output.finish(self.renderer, self.state.releases, self.position.records)
        return self._write_statement()

    def _admitted(self, step: int, period: _Period) -> tuple[list[str], NDArray[np.int64]]:
        """The users of a period whom (k, b) admits, and the place of each row's user among them.

        It is −1 for the rows of other users. A user's own periods alone decide.
        """
        places = dict[str, int]()
        users = list[str]()
        beyond = 0
        for user in dict.fromkeys(period.users):
            assert user is not None
            if self.users.admits(user, step):
                places[user] = len(users)
                users.append(user)
            else:
                beyond += 1
        self._counts[_IGNORED] += beyond
        return users, np.array([places.get(str(user), -1) for user in period.users], np.int64)


@contextmanager
def open_periods(
    directory: str | Path,
    settings: Settings,
    source: str | RowFiles | None,
    output: str | Path | None,
    file_format: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    remembered: bool = True,
    raw: bool = False,
) -> Iterator[tuple[PeriodRun, Reader]]:
    """Start or continue a stream of periods; returns it with the reader of its input.

    Args:
        directory: the state directory.
        settings: with a time column; the same as when the stream was started.
        source: file of rows, or a folder as for `open_run`; only rows in open periods count. None
            for standard input.
        output: file for the releases; None for standard output.
        file_format: of the input, see `open_reader`.
        progress: called with (t, n) after each commit.
        remembered: whether this machine keeps a record of the stream outside its directory.
        raw: whether each release also contains its weighted sums and the covariance before
            projection.

    Raises:
        LedgerError, ValueError: as for `open_run`.
    """
    directory = Path(directory)
    rows = rows_of(source)
    output_path = optional_path(output)
    if settings.calendar is None:
        raise ValueError("time_column (of a stream of periods) must be given; got none.")
    with ExitStack() as stack:
        if StreamState.exists(directory):
            state = stack.enter_context(reopen_state(directory, settings))
            opened = open_reader(rows, settings, file_format, state.plan.layout)
            reader = stack.enter_context(opened)
        else:
            open_output(output_path, True, raw)
            reader = stack.enter_context(open_reader(rows, settings, file_format))
            rounds = settings.rounds or 0
            created = create_state(directory, settings, reader.layout, rounds, remembered)
            state = stack.enter_context(created)
        destination = output_of(state, output_path, raw)
        yield stack.enter_context(PeriodRun(state, destination, progress)), reader


class _Period:
    """Vectors of the rows of an open period, with their users."""

    def __init__(self) -> None:
        self.users = list[str | None]()
        self.vectors = list[Array]()

    def values(self, dimension: int) -> Array:
        """The vectors of all rows, shape (rows, d)."""
        return np.concatenate([np.empty((0, dimension)), *self.vectors])


def _means(
    vectors: Array, places: NDArray[np.int64], moment: SecondMoment
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the mean of each user's rows and of their second moments, for some users at a time.

    Args:
        vectors: shape (rows, d).
        places: the place of each row's user, 0, 1, …, none of which is left out.
        moment: of rows.

    Guarantees: a user's means depend on its own rows alone.
    """
    order = np.argsort(places, kind="stable")
    rows = torch.from_numpy(vectors[order])
    users = torch.from_numpy(places[order])
    sizes = np.bincount(places)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    room = max(1, _MOST_NUMBERS // moment.size)
    for low in range(0, len(sizes), room):
        high = min(low + room, len(sizes))
        first = torch.zeros(high - low, moment.dimension, dtype=torch.float64)
        second = torch.zeros(high - low, moment.size, dtype=torch.float64)
        for begin in range(int(ends[low]), int(ends[high]), room):
            part = slice(begin, min(begin + room, int(ends[high])))
            at = users[part] - low
            first.index_add_(0, at, rows[part])
            second.index_add_(0, at, moment.features_of_each(rows[part]))
        share = 1 / torch.from_numpy(sizes[low:high])[:, None].to(torch.float64)
        yield first * share, second * share
