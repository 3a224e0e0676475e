"""Private aggregation for any program: it brings updates, this clips, sums, noises, steps and commits.

Runs whose users are trained elsewhere, by such a program or by the clients of a Flower app, know a model as
its arrays: what is trained, and what stays (`ModelLayout`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.accounting import UserLevel
from fedmf.cohorts import Cohorts
from fedmf.data import PublicInput
from fedmf.errors import ConfigError
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.mechanisms.matrix import Factorization
from fedmf.optim import ChosenOptimizer, ServerOptimizer, Sgd
from fedmf.records.statement import PrivacyStatement
from fedmf.runs.directory import LEDGER, RunDirectory, read_header
from fedmf.runs.execution import Execution
from fedmf.runs.loop import Reply
from fedmf.runs.mechanism import NoiseMechanism
from fedmf.runs.plan import Plan
from fedmf.runs.released_model import WholeModel
from fedmf.runs.run import Run, difference
from fedmf.runs.session import Session, new_directory
from fedmf.runs.statistics import FixedClipping, QuantileClipping, Statistic
from fedmf.training import FixedPointSum, LocalSGD, Task, UserFailure

#: By the names of the model's arrays: arrays of NumPy or torch.
Arrays = Mapping[str, Any]

FLOATS: Final = ("float16", "float32", "float64")
EXACT: Final = (*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "bool")
#: Names under which torch's normalisation layers keep statistics of the data they saw.
_STATISTICS: Final = re.compile(r"(^|\.)running_(mean|var)$")
_MEAN: Final = Sgd(learning_rate=1.0, momentum=0.0)
_LONGEST_REASON: Final = 200


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """Names, shapes and types of a model's arrays, in their order.

    Arrays of a floating type are trained, clipped together and noised, unless they are named as frozen.
    Frozen arrays and those of integers (such as counters of batches) stay what they were at the start;
    what users send for them is not looked at.

    Args:
        names: of all arrays.
        shapes: of each.
        dtypes: of each, as NumPy calls them.
        kept: the values of arrays that stay, by name.
        tied: of an array that is another one under a second name, that other one's: it is trained, clipped
            and noised once and handed out under both; what users send under the second is not looked at.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    kept: Mapping[str, NDArray[Any]]
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        frozen: Sequence[str] = (),
        tied: Sequence[Sequence[str]] | None = None,
    ) -> Self:
        """That of a model.

        Args:
            arrays: by name.
            frozen: names of arrays that stay, or patterns of names.
            tied: groups of names that are one array each; None where nobody said whether there are any.

        Raises:
            ConfigError: nothing to train, another type, a name that is frozen and not there, arrays that may
                be one under two names, or statistics of normalisation layers that are not frozen: they are
                no gradients, and noise may make them negative.
        """
        stays = _matching(arrays, frozen)
        for name, array in arrays.items():
            check_type(name, array.dtype.name)
        _refuse_statistics(arrays, stays)
        stays |= {name for name, array in arrays.items() if array.dtype.name in EXACT}
        trained = {name: array for name, array in arrays.items() if name not in stays}
        if not trained:
            raise ConfigError(
                "arrays must hold at least one of a floating type that is not frozen; got none."
            )
        if tied is None:
            _ask_about_ties(trained)
        for name, array in trained.items():
            with np.errstate(over="ignore"):
                if not np.isfinite(array.astype(np.float32)).all():
                    raise ConfigError(
                        f"arrays must be finite in float32, in which models are kept; got {name!r} with NaN, "
                        "infinity or numbers above 3e38."
                    )
        return cls(
            tuple(arrays),
            tuple(array.shape for array in arrays.values()),
            tuple(array.dtype.name for array in arrays.values()),
            {name: arrays[name].copy() for name in arrays if name in stays},
            _ties(trained, tied or ()),
        )

    @cached_property
    def trained(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each array that is trained, in the order of the flat vector."""
        rows = zip(self.names, self.shapes, self.dtypes, strict=True)
        return [row for row in rows if row[0] not in self.kept and row[0] not in self.tied]

    @property
    def dimension(self) -> int:
        """d, how many numbers are trained."""
        return sum(int(np.prod(shape, dtype=np.int64)) for _, shape, _ in self.trained)

    @cached_property
    def number(self) -> np.dtype[Any]:
        """In what users' numbers are clipped: float32 where all of the model are, else float64."""
        narrow = all(dtype == "float32" for _, _, dtype in self.trained)
        return np.dtype(np.float32 if narrow else np.float64)

    def flat_of(self, arrays: Mapping[str, NDArray[Any]], number: Any = np.float64) -> Tensor:
        """The trained numbers one array after the other, shape (d,), of this type."""
        parts = [arrays[name].reshape(-1) for name, _, _ in self.trained]
        return torch.from_numpy(np.concatenate(parts, dtype=number, casting="unsafe"))

    def trained_arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        """The trained arrays alone, each of its own type."""
        values, made, start = flat.detach().cpu().numpy(), dict[str, NDArray[Any]](), 0
        for name, shape, dtype in self.trained:
            length = int(np.prod(shape, dtype=np.int64))
            made[name] = values[start : start + length].reshape(shape).astype(dtype)
            start += length
        return made

    def arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        """A model's arrays, all of them, each of its own type."""
        trained = self.trained_arrays(flat)
        return {
            name: self.kept[name].copy() if name in self.kept else trained[self.tied.get(name, name)]
            for name in self.names
        }

    @property
    def whole(self) -> WholeModel:
        """What a run keeps of it."""
        return WholeModel(self.names, self.shapes, self.dtypes, self.kept, self.tied)


def check_type(name: str, dtype: str) -> None:
    """Refuse an array that is neither trained nor kept.

    Raises:
        ConfigError: another type than floats up to 64 bits, integers and Booleans.
    """
    if dtype not in (*FLOATS, *EXACT):
        raise ConfigError(
            f"array {name!r} must be of a floating type up to 64 bits or of integers; got {dtype}."
        )


def _matching(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """The names that are given, or match a pattern."""
    chosen = set[str]()
    for pattern in patterns:
        matching = {pattern} if pattern in names else {name for name in names if fnmatchcase(name, pattern)}
        if not matching:
            raise ConfigError(f"frozen must name arrays of the model; got {pattern!r}, which matches none.")
        chosen |= matching
    return chosen


def _refuse_statistics(arrays: Mapping[str, NDArray[Any]], frozen: Collection[str]) -> None:
    """Refuse statistics of normalisation layers, known by their names; in a list of arrays without names, by
    a mean and a variance of one shape before a count of batches, or fresh ones after scale and shift."""
    found = [name for name in arrays if _STATISTICS.search(name)]
    rows = [(name, array) for name, array in arrays.items() if name.isdecimal()]
    for place in range(2, len(rows)):
        four = [array for _, array in rows[max(0, place - 3) : place + 1]]
        (mean, a), (variance, b) = rows[place - 1 : place + 1]
        if a.ndim == 1 and a.shape == b.shape and a.dtype.name in FLOATS:
            following = rows[place + 1][1] if place + 1 < len(rows) else a
            counted = not following.shape and following.dtype.name in EXACT
            fresh = {array.shape for array in four} == {a.shape}
            if counted or (fresh and [_constant(array) for array in four] == [1.0, 0.0, 0.0, 1.0]):
                found += [mean, variance]
    if found := [name for name in found if name not in frozen]:
        raise ConfigError(
            f"arrays {', '.join(map(repr, found))} hold statistics of a normalisation layer, which mix "
            "users' examples and are no gradient: use GroupNorm or LayerNorm, or name them in frozen."
        )


def _constant(values: NDArray[Any]) -> float | None:
    """The one number that all entries are; None if they differ."""
    return float(values.flat[0]) if values.size and bool((values == values.flat[0]).all()) else None


def _ask_about_ties(trained: Mapping[str, NDArray[Any]]) -> None:
    """Refuse equal arrays that are not constant: whether they are one, only who made the model knows."""
    first = dict[bytes, str]()
    for name, array in trained.items():
        if _constant(array) is not None:
            continue
        other = first.setdefault(hashlib.sha256(np.ascontiguousarray(array).data).digest(), name)
        if other != name and np.array_equal(array, trained[other]):
            raise ConfigError(
                f"arrays {other!r} and {name!r} hold the same numbers: are they one array, tied? Say "
                f"tied=[({other!r}, {name!r})] if so, and tied=[] if they are two."
            )


def _ties(trained: Mapping[str, NDArray[Any]], tied: Sequence[Sequence[str]]) -> dict[str, str]:
    """Of each further name of an array, the first."""
    others = dict[str, str]()
    for group in tied:
        if isinstance(group, str) or len(group) < 2:
            raise ConfigError(f"tied must be groups of two or more names of arrays; got {group!r}.")
        for name in group:
            if name not in trained or name in others or name in others.values():
                raise ConfigError(
                    f"tied must name arrays of the model that are trained, each once; got {name!r}."
                )
        first, *rest = sorted(group, key=list(trained).index)
        for name in rest:
            if not np.array_equal(trained[name], trained[first]):
                raise ConfigError(f"tied arrays must be equal; {first!r} and {name!r} differ.")
        others |= dict.fromkeys(rest, first)
    return others


#: What of `Execution` changes what such a run does; the rest is what it must be, and no table shows it.
_READ: Final = frozenset({"messages", "handshake_timeout", "evaluate_every", "checkpoint_every"})


@dataclass(frozen=True, eq=False)
class TaskElsewhere:
    """The task of a program that brings updates, or of a Flower app, which the server does not know.

    Args:
        layout: of the model's arrays.
        user_list: ids of all users in their order.
        identity: how users are told apart, in words.
    """

    layout: ModelLayout
    user_list: Sequence[str]
    identity: str = "ids that the program gives"
    kind: ClassVar[str] = "aggregator"
    #: What statements call it, where its users and its model come from, and who continues it.
    called: ClassVar[str] = "updates that a program brings"
    users_from: ClassVar[str] = "argument users"
    model_from: ClassVar[str] = "argument model"
    continued_by: ClassVar[str] = "PrivateAggregator"
    #: Training is the users' own.
    unread: ClassVar[Mapping[str, Collection[str]]] = {
        "client": {each.name for each in dataclasses.fields(LocalSGD)},
        "execution": {each.name for each in dataclasses.fields(Execution)} - _READ,
    }

    @property
    def users(self) -> int:
        """N."""
        return len(self.user_list)

    def build(self) -> Task:
        """There is none on the server.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"the task is known to whoever trains ({self.called}); continue it with {self.continued_by}."
        )

    @property
    def unit(self) -> str:
        """Clients are users."""
        return "user"

    @property
    def seed(self) -> int:
        """Of cohorts."""
        return 0

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `TaskSource.public_inputs`."""
        arrays = f"{len(self.layout.names)} arrays, {self.layout.dimension} numbers trained"
        kept = ", ".join(sorted(self.layout.kept)) or "none"
        return (
            PublicInput("users", str(self.users), self.users_from),
            PublicInput("user ids", self.identity, "the app"),
            PublicInput("model", arrays, self.model_from),
            PublicInput("arrays that stay", kept, "named frozen, or of integers"),
        )

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps."""
        return {
            "kind": self.kind,
            "name": self.called,
            "users": self.users,
            "user_list": user_list_digest(self.user_list),
            "identity": self.identity,
            "arrays": self.layout.whole.fingerprint(),
        }


def user_list_digest(user_list: Sequence[str]) -> str:
    """SHA-256 of all user ids in order, each ended by a NUL.

    >>> user_list_digest(["ab", "c"]) == user_list_digest(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for user in user_list:
        digest.update(f"{user}\0".encode())
    return digest.hexdigest()


def session_of(path: Path, run: Run, initial: Tensor) -> Session:
    """Begin a run whose task only those know who train, or go on with the one that is there.

    Args:
        path: its directory.
        run: what to run, with a `TaskElsewhere`.
        initial: θ_0, shape (d,).

    Raises:
        ConfigError: the place holds another run.
        LedgerError: a damaged ledger, or another process is running it.
    """
    task = run.task_source
    assert isinstance(task, TaskElsewhere)
    arrays = tuple((name, shape) for name, shape, _ in task.layout.trained)
    optimizer = run.optimizer_source.build([shape for _, shape in arrays], run.cohorts.rounds)
    if (path / LEDGER).is_file():
        other = difference(read_header(path).run, run.to_dict())
        if other is not None:
            raise ConfigError(f"{path} holds another run: {other}. Continue it with its own values.")
        directory = RunDirectory.open(path)
    else:
        plan, whole = Plan.of(run, optimizer, initial.numel()), task.layout.whole
        model = {"dimension": initial.numel(), "arrays": arrays, "save_whole": whole.save}
        directory = new_directory(path, run, plan, task.user_list, **model)
    with contextlib.ExitStack() as held:
        held.enter_context(directory)
        session = Session(run, directory, optimizer, initial.float(), task.user_list)
        session.evaluate()  # a process may have died between a round and its row
        held.pop_all()
    return session


class PrivateAggregator:
    """User-level differential privacy for any program that trains users: no Flower, no messages, no loop.

    In each round the program asks whom to train (`cohort`), brings what each of them changed (`add`), and
    gets the next model (`release`). The updates are clipped together over all trained arrays, summed exactly,
    divided by the planned users of a round and noised; the round is committed before `release` returns.

    Args:
        privacy: ε and δ for all rounds together, and the clip norm ζ: the largest ℓ₂ norm of one user's
            update; a public noise seed makes a simulation that anyone can undo.
        cohorts: n, the most rounds there will ever be, m, how many users are asked in a round, and who.
        users: stable ids of all N users, in an order that stays.
        run_dir: where ledger, key and statement are; a run that is there is continued.
        mechanism: name of a mechanism, or a factorization.
        server_optimizer: rule of the server; by default the noisy mean is added to the model.
        clipping: `fedmf.QuantileClipping` lets ζ follow a quantile of norms.
        extra_releases: statistics such as `fedmf.CustomStatistic` that are released under the same ε.
        frozen: arrays that are neither trained nor noised: names, or patterns.
        tied: groups of names under which one array stands; None asks if equal arrays are one.

    Raises:
        ConfigError: values that do not fit together.

    Guarantees:
        Whatever one user's update is (wrong shapes, NaN, huge), it changes that user's own contribution and
        nothing else. A process that dies leaves a directory that the same calls continue: what was released
        counts, and no row of noise is used twice.
    """

    def __init__(
        self,
        privacy: UserLevel,
        cohorts: Cohorts,
        *,
        users: Sequence[str],
        run_dir: str | Path,
        mechanism: str | Factorization | MechanismChoice | NoiseMechanism = "banded-toeplitz",
        server_optimizer: ChosenOptimizer | ServerOptimizer = _MEAN,
        clipping: FixedClipping | QuantileClipping | None = None,
        extra_releases: Sequence[Statistic] = (),
        frozen: Sequence[str] = (),
        tied: Sequence[Sequence[str]] | None = None,
    ) -> None:
        self._users = list(users)
        if isinstance(users, str) or not all(isinstance(user, str) and user for user in self._users):
            raise ConfigError(f"users must be a sequence of ids, each a string; got {users!r:.80}.")
        if len(set(self._users)) < len(self._users):
            raise ConfigError("users must name each user once.")
        self._values: dict[str, Any] = {
            "privacy": privacy,
            "cohorts": cohorts,
            "mechanism": mechanism,
            "server": server_optimizer,
            "execution": Execution(messages="per-user", users_per_message=1),
            "clipping": clipping or FixedClipping(),
            "extra_releases": tuple(extra_releases),
        }
        self._frozen, self._tied = tuple(frozen), tied
        self._run(ModelLayout(("model",), ((1,),), ("float32",), {}))  # to check what needs no model
        self.run_dir = Path(run_dir).expanduser().resolve()
        self._lock = threading.Lock()
        self._session: Session | None = None

    def _run(self, layout: ModelLayout) -> Run:
        return Run(task=TaskElsewhere(layout, self._users), **self._values)

    def begin(self, model: Arrays) -> Self:
        """Plan the run and make its directory, or open the one that is there where it stopped.

        Args:
            model: the initial arrays by name; also on continuing, where only names, shapes, types and what is
                not trained must be those of before.

        Raises:
            ConfigError: a model that cannot be trained, another run in the place, or a place that cannot be
                used; nothing is left there.
            LedgerError: a damaged ledger, or another process is running it.
        """
        if self._session is not None:
            raise ConfigError("begin must be called once; the run is open.")
        arrays = {name: _array(name, value) for name, value in model.items()}
        self._layout = ModelLayout.of_arrays(arrays, self._frozen, self._tied)
        self._session = session_of(self.run_dir, self._run(self._layout), self._layout.flat_of(arrays))
        self._begin_round()
        return self

    def _begin_round(self) -> None:
        self._cohort: list[str] | None = None
        self._total: FixedPointSum = self._open.server.new_sum()
        self._added, self._failures = list[str](), list[UserFailure]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write reports and let another process continue the run. What was added to the coming round is
        forgotten.

        Raises:
            ConfigError: the disk failed when the reports were written; the run is closed all the same.
        """
        session, self._session = self._session, None
        if session is not None:
            try:
                session.write_reports()
            finally:
                session.directory.close()

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise ConfigError("begin must be called first, with the model.")
        return self._session

    @property
    def t(self) -> int:
        """The coming round, 0-based; as many rounds were released."""
        return self._open.server.t

    @property
    def rounds_left(self) -> int:
        """How many more rounds may be released."""
        return max(0, self._open.server.horizon - self.t)

    @property
    def model(self) -> dict[str, NDArray[Any]]:
        """The model after the rounds released so far, all arrays by name, each of its own type."""
        return self._layout.arrays(self._open.server.parameters)

    @property
    def metrics(self) -> Mapping[int, Mapping[str, Any]]:
        """By number of released rounds: ε so far, and what statistics released."""
        return self._open.metrics

    def statement(self) -> PrivacyStatement:
        """What was promised and what was released so far."""
        return self._open.statement()

    def cohort(self, t: int) -> list[str]:
        """Who is to be trained in round t, on `model`; the same as often as it is asked.

        Raises:
            ConfigError: t is not the coming round.
        """
        with self._lock:
            return list(self._asked(t))

    def _asked(self, t: int) -> list[str]:
        if t != self.t:
            raise ConfigError(f"t must be the coming round, {self.t}; got {t!r}.")
        if self._cohort is None:
            horizon = self._open.server.horizon
            if t >= horizon:
                raise ConfigError(f"t must be below {horizon}, all rounds; got {t}.")
            self._cohort = list(self._open.cohort(t).values())
        return self._cohort

    def add(self, user: str, update: Arrays) -> str | None:
        """Clip what a user of the cohort changed and add it to the round's sum.

        Args:
            user: one of the cohort who was not added yet.
            update: what the user's training changed: trained minus received arrays, by name; others are not
                looked at.

        Returns:
            None, or in one line why the user's contribution is zero: a wrong shape or type, NaN. It is kept
            for the operator. It tells about data: show it to nobody else.

        Raises:
            ConfigError: nobody of the cohort, or somebody for the second time; nothing is added.
        """
        with self._lock:
            if user not in self._asked(self.t) or user in self._added:
                raise ConfigError(
                    f"user must be one of cohort({self.t}) who was not added yet; got {user!r}."
                )
            self._added.append(user)
            try:
                held: Tensor | str = self._row(update)[None]
            except Exception as error:  # whatever a user's arrays may cause
                held = (str(error) or type(error).__name__)[:_LONGEST_REASON]
            failures = Reply((user,), held).add_to(self._total)
            self._failures += failures
            return failures[0].reason if failures else None

    def _row(self, update: Arrays) -> Tensor:
        """The update as one vector, shape (d,): float32 where model and update are.

        Raises:
            ValueError: an array is missing, or of another shape or kind.
        """
        arrays = dict[str, NDArray[Any]]()
        for name, shape, _ in self._layout.trained:
            if name not in update:
                raise ValueError(f"update has no array {name[:100]!r}")
            arrays[name] = _array(name, update[name])
            if arrays[name].shape != shape or arrays[name].dtype.kind not in "fiu":
                raise ValueError(
                    f"array {name[:100]!r} must be numbers of shape {shape}; got "
                    f"{arrays[name].dtype} of shape {arrays[name].shape}"
                )
        narrow = all(array.dtype == np.float32 for array in arrays.values())
        return self._layout.flat_of(arrays, self._layout.number if narrow else np.float64)

    def release(self) -> dict[str, NDArray[Any]]:
        """Release the round: noise, server rule, commit. Users who were not added count as zeros.

        Returns:
            `model`.

        Raises:
            HorizonExceededError: no round may be released any more.
            LedgerError: the disk failed, now or before. Close and begin again.
        """
        with self._lock:
            session, t = self._open, self.t
            if t < session.server.horizon:
                self._asked(t)
            session.server.release(self._total, self._added)
            failures, present = self._failures, len(self._added)
            self._begin_round()
            session.note_failures(t, failures, present)
            session.evaluate()
        return self.model


def _array(name: str, value: Any) -> NDArray[Any]:
    """An array of NumPy or torch.

    Raises:
        ConfigError: it is none.
    """
    try:
        held = value.detach().cpu() if hasattr(value, "detach") else value
        return np.asarray(held)
    except Exception as error:  # whatever a stranger's object may do
        raise ConfigError(
            f"array {name!r} must be one of NumPy or torch; got {type(value).__name__}."
        ) from error
