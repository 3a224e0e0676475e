"""A private stream for a service: push a row, get the release of its step, exactly once."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any, Final, Self, final

from fedmf.data import Schema
from fedmf.errors import HorizonExceededError, LedgerError
from fedmf.mechanisms.matrix import Factorization
from fedmf.participation import Adjacency
from fedmf.records import PrivacyStatement
from fedmf.streaming.outputs import PrivateRelease, Renderer, wide_columns
from fedmf.streaming.pushed_rows import (
    TableRows,
    content_of,
    pushed_user,
    require_name,
    require_user,
    row_form,
    table_rows,
)
from fedmf.streaming.rows import InputError, RowBlock
from fedmf.streaming.run import Handling, StreamRun
from fedmf.streaming.session import open_pushed
from fedmf.streaming.settings import DEFAULT_MECHANISM, Settings


@final
class PrivateStream:
    """Private running moments of the rows that are pushed; durable, each row once.

    The state directory is that of ``fedmf stream --state``. The same call goes on after any end, kill -9
    included. Use it as a context manager; at its end the privacy statement is written into the directory.

    Args:
        path: of the state directory; absent or empty for a new stream.
        epsilon: ε.
        delta: δ.
        norm_bound: ζ, the largest norm of a row; longer ones are scaled to it. May be left out with a data
            schema, which has one.
        dimension: d, numbers of a row; public. May be left out where columns are named, and with a schema.
        columns: names of the d numbers, for rows by name; those of tables are all but the users' and keys'
            without them. With a schema the columns to use, all numbers and categories without them.
        schema: what the columns may hold (`fedmf.data.read_schema`); it must declare one of users.
            Rows are then mappings or tables of raw cells, and means and covariances in the columns' own
            units, as those of ``fedmf stream --schema``.
        rounds: n, the most rows there will be.
        max_participations: k, the most rows of one user; 1 by default.
        min_separation: b, the least number of steps between two rows of a user; must be given with k > 1.
        workloads: A₁ and A₂ by name, or one for both: "average", "prefix", "exponential:0.9", "window:100", …
        second: "full", "diagonal", "energy", or sizes of blocks.
        adjacency: "zero-out" or "replace-one".
        method: "jme", "ime", "cs" or "pp".
        mechanisms: C₁ and C₂, or one for both, by name or as factorizations.
        bands: p, for mechanisms that take it.
        params: other parameters of mechanisms.
        weight: how the method divides noise between the moments; "best" for the λ of jme that is best for
            what is released.
        seed: for a public key: reproducible and *not private*.
        handling: of rows that cannot be read, a zero vector by default; free to change.

    Raises:
        LedgerError: the directory is another stream's, in use by another process, or behind what this machine
            knows of its stream.
        ValueError: settings are unfit.

    Guarantees:
        Releases have the bits of ``fedmf stream`` on the same rows with the same public key.
        What `push` returns is durable. A release that was committed and not seen is told again by `release`,
        or by `push` with the same key; no step is released twice with other noise.
        A push that raises `ParticipationViolation`, `HorizonExceededError` or `ValueError` has taken no step
        and spent nothing.
        Threads may push at once, one is served after the other; a process that was forked may not.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        epsilon: float,
        delta: float,
        norm_bound: float | None = None,
        dimension: int | None = None,
        columns: Sequence[str] | None = None,
        schema: Schema | None = None,
        rounds: int,
        max_participations: int | None = None,
        min_separation: int | None = None,
        workloads: str | tuple[str, ...] = "average",
        second: str = "full",
        adjacency: Adjacency = "zero-out",
        method: str = "jme",
        mechanisms: str | Factorization | tuple[str | Factorization, ...] = DEFAULT_MECHANISM,
        bands: int | None = None,
        params: Mapping[str, float] | None = None,
        weight: float | str | None = None,
        seed: int | None = None,
        handling: Handling | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise ValueError(f"columns must be a list of names; got the text {columns!r}.")
        named = None if columns is None else tuple(columns)
        user_column = pushed_user(schema)
        settings = Settings(
            columns=named,
            schema=schema,
            norm_bound=_norm_bound(norm_bound, schema, named),
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            user_column=user_column,
            max_participations=max_participations,
            min_separation=min_separation,
            workloads=(workloads,) if isinstance(workloads, str) else tuple(workloads),
            method=method,
            mechanisms=tuple(mechanisms) if isinstance(mechanisms, tuple | list) else (mechanisms,),
            bands=bands,
            params=dict(params or {}),
            second=second,
            weight=weight,
            adjacency=adjacency,
            seed=seed,
        )
        self._form = row_form(settings, dimension)
        self._path, self._lock, self._process = Path(path), threading.Lock(), os.getpid()
        #: Why nothing more can be pushed.
        self._ended: str | None = None
        with ExitStack() as kept:
            self._run = run = kept.enter_context(
                open_pushed(self._path, settings, self._form.layout, handling)
            )
            run.state.require_pushes()
            self._pushes = run.state.pushes
            self._renderer = Renderer(run.plan)
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
                if self._run.state.right.lost is None:
                    self._run.conclude()

    @property
    def t(self) -> int:
        """Steps taken: rows whose release is durable."""
        return self._run.position.step

    def push(
        self, row: Iterable[float] | Mapping[str, Any], user: str, key: str | None = None
    ) -> PrivateRelease:
        """Let a row take the next step.

        Args:
            row: d numbers, or a mapping by the names of the columns; with a schema a mapping, whose
                text or numbers are read as cells of JSON lines are. What is no row of this form is refused:
                its shape is the program's. A cell that cannot be read (NaN, text, nothing) makes the row take
                its step as a zero vector, as a refusal would tell what it held; `Handling.stop_at_faulty`
                refuses it.
            user: whose it is; the same id however it is written (`fedmf.data.canonical_id`).
            key: names the row among all of the stream, so that it may be pushed again when it is not known
                whether it took its step: then its release is told again, and nothing is spent. Rows without
                one are new each time.

        Raises:
            ParticipationViolation: the user gave k rows already, or one less than b steps ago.
            HorizonExceededError: all n steps were taken.
            ValueError: a row, user or key that is none, a key that another row had, or an unreadable row that
                is refused.
            LedgerError: the stream is closed, or a step failed, now or before; open it again.
        """
        with self._lock:
            run = self._open_run()
            return self._push(run, TableRows([self._form.entries(row)], [require_user(user)], [key]))[0]

    def push_many(
        self, rows: Any, users: str | Sequence[str], keys: str | Sequence[str] | None = None
    ) -> list[PrivateRelease]:
        """Let rows take the next steps, one each, with one commit for a few thousand of them.

        Args:
            rows: a data frame or table (pandas, Polars, Arrow, …), an array of shape (m, d), or rows as
                `push` takes them. Columns are taken by name, in the order of the stream's ``columns`` or else
                of the first table; a table with other columns is refused.
            users: whose each row is, or the name of the column that says so.
            keys: the key of each row, or the name of such a column.

        Returns:
            The release of each row; of one whose key took its step before, that step's.

        Raises:
            ParticipationViolation, HorizonExceededError, ValueError, LedgerError: as for `push`, for any of
                the rows. None has taken a step then, but for an unreadable row that is refused: those before
                it have, and `t` tells how many. With a schema a table must have the schema's
                columns, that of users (``users`` is its name) read as in a file: a row without one is
                nobody's.
        """
        with self._lock:
            run = self._open_run()
            return self._push(run, table_rows(rows, users, keys, self._form, run.columns))

    def learn_one(self, x: Mapping[str, Any], user: str, key: str | None = None) -> PrivateRelease:
        """`push` of a row by the names of its columns, as River's models learn."""
        return self.push(x, user, key)

    def _push(self, run: StreamRun, given: TableRows) -> list[PrivateRelease]:
        """See that all rows may take their steps, then let them."""
        for key in given.keys:
            if key is not None:
                require_name("key (of the row)", key)
        rows = self._form.block(run.position.row + 1, given)
        contents = [content_of(rows, i) for i in range(len(rows))]
        steps, fresh = self._pushes.place(run.position.step, given.keys, contents)
        self._check_steps(run, [given.users[i] for i in fresh])
        run.columns = run.columns or given.columns
        most, released = run.most_rows, dict[int, PrivateRelease]()
        for start in range(0, len(fresh), most):
            part = fresh[start : start + most]
            records = [(self._pushes.digest(given.keys[i]), contents[i]) for i in part]
            self._take(run, rows.chosen(run.position.row + 1, part), records)
            released |= {steps[i]: self._release(steps[i]) for i in part}
        return [released[step] if step in released else self._release(step) for step in steps]

    def _check_steps(self, run: StreamRun, users: Sequence[str | None]) -> None:
        """Whether these users may take the next steps, one after the other."""
        step, most = run.position.step, run.plan.rounds
        if step + len(users) > most:
            left = (
                "all steps were taken" if step == most else f"{most - step} are left, for {len(users)} rows"
            )
            raise HorizonExceededError(f"t (step) must be at most n (rounds) = {most}; {left}.")
        named = [(i, user) for i, user in enumerate(users, start=step + 1) if user is not None]
        tried = run.users if len(named) == 1 else run.users.of(user for _, user in named)
        for i, user in named:
            tried.check(i, tried.keys([user])[0])
            if tried is not run.users:
                tried.record(user, i)

    def _take(self, run: StreamRun, rows: RowBlock, records: Sequence[tuple[bytes, bytes]]) -> None:
        before = run.position.step
        with run.state.right.exercise(f"step {before + 1}"):
            self._pushes.write(before + 1, records)
            try:
                stopped = run.take(rows)
            finally:
                for step in range(before + 1, run.position.step + 1):
                    self._pushes.committed(records[step - before - 1][0], step)
        if stopped:
            at, fault = stopped
            raise InputError(
                f"row {rows.first + at} {fault}. The {rows.first + at - 1} rows before it are done. "
                "It took no step and spent nothing: correct it and push it again."
            )

    def release(self, t: int) -> PrivateRelease:
        """The release of a step that was taken, again.

        Raises:
            ValueError: it was not taken.
            LedgerError: the stream is closed, or the file does not hold what was committed.
        """
        with self._lock:
            self._open_run()
            if not 1 <= t <= self.t:
                raise ValueError(f"t (step) must be from 1 to {self.t}, those that were taken; got {t}.")
            return self._release(t)

    def table(self, first: int = 1, last: int | None = None, density: bool = False) -> Any:
        """The releases of some steps as an Arrow table, a row each, or by ``.to_pandas()`` as a data frame.

        Args:
            first: the first step.
            last: the last one; None for the last that was taken.
            density: with density, intervals and correlations (NaN: too noisy to say).

        Returns:
            Columns t, "mean:speed", "standard_error:mean:speed" and so on, as wide CSV has them. Any library
            that takes ``__arrow_c_stream__`` reads it.

        Raises:
            ValueError: steps that were not taken, or what is released has no density.
            LedgerError: as `release`.
        """
        import pyarrow as arrow

        with self._lock:
            run = self._open_run()
            last = self.t if last is None else last
            if not 1 <= first <= last <= self.t:
                raise ValueError(f"t (steps) must be within 1..{self.t}; got {first}..{last}.")
            renderer, releases = Renderer(run.plan, density), run.state.releases(first - 1, last)
            steps = {"t": renderer.steps(releases).tolist()}
            return arrow.table({**steps, **wide_columns(renderer, releases)})

    def statement(self) -> PrivacyStatement:
        """The operator's privacy statement as of now, also written into the directory; see its `public`."""
        with self._lock:
            return self._open_run().conclude()

    def counts(self) -> dict[str, int]:
        """How many rows were taken, clipped and counted as zeros: for the operator, *not* to be published."""
        return self._run.position.counts()

    def _open_run(self) -> StreamRun:
        ended = self._ended
        if os.getpid() != self._process:
            ended = "belongs to the process that opened it, of which this one is a fork"
        if ended is not None:
            raise LedgerError(f"the stream in {self._path} {ended}. Open it again with the same settings.")
        self._run.state.right.require()
        return self._run

    def _release(self, t: int) -> PrivateRelease:
        fields = self._renderer.fields(self._run.releases(t - 1, t))
        return PrivateRelease.from_dict(
            {name: column[0] for name, column in fields.items()}, self._renderer.norm_bound
        )


_CLOSED: Final = "is closed"


def _norm_bound(given: float | None, schema: Schema | None, columns: Sequence[str] | None) -> float:
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, Real):
            raise ValueError(f"zeta (norm_bound) must be a number; got {given!r}.")
        return given
    if schema is None:
        raise ValueError("zeta (norm_bound) must be given without a schema; got none.")
    return schema.encoding(columns).norm_bound


def _let_go(kept: ExitStack, process: int) -> None:
    """Close what a stream holds, in its own process."""
    if os.getpid() == process:
        kept.close()
