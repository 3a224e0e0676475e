"""Local training of many users at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.batches import Shape, StepRows, groups_of, step_rows
from fedmf.training.engines import gradient_program
from fedmf.training.gradients import Accumulation, Batch, aligned_empty
from fedmf.training.grouping import Grouping
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.shuffling import user_seed
from fedmf.training.task import Task
from fedmf.training.workers import Workers, single_threaded_kernels

__all__ = ["LocalTrainer", "UpdateSum"]

_log = logging.getLogger("fedmf")


class UpdateSum(Protocol):
    """What takes in updates as they are made, such as `FixedPointSum`."""

    def add_updates(self, updates: Tensor, origin: Tensor | None = None) -> Tensor:
        """Add the updates ``rows − origin``, shape (users, d); returns the mask of those that count."""
        ...

    def like(self) -> Self:
        """An empty one of the same kind."""
        ...

    def merge(self, other: Self) -> None:
        """Add what another one has taken in."""
        ...


@dataclass(frozen=True, eq=False)
class _Group:
    """Users that are trained together, ready to go."""

    positions: NDArray[np.int64]
    shape: Shape
    features: Tensor
    labels: Tensor
    steps: StepRows


class LocalTrainer:
    """Trains a set of users in groups, each group as one batched program.

    Each user starts from the received parameters and runs ``local`` on its own examples; users with fewer
    examples are padded at weight zero, and stand still once they are done.

    Guarantees:
        A user's update does not depend on who else is trained, in how many groups and threads: not even on
        another user's NaN, infinity or diverging model. On processors with engine "auto" or "loop" that holds
        bit for bit, on machines of one kind (see `Grouping`); otherwise beyond the rounding of float32 sums.
        Memory is that of a few groups, however many users there are.

    Args:
        task: users' examples, model and loss.
        local: local SGD and its engine.
        group_size: most users in a group; by default what suits caches and memory.

    Raises:
        ConfigError: a model that mixes examples, or one that the engine cannot train.
        ValueError: a group size below 1.
    """

    def __init__(self, task: Task, local: LocalSGD, group_size: int | None = None) -> None:
        self.task, self.local = task, local
        program = gradient_program(task, local.engine)
        if program.fallback:
            _log.warning(
                "users are trained one by one, which is slower: torch.func cannot batch the model (%s)",
                program.fallback,
            )
        exact = local.engine == "auto" and task.device.type == "cpu"
        self._workers = Workers(program.make)
        self._grouping = Grouping(task, self._workers, group_size, exact)

    def updates(self, parameters: Tensor, user_ids: Sequence[str], t: int) -> Tensor:
        """New minus received parameters of each user after local training in round t.

        Args:
            parameters: θ_t, shape (d,), float32.
            user_ids: the users to train.
            t: 0-based round; it selects the shuffling.

        Returns:
            Unclipped updates, shape (users, d), float32, in the order of ``user_ids``.

        Raises:
            KeyError: an unknown user id.
        """
        origin = parameters.to(self.task.device)
        updates = origin.new_empty(len(user_ids), origin.numel())
        for group in self._groups(user_ids, t):
            with single_threaded_kernels():  # as `add_updates`: with more threads bits may differ
                trained = self._trained(origin, group)
            updates[torch.from_numpy(group.positions).to(origin.device)] = trained - origin
        return updates

    def add_updates(self, parameters: Tensor, user_ids: Sequence[str], t: int, total: UpdateSum) -> list[str]:
        """Train users and add their updates to a sum, group by group, on all processor cores.

        Args:
            parameters: θ_t, shape (d,), float32.
            user_ids: the users to train.
            t: 0-based round; it selects the shuffling.
            total: what the updates are added to.

        Returns:
            The users whose update counts, in the order of ``user_ids``.

        Raises:
            KeyError: an unknown user id.
        """
        origin = parameters.to(self.task.device)
        counted = np.zeros(len(user_ids), dtype=bool)

        def train(group: _Group, into: UpdateSum) -> None:
            counted[group.positions] = into.add_updates(self._trained(origin, group), origin).cpu().numpy()

        self._workers.each(train, self._groups(user_ids, t), total)
        return [user for user, counts in zip(user_ids, counted, strict=True) if counts]

    def _groups(self, user_ids: Sequence[str], t: int) -> Iterator[_Group]:
        dataset, local = self.task.dataset, self.local
        users = dataset.indices(user_ids)
        sizes = dataset.sizes(users)
        batch, epochs = local.batch_size, local.epochs
        workers = self._workers.count
        for shape, positions in groups_of(sizes, batch, epochs, self._grouping.most, workers):
            seeds = np.array([user_seed(local.seed, t, str(user_ids[p])) for p in positions], dtype=np.uint64)
            features, labels = dataset.examples(users[positions])
            steps = step_rows(seeds, sizes[positions], batch, epochs, shape)
            yield _Group(positions, shape, features, labels, steps)

    def _trained(self, origin: Tensor, group: _Group) -> Tensor:
        """The models of the group's users after local training, shape (users, d)."""
        with torch.no_grad():
            models = aligned_empty(origin, group.positions.size, origin.numel()).copy_(origin)
            velocity = None if self.local.plain else aligned_empty(origin, *models.shape)
            for s, active in enumerate(group.steps.active):
                rows = torch.from_numpy(group.steps.rows[s]).to(origin.device)
                weights = torch.from_numpy(group.steps.weights[s]).to(origin.device)
                for part in self._grouping.parts(int(active), group.shape.width):
                    batch = Batch(group.features[rows[part]], group.labels[rows[part]], weights[part])
                    moving = None if velocity is None else velocity[part]
                    self._step(models[part], origin, batch, moving, first=s == 0)
            return models

    def _step(
        self, models: Tensor, origin: Tensor, batch: Batch, velocity: Tensor | None, first: bool
    ) -> None:
        local, gradient = self.local, self._workers.gradient
        if velocity is None:
            gradient.accumulate(batch, Accumulation(models, models, beta=1.0, alpha=-local.learning_rate))
            return
        beta = 0.0 if first else local.momentum
        gradient.accumulate(batch, Accumulation(models, velocity, beta, alpha=1.0))
        if local.proximal:
            velocity.add_(models - origin, alpha=local.proximal)
        models.add_(velocity, alpha=-local.learning_rate)
