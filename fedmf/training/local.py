"""Local training of the users of a round, group by group, on one of three paths.

`chosen_path` decides whether users are trained by compiled steps ("compiled"), in groups by
torch.func ("vmap") or one after another ("loop"). `LocalTrainer` forms groups, hands them to the
engine of the path, and adds the clipped updates to a sum.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.clipped_rows import ClippedRows
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.errors import ConfigError, pass_interrupt
from fedmf.models import FlatModel
from fedmf.models.frozen import refuse_live_statistics
from fedmf.training.agreement import disagreement, mixed_examples, uneven_places, uneven_products
from fedmf.training.batches import Shape, StepRows, groups_of, step_rows, user_seed
from fedmf.training.compiled import CompiledEngine, NotAChain, program_of
from fedmf.training.engines import (
    Engine,
    LoopEngine,
    VmapEngine,
    draws_numbers,
    fills_groups,
    made_up_group,
    training_conditions,
    users_at_once,
)
from fedmf.training.frozen_features import FrozenFeatures
from fedmf.training.held_out import HeldOutExamples, training_part
from fedmf.training.interference import interference
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.rng import draw_seed
from fedmf.training.task import Task
from fedmf.training.user_failures import (
    Failures,
    Group,
    UserFailure,
    described,
    example_counts,
    load_examples,
    rows_in_place,
    silent,
)
from fedmf.training.workers import Workers

#: By which engine users are trained.
Path = Literal["compiled", "vmap", "loop"]
_ENGINES: Final[dict[Path, type[Engine]]] = {
    "compiled": CompiledEngine,
    "vmap": VmapEngine,
    "loop": LoopEngine,
}
#: Bytes of models that are trained before they are added to a sum, on a processor: more would not
#: stay in its last cache.
_CACHE_BYTES: Final = 6 * 2**20
#: Most users whose examples are loaded together.
_MOST_USERS: Final = 64

_log = logging.getLogger("fedmf")
#: Logs a warning, the same one only once in a process.
_warn_once: Final = cache(_log.warning)


@dataclass(frozen=True)
class PathChoice:
    """The path on which users are trained, and the reasons against faster ones.

    Args:
        path: the path.
        reasons: why faster paths do not suit the task, one line each.
        fault: why a faster path that suits the task failed a check; empty if none failed.
    """

    path: Path
    reasons: tuple[str, ...] = ()
    fault: str = ""


def chosen_path(task: Task, local: LocalSGD, users: int | None = None) -> PathChoice:
    """Choose the path on which users are trained.

    Engine "auto" takes "compiled" where the model is a chain of layers that compiled steps know,
    else "vmap" where groups of users are faster (`users_at_once`) and so many users fill them
    (`fills_groups`), else "loop". Either of the first two must have the updates of automatic
    differentiation and pass `interference` in this process; on "vmap" a user's bits must not depend
    on its place in a group. The choice is a function of the arguments and the machine.

    Args:
        task: the task; its users' examples are not read.
        local: local SGD and its engine.
        users: how many are planned to be trained in one call, a public number; None for any number.

    Raises:
        ConfigError: engine is "vmap", and torch.func cannot batch the model or groups fail a check.
    """
    if local.engine == "loop":
        return PathChoice("loop")
    if local.engine == "vmap":
        _require_groups(task, local)
        return PathChoice("vmap")
    fault = ""
    reasons: list[str] = []
    for path, obstacle in _FASTER.items():
        why = obstacle(task.after_frozen_layers, local, users)
        if why:
            reasons.append(f"not {path!r}: {why}")
            continue
        why = _fault_of(path, task, local)
        if not why:
            return PathChoice(path, tuple(reasons), fault)
        fault = f"not {path!r}: {why}"
    return PathChoice("loop", tuple(reasons), fault)


def _require_groups(task: Task, local: LocalSGD) -> None:
    """Raise ConfigError where users cannot be trained in groups."""
    try:
        with silent():
            _try_group(task.after_frozen_layers, local)
    except Exception as error:  # a module may raise anything
        raise ConfigError(
            "model must be one that torch.func can batch with engine 'vmap'; got"
            f" {described(error)}. Use 'auto' or 'loop'."
        ) from error
    fault = _fault_of("vmap", task, local)
    if fault:
        raise ConfigError(
            "engine (of local training) must be 'auto' or 'loop' here; got 'vmap'. In groups of"
            f" users, {fault}."
        )


def _try_group(task: Task, local: LocalSGD) -> None:
    """Train made-up users in a group; an error of the module is raised."""
    origin = task.model.initial().to(task.device)
    VmapEngine(_with_copied_loss(task), local).train(origin, made_up_group(task, 2))


def _not_compiled(task: Task, local: LocalSGD, users: int | None) -> str:
    del users
    try:
        program_of(task, local)
    except NotAChain as error:
        return str(error)
    return ""


def _not_in_groups(task: Task, local: LocalSGD, users: int | None) -> str:
    if users_at_once(task, local) == 1:
        return "groups are not faster for this model"
    if task.device.type == "cpu" and users is not None and not fills_groups(users):
        return f"{users} users would leave more than a quarter of their groups empty"
    return ""


#: Why a faster path does not suit a task, empty if it does; in the order in which they are tried.
_FASTER: Final[dict[Path, Callable[[Task, LocalSGD, int | None], str]]] = {
    "compiled": _not_compiled,
    "vmap": _not_in_groups,
}
#: Faults of paths by setting, for each model that was tried in this process.
_faults: Final[WeakKeyDictionary[FlatModel, dict[object, str]]] = WeakKeyDictionary()


def _fault_of(path: Path, task: Task, local: LocalSGD) -> str:
    """Why a task must not be trained on a path, empty if it may; tried once in a process."""
    local = replace(local, held_out=0.0)  # made-up users train on all their examples
    faults = _faults.setdefault(task.model, {})
    setting = path, local, task.loss, str(task.structure), str(task.device)
    if setting not in faults:
        faults[setting] = _tried_fault_of(path, task.after_frozen_layers, local)
    return faults[setting]


def _tried_fault_of(path: Path, task: Task, local: LocalSGD) -> str:
    checks = _checks(path, task, _with_copied_loss(task), local)
    try:
        for fault in checks:
            if fault:
                return fault
    except Exception as error:  # of a program that cannot be compiled here, for example
        fault = described(error)
        if "vmap: called random operation" in fault:
            return "the model draws random numbers, as dropout does"
        return fault
    return ""


def _checks(path: Path, task: Task, tried: Task, local: LocalSGD) -> Iterator[str]:
    """The faults that the checks of a path find, one after another; empty for a passed check."""
    if path == "vmap":
        if task.device.type == "cpu":  # on a GPU a user's bits may depend on its place in a group
            yield uneven_products()
            yield uneven_places(tried, local)
        yield mixed_examples(tried, local)
    yield disagreement(_ENGINES[path], tried, local)
    yield interference(trainer_on(path), task, local)


def _with_copied_loss(task: Task) -> Task:
    """The task with a copy of its loss, which may keep something of made-up users."""
    return replace(task, loss=copy.deepcopy(task.loss))


def trainer_on(path: Path) -> Callable[[Task, LocalSGD], LocalTrainer]:
    """Makes trainers of one thread for a path."""
    return partial(LocalTrainer, path=path, threads=1)


def _path_with_warning(task: Task, local: LocalSGD, users: int | None) -> Path:
    """Choose a path; log the reasons, and warn of a fault that makes training slower."""
    choice = chosen_path(task, local, users)
    if choice.reasons:
        _log.debug("users are trained on path %r, %s", choice.path, "; ".join(choice.reasons))
    if choice.fault:
        _warn_once("users are trained on the slower path %r, %s", choice.path, choice.fault)
    return choice.path


class LocalTrainer:
    """Trains users of a task, and adds up their clipped updates.

    Each user starts from the received parameters and runs ``local`` on its own examples.

    Guarantees:
        A user's update does not depend on which other users are trained, nor in how many groups and
        threads: not even on another user's NaN, infinity, exception or diverging model. On
        processors this holds bit for bit (on machines of one kind) if `interference` sees no fault
        in model and loss; on a GPU it holds up to the rounding of float32 sums. A user that fails
        in any way (examples that cannot be counted, loaded or trained on, an update that is not
        finite) contributes the zero vector, as one without examples does. Memory is needed for a
        few groups only.

    Args:
        task: users' examples, model and loss; on those that ``local`` holds out nobody trains.
        local: local SGD and its engine.
        group_size: most users that are handed to an engine at once; by default as many as suit the
            caches.
        path: the path on which users are trained; None for that of `chosen_path`.
        threads: how many groups are trained at the same time; None for as many as torch has
            threads.
        users: how many are planned to be trained in one call, by which `chosen_path` decides.

    Raises:
        ConfigError: a model that mixes examples, or one that the engine cannot train.
        ValueError: a group size below 1.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        task: Task,
        local: LocalSGD,
        group_size: int | None = None,
        path: Path | None = None,
        threads: int | None = None,
        users: int | None = None,
    ) -> None:
        if group_size is not None and group_size < 1:
            raise ValueError(f"group size must be at least 1; got {group_size}.")
        refuse_live_statistics(task.model.module)
        self.held_out = HeldOutExamples(task, local.held_out)
        task = training_part(task, local.held_out)
        self.task = task.after_frozen_layers
        self.local = local
        if path is None:
            path = _path_with_warning(task, local, users)
        self.path: Path = path
        # A GPU has one queue: threads would split a group into small ones and wait for each other.
        # All threads share one generator of random numbers.
        if task.device.type != "cpu" or (path == "loop" and draws_numbers(self.task, local)):
            threads = 1
        self._workers: Workers[Engine] = Workers(partial(_ENGINES[path], self.task, local), threads)
        self._group_limit = group_size

    @torch.inference_mode(False)
    def updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, failures: Failures | None = None
    ) -> Tensor:
        """New minus received parameters of each user after local training in round t.

        Args:
            parameters: θ_t, shape (d,), float32.
            user_ids: the users to train.
            t: 0-based round; it selects the shuffling.
            failures: the users that fail are added to it, by place.

        Returns:
            Unclipped updates, shape (users, d), float32, in the order of ``user_ids``; zeros for
            users that failed or own no examples.

        Raises:
            KeyError: an unknown user id.
        """
        origin = parameters.to(self.task.device)
        if failures is None:
            failures = Failures()
        updates = origin.new_zeros(len(user_ids), origin.numel())
        with training_conditions(origin.device):
            for group in self._groups(user_ids, t, failures):
                models = self._models(origin, group, failures)
                updates[torch.from_numpy(group.positions).to(origin.device)] = models - origin
        return updates

    def add_updates(
        self,
        parameters: Tensor,
        user_ids: Sequence[str],
        t: int,
        total: ClippedSum,
        reported: Mapping[str, NDArray[np.float64]] = MappingProxyType({}),
    ) -> list[UserFailure]:
        """Train users and add their updates to a sum, group by group, on all processor cores.

        Args:
            parameters: θ_t, shape (d,), float32.
            user_ids: the users to train.
            t: 0-based round; it selects the shuffling.
            total: the sum to which updates are added; it counts every user, the failed ones as
                zero vectors.
            reported: numbers of the users by name, shape (users,), which are added as well.

        Returns:
            The failures, in the order of ``user_ids``: for the operator alone.

        Raises:
            KeyError: an unknown user id.
        """
        before = total.users
        failures = Failures()
        add_group = partial(self._add_group, reported)
        self._train(add_group, parameters, user_ids, t, total, failures)
        total.add_nothing(len(user_ids) - (total.users - before))
        return failures.named(user_ids)

    @torch.inference_mode(False)
    def clipped_rows(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, clip_norm: float
    ) -> tuple[Tensor, list[UserFailure]]:
        """Train users as `add_updates` does, and clip each update to a row of its own.

        Args:
            parameters: as for `add_updates`.
            user_ids: as for `add_updates`.
            t: as for `add_updates`.
            clip_norm: ζ.

        Returns:
            Rows, shape (users, d), float32, in the order of ``user_ids``; and the failures. The row
            of a user that failed is zeros.
        """
        rows = ClippedRows(len(user_ids), parameters.numel(), clip_norm, self.task.device)
        failures = Failures()
        self._train(self._put_group, parameters, user_ids, t, rows, failures)
        return rows.block, failures.named(user_ids)

    @torch.inference_mode(False)
    def _train(
        self,
        work: Callable[[Tensor, Failures, Group, Any], None],
        parameters: Tensor,
        user_ids: Sequence[str],
        t: int,
        total: ClippedSum | ClippedRows,
        failures: Failures,
    ) -> None:
        """Do ``work`` for each group of users, on all workers."""
        origin = parameters.to(self.task.device)
        with training_conditions(origin.device):
            groups = self._groups(user_ids, t, failures)
            self._workers.each(partial(work, origin, failures), groups, total)

    def _add_group(
        self,
        reported: Mapping[str, NDArray[np.float64]],
        origin: Tensor,
        failures: Failures,
        group: Group,
        total: ClippedSum,
    ) -> None:
        """Train a group and add its updates, and what its users report, to a sum."""
        for part in group.parts(self._users_in_one_call(group)):
            numbers = {name: values[part.positions] for name, values in reported.items()}
            finite = total.add_updates(self._models(origin, part, failures), origin, numbers)
            failures.note_infinite(part.positions, finite)

    def _put_group(
        self, origin: Tensor, failures: Failures, group: Group, rows: ClippedRows
    ) -> None:
        """Train a group and put its clipped updates into rows."""
        models = self._models(origin, group, failures)
        finite = rows.put(group.positions.tolist(), models, origin)
        failures.note_infinite(group.positions, finite)

    def reference(self) -> LocalTrainer:
        """A trainer of the same users on path "loop"."""
        local = replace(self.local, engine="loop", held_out=0.0)  # the task is without them
        return LocalTrainer(self.task, local, 1)

    def _groups(self, user_ids: Sequence[str], t: int, failures: Failures) -> Iterator[Group]:
        """The users that own examples, in groups."""
        local = self.local
        if self.path == "vmap":
            self._workers.of_thread.expect(len(user_ids))
        users = self.task.dataset.indices(user_ids)
        if isinstance(self.task.dataset, FrozenFeatures):
            self.task.dataset.prepare(users)
        counts = example_counts(
            self.task.dataset, users, lambda place, reason: failures.note(place, "sizes", reason)
        )
        owning = np.flatnonzero(counts > 0)
        multiple = self._workers.count
        if self.path == "vmap":  # a group takes the time of a full one: the fewer the better
            multiple = 1
        for shape, members in groups_of(
            counts[owning], local.batch_size, local.epochs, self._group_size, multiple
        ):
            positions = owning[members]
            names = [str(user_ids[position]) for position in positions]
            counted = self._counted_group(
                positions, users[positions], counts[positions], names, t, shape
            )
            group = None
            if self.path == "compiled":
                group = counted.in_place(self.task, failures)
            if group is None:
                group = counted.loaded(self.task, failures)
            yield group

    def _counted_group(
        self,
        positions: NDArray[np.int64],
        users: NDArray[np.int64],
        counts: NDArray[np.int64],
        names: Sequence[str],
        t: int,
        shape: Shape,
    ) -> _CountedGroup:
        """Lay out the steps of a group's users, whose examples are counted."""
        seed = self.task.seed
        shuffling = np.array([user_seed(seed, t, name) for name in names], dtype=np.uint64)
        draws = np.array([draw_seed(seed, t, name) for name in names], dtype=np.uint64)
        steps = step_rows(shuffling, counts, self.local.batch_size, self.local.epochs, shape)
        return _CountedGroup(positions, users, counts, shape.width, steps, draws)

    @property
    def _group_size(self) -> int:
        """Most users in a group."""
        if self.path == "vmap":
            largest = self._workers.of_thread.size
            return min(largest, self._group_limit or largest)
        if self._group_limit:
            return self._group_limit
        if self.path == "compiled":
            return _MOST_USERS
        if self.task.device.type == "cpu":
            return min(self._models_in_cache, _MOST_USERS)
        return 1

    def _users_in_one_call(self, group: Group) -> int:
        """How many of a group's users are trained before their models are added to a sum."""
        if self.path == "compiled":
            return self._models_in_cache
        return len(group)

    @property
    def _models_in_cache(self) -> int:
        return max(1, _CACHE_BYTES // (4 * self.task.model.dimension))

    def _models(self, origin: Tensor, group: Group, failures: Failures) -> Tensor:
        """The users' models after local training, shape (users, d); θ_t for those that fail."""
        try:
            models = self._trained(origin, group)
        except BaseException as error:
            pass_interrupt(error)
            if group.load is not None:
                return self._models(origin, group.load(), failures)
            models = self._models_without_culprits(origin, group, error, failures)
        if group.absent:
            models[sorted(group.absent)] = origin
        return models

    def _models_without_culprits(
        self, origin: Tensor, group: Group, error: BaseException, failures: Failures
    ) -> Tensor:
        """The models of a group that failed, with zeros for the users that made it fail."""
        culprits = self._culprits(origin, group, error)
        for user, reason in culprits.items():
            failures.note(int(group.positions[user]), "training", reason)
        if len(group) == 1:
            return origin[None].clone()
        if culprits.keys() - group.absent:
            return self._models(origin, group.without(culprits), failures)
        # Only the group as a whole fails, for example because it takes too much memory.
        return torch.cat([self._models(origin, half, failures) for half in group.halves()])

    def _culprits(self, origin: Tensor, group: Group, error: BaseException) -> dict[int, str]:
        """The users because of which a group failed, and why, down to each user alone."""
        if len(group) == 1:
            return {0: described(error)}
        culprits: dict[int, str] = {}
        for half, first in zip(group.halves(), (0, len(group) // 2), strict=True):
            try:
                self._trained(origin, half)
            except BaseException as failure:
                pass_interrupt(failure)
                for user, reason in self._culprits(origin, half, failure).items():
                    culprits[first + user] = reason
        return culprits

    def _trained(self, origin: Tensor, group: Group) -> Tensor:
        """The models of the group's users after local training, shape (users, d)."""
        engine = self._workers.of_thread
        try:
            return engine.train(origin, group)
        except torch.OutOfMemoryError:
            if engine.size == 1:
                raise
            return LoopEngine(self.task, self.local).train(origin, group)


@dataclass(frozen=True, eq=False)
class _CountedGroup:
    """Users of a group whose examples are counted, but not loaded.

    Args:
        positions: the users' places in the cohort, shape (users,).
        users: their indices in the data set.
        counts: how many examples each owns.
        width: examples in a step, padding included.
        steps: which examples each step takes.
        draws: seeds of the random numbers that the model draws for each user.
    """

    positions: NDArray[np.int64]
    users: NDArray[np.int64]
    counts: NDArray[np.int64]
    width: int
    steps: StepRows
    draws: NDArray[np.uint64]

    def loaded(self, task: Task, failures: Failures) -> Group:
        """The group with examples of its own; users that cannot be loaded are absent."""
        reasons: dict[int, str] = {}
        features, labels = load_examples(
            task.dataset, task.structure, self.users, self.counts, reasons.__setitem__
        )
        for user, reason in reasons.items():
            failures.note(int(self.positions[user]), "loading", reason)
        return Group(
            positions=self.positions,
            width=self.width,
            edges=self._edges,
            features=features,
            labels=labels,
            steps=self.steps,
            seeds=self.draws,
            absent=frozenset(reasons),
        )

    def in_place(self, task: Task, failures: Failures) -> Group | None:
        """The group with steps that take examples where the data set has them, if it can."""
        rows = rows_in_place(task.dataset, task.structure, self.users)
        if rows is None or rows.size != self.counts.sum():
            return None
        assert isinstance(task.dataset, InMemoryDataset)
        return Group(
            positions=self.positions,
            width=self.width,
            edges=self._edges,
            features=task.dataset.features,
            labels=task.dataset.labels,
            steps=replace(self.steps, rows=rows[self.steps.rows]),
            seeds=self.draws,
            load=partial(self.loaded, task, failures),
        )

    @property
    def _edges(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.counts)])
