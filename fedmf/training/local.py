"""Local training of many users at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import FederatedDataset
from fedmf.models import FlatModel
from fedmf.training.batches import Shape, StepRows, groups_of, step_rows
from fedmf.training.engines import LocalEngine, make_gradient
from fedmf.training.gradients import Loss, aligned_empty
from fedmf.training.grouping import Grouping
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.shuffling import user_seed
from fedmf.training.workers import Workers, single_threaded_kernels

__all__ = ["LocalTrainer", "UpdateSum"]


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

    Each user starts from the received parameters and runs ``plan`` on its own examples; users with fewer
    examples are padded at weight zero, and stand still once they are done.

    Guarantees:
        A user's update does not depend on who else is trained, in how many groups and threads: not even on
        another user's NaN, infinity or diverging model. On processors with engine "auto" or "loop" that holds
        bit for bit, on machines of one kind (see `Grouping`); otherwise beyond the rounding of float32 sums.
        Memory is that of a few groups, however many users there are.

    Args:
        model: the flat model.
        dataset: the users' examples.
        plan: local SGD.
        loss: (outputs, labels) → per-example losses, shape (batch,).
        seed: public seed of the shuffling.
        engine: how gradients are computed, see `make_gradient`.
        group_size: most users in a group; by default what suits caches and memory.

    Raises:
        ValueError: a model that mixes examples, or one that the engine cannot train.
    """

    def __init__(
        self,
        model: FlatModel,
        dataset: FederatedDataset,
        plan: LocalSGD,
        loss: Loss,
        seed: int,
        engine: LocalEngine = "auto",
        group_size: int | None = None,
    ) -> None:
        self.model, self.dataset, self.plan, self.loss, self.seed = model, dataset, plan, loss, seed
        features, labels = dataset.examples(np.zeros(1, dtype=np.int64))
        exact = engine == "auto" and features.device.type == "cpu"
        self._workers = Workers(make_gradient(model, loss, engine, features[:1], labels[:1]))
        self._grouping = Grouping(
            model, loss, self._workers, features[:1], dataset.classes, group_size, exact
        )

    @property
    def device(self) -> torch.device:
        """Where users are trained: where the dataset lives."""
        return self._grouping.device

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
        origin = parameters.to(self.device)
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
        origin = parameters.to(self.device)
        counted = np.zeros(len(user_ids), dtype=bool)

        def train(group: _Group, into: UpdateSum) -> None:
            counted[group.positions] = into.add_updates(self._trained(origin, group), origin).cpu().numpy()

        self._workers.each(train, self._groups(user_ids, t), total)
        return [user for user, counts in zip(user_ids, counted, strict=True) if counts]

    def _groups(self, user_ids: Sequence[str], t: int) -> Iterator[_Group]:
        users = self.dataset.indices(user_ids)
        sizes = self.dataset.sizes(users)
        batch, epochs = self.plan.batch_size, self.plan.epochs
        workers = self._workers.count
        for shape, positions in groups_of(sizes, batch, epochs, self._grouping.most, workers):
            seeds = np.array([user_seed(self.seed, t, str(user_ids[p])) for p in positions], dtype=np.uint64)
            features, labels = self.dataset.examples(users[positions])
            steps = step_rows(seeds, sizes[positions], batch, epochs, shape)
            yield _Group(positions, shape, features, labels, steps)

    def _trained(self, origin: Tensor, group: _Group) -> Tensor:
        """The models of the group's users after local training, shape (users, d)."""
        with torch.no_grad():
            models = aligned_empty(origin, group.positions.size, origin.numel()).copy_(origin)
            velocity = None if self.plan.plain else aligned_empty(origin, *models.shape)
            for s, active in enumerate(group.steps.active):
                rows = torch.from_numpy(group.steps.rows[s]).to(origin.device)
                weights = torch.from_numpy(group.steps.weights[s]).to(origin.device)
                for part in self._grouping.parts(int(active), group.shape.width):
                    batch = group.features[rows[part]], group.labels[rows[part]], weights[part]
                    moving = None if velocity is None else velocity[part]
                    self._step(models[part], origin, batch, moving, first=s == 0)
            return models

    def _step(
        self,
        models: Tensor,
        origin: Tensor,
        batch: tuple[Tensor, Tensor, Tensor],
        velocity: Tensor | None,
        first: bool,
    ) -> None:
        plan, gradient = self.plan, self._workers.gradient
        if velocity is None:
            gradient.accumulate(models, *batch, models, beta=1.0, alpha=-plan.learning_rate)
            return
        gradient.accumulate(models, *batch, velocity, beta=0.0 if first else plan.momentum, alpha=1.0)
        if plan.proximal:
            velocity.add_(models - origin, alpha=plan.proximal)
        models.add_(velocity, alpha=-plan.learning_rate)
