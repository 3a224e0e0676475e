"""Local training of many users."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final, Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.clipped_rows import ClippedRows
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.training.agreement import disagreement, mixed_examples, uneven_places, uneven_products
from fedmf.training.batches import StepRows, groups_of, step_rows, user_seed
from fedmf.training.compiled import Compiled, NotAChain, plan_of
from fedmf.training.engines import (
    Engine,
    LoopEngine,
    VmapEngine,
    draws_numbers,
    full_precision,
    made_up_group,
    refuse_batch_statistics,
    users_at_once,
)
from fedmf.training.interference import interference
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.rng import draw_seed, kept_generators
from fedmf.training.task import Task
from fedmf.training.user_failures import (
    Failures,
    Group,
    UserFailure,
    described,
    example_counts,
    load_examples,
    pass_interrupt,
    rows_in_place,
    silent,
)
from fedmf.training.workers import Workers, single_threaded_products

#: Who trains: compiled steps, torch.func in groups of a fixed size, or plain differentiation.
Path = Literal["compiled", "vmap", "loop"]
_ENGINES: Final[dict[Path, type[Engine]]] = {
    "compiled": Compiled,
    "vmap": VmapEngine,
    "loop": LoopEngine,
}
#: Bytes of models that are trained before they are added at most, on a processor: more leave its
#: last cache.
CACHE_BYTES: Final = 6 * 2**20
#: Users whose examples are loaded together at most.
_MOST_USERS: Final = 64

_log = logging.getLogger("fedmf")
#: Warns of the same in the first run of a process alone.
_warn_once: Final = cache(_log.warning)

T = TypeVar("T")


def chosen_path(task: Task, local: LocalSGD) -> tuple[Path, str, list[str]]:
    """How users are trained, the fault for which a faster way is not taken, and why others do not
    suit.

    Engine "auto" takes compiled steps where the model is a chain of layers that they know, else
    groups of a fixed size where these are faster (`users_at_once`), else one user after another.
    Either of the first two must have the updates of automatic differentiation and pass `interference`
    in this process; in groups a user's bits must not depend on its place. The choice is a function
    of the task, local SGD and the machine.

    Raises:
        ConfigError: engine is "vmap", and torch.func cannot batch the model or groups fail in
            this.
    """
    if local.engine == "loop":
        return "loop", "", []
    if local.engine == "vmap":
        try:
            with silent():
                try_groups(task, local)
        except Exception as error:  # a module may raise anything
            raise ConfigError(
                "model must be one that torch.func can batch with engine 'vmap'; got "
                f"{described(error)}. Use 'auto' or 'loop'."
            ) from error
        if why := _fault_of("vmap", task, local):
            raise ConfigError(
                "engine (of local training) must be 'auto' or 'loop' here; got 'vmap'. In"
                f" groups of users, {why}."
            )
        return "vmap", "", []
    fault = ""
    reasons = list[str]()
    for path, fits in _FASTER.items():
        if why := fits(task, local):
            reasons.append(f"not {_NAMES[path]}: {why}")
        elif why := _fault_of(path, task, local):
            fault = f"not {_NAMES[path]}: {why}"
        else:
            return path, fault, reasons
    return "loop", fault, reasons


def _not_compiled(task: Task, local: LocalSGD) -> str:
    try:
        plan_of(task, local)
    except NotAChain as error:
        return str(error)
    return ""


def _not_in_groups(task: Task, local: LocalSGD) -> str:
    return "" if users_at_once(task, local) > 1 else "groups are not faster for this model"


#: Why a path does not suit a task, in the order in which they are tried.
_FASTER: Final[dict[Path, Callable[[Task, LocalSGD], str]]] = {
    "compiled": _not_compiled,
    "vmap": _not_in_groups,
}
_NAMES: Final[dict[Path, str]] = {
    "compiled": "by compiled steps",
    "vmap": "by torch.func in groups",
}
#: What was found in this process, by model.
_found: Final[WeakKeyDictionary[FlatModel, dict[object, str]]] = WeakKeyDictionary()


def _fault_of(path: Path, task: Task, local: LocalSGD) -> str:
    """Why a task must not be trained in this way, empty if it may be; a model is tried once in a
    process.
    """
    found = _found.setdefault(task.model, {})
    setting = path, local, task.loss, str(task.structure), str(task.device)
    if setting not in found:
        tried = replace(
            task, loss=copy.deepcopy(task.loss)
        )  # which may keep something of made-up users
        try:
            found[setting] = (
                (_fault_of_groups(tried, local) if path == "vmap" else "")
                or disagreement(_ENGINES[path], tried, local)
                or interference(trainer_on(path), task, local)
            )
        except Exception as error:  # of a program that cannot be compiled here, say
            found[setting] = described(error)
        if "vmap: called random operation" in found[setting]:
            found[setting] = "the model draws random numbers, as dropout does"
    return found[setting]


def _fault_of_groups(task: Task, local: LocalSGD) -> str:
    """Why a user's bits would depend on its place in a group (on a GPU they may), or an update on
    padding.
    """
    uneven = "" if task.device.type != "cpu" else uneven_products() or uneven_places(task, local)
    return uneven or mixed_examples(task, local)


def trainer_on(path: Path) -> Callable[[Task, LocalSGD], LocalTrainer]:
    """Makes trainers of one thread that train in this way."""
    return lambda task, local: LocalTrainer(task, local, path=path, threads=1)


def try_groups(task: Task, local: LocalSGD) -> None:
    """Train made-up users in a group; what the module raises gets out."""
    origin = task.model.initial().to(task.device)
    tried = replace(task, loss=copy.deepcopy(task.loss))
    VmapEngine(tried, local).train(origin, made_up_group(task, 2))


class LocalTrainer:
    """Trains a set of users, a group at once where the model allows it.

    Each user starts from the received parameters and runs ``local`` on its own examples.

    Guarantees:
        A user's update does not depend on who else is trained, in how many groups and threads: not
        even on another user's NaN, infinity, exception or diverging model. On processors that holds
        bit for bit (on machines of one kind), as far as `interference` finds none in the model and
        loss; on a GPU beyond the rounding of float32 sums. A user that fails in any way (examples
        that cannot be counted, loaded or trained on, an update that is not finite) contributes the
        zero vector, as one without examples does. Memory is needed for a few groups only.

    Args:
        task: users' examples, model and loss.
        local: local SGD and its engine.
        group_size: most users that are handed to an engine at once; by default what suits caches.
        path: who trains; None for `chosen_path`.
        threads: how many groups are trained at the same time; None for as many as torch has
            threads.

    Raises:
        ConfigError: a model that mixes examples, or one that the engine cannot train.
        ValueError: a group size below 1.
    """

    def __init__(
        self,
        task: Task,
        local: LocalSGD,
        group_size: int | None = None,
        path: Path | None = None,
        threads: int | None = None,
    ) -> None:
        if group_size is not None and group_size < 1:
            raise ValueError(f"group size must be at least 1; got {group_size}.")
        refuse_batch_statistics(task.model.module)
        self.task = task
        self.local = local
        self.path: Path
        self.path, fault, reasons = chosen_path(task, local) if path is None else (path, "", [])
        if reasons:
            _log.debug("users are trained %s, %s", self.path, "; ".join(reasons))
        if fault:
            how = "in groups" if self.path == "vmap" else "one by one"
            _warn_once("users are trained %s, which is slower, %s", how, fault)
        # A GPU has one queue: threads would part a group in small ones and wait for each other. All
        # threads share one generator of random numbers.
        alone = task.device.type != "cpu" or (self.path == "loop" and draws_numbers(task, local))
        engine = _ENGINES[self.path]
        self._workers: Workers[Engine] = Workers(
            lambda: engine(task, local), 1 if alone else threads
        )
        self._most = group_size

    def updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, failures: Failures | None = None
    ) -> Tensor:
        """New minus received parameters of each user after local training in round t.

        Args:
            parameters: θ_t, shape (d,), float32.
            user_ids: the users to train.
            t: 0-based round; it selects the shuffling.
            failures: is told who failed, by place.

        Returns:
            Unclipped updates, shape (users, d), float32, in the order of ``user_ids``; zeros for
            users that failed or own nothing.

        Raises:
            KeyError: an unknown user id.
        """
        origin = parameters.to(self.task.device)
        failures = Failures() if failures is None else failures
        updates = origin.new_zeros(len(user_ids), origin.numel())
        # One thread, as in `add_updates`: with more, bits may differ.
        with (
            silent(),
            kept_generators(origin.device),
            full_precision(origin.device),
            single_threaded_products(),
        ):
            for group in self._groups(user_ids, t, failures):
                trained = self._models(origin, group, failures)
                updates[torch.from_numpy(group.positions).to(origin.device)] = trained - origin
        return updates

    def add_updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, total: ClippedSum
    ) -> list[UserFailure]:
        """Train users and add their updates to a sum, group by group, on all processor cores.

        Args:
            parameters: θ_t, shape (d,), float32.
            user_ids: the users to train.
            t: 0-based round; it selects the shuffling.
            total: what the updates are added to; it counts every user, the failed ones as zero
                vectors.

        Returns:
            Who failed, in the order of ``user_ids``: for the operator alone.

        Raises:
            KeyError: an unknown user id.
        """
        trained: list[int] = []

        def add(group: Group, origin: Tensor, into: ClippedSum, failures: Failures) -> Tensor:
            trained.append(len(group))
            counted = [
                into.add_updates(self._models(origin, part, failures), origin)
                for part in self._blocks(group)
            ]
            return torch.cat(counted)

        failures = self._train(parameters, user_ids, t, total, add)
        total.add_nothing(len(user_ids) - sum(trained))
        return failures

    def clipped_rows(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, clip_norm: float
    ) -> tuple[Tensor, list[UserFailure]]:
        """Train users as `add_updates` does; each update is clipped to ζ (``clip_norm``) in a row
        of its own.

        Returns:
            Rows, shape (users, d), float32, in the order of ``user_ids``; and who failed: its row
            is zeros.
        """
        rows = ClippedRows(len(user_ids), parameters.numel(), clip_norm, self.task.device)

        def put(group: Group, origin: Tensor, into: ClippedRows, failures: Failures) -> Tensor:
            return into.put(group.positions.tolist(), self._models(origin, group, failures), origin)

        failures = self._train(parameters, user_ids, t, rows, put)
        return rows.block, failures

    def _train(
        self,
        parameters: Tensor,
        user_ids: Sequence[str],
        t: int,
        total: T,
        take: Callable[[Group, Tensor, T, Failures], Tensor],
    ) -> list[UserFailure]:
        """Train users group by group; ``take`` hands each group's updates on and says which are
        finite.
        """
        origin = parameters.to(self.task.device)
        failures = Failures()

        def train(group: Group, into: T) -> None:
            finite = take(group, origin, into, failures).cpu().numpy()
            for position in group.positions[~finite].tolist():
                failures.note(
                    position, "update", "update holds NaN or infinity (learning rate too large?)"
                )

        with silent(), kept_generators(origin.device), full_precision(origin.device):
            self._workers.each(train, self._groups(user_ids, t, failures), total)
        return failures.named(user_ids)

    def reference(self) -> LocalTrainer:
        """A trainer of the same users that trains them one by one."""
        return LocalTrainer(self.task, replace(self.local, engine="loop"), 1)

    def _groups(self, user_ids: Sequence[str], t: int, failures: Failures) -> Iterator[Group]:
        """The users who own examples, in groups; compiled steps read examples where they are."""
        dataset = self.task.dataset
        local = self.local
        if self.path == "vmap":
            self._workers.of_thread.expect(len(user_ids))
        users = dataset.indices(user_ids)
        counts = example_counts(
            dataset, users, lambda place, why: failures.note(place, "sizes", why)
        )
        owning = np.flatnonzero(counts > 0)
        for shape, members in groups_of(
            counts[owning], local.batch_size, local.epochs, self._most_together, self._workers.count
        ):
            positions = owning[members]
            sizes = counts[positions]
            names = [str(user_ids[p]) for p in positions]
            seeds = np.array(
                [user_seed(self.task.seed, t, name) for name in names], dtype=np.uint64
            )
            draws = np.array(
                [draw_seed(self.task.seed, t, name) for name in names], dtype=np.uint64
            )
            steps = step_rows(seeds, sizes, local.batch_size, local.epochs, shape)
            edges = np.concatenate([[0], np.cumsum(sizes)])
            load = partial(
                self._loaded,
                failures,
                users[positions],
                positions,
                shape.width,
                edges,
                steps,
                draws,
            )
            rows = None
            if self.path == "compiled":
                rows = rows_in_place(dataset, self.task.structure, users[positions])
            if rows is None or rows.size != edges[-1]:
                yield load()
                continue
            assert isinstance(dataset, InMemoryDataset)
            there = replace(steps, rows=rows[steps.rows])
            whole = dataset.features, dataset.labels
            yield Group(positions, shape.width, edges, *whole, there, draws, loaded=load)

    def _loaded(
        self,
        failures: Failures,
        users: NDArray[np.int64],
        positions: NDArray[np.int64],
        width: int,
        edges: NDArray[np.int64],
        steps: StepRows,
        draws: NDArray[np.uint64],
    ) -> Group:
        """A group with its users' examples."""
        failed = dict[int, str]()
        features, labels = load_examples(
            self.task.dataset, self.task.structure, users, np.diff(edges), failed.__setitem__
        )
        for user, reason in failed.items():
            failures.note(int(positions[user]), "loading", reason)
        return Group(positions, width, edges, features, labels, steps, draws, frozenset(failed))

    def _blocks(self, group: Group) -> Iterator[Group]:
        """The users of a group in parts whose models are added in one call."""
        users = self._models_in_cache if self.path == "compiled" else len(group)
        return group.parts(users)

    @property
    def _models_in_cache(self) -> int:
        return max(1, CACHE_BYTES // (4 * self.task.model.dimension))

    @property
    def _most_together(self) -> int:
        """Users in a group of an engine of torch at most."""
        if self.path == "vmap":
            return min(self._workers.of_thread.size, self._most or self._workers.of_thread.size)
        if self.path == "compiled":
            return self._most or _MOST_USERS
        fitting = self._models_in_cache if self.task.device.type == "cpu" else 1
        return self._most or min(fitting, _MOST_USERS)

    def _models(self, origin: Tensor, group: Group, failures: Failures) -> Tensor:
        """The models of the group's users after local training, shape (users, d); θ_t for those
        that fail.
        """
        try:
            models = self._trained(origin, group)
        except BaseException as error:
            pass_interrupt(error)
            if group.loaded is not None:
                return self._models(origin, group.loaded(), failures)
            models = self._models_without_culprits(origin, group, error, failures)
        if group.absent:
            models[sorted(group.absent)] = origin
        return models

    def _models_without_culprits(
        self, origin: Tensor, group: Group, error: BaseException, failures: Failures
    ) -> Tensor:
        """The same after users that make training fail were replaced by zeros."""
        culprits = self._culprits(origin, group, error)
        for user, reason in culprits.items():
            failures.note(int(group.positions[user]), "training", reason)
        if culprits.keys() - group.absent and len(group) > 1:
            return self._models(origin, group.without(culprits), failures)
        if len(group) > 1:  # together they take too much memory, say
            return torch.cat([self._models(origin, half, failures) for half in group.halves()])
        return origin[None].clone()

    def _culprits(self, origin: Tensor, group: Group, error: BaseException) -> dict[int, str]:
        """The users of a group that failed who fail among fewer, down to each alone, and why."""
        if len(group) == 1:
            return {0: described(error)}
        culprits: dict[int, str] = {}
        for half, first in zip(group.halves(), (0, len(group) // 2), strict=True):
            try:
                self._trained(origin, half)
            except BaseException as failure:
                pass_interrupt(failure)
                found = self._culprits(origin, half, failure)
                culprits |= {first + user: reason for user, reason in found.items()}
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
