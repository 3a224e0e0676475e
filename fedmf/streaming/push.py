"""A private stream for a service: push a row, get the release of its step, exactly once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast, final

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import HorizonExceededError
from fedmf.factorization import Factorization
from fedmf.participation import Adjacency
from fedmf.streaming.outputs import Renderer
from fedmf.streaming.rows import InputError, Layout, PushedRow
from fedmf.streaming.run import Handling, StreamRun
from fedmf.streaming.session import open_pushed
from fedmf.streaming.settings import DEFAULT_MECHANISM, Settings
from fedmf.streaming.state import PushFile, StateError
from fedmf.typing import Array

__all__ = ["PrivateRelease", "PrivateStream"]

_PUSHES: Final = "pushes.bin"
#: As of JSON lines {"x": [0.1, 0.2], "user": "ann"}.
_ROW, _USER = "x", "user"


@dataclass(frozen=True, eq=False)
class PrivateRelease:
    """What one step releases; everything in it is private and may be published.

    Args:
        t: the step, 1 for the first.
        first: Y_t, shape (d,), units of a row.
        second: S_t: shape (d, d) for the full second moment, (size,) otherwise; squared units.
        mean: Y_t over the sum of the weights that the workload gives the rows; Y_t for running averages.
        covariance: of the rows with those weights, unbiased; (d, d) or the diagonal (d,). None where the two
            moments have different workloads or the second does not hold all squares.
        standard_error: √Var of each coordinate of `first`, τ₁·‖(A₁C₁⁻¹)_t‖: of the noise alone.
    """

    t: int
    first: Array
    second: Array
    mean: Array
    covariance: Array | None
    standard_error: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the fields of a line of `fedmf stream`."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()
        }


@final
class PrivateStream:
    """Private running moments of the rows that are pushed; durable, each row once.

    The state directory is that of ``fedmf stream --state``. The same call goes on after any end, kill -9
    included. Use it as a context manager; at its end the privacy statement is written into the directory.

    Args:
        path: of the state directory; absent or empty for a new stream.
        epsilon: ε.
        delta: δ.
        norm_bound: ζ, the largest norm of a row; longer ones are scaled to it.
        dimension: d, numbers of a row; public.
        rounds: n, the most rows there will be; None for a stream without a horizon.
        max_participations: k, the most rows of one user; 1 by default, and to be given without a horizon,
            where it is what one user gives in all time.
        min_separation: b, the least number of steps between two rows of a user; must be given with k > 1.
        workloads: A₁ and A₂ by name, or one for both: "average", "prefix", "exponential:0.9", "window:100", …
        second: "full", "diagonal", "energy", or sizes of blocks.
        adjacency: "zero-out" or "replace-one".
        method: "jme", "ime", "cs" or "pp".
        mechanisms: C₁ and C₂, or one for both, by name or as factorizations.
        bands: p, for mechanisms that take it.
        params: other parameters of mechanisms.
        weight: how the method divides noise between the moments.
        seed: for a public key: reproducible and *not private*.
        handling: of rows that cannot be read, a zero vector by default; free to change.
        restored: go on from a backup although this machine knows of later steps, which count as spent.

    Raises:
        StateError: the directory is another stream's, in use by another process, or behind what this machine
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
        norm_bound: float,
        dimension: int,
        rounds: int | None = None,
        max_participations: int | None = None,
        min_separation: int | None = None,
        workloads: str | tuple[str, ...] = "average",
        second: str = "full",
        adjacency: Adjacency = "zero-out",
        method: str = "jme",
        mechanisms: str | Factorization | tuple[str | Factorization, ...] = DEFAULT_MECHANISM,
        bands: int | None = None,
        params: Mapping[str, float] | None = None,
        weight: float | None = None,
        seed: int | None = None,
        handling: Handling | None = None,
        restored: bool = False,
    ) -> None:
        settings = Settings(
            norm_bound=norm_bound,
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            user_column=_USER,
            max_participations=max_participations,
            min_separation=min_separation,
            workloads=workloads if isinstance(workloads, tuple) else (workloads,),
            method=method,
            mechanisms=mechanisms if isinstance(mechanisms, tuple) else (mechanisms,),
            bands=bands,
            params=dict(params or {}),
            second=second,
            weight=weight,
            adjacency=adjacency,
            seed=seed,
            unbounded=rounds is None,
        )
        layout = Layout((_ROW,), True, dimension, _USER)
        self._path, self._lock, self._process = Path(path), threading.Lock(), os.getpid()
        #: Why nothing more can be pushed.
        self._ended: str | None = None
        with ExitStack() as kept:
            self._run = run = kept.enter_context(
                open_pushed(self._path, settings, layout, handling, restored)
            )
            pushes = PushFile(self._path / _PUSHES, run.position.step, run.state.digest_key)
            self._pushes = kept.enter_context(pushes)
            self._renderer = Renderer(run.plan)
            self._kept = kept.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the statement and let another process have the directory."""
        with self._lock:
            if self._ended == _CLOSED or os.getpid() != self._process:
                return
            whole, self._ended = self._ended is None, _CLOSED
            with self._kept:
                if whole:
                    self._run.conclude()

    @property
    def t(self) -> int:
        """Steps taken: rows whose release is durable."""
        return self._run.position.step

    def push(self, row: Iterable[float], user: str, key: str | None = None) -> PrivateRelease:
        """Let a row take the next step.

        Args:
            row: d numbers. One that cannot be read (not a number, NaN, another length) takes its step as a
                zero vector, as a refusal would tell what it held; `Handling.stop_at_faulty` refuses it.
            user: whose it is.
            key: names the row among all of the stream, so that it may be pushed again when it is not known
                whether it took its step: then its release is told again, and nothing is spent. Rows without
                one are new each time.

        Raises:
            ParticipationViolation: the user gave k rows already, or one less than b steps ago.
            HorizonExceededError: all n steps were taken.
            ValueError: a user or key that is none, a key that another row had, or an unreadable row that is
                refused.
            StateError: the stream is closed, or an earlier push was interrupted; open it again.
        """
        _require_name("user", user)
        if key is not None:
            _require_name("key (of the row)", key)
        with self._lock:
            run = self._open_run()
            pushed = PushedRow(run.plan.layout, run.position.row + 1, row, user)
            digest, content = self._pushes.digest(key), pushed.content()
            if (before := self._pushes.step_of(digest)) is not None:
                if not self._pushes.holds(before, digest, content):
                    raise ValueError(
                        f"key (of the row) must be new for a new row; got {key!r}, that of step {before} "
                        "with another row or user."
                    )
                return self._release(before)
            if run.done:
                raise HorizonExceededError(
                    f"t (step) must be at most n (rounds) = {run.plan.rounds}; all steps were taken."
                )
            step = run.position.step + 1
            run.users.check(step, run.users.keys([user])[0])
            try:
                self._pushes.write(step, digest, content)
                run.feed(pushed)
                self._pushes.committed(digest, step)
                return self._release(step)
            except InputError:  # refused before anything changed
                raise
            except BaseException:
                self._ended = "was interrupted while it took a step"
                raise

    def release(self, t: int) -> PrivateRelease:
        """The release of a step that was taken, again.

        Raises:
            ValueError: it was not taken.
            StateError: the stream is closed, or the file does not hold what was committed.
        """
        with self._lock:
            self._open_run()
            if not 1 <= t <= self.t:
                raise ValueError(f"t (step) must be from 1 to {self.t}, those that were taken; got {t}.")
            return self._release(t)

    def statement(self) -> dict[str, Any]:
        """The privacy statement as of now, also written into the directory; fit to be published."""
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
            raise StateError(f"the stream in {self._path} {ended}. Open it again with the same settings.")
        return self._run

    def _release(self, t: int) -> PrivateRelease:
        fields = self._renderer.fields(self._run.state.releases(t - 1, t))
        values: dict[str, NDArray[Any] | None] = {"covariance": None}
        values |= {name: column[0] for name, column in fields.items()}
        numbers = {"t": t, "standard_error": float(fields["standard_error"][0])}
        return PrivateRelease(**cast("dict[str, Any]", {**values, **numbers}))


_CLOSED: Final = "is closed"


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what} must be text that is not empty; got {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can hold; got {name!r}.") from None
