"""Local training of many users at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.barrier import (
    Failures,
    Group,
    UserFailure,
    UserLimits,
    described,
    example_counts,
    held_examples,
    load_examples,
    pass_interrupt,
    silent,
)
from fedmf.training.batches import Shape, groups_of, shape_of, step_rows, user_seed
from fedmf.training.clipping import ClippedRows, UpdateSum
from fedmf.training.engines import PROGRAM_USERS, chosen, compiled_programs, gradient_program
from fedmf.training.gradients import Accumulation, Batch, aligned_empty
from fedmf.training.grouping import Grouping
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task
from fedmf.training.workers import Workers, single_threaded_kernels

_log = logging.getLogger("fedmf")
#: Examples a step with which it is tried at most whether users can be computed together.
_WIDEST_TRIED: Final = 64

T = TypeVar("T")


class LocalTrainer:
    """Trains a set of users in groups, each group as one batched program.

    Each user starts from the received parameters and runs ``local`` on its own examples; users with fewer
    examples are padded at weight zero, and stand still once they are done.

    Guarantees:
        A user's update does not depend on who else is trained, in how many groups and threads: not even on
        another user's NaN, infinity, exception or diverging model. On processors with engine "auto" or "loop"
        that holds bit for bit, on machines of one kind (see `Grouping`); otherwise bit for bit as long as
        users' numbers of examples stay, and beyond the rounding of float32 sums.
        A user that fails in any way (examples that cannot be counted, loaded or trained on, an update that is
        not finite, a limit exceeded) contributes the zero vector, as one without examples does.
        Memory is that of a few groups, however many users there are.

    Args:
        task: users' examples, model and loss.
        local: local SGD and its engine.
        group_size: most users in a group; by default what suits caches and memory.
        limits: what one user may cost.

    Raises:
        ConfigError: a model that mixes examples, or one that the engine cannot train.
        ValueError: a group size below 1.
    """

    def __init__(
        self,
        task: Task,
        local: LocalSGD,
        group_size: int | None = None,
        limits: UserLimits | None = None,
    ) -> None:
        self.task, self.local, self.limits = task, local, limits or UserLimits()
        program = gradient_program(task, local)
        if program.fallback:
            _log.warning(
                "users are trained one by one, which is slower: torch.func cannot batch the model (%s)",
                program.fallback,
            )
        processor = task.device.type == "cpu"
        self.confined, exact = program.confined, local.engine == "auto" and processor
        # A GPU has one queue: threads would part a group in small ones and wait for each other.
        self._workers = Workers(program.make, None if processor else 1)
        self._programs = compiled_programs(task, local)
        self._program_users = group_size or PROGRAM_USERS[self._workers.count > 1]
        self._grouping = Grouping(task, self._workers, group_size, exact, self._trained)
        # Said of the model and the batch size, which are public: who has how many examples shows nowhere.
        alone = exact and not program.fallback and not self._programs
        if alone and self._grouping.one_by_one(min(local.batch_size, _WIDEST_TRIED)):
            _log.warning(
                "users are trained one by one: in groups of this model numbers would round differently. "
                "local.engine 'vectorised' trains groups, to the same results but for rounding"
            )

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
            Unclipped updates, shape (users, d), float32, in the order of ``user_ids``; zeros for users that
            failed or own nothing.

        Raises:
            KeyError: an unknown user id.
        """
        origin = parameters.to(self.task.device)
        failures = Failures() if failures is None else failures
        updates = origin.new_zeros(len(user_ids), origin.numel())
        with silent(), single_threaded_kernels():  # as `add_updates`: with more threads bits may differ
            for group in self._groups(user_ids, t, failures):
                trained = self._models(origin, group, failures)
                updates[torch.from_numpy(group.positions).to(origin.device)] = trained - origin
        return updates

    def add_updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, total: UpdateSum
    ) -> list[UserFailure]:
        """Train users and add their updates to a sum, group by group, on all processor cores.

        Args:
            parameters: θ_t, shape (d,), float32.
            user_ids: the users to train.
            t: 0-based round; it selects the shuffling.
            total: what the updates are added to; it counts every user, the failed ones as zero vectors.

        Returns:
            Who failed, in the order of ``user_ids``: for the operator alone.

        Raises:
            KeyError: an unknown user id.
        """
        trained: list[int] = []

        def add(group: Group, models: Tensor, origin: Tensor, into: UpdateSum) -> Tensor:
            trained.append(len(group))
            return into.add_updates(models, origin)

        def compiled(group: Group, into: UpdateSum, failures: Failures) -> bool:
            if group.program == 0 or not into.takes_programs:
                return False
            trained.append(len(group))
            for user, (stage, reason) in received[group.program].add_to(into, group):
                failures.note(int(group.positions[user]), stage, reason)
            return True

        programs = range(1, len(self._programs) + 1)
        with single_threaded_kernels():
            received = {number: self._programs[number - 1].received(parameters) for number in programs}
        failures = self._train(parameters, user_ids, t, total, add, compiled)
        if rest := len(user_ids) - sum(trained):
            total.add_nothing(rest)
        return failures

    def clipped_rows(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, clip_norm: float
    ) -> tuple[Tensor, list[UserFailure]]:
        """Train users as `add_updates` does; each update is clipped to ζ (``clip_norm``) in a row of its own.

        Returns:
            Rows, shape (users, d), float32, in the order of ``user_ids``; and who failed: its row is zeros.
        """
        rows = ClippedRows(len(user_ids), parameters.numel(), clip_norm, self.task.device)

        def put(group: Group, models: Tensor, origin: Tensor, into: ClippedRows) -> Tensor:
            return into.put(group.positions.tolist(), models, origin)

        failures = self._train(parameters, user_ids, t, rows, put)
        return rows.block, failures

    def _train(
        self,
        parameters: Tensor,
        user_ids: Sequence[str],
        t: int,
        total: T,
        take: Callable[[Group, Tensor, Tensor, T], Tensor],
        shortcut: Callable[[Group, T, Failures], bool] = lambda _group, _into, _failures: False,
    ) -> list[UserFailure]:
        """Train users group by group; ``take`` hands each group's models on and says which are finite.

        A group that ``shortcut`` says it dealt with has no models.
        """
        origin, failures = parameters.to(self.task.device), Failures()
        groups = self._groups(user_ids, t, failures)

        def train(group: Group, into: T) -> None:
            if shortcut(group, into, failures):
                return
            finite = take(group, self._models(origin, group, failures), origin, into).cpu().numpy()
            for position in group.positions[~finite].tolist():
                failures.note(position, "update", "holds NaN or infinity")

        with silent():
            self._workers.each(train, groups, total)
        return failures.named(user_ids)

    def reference(self) -> LocalTrainer:
        """See `Trainer.reference`."""
        return LocalTrainer(self.task, replace(self.local, engine="loop"), 1, self.limits)

    def _groups(self, user_ids: Sequence[str], t: int, failures: Failures) -> Iterator[Group]:
        """The users who own examples within the limits, in groups."""
        dataset, local = self.task.dataset, self.local
        users = dataset.indices(user_ids)
        counts = example_counts(dataset, users, lambda place, why: failures.note(place, "sizes", why))
        self._apply_limits(counts, failures)
        for program, shape, positions in self._divided(counts):
            sizes, failed = counts[positions], dict[int, str]()
            seeds = np.array([user_seed(local.seed, t, str(user_ids[p])) for p in positions], dtype=np.uint64)
            held = held_examples(dataset, self.task.structure, users[positions]) if program else None
            features, labels, places = held or (
                *load_examples(dataset, self.task.structure, users[positions], sizes, failed.__setitem__),
                None,
            )
            for user, reason in failed.items():
                failures.note(int(positions[user]), "loading", reason)
            steps = step_rows(seeds, sizes, local.batch_size, local.epochs, shape)
            edges = np.concatenate([[0], np.cumsum(sizes)])
            absent = frozenset(failed)
            yield Group(positions, shape.width, edges, features, labels, steps, absent, program, places)

    def _divided(self, counts: NDArray[np.int64]) -> Iterator[tuple[int, Shape, NDArray[np.int64]]]:
        """Users who own examples, in groups; those of each compiled program apart (0: of none)."""
        programs = chosen(self._programs, counts)
        for program in range(len(self._programs) + 1):
            taking = np.flatnonzero((counts > 0) & (programs == program))
            most = (lambda *_: self._program_users) if program else self._grouping.most
            rest = self.local.batch_size, self.local.epochs, most, self._workers.count
            for shape, members in groups_of(counts[taking], *rest):
                yield program, shape, taking[members]

    def _apply_limits(self, counts: NDArray[np.int64], failures: Failures) -> None:
        """Users beyond a limit own nothing from here on."""
        if self.limits == UserLimits():
            return
        for count in np.unique(counts[counts > 0]).tolist():
            steps = shape_of(count, self.local.batch_size, self.local.epochs).steps
            exceeded = self.limits.exceeded(count, steps, self.task.structure)
            if exceeded is not None:
                for position in np.flatnonzero(counts == count).tolist():
                    failures.note(position, "limit", exceeded)
                counts[counts == count] = 0

    def _models(self, origin: Tensor, group: Group, failures: Failures) -> Tensor:
        """The models of the group's users after local training, shape (users, d); θ_t for those that fail."""
        group = group.gathered()
        try:
            models = self._trained(origin, group)
        except BaseException as error:
            pass_interrupt(error)
            models = self._models_without_culprits(origin, group, error, failures)
        if group.absent:
            models[sorted(group.absent)] = origin
        return models

    def _models_without_culprits(
        self, origin: Tensor, group: Group, error: BaseException, failures: Failures
    ) -> Tensor:
        """The same once the users whose examples make training fail have given way to zeros."""
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
        with torch.no_grad():
            models = aligned_empty(origin, group.positions.size, origin.numel()).copy_(origin)
            velocity = None if self.local.plain else aligned_empty(origin, *models.shape)
            for s, active in enumerate(group.steps.active):
                rows = torch.from_numpy(group.steps.rows[s]).to(origin.device)
                weights = torch.from_numpy(group.steps.weights[s]).to(origin.device)
                for part in self._grouping.parts(int(active), group.width):
                    users = self._grouping.filled(part, group.width)
                    batch = Batch(*group.taken(rows[users]), weights[users])
                    moving = None if velocity is None else velocity[part]
                    self._step_together(models[part], origin, batch, moving, first=s == 0)
            return models

    def _step_together(
        self, models: Tensor, origin: Tensor, batch: Batch, velocity: Tensor | None, first: bool
    ) -> None:
        """`_step` of users whose batch may be filled up with copies of the first."""
        more = len(batch.weights) - len(models)
        if not more:
            return self._step(models, origin, batch, velocity, first)
        held = [whole for whole in (models, velocity) if whole is not None]
        filled = [aligned_empty(origin, len(batch.weights), origin.numel()) for _ in held]
        for whole, into in zip(held, filled, strict=True):
            into[: len(whole)], into[len(whole) :] = whole, whole[0]
        self._step(filled[0], origin, batch, None if velocity is None else filled[1], first)
        for whole, into in zip(held, filled, strict=True):
            whole.copy_(into[: len(whole)])
        return None

    def _step(
        self, models: Tensor, origin: Tensor, batch: Batch, velocity: Tensor | None, first: bool
    ) -> None:
        local, gradient = self.local, self._workers.of_thread
        if velocity is None:
            gradient.accumulate(batch, Accumulation(models, models, beta=1.0, alpha=-local.learning_rate))
            return
        beta = 0.0 if first else local.momentum
        gradient.accumulate(batch, Accumulation(models, velocity, beta, alpha=1.0))
        if local.proximal:
            velocity.add_(models - origin, alpha=local.proximal)
        models.add_(velocity, alpha=-local.learning_rate)
