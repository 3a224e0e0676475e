"""A private stream for a service: push a row, get the release of its step, exactly once."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np

from fedmf.data import Schema, canonical_id
from fedmf.data.cells import ids, require_mostly_exact, types
from fedmf.data.table_reader import RowBatch, shown_names
from fedmf.errors import HorizonExceededError, LedgerError
from fedmf.statements.statement import PrivacyStatement
from fedmf.streaming.output import release_table
from fedmf.streaming.private_release import PrivateRelease, Renderer
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import Pushes
from fedmf.streaming.stream_rows import (
    RowBlock,
    array_layout,
    batch_block,
    chosen_layout,
    declared_cells,
    declared_layout,
    encoded,
    label_of,
    numbered,
)
from fedmf.streaming.stream_run import StreamRun, open_pushed

#: As of JSON lines {"x": [0.1, 0.2], "user": "ann"}.
_ROW = "x"
_USER = "user"
_FREE: Final = "Nothing was spent."
_CLOSED: Final = "is closed"


@final
class PrivateStream:
    """Private running moments of pushed rows, stored durably; each row counts once.

    Every row is released, for services that need it. The last mean is then several times noisier
    than a single release of a whole table, for which there is `fedmf.streaming.open_run`.

    The state directory has the format of ``fedmf stream --state-dir``. The same call continues the
    stream after any interruption, including kill -9. Use it as a context manager; on exit, it
    writes the privacy statement to the directory.

    Args:
        path: the state directory; absent or empty for a new stream.
        rounds: n, the largest number of rows.
        clip_norm: ζ, the largest norm of a row; longer rows are scaled down to it. Optional with a
            schema, which determines it.
        dimension: d, the number of values in a row; public. Optional with columns or a schema.
        columns: names of the d numbers, for rows by name and tables. With a schema, the columns to
            use; by default all numbers and categories.
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
        schema: Schema | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(columns, str):
            raise ValueError(f"columns must be a list of names; got the string {columns!r}.")
        named = None if columns is None else tuple(columns)
        for several in ("workloads", "mechanisms"):
            if several in settings:
                given = settings[several]
                settings[several] = tuple(given) if isinstance(given, tuple | list) else (given,)
        asked = Settings(
            columns=named,
            schema=schema,
            clip_norm=clip_norm,
            rounds=rounds,
            user_column=_user_column(schema),
            **settings,
        )
        if asked.release_every != 1:
            raise ValueError(
                f"R (release every) must be 1 for rows that are pushed; got {asked.release_every}."
                " Release a whole table with fedmf.streaming.open_run."
            )
        self._form = _Form(asked, dimension)
        self._path, self._lock, self._process = Path(path), threading.Lock(), os.getpid()
        #: Why nothing more can be pushed.
        self._ended: str | None = None
        with ExitStack() as kept:
            opened = open_pushed(self._path, asked, self._form.layout)
            self._run = kept.enter_context(opened)
            self._pushes = Pushes(self._run.state)
            self._kept = kept.pop_all()
        # A stream that nobody closes is let go while there still is an interpreter to do it.
        self._let_go = weakref.finalize(self, _let_go, self._kept, self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the statement and let another process have the directory."""
        with self._lock:
            if self._ended == _CLOSED or os.getpid() != self._process:
                return
            self._ended = _CLOSED
            self._let_go.detach()
            with self._kept:
                if self._run.state.guard.failed is None:
                    self._run.conclude()

    @property
    def t(self) -> int:
        """Steps taken: rows with a durable release."""
        return self._run.position.step

    def push(
        self, row: Iterable[Any] | Mapping[str, Any], user: str, key: str | None = None
    ) -> PrivateRelease:
        """Let a row take the next step.

        Args:
            row: d numbers, or a mapping by the names of the columns; with a schema a mapping; its
                strings or numbers are read as cells of JSON lines are. Anything else is rejected:
                its shape is the program's. A cell that cannot be read (NaN, text, nothing) makes
                the row take its step as a zero vector, as a refusal would tell what it held.
            user: the user of the row; the same id however it is written
                (`fedmf.data.canonical_id`).
            key: names the row among all of the stream, so that it may be pushed again when it is
                not known whether it took its step: then its release is told again, and nothing is
                spent. Rows without one are new each time.

        Raises:
            ParticipationViolation: the user gave k rows already, or one less than b steps ago.
            HorizonExceededError: all n steps were taken.
            ValueError: a row, user or key that is none, a key that another row had, or an invalid
                row that is rejected.
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
                for any of the rows. None has taken a step then, but for an invalid row that is
                rejected: those before it have, and `t` tells how many. With a schema a table must
                have the schema's columns, with the user column (``users`` is its name) read as in a
                file: a row without one belongs to no user.
        """
        with self._lock:
            run = self._open_run()
            table = _table(rows)
            if table is None and not len(rows):
                return []
            if table is not None:
                block, named_keys = self._form.table(table, users, keys)
            else:
                named = next((what for what in (users, keys) if isinstance(what, str)), None)
                if named is not None:
                    raise ValueError(
                        f"rows must be a table for a column {named!r}; got {type(rows).__name__}."
                    )
                entries = [self._form.entries(row) for row in rows]
                block = self._form.block(entries, list(map(_required_user, users)))
                named_keys = keys
            told = [None] * len(block) if named_keys is None else list(named_keys)
            for what, given in (("users", block.users or ()), ("keys", told)):
                if len(given) != len(block):
                    raise ValueError(
                        f"{what} (of the rows) must be {len(block)}; got {len(given)}."
                    )
            return self._push(run, block, told)

    def _push(
        self, run: StreamRun, block: RowBlock, keys: Sequence[str | None]
    ) -> list[PrivateRelease]:
        """See that all rows may take their steps, then let them."""
        for key in keys:
            if key is not None:
                _require_name("key (of the row)", key)
        contents = [_content(block, i) for i in range(len(block))]
        steps, fresh = self._pushes.place(run.position.step, keys, contents)
        assert block.users is not None
        self._check_steps(run, [block.users[i] for i in fresh])
        released = dict[int, PrivateRelease]()
        while fresh:
            part = fresh[: run.most_rows]
            fresh = fresh[run.most_rows :]
            before = run.position.step
            records = b"".join(
                self._pushes.record(before + at, keys[i], contents[i])
                for at, i in enumerate(part, start=1)
            )
            run.take(block.chosen(part), records)
            self._pushes.add(records)
            released |= {steps[i]: self._release(steps[i]) for i in part}
        return [released[step] if step in released else self._release(step) for step in steps]

    def _check_steps(self, run: StreamRun, users: Sequence[str | None]) -> None:
        """Whether these users may take the next steps, one after the other."""
        step = run.position.step
        most = run.plan.rounds
        if step + len(users) > most:
            left = (
                "all steps were taken"
                if step == most
                else f"{most - step} are left, for {len(users)} rows"
            )
            raise HorizonExceededError(f"t (step) must be at most n (rounds) = {most}; {left}.")
        named = [(i, user) for i, user in enumerate(users, start=step + 1) if user is not None]
        tried = run.users if len(named) == 1 else run.users.of(user for _, user in named)
        for i, user in named:
            tried.check(i, [user])
            if tried is not run.users:
                tried.record(user, i)

    def release(self, t: int) -> PrivateRelease:
        """The release of a step that was taken, again.

        Raises:
            ValueError: it was not taken.
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
        """The releases of some steps as an Arrow table, a row each, or by ``.to_pandas()`` as a
        data frame.

        Args:
            first: the first step.
            last: the last one; None for the last that was taken.
            raw: with sums, and the covariance before projection.

        Returns:
            Columns t, "mean:speed", "mean_low:speed", "covariance:speed:load" and so on, as CSV has
            them.

        Raises:
            ValueError: steps that were not taken.
            LedgerError: as `release`.
        """
        with self._lock:
            run = self._open_run()
            last = self.t if last is None else last
            if not 1 <= first <= last <= self.t:
                raise ValueError(f"t (steps) must be within 1..{self.t}; got {first}..{last}.")
            return release_table(Renderer(run.plan, raw), run.state.releases(first - 1, last))

    def statement(self) -> PrivacyStatement:
        """The operator's privacy statement as of now, also written into the directory; see its
        `public`.
        """
        with self._lock:
            return self._open_run().conclude()

    def counts(self) -> dict[str, int]:
        """How many rows were taken, clipped and counted as zeros: for the operator, *not* to be
        published.
        """
        return self._run.position.counts()

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


class _Form:
    """What rows that are handed over must be, and the vectors that they become.

    Shapes and names are the program's and public: what does not fit is rejected. What a row holds
    is a user's, and rejects nothing.

    Args:
        settings: of the stream.
        dimension: d; None for as many as there are names.

    Raises:
        ValueError: columns and dimension disagree, or there is a dimension next to a schema.
    """

    def __init__(self, settings: Settings, dimension: int | None) -> None:
        self._settings = settings
        self._named = True
        columns = settings.columns
        if settings.schema is not None:
            if dimension is not None:
                raise ValueError(f"d (dimension) must be left out with a schema; got {dimension}.")
            self.layout, self._names = declared_layout(settings), declared_cells(settings)
        elif columns is not None:
            self.layout = chosen_layout([*columns, _USER], settings)
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
            self.layout = array_layout(_ROW, dimension, settings)
            self._named = False
            self._names = ()

    def entries(self, row: Any) -> list[Any]:
        """The cells of a row in the order of the columns, unread.

        Args:
            row: d numbers in a list, an array, a tensor; by name where the columns have names: a
                name that is missing is a cell that cannot be read, others are passed over.

        Raises:
            ValueError: it is no row of this form.
        """
        d = self.layout.dimension
        if self._named and hasattr(row, "to_dict") and hasattr(row, "index"):  # a row of pandas
            row = row.to_dict()
        if self._settings.schema is not None:
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
        """The vectors of rows as `entries` keeps them."""
        if self._settings.schema is None:
            return numbered(rows, users)
        cells = {name: [label_of(row[i]) for row in rows] for i, name in enumerate(self._names)}
        return encoded(cells, users, (), self._settings)

    def table(
        self, table: Any, users: Any, keys: Any
    ) -> tuple[RowBlock, Sequence[str | None] | None]:
        """The vectors of a table of Arrow, and the keys of its rows.

        Args:
            table: of any columns.
            users: the id of each row's user, or the name of a column.
            keys: the key of each row, or the name of a column, or None.

        Raises:
            ValueError: its columns are not of this form.
        """
        schema = self._settings.schema
        present = table.column_names
        named = isinstance(users, str)
        if not self._named:
            raise ValueError(
                "rows must be arrays of numbers, or open the stream with columns=; got a table."
            )
        if schema is not None:
            user = str(schema.user)
            if named and users != user:
                raise ValueError(
                    f"users (column) must be as in the schema, {user!r}; got {users!r}. {_FREE}"
                )
            header = [name for name in present if name != keys or name in schema.columns]
            schema.check_header(header, "the table", () if named else (user,))
        for name in (*self._names, *(what for what in (users, keys) if isinstance(what, str))):
            if present.count(name) != 1:
                raise ValueError(
                    f"column {name!r} is missing; the table has {shown_names(present)}. {_FREE}"
                )
        for name in self._names if schema is None else ():
            kind = table.schema.field(name).type
            if not (types.is_integer(kind) or types.is_floating(kind)):
                raise ValueError(f"column {name!r} must hold numbers; got {kind}. {_FREE}")
        if named:
            require_mostly_exact(table.column(users), f"column {users!r}")
        told = ids(table.column(users), f"column {users!r}").to_pylist() if named else users
        told = told if schema is not None and named else [_required_user(user) for user in told]
        batch = RowBatch(table.num_rows, {name: table.column(name) for name in self._names})
        given = table.column(keys).to_pylist() if isinstance(keys, str) else keys
        return batch_block(batch, self._settings, self.layout, told), given


def _user_column(schema: object) -> str:
    if schema is None:
        return _USER
    if not isinstance(schema, Schema):
        raise ValueError(
            f"schema must be what fedmf.data.read_schema gives; got {type(schema).__name__}."
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


def _required_user(name: object) -> str:
    """The id of a user as `canonical_id` writes it; none, or a float of lost digits, is
    rejected.
    """
    _require_name("user", name)
    if not (user := canonical_id(str(name))):
        raise ValueError(
            f"user must be an exact id; got {name!r}. Pass ids as strings, not as floats."
        )
    return user


def _item(entry: Any) -> Any:
    """The number that a decimal, an array or tensor of one holds."""
    if isinstance(entry, Decimal):
        return float(entry) if not entry.is_snan() else math.nan
    try:
        return entry.item() if hasattr(entry, "item") else entry
    except (TypeError, ValueError, RuntimeError):
        return entry


def _content(block: RowBlock, i: int) -> bytes:
    """Bytes that another user or other values of a row would change."""
    assert block.users is not None
    values = b"" if i in block.faults else block.values[i].astype("<f8").tobytes()
    return len(values).to_bytes(8, "little") + values + (block.users[i] or "").encode()


def _table(rows: Any) -> Any:
    """As an Arrow table; None where it is no table. Columns that hold objects of several types are
    text, cell by cell.
    """
    if not hasattr(rows, "__arrow_c_stream__"):
        return None
    import pyarrow as arrow

    try:
        return arrow.table(rows)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        mixed = {str(name): cells for name, cells in rows.items() if cells.dtype == object}
        cast = {
            name: [label_of(_item(cell)) or None for cell in cells] for name, cells in mixed.items()
        }
        return arrow.table(rows.assign(**cast))


def _let_go(kept: ExitStack, process: int) -> None:
    """Close what a stream holds, in its own process."""
    if os.getpid() == process:
        kept.close()
