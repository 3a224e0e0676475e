"""A private stream for a service: push a row, get the release of its step, exactly once.

`PrivateStream` checks rows, users and keys before anything changes; `_RowFormat` makes vectors of
rows, and `StreamRun` takes them.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np

from fedmf.data import Schema, canonical_id
from fedmf.data.cells import ids, require_wide, types
from fedmf.data.table_reader import RowBatch, shown_names
from fedmf.errors import HorizonExceededError, LedgerError
from fedmf.statements.statement import PrivacyStatement
from fedmf.streaming.output import release_table
from fedmf.streaming.period_run import PeriodRun
from fedmf.streaming.private_release import PrivateRelease, Renderer, expected_noise
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import Pushes
from fedmf.streaming.stream_plan import StreamPlan
from fedmf.streaming.stream_rows import (
    RowBlock,
    array_layout,
    batch_block,
    chosen_layout,
    declared_cells,
    declared_layout,
    encoded,
    in_periods,
    label_of,
    numbered,
)
from fedmf.streaming.stream_run import StreamRun, open_pushed
from fedmf.values import check_whole

#: Names of columns, as in JSON lines {"x": [0.1, 0.2], "user": "ann"}.
_ROW = "x"
_USER = "user"
_TIME: Final = "time"
_FREE: Final = "Nothing was spent."
_CLOSED: Final = "is closed"


@final
class PrivateStream:
    """Private running moments of pushed rows, stored durably; each row counts once.

    Every row is released by `push`, for services that need it. The last mean is then several times
    noisier than a single release of a whole table, for which there is `fedmf.streaming.open_run`.
    With ``release_every="1w"``, rows are passed to `add`, and `close_period` releases a week of
    them. Rows of the open period are held in memory alone: after an interruption, add them again.

    The state directory has the format of ``fedmf stream --state-dir``. The same call continues the
    stream after any interruption, including kill -9. Use it as a context manager; on exit, it
    writes the privacy statement to the directory.

    Args:
        path: the state directory; absent or empty for a new stream.
        rounds: n, the largest number of rows; of periods with ``release_every``.
        clip_norm: ζ, the largest norm of a row; longer rows are scaled down to it. Optional with a
            schema, which determines it.
        dimension: d, the number of values in a row; public. Optional with columns or a schema.
        columns: names of the d numbers, for rows by name and tables. With a schema, the columns to
            use; by default all numbers and categories.
        release_every: length of a period, such as "1w", or a `timedelta`; None to release rows.
            With it, ``start`` is the public beginning of the first period, as ISO 8601, and
            ``time_column`` the column of times, by default "time".
        schema: declaration of the columns (`fedmf.data.read_schema`), including a user column. Rows
            are then mappings or tables of raw cells, and releases in the columns' own units.
        **settings: other fields of `Settings`: epsilon, delta, max_participations, min_separation,
            workloads, second_moment, adjacency, method, mechanisms, bands, params, weight, seed.

    Raises:
        LedgerError: the directory belongs to another stream, is in use by another process, or is
            older than this machine's record of the stream.
        ValueError: invalid settings.

    Guarantees:
        Releases are bit-identical to ``fedmf stream`` on the same rows with the same public key.
        Everything that `push` returns is durable. `release`, or `push` with the same key, returns a
        committed release again; no step is released twice with different noise. A push that raises
        `ParticipationViolation`, `HorizonExceededError` or `ValueError` has taken no step and spent
        nothing. Threads may push at once, one is served after the other; a process that was forked
        may not.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rounds: int,
        clip_norm: float = math.nan,
        dimension: int | None = None,
        columns: Sequence[str] | None = None,
        release_every: str | timedelta | None = None,
        schema: Schema | None = None,
        **settings: Any,
    ) -> None:
        self._format = _RowFormat.of(
            rounds=rounds,
            clip_norm=clip_norm,
            dimension=dimension,
            columns=columns,
            release_every=release_every,
            schema=schema,
            **settings,
        )
        self._path = Path(path)
        self._lock = threading.Lock()
        self._process = os.getpid()
        #: The reason why nothing more can be pushed.
        self._ended: str | None = None
        with ExitStack() as stack:
            kind = StreamRun if release_every is None else PeriodRun
            opened = open_pushed(self._path, self._format.settings, self._format.layout, kind)
            self._run = stack.enter_context(opened)
            self._pushes = Pushes(self._run.state)
            self._resources = stack.pop_all()
        # A stream that is never closed releases its lock when it is collected or at exit.
        self._finalizer = weakref.finalize(self, _close_in_process, self._resources, self._process)

    @staticmethod
    def dry_run(*, users_per_period: int | None = None, **arguments: Any) -> Any:
        """The noise that a stream would have, as a data frame; nothing is stored or spent.

        Args:
            users_per_period: in a stream of periods, the expected number of users in each, by
                default 1,000; the noise falls in proportion to it.
            arguments: those of a `PrivateStream`, without its path.

        Raises:
            ValueError: invalid settings.

        >>> budget = dict(epsilon=8.0, delta=1e-5, clip_norm=1.0, columns=["speed"], rounds=52)
        >>> weekly = dict(release_every="1w", start="2026-01-05")
        >>> noise = PrivateStream.dry_run(users_per_period=2000, **budget, **weekly)
        >>> noise["mean after period 52 (±)"].round(4).to_dict()
        {'speed': 0.00...}
        """
        form = _RowFormat.of(**arguments)
        plan = StreamPlan.of(form.settings, form.layout, arguments["rounds"])
        return expected_noise(plan, users_per_period)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        settings = self._format.settings
        what = "rows"
        if settings.calendar is not None:
            what = f"periods of {settings.release_every} from {settings.start}"
        state = ""
        if self._ended is not None:
            state = f", {self._ended.removeprefix('is ')}"
        return (
            f"<PrivateStream {str(self._path)!r}: {self.t} of {settings.rounds} {what},"
            f" epsilon {settings.epsilon:g}, delta {settings.delta:g},"
            f" d = {len(self._run.renderer.names)}{state}>"
        )

    def close(self) -> None:
        """Write the statement and release the directory for other processes."""
        with self._lock:
            if self._ended == _CLOSED or os.getpid() != self._process:
                return
            self._ended = _CLOSED
            self._finalizer.detach()
            with self._resources:
                if self._run.state.guard.failed is None:
                    self._run.conclude()

    @property
    def t(self) -> int:
        """Steps taken: rows with a durable release, or periods that were released."""
        return self._run.position.step

    @property
    def period(self) -> tuple[datetime, datetime] | None:
        """Beginning and end of the open period, which `close_period` releases; None after the last.

        Raises:
            ValueError: the stream releases rows.
        """
        run = self._period_run()
        if run.done:
            return None
        return run.calendar.beginning(self.t), run.calendar.beginning(self.t + 1)

    def add(
        self, rows: Any, users: str | Sequence[str], times: Sequence[Any] | None = None
    ) -> None:
        """Hold rows until their periods are closed.

        A row whose time is in a period that was closed, in none, or cannot be read, adds nothing,
        like a row with a cell that cannot be read; only `counts` tells. Nothing is released, and
        rows are lost with the process.

        Args:
            rows: a data frame or table, or rows as `push_many` takes them.
            users: the user of each row, or the name of the column of users.
            times: of rows that are not a table: text in ISO 8601 or datetimes. A table has the time
                column of the stream.

        Raises:
            HorizonExceededError: all periods were closed.
            ValueError: rows of another form, or the stream releases rows.
            LedgerError: the stream is closed, or a release failed; open it again.
        """
        with self._lock:
            self._open_run()
            run = self._period_run()
            if run.done:
                raise HorizonExceededError(
                    f"t (period) must be at most n (rounds) = {run.plan.rounds}; all were closed."
                    " For later rows, start another stream, which has its own epsilon."
                )
            if not _count_of(rows):
                return
            block, _ = self._block(rows, users, None)
            if block.periods.size < len(block):
                if times is None or len(times) != len(block):
                    raise ValueError(
                        f"times (of the rows) must be {len(block)} for rows that are not a table;"
                        f" got {0 if times is None else len(times)}."
                    )
                texts = [_time_text(time) or "" for time in times]
                block = in_periods(block, texts, self._format.settings)
            run.hold(block)

    def close_period(self) -> PrivateRelease:
        """Release the open period; call it by a clock, never because of rows.

        Returns:
            The release, which is durable, also of a period without rows.

        Raises:
            HorizonExceededError: all periods were closed.
            ValueError: the stream releases rows.
            LedgerError: the stream is closed, or a release failed, now or before; open it again.
        """
        with self._lock:
            self._open_run()
            return self._period_run().close_period()

    def _period_run(self) -> PeriodRun:
        run = self._run
        if not isinstance(run, PeriodRun):
            raise ValueError(
                "release_every must be a time such as '1w' for periods; this stream releases every"
                " row. Use push."
            )
        return run

    def push(
        self, row: Iterable[Any] | Mapping[str, Any], user: str, key: str | None = None
    ) -> PrivateRelease:
        """Let a row take the next step.

        Args:
            row: d numbers, or a mapping by the names of the columns; with a schema a mapping; its
                strings or numbers are read like cells of JSON lines. A row of another shape is
                rejected, as shapes are the program's. A row with a cell that cannot be read (NaN,
                text, nothing) takes its step as a zero vector, as an error would reveal its
                content.
            user: the user of the row; spellings of one id are one user
                (`fedmf.data.canonical_id`).
            key: names the row within the stream. If it is not known whether a row took its step,
                push it again with the same key: its release is returned again, and nothing is
                spent. Rows without a key are always new.

        Raises:
            ParticipationViolation: the user gave k rows already, or one less than b steps ago.
            HorizonExceededError: all n steps were taken.
            ValueError: an invalid row, user or key, or a key that another row had.
            LedgerError: the stream is closed, or a step failed, now or before; open it again.
        """
        return self.push_many([row], [user], [key])[0]

    def push_many(
        self, rows: Any, users: str | Sequence[str], keys: str | Sequence[str | None] | None = None
    ) -> list[PrivateRelease]:
        """Let rows take the next steps, one each, with one commit for a few thousand of them.

        Args:
            rows: a data frame or table of any library with ``__arrow_c_stream__``, an array of
                shape (m, d), or rows as `push` takes them. Columns of tables are taken by name, so
                that the stream must have ``columns`` or a schema.
            users: the user of each row, or the name of the column of users.
            keys: the key of each row, or the name of such a column.

        Returns:
            The release of each row; for a key that was pushed before, the release of its step.

        Raises:
            ParticipationViolation, HorizonExceededError, ValueError, LedgerError: as for `push`,
                for any of the rows. No row has taken a step then, unless a step failed: `t` is the
                number of those that have. With a schema a table must have the schema's columns,
                with the user column (``users`` is its name) read as in a file: a row without one
                belongs to no user.
        """
        with self._lock:
            run = self._open_run()
            if isinstance(run, PeriodRun):
                raise ValueError(
                    "push releases every row; this stream releases periods. Use add and"
                    " close_period."
                )
            if not _count_of(rows):
                return []
            block, row_keys = self._block(rows, users, keys)
            if row_keys is None:
                row_keys = [None] * len(block)
            row_keys = list(row_keys)
            if len(row_keys) != len(block):
                raise ValueError(f"keys (of the rows) must be {len(block)}; got {len(row_keys)}.")
            return self._push(run, block, row_keys)

    def _block(
        self, rows: Any, users: Any, keys: Any
    ) -> tuple[RowBlock, Sequence[str | None] | None]:
        """The vectors of rows, and their keys.

        Raises:
            ValueError: rows, users or keys of another form.
        """
        table = _as_table(rows)
        if table is not None:
            block, row_keys = self._format.table(table, users, keys)
        else:
            for column in (users, keys):
                if isinstance(column, str):
                    raise ValueError(
                        f"rows must be a table for a column {column!r}; got {type(rows).__name__}."
                    )
            entries = [self._format.entries(row) for row in rows]
            block = self._format.block(entries, _required_users(users))
            row_keys = keys
        if len(block.users or ()) != len(block):
            raise ValueError(
                f"users (of the rows) must be {len(block)}; got {len(block.users or ())}."
            )
        return block, row_keys

    def _push(
        self, run: StreamRun, block: RowBlock, keys: Sequence[str | None]
    ) -> list[PrivateRelease]:
        """Check that all new rows may take their steps, and then take them."""
        for key in keys:
            if key is not None:
                _require_name("key (of the row)", key)
        contents = [_content(block, i) for i in range(len(block))]
        steps, new_rows = self._pushes.place(run.position.step, keys, contents)
        assert block.users is not None
        self._check_steps(run, [block.users[i] for i in new_rows])
        releases = dict[int, PrivateRelease]()
        for start in range(0, len(new_rows), run.most_rows):
            part = new_rows[start : start + run.most_rows]
            records = b"".join(self._pushes.record(steps[i], keys[i], contents[i]) for i in part)
            run.take(block.chosen(part), records)
            self._pushes.add(records)
            for i in part:  # while the run has them in memory
                releases[steps[i]] = self._release(steps[i])
        for step in steps:
            if step not in releases:
                releases[step] = self._release(step)
        return [releases[step] for step in steps]

    def _check_steps(self, run: StreamRun, users: Sequence[str | None]) -> None:
        """Check that these users may take the next steps, one after the other."""
        step = run.position.step
        left = run.plan.rounds - step
        if len(users) > left:
            state = "all steps were taken"
            if left:
                state = f"{left} are left, for {len(users)} rows"
            raise HorizonExceededError(
                f"t (step) must be at most n (rounds) = {run.plan.rounds}; {state}. For later rows,"
                " start another stream, which has its own epsilon."
            )
        named = [(t, user) for t, user in enumerate(users, start=step + 1) if user is not None]
        if len(named) == 1:
            ((t, user),) = named
            run.users.check(t, [user])
            return
        histories = run.users.of(user for _, user in named)
        for t, user in named:
            histories.check(t, [user])
            histories.record(user, t)

    def release(self, t: int) -> PrivateRelease:
        """The release of an earlier step.

        Raises:
            ValueError: the step was not taken.
            LedgerError: the stream is closed, or the file does not hold what was committed.
        """
        with self._lock:
            self._open_run()
            if not 1 <= t <= self.t:
                raise ValueError(
                    f"t (step) must be from 1 to {self.t}, those that were taken; got {t}."
                )
            return self._release(t)

    def table(self, first: int = 1, last: int | None = None, raw: bool = False) -> Any:
        """The releases of some steps as an Arrow table; ``.to_pandas()`` makes it a data frame.

        Args:
            first: the first step.
            last: the last one; None for the last that was taken.
            raw: whether to include sums and the covariance before projection.

        Returns:
            Columns t, "mean:speed", "mean_low:speed", "covariance:speed:load" and so on, as CSV has
            them.

        Raises:
            ValueError: steps that were not taken.
            LedgerError: as `release`.
        """
        with self._lock:
            run = self._open_run()
            if last is None:
                last = self.t
            if not 1 <= first <= last <= self.t:
                raise ValueError(f"t (steps) must be within 1..{self.t}; got {first}..{last}.")
            return release_table(Renderer(run.plan, raw), run.state.releases(first - 1, last))

    def statement(self) -> PrivacyStatement:
        """The operator's privacy statement as of now, which is also written to the directory.

        Publish its `public`.
        """
        with self._lock:
            return self._open_run().conclude()

    def counts(self) -> dict[str, Any]:
        """Counts of rows taken, clipped and zeroed: for the operator, *not* to be published."""
        return self._run.counts()

    def _open_run(self) -> StreamRun:
        ended = self._ended
        if os.getpid() != self._process:
            ended = "belongs to the process that opened it, of which this one is a fork"
        if ended is not None:
            raise LedgerError(
                f"the stream in {self._path} {ended}. Open it again with the same settings."
            )
        self._run.state.guard.require()
        return self._run

    def _release(self, t: int) -> PrivateRelease:
        return self._run.renderer.release(self._run.releases(t - 1, t))


class _RowFormat:
    """The format of pushed rows, and their conversion to vectors.

    Shapes and names are the program's and public: a row that does not fit is rejected. The content
    of a row is a user's, and no row is rejected for it.

    Args:
        settings: of the stream.
        dimension: d; None for as many as there are names.

    Raises:
        ValueError: columns and dimension disagree, or there is a dimension next to a schema.
    """

    def __init__(self, settings: Settings, dimension: int | None) -> None:
        self.settings = settings
        self._named = True
        columns = settings.columns
        if settings.schema is not None:
            if dimension is not None:
                raise ValueError(f"d (dimension) must be left out with a schema; got {dimension}.")
            self.layout = declared_layout(settings)
            self._names = declared_cells(settings)
        elif columns is not None:
            others = [_USER]
            if settings.time_column is not None:
                others.append(settings.time_column)
            self.layout = chosen_layout([*columns, *others], settings)
            self._names = columns
            if dimension not in (None, len(columns)):
                raise ValueError(
                    f"d (dimension) must be {len(columns)}, as there are columns; got {dimension}."
                )
        elif dimension is None:
            raise ValueError(
                "d (dimension) must be given, or the names of the columns; got neither."
            )
        else:
            check_whole("d (dimension)", dimension)
            self.layout = array_layout(_ROW, dimension, settings)
            self._named = False
            self._names = ()

    @classmethod
    def of(
        cls,
        *,
        rounds: int,
        clip_norm: float = math.nan,
        dimension: int | None = None,
        columns: Sequence[str] | None = None,
        release_every: str | timedelta | None = None,
        schema: Schema | None = None,
        **settings: Any,
    ) -> Self:
        """The format of the rows of a stream, from the arguments of a `PrivateStream`."""
        if isinstance(columns, str):
            raise ValueError(f"columns must be a list of names; got the string {columns!r}.")
        for name in ("workloads", "mechanisms"):
            if name in settings:
                settings[name] = _as_tuple(settings[name])
        if isinstance(release_every, int):
            raise ValueError(
                "release_every (length of a period) must be a time such as '1w', or None to release"
                f" every row; got {release_every}. Use open_run for a release of several rows."
            )
        if release_every is not None:
            settings.setdefault("time_column", _TIME)
            settings["release_every"] = release_every
        stream_settings = Settings(
            columns=None if columns is None else tuple(columns),
            schema=schema,
            clip_norm=clip_norm,
            rounds=rounds,
            user_column=_user_column(schema),
            **settings,
        )
        return cls(stream_settings, dimension)

    def entries(self, row: Any) -> list[Any]:
        """The cells of a row in the order of the columns, not parsed.

        Args:
            row: d numbers in a list, an array or a tensor; a mapping where the columns have names:
                a missing name is a cell that cannot be read, and other names are ignored.

        Raises:
            ValueError: it is no row of this format.
        """
        d = len(self._names) or self.layout.dimension
        if self._named and hasattr(row, "to_dict") and hasattr(row, "index"):  # a row of pandas
            row = row.to_dict()
        if self.settings.schema is not None:
            if not isinstance(row, Mapping):
                raise ValueError(
                    "x (row) must be a mapping by the names of the schema's columns; got "
                    f"{type(row).__name__}. {_FREE}"
                )
            return [_item(row.get(name)) for name in self._names]
        if isinstance(row, Mapping):
            if not any(name in row for name in self._names):
                fix = _FREE if self._named else "Open the stream with columns=."
                raise ValueError(
                    f"x (row) must be {d} numbers; got a mapping without its columns. {fix}"
                )
            row = [row.get(name) for name in self._names]
        entries = np.asarray(list(row) if isinstance(row, list | tuple) else row, dtype=object)
        if entries.shape != (d,):
            raise ValueError(f"x (row) must be {d} numbers; got shape {entries.shape}. {_FREE}")
        return [_item(entry) for entry in entries.tolist()]

    def block(self, rows: Sequence[Sequence[Any]], users: Sequence[str | None]) -> RowBlock:
        """The vectors of rows, given as `entries` returns them."""
        if self.settings.schema is None:
            return numbered(rows, users)
        cells = {}
        for i, name in enumerate(self._names):
            cells[name] = [label_of(row[i]) for row in rows]
        return encoded(cells, users, (), self.settings)

    def table(
        self, table: Any, users: Any, keys: Any
    ) -> tuple[RowBlock, Sequence[str | None] | None]:
        """The vectors of a table of Arrow, and the keys of its rows.

        Args:
            table: of any columns.
            users: the id of each row's user, or the name of a column.
            keys: the key of each row, or the name of a column, or None.

        Raises:
            ValueError: its columns are not of this format.
        """
        if not self._named:
            raise ValueError(
                "rows must be arrays of numbers, or open the stream with columns=; got a table."
            )
        self._check_columns(table, users, keys)
        row_users = users
        row_keys = keys
        if isinstance(users, str):
            require_wide(table.column(users), f"column {users!r}")
            row_users = ids(table.column(users), f"column {users!r}").to_pylist()
        if not isinstance(users, str) or self.settings.schema is None:
            row_users = _required_users(row_users)
        if isinstance(keys, str):
            row_keys = table.column(keys).to_pylist()
        columns = {name: table.column(name) for name in self._names}
        if self.layout.time is not None:
            columns[self.layout.time] = _times_of(table.column(self.layout.time))
        batch = RowBatch(table.num_rows, columns)
        return batch_block(batch, self.settings, self.layout, row_users), row_keys

    def _check_columns(self, table: Any, users: Any, keys: Any) -> None:
        """Reject a table without the columns of this format, or with other types of columns."""
        schema = self.settings.schema
        present = table.column_names
        if schema is not None:
            user = str(schema.user)
            optional = (user,)
            if isinstance(users, str):
                optional = ()
                if users != user:
                    raise ValueError(
                        f"users (column) must be as in the schema, {user!r}; got {users!r}. {_FREE}"
                    )
            header = [name for name in present if name != keys or name in schema.columns]
            schema.check_header(header, "the table", optional)
        wanted = list(self._names)
        if self.layout.time is not None:
            wanted.append(self.layout.time)
        wanted.extend(column for column in (users, keys) if isinstance(column, str))
        for name in wanted:
            if present.count(name) != 1:
                raise ValueError(
                    f"column {name!r} is missing; the table has {shown_names(present)}. {_FREE}"
                )
        if schema is not None:
            return
        for name in self._names:
            kind = table.schema.field(name).type
            if not (types.is_integer(kind) or types.is_floating(kind)):
                raise ValueError(f"column {name!r} must hold numbers; got {kind}. {_FREE}")


def _count_of(rows: Any) -> int:
    """Return the number of rows.

    Raises:
        ValueError: it is not known, as that of None or of a generator.
    """
    if not hasattr(rows, "__len__"):
        raise ValueError(
            f"rows must be a table, an array or a list of rows; got {type(rows).__name__}. {_FREE}"
        )
    return len(rows)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """A setting that is given once or several times, as a tuple."""
    if isinstance(value, tuple | list):
        return tuple(value)
    return (value,)


def _user_column(schema: object) -> str:
    if schema is None:
        return _USER
    if not isinstance(schema, Schema):
        raise ValueError(
            f"schema must come from fedmf.data.read_schema; got {type(schema).__name__}."
        )
    if schema.user is None:
        raise ValueError("schema must declare a user column for pushed rows; got none.")
    return schema.user


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what} must be a non-empty string; got {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be a string that UTF-8 can encode; got {name!r}.") from None


def _required_users(names: Iterable[object]) -> list[str]:
    """The canonical ids of users; a missing one, or a float that lost digits, is rejected."""
    users = []
    for name in names:
        _require_name("user", name)
        user = canonical_id(str(name))
        if not user:
            raise ValueError(
                f"user must be an exact id; got {name!r}. Pass ids as strings, not as floats."
            )
        users.append(user)
    return users


def _item(entry: Any) -> Any:
    """The Python number of a decimal, or of an array or tensor of one number."""
    if isinstance(entry, Decimal):
        return math.nan if entry.is_snan() else float(entry)
    try:
        return entry.item() if hasattr(entry, "item") else entry
    except (TypeError, ValueError, RuntimeError):
        return entry


def _content(block: RowBlock, i: int) -> bytes:
    """Bytes that differ for another user or other values of a row."""
    assert block.users is not None
    values = b""
    if not block.invalid[i]:
        values = block.values[i].astype("<f8").tobytes()
    return len(values).to_bytes(8, "little") + values + (block.users[i] or "").encode()


def _as_table(rows: Any) -> Any:
    """Rows as an Arrow table; None if they are not a table.

    Columns with objects of several types become text, cell by cell. An index of pandas without a
    name is no column.
    """
    if not hasattr(rows, "__arrow_c_stream__"):
        return None
    import pyarrow as arrow

    try:
        table = arrow.table(rows)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        texts = {}
        for name, cells in rows.items():
            if cells.dtype == object:
                texts[str(name)] = [_cell_text(cell) for cell in cells]
        table = arrow.table(rows.assign(**texts))
    indices = [name for name in table.column_names if name.startswith("__index_level_")]
    return table.drop_columns(indices)


def _times_of(column: Any) -> Any:
    """A column of times; of another type, which one bad cell can make of it, no cell is one."""
    kind = column.type
    if types.is_nested(kind) or (types.is_primitive(kind) and not types.is_temporal(kind)):
        return len(column) * [""]
    return column


def _cell_text(cell: Any) -> str | None:
    """A cell of any type as text; None for a missing one."""
    return _time_text(cell) or label_of(_item(cell)) or None


def _time_text(time: Any) -> str | None:
    """A time as text, if it is text or a date or datetime."""
    if isinstance(time, date):
        return time.isoformat()
    return time if isinstance(time, str) else None


def _close_in_process(resources: ExitStack, process: int) -> None:
    """Close the resources of a stream if this is still its process."""
    if os.getpid() == process:
        resources.close()
