"""Private aggregation for any training program.

The program brings the updates of users; `PrivateAggregator` clips, sums and noises them, takes the
server's step and commits the round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.cohorts import Cohorts
from fedmf.data import PublicInput
from fedmf.errors import ConfigError
from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.optim import ChosenOptimizer, ServerOptimizer, Sgd
from fedmf.runs.directory import LEDGER, RunDirectory, read_header
from fedmf.runs.loop import Reply
from fedmf.runs.model_layout import Arrays, ModelLayout, as_array
from fedmf.runs.run import Execution, MechanismConfig, Run
from fedmf.runs.run_plan import plan_of
from fedmf.runs.session import Session, created, require_same
from fedmf.runs.statistics import ClientMetric, FixedClipping, QuantileClipping, Statistic
from fedmf.runs.tasks import TaskSource
from fedmf.statements.privacy import UserLevel
from fedmf.statements.statement import PrivacyStatement
from fedmf.training import LocalSGD, Task, UserFailure

_MEAN: Final = Sgd(learning_rate=1.0, momentum=0.0)
_LONGEST_REASON: Final = 200
#: Fields of `Execution` that change such a run; the others are fixed, and no table shows them.
_READ: Final = frozenset(
    {"messages", "handshake_timeout", "evaluate_every", "checkpoint_every", "keep_releases"}
)


@dataclass(frozen=True, eq=False)
class ExternalTask(TaskSource):
    """The task of a program that brings updates, or of a Flower app; the server does not know it.

    Args:
        layout: the arrays of the model.
        user_list: ids of all users in their order.
        identity: how users are distinguished, in words.
    """

    layout: ModelLayout
    user_list: Sequence[str]
    identity: str = "ids that the program gives"
    kind: ClassVar[str] = "aggregator"
    #: Its name in records, the sources of its users and model, and the class that continues it.
    label: ClassVar[str] = "updates that a program brings"
    users_from: ClassVar[str] = "argument users"
    model_from: ClassVar[str] = "argument model"
    continued_by: ClassVar[str] = "PrivateAggregator"
    #: Users train with code of their own.
    ignored_keys: ClassVar[Mapping[str, Collection[str]]] = {
        "client": {each.name for each in dataclasses.fields(LocalSGD)},
        "execution": {each.name for each in dataclasses.fields(Execution)} - _READ,
    }

    @property
    def users(self) -> int:
        """N."""
        return len(self.user_list)

    def build(self) -> Task:
        """Raise an error, because the server does not know the task.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"only the training program knows the task ({self.label}); continue it with"
            f" {self.continued_by}."
        )

    @property
    def seed(self) -> int:
        """The seed of cohorts."""
        return 0

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """Users, their ids, and the structure of the model."""
        arrays = f"{len(self.layout.names)} arrays, {self.layout.dimension} numbers trained"
        constants = ", ".join(sorted(self.layout.constants)) or "none"
        return (
            PublicInput("users", str(self.users), self.users_from),
            PublicInput("user ids", self.identity, "the app"),
            PublicInput("model", arrays, self.model_from),
            PublicInput("arrays that stay", constants, "named frozen, or of integers"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The record of the task: its kind, and digests of users and model."""
        ids = "".join(f"{user}\0" for user in self.user_list)
        return {
            "kind": self.kind,
            "name": self.label,
            "users": self.users,
            "user_list": hashlib.sha256(ids.encode()).hexdigest(),
            "identity": self.identity,
            "arrays": self.layout.fingerprint(),
        }


def session_of(path: Path, run: Run, initial: Tensor) -> Session:
    """Start a run with a task that only the training program knows, or continue the existing one.

    Args:
        path: the run directory.
        run: the run, with an `ExternalTask`.
        initial: θ_0, shape (d,).

    Raises:
        ConfigError: the place holds another run.
        LedgerError: a damaged ledger, or another process is running it.
    """
    task = run.task_source
    assert isinstance(task, ExternalTask)
    arrays = tuple(task.layout.trained_shapes)
    optimizer = run.optimizer_source.build([shape for _, shape in arrays], run.cohorts.rounds)
    if (path / LEDGER).is_file():
        require_same(path, read_header(path).run, run)
        directory = RunDirectory.open(path)
    else:
        layout = task.layout
        plan = plan_of(run, optimizer, layout.dimension)
        directory = created(path, run, plan, task.user_list, layout.save, arrays=arrays)
    with contextlib.ExitStack() as on_error:
        on_error.enter_context(directory)
        session = Session(run, directory, optimizer, initial.float(), task.user_list)
        session.evaluate()  # a process may have died between a round and its row of metrics
        on_error.pop_all()
    return session


def checked_users(users: Sequence[str]) -> list[str]:
    """Return the ids of users as a list.

    Raises:
        ConfigError: they are not strings, or not different.
    """
    names = list(users)
    if isinstance(users, str) or not all(isinstance(user, str) and user for user in names):
        raise ConfigError(f"users must be a sequence of ids, each a string; got {users!r:.80}.")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ConfigError(f"users must name each user once; got {twice!r:.80} more than once.")
    return names


class PrivateAggregator:
    """User-level differential privacy for any training program, without Flower.

    In each round, the program asks for the cohort (`cohort`), adds the update of each user (`add`),
    and gets the next model (`release`). The updates are clipped together over all trained arrays,
    summed exactly, divided by the planned users of a round and noised; the round is committed
    before `release` returns.

    Args:
        privacy: ε and δ for all rounds together, and the clip norm ζ: the largest ℓ₂ norm of one
            user's update; a public noise seed makes a simulation that anyone can undo.
        cohorts: n, the horizon, m, the number of users per round, and the schedule.
        users: stable ids of all N users, in a fixed order.
        run_dir: directory of ledger, key and statement; an existing run is continued.
        mechanism: name of a mechanism, or a factorization.
        server_optimizer: rule of the server; by default the noisy mean is added to the model.
        clipping: `fedmf.QuantileClipping` lets ζ follow a quantile of norms.
        extra_releases: values of `fedmf.runs.Statistic` that are released under the same ε, such as
            `fedmf.ClientMetric`.
        frozen: arrays that are neither trained nor noised: names, or patterns.
        tied: whether equal arrays are one array with several names; None raises an error if there
            are any.

    Raises:
        ConfigError: values that do not fit together.

    Guarantees:
        Any update of one user (wrong shapes, NaN, huge values) changes that user's own contribution
        and nothing else. A process that dies leaves a directory that the same calls continue: what
        was released counts, and no row of noise is used twice.
    """

    def __init__(
        self,
        privacy: UserLevel,
        cohorts: Cohorts,
        *,
        users: Sequence[str],
        run_dir: str | Path,
        mechanism: str | Factorization | MechanismChoice | MechanismConfig = "banded-toeplitz",
        server_optimizer: ChosenOptimizer | ServerOptimizer = _MEAN,
        clipping: FixedClipping | QuantileClipping | None = None,
        extra_releases: Sequence[Statistic] = (),
        frozen: Sequence[str] = (),
        tied: bool | None = None,
    ) -> None:
        self._users = checked_users(users)
        self._values: dict[str, Any] = {
            "privacy": privacy,
            "cohorts": cohorts,
            "mechanism": mechanism,
            "server": server_optimizer,
            "execution": Execution(messages="one-user", checkpoint_every=1),
            "clipping": clipping or FixedClipping(),
            "extra_releases": tuple(extra_releases),
        }
        self._frozen = tuple(frozen)
        self._tied = tied
        any_layout = ModelLayout(("model",), ((1,),), ("float32",), {})
        self._run(any_layout)  # to check everything that needs no model
        self.run_dir = Path(run_dir).expanduser().resolve()
        self._lock = threading.Lock()
        self._session: Session | None = None

    def _run(self, layout: ModelLayout) -> Run:
        return Run(task=ExternalTask(layout, self._users), **self._values)

    def begin(self, model: Arrays) -> Self:
        """Plan the run and create its directory, or continue an existing one.

        Args:
            model: the initial arrays by name; if the run is continued, their names, shapes and
                types and the constant arrays must be as before.

        Raises:
            ConfigError: a model that cannot be trained, another run in the place, or a place that
                cannot be used; nothing is left there.
            LedgerError: a damaged ledger, or another process is running it.
        """
        if self._session is not None:
            raise ConfigError("begin must be called only once; the run is already open.")
        arrays = {name: as_array(name, value) for name, value in model.items()}
        self._layout = ModelLayout.of_arrays(arrays, self._frozen, self._tied)
        initial = self._layout.flat_of(arrays)
        self._session = session_of(self.run_dir, self._run(self._layout), initial)
        self._begin_round()
        return self

    def _begin_round(self) -> None:
        self._cohort: list[str] | None = None
        self._connected = set[str]()
        self._total: ClippedSum = self._open.server.new_sum()
        self._added = list[str]()
        self._failures = list[UserFailure]()
        self._round = self.t

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write reports, drop the updates of the coming round, and release the run directory.

        Raises:
            ConfigError: the disk failed when the reports were written; the run is closed anyway.
        """
        session = self._session
        self._session = None
        if session is not None:
            try:
                session.write_reports()
            finally:
                session.close()

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise ConfigError("begin(model) must be called first.")
        return self._session

    @property
    def t(self) -> int:
        """The index of the coming round, from 0; as many rounds were released."""
        return self._open.server.t

    @property
    def model(self) -> dict[str, NDArray[Any]]:
        """The model after the released rounds: all arrays by name, each of its own type."""
        return self._layout.arrays(self._open.server.parameters)

    @property
    def metrics(self) -> Mapping[int, Mapping[str, Any]]:
        """ε so far and the released statistics, by the number of released rounds."""
        return self._open.metrics

    def statement(self) -> PrivacyStatement:
        """The guarantee and the releases so far."""
        return self._open.statement()

    def cohort(self, t: int, connected: Collection[str] | None = None) -> list[str]:
        """The users to train in round t, on `model`; the same at each call.

        Args:
            t: the coming round, from 0.
            connected: with `AvailableCohorts`, and only then, the users who are connected now.
                Until a user is added, each call samples the cohort anew. It is empty if k and b
                admit none of them.

        Raises:
            ConfigError: t is not the coming round, or ``connected`` is not as described.
        """
        with self._lock:
            return list(self._cohort_of(t, connected))

    def _cohort_of(self, t: int, connected: Collection[str] | None = None) -> list[str]:
        if not t == self.t == self._round:  # _round lags behind after an interruption
            raise ConfigError(f"t must be the next round, {self.t}, of an open run; got {t!r}.")
        if self._cohort is None or (connected is not None and not self._added):
            horizon = self._open.server.horizon
            if t >= horizon:
                raise ConfigError(f"t must be below the number of rounds, {horizon}; got {t}.")
            self._cohort = list(self._open.cohort(t, self._presence(connected)).values())
        return self._cohort

    def _presence(
        self, connected: Collection[str] | None
    ) -> Callable[[NDArray[np.int64]], list[bool]] | None:
        """Return which users, by index, are connected; None for cohorts that do not ask it."""
        if (connected is not None) != self._values["cohorts"].is_order:
            raise ConfigError(
                "connected (of cohort) must be the ids of the connected users with"
                f" AvailableCohorts, and be omitted with other cohorts; got {connected!r:.80}."
            )
        if connected is None:
            return None
        there = set(connected)
        for stranger in there.difference(self._users):
            raise ConfigError(f"connected must hold ids among users; got {stranger!r:.80}.")
        self._connected = there
        return lambda users: [self._users[user] in there for user in users]

    def add(
        self, user: str, update: Arrays, metrics: Mapping[str, float] | None = None
    ) -> str | None:
        """Clip the update of a user of the cohort and add it to the round's sum.

        Args:
            user: one of the cohort who was not added yet.
            update: trained minus received arrays, by name; other arrays are ignored.
            metrics: the user's numbers for the `fedmf.ClientMetric` among the extra releases, by
                metric.

        Returns:
            None, or in one line why the user's contribution, or a metric, is zero: a wrong shape or
            type, NaN.
            The reason is recorded for the operator. It depends on data: show it to no one else.

        Raises:
            ConfigError: a user outside the cohort, or one who was added already; nothing is added.
        """
        with self._lock:
            if user not in self._cohort_of(self.t) or user in self._added:
                raise ConfigError(
                    f"user must be one of cohort({self.t}) who was not added yet; got {user!r}."
                )
            self._added.append(user)
            try:
                payload: Tensor | str = self._layout.row(update)[None]
            except Exception as error:  # a user's arrays may raise anything
                payload = (str(error) or type(error).__name__)[:_LONGEST_REASON]
            reply = Reply((user,), payload, reported=self._reported(metrics or {}))
            failures = reply.add_to(self._total)
            self._failures += failures
            for failure in failures:
                return failure.reason
            return None

    def _reported(self, metrics: Mapping[str, float]) -> dict[str, NDArray[np.float64]]:
        """A user's numbers for the client metrics of the run, NaN for what is no number."""
        reported = dict[str, NDArray[np.float64]]()
        for metric in self._values["extra_releases"]:
            if isinstance(metric, ClientMetric):
                number = math.nan
                with contextlib.suppress(Exception):  # a user's values may raise anything
                    number = float(metrics[metric.metric])
                reported[metric.name] = np.array([number])
        return reported

    def release(self) -> dict[str, NDArray[Any]]:
        """Release the round: noise, server rule, commit. Users who were not added count as zeros.

        The guaranteed ε counts every round. The ledger records a round only for the users who were
        added: it counts neither toward k nor in the spent ε of the others, and b lets them take
        part in the next one. This is sound because zeros reveal nothing about them, as long as
        nobody's data determine whether that user answers. If nobody was added, a warning says so.

        Returns:
            `model`.

        Raises:
            ConfigError: with `AvailableCohorts`, k and b admit none of the connected users, but
                others. Nothing is released.
            HorizonExceededError: no round may be released any more.
            LedgerError: the disk failed, now or before. Close and begin again.
        """
        with self._lock:
            session = self._open
            t = self.t
            if t < session.server.horizon and not self._cohort_of(t) and session.cohort(t):
                raise ConfigError(
                    f"round {t + 1}: users who may take part must be connected; got"
                    f" {len(self._connected)} connected,"
                    f" {session.admitted_in_words(t, self._connected)}. Nothing is released or"
                    " spent. Call cohort(t, connected=...) again when others are connected."
                )
            session.server.release(self._total, self._added)
            failures = self._failures
            present = len(self._added)
            self._begin_round()
            session.note_failures(t, failures, present)
            session.evaluate()
        return self.model
