"""Local training of many users at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap

from fedmf.training.data import FederatedDataset
from fedmf.training.model import FlatModel

__all__ = ["LocalSGD", "LocalTrainer", "user_generator"]

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LocalSGD:
    """What a user does with the model it receives: epochs of minibatch SGD on its own examples."""

    epochs: int = 1
    batch_size: int = 8
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"local-epochs must be at least 1; got {self.epochs}.")
        if self.batch_size < 1:
            raise ValueError(f"local-batch-size must be at least 1; got {self.batch_size}.")
        if not (np.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"local-learning-rate must be positive and finite; got {self.learning_rate}.")


def user_generator(seed: int, t: int, user_id: str) -> np.random.Generator:
    """The generator of one user's shuffling in one round; the same wherever the user is trained."""
    digest = hashlib.sha256(f"fedmf local shuffle|{seed}|{t}|{user_id}".encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))


class LocalTrainer:
    """Trains a set of users as one batched program.

    Each user starts from the received parameters and runs ``plan`` on its own examples; users with
    fewer examples are padded with their own examples at weight zero, and stand still once they are done.

    Guarantees:
        A user's update does not depend on who else is trained, beyond the rounding of float32 sums: not
        even on another user's NaN, infinity or diverging model.

    Args:
        model: the flat model.
        dataset: the users' examples.
        plan: local SGD.
        loss: (outputs, labels) → per-example losses, shape (batch,).
        seed: public seed of the shuffling.
    """

    def __init__(
        self, model: FlatModel, dataset: FederatedDataset, plan: LocalSGD, loss: Loss, seed: int
    ) -> None:
        self.model, self.dataset, self.plan, self.loss, self.seed = model, dataset, plan, loss, seed
        self._gradient = vmap(grad(self._weighted_loss), in_dims=(0, 0, 0, 0))

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
        if not user_ids:
            return parameters.new_zeros(0, parameters.numel())
        users = self.dataset.indices(user_ids)
        block_features, block_labels = self.dataset.examples(users)
        device = block_features.device
        parameters = parameters.to(device)
        sizes = self.dataset.sizes(users)
        indices, weights = (tensor.to(device) for tensor in self._batches(user_ids, sizes, t))
        current = self.model.unflatten(parameters.repeat(len(user_ids), 1))
        for rows, weight in zip(indices, weights, strict=True):
            features, labels = block_features[rows], block_labels[rows]
            gradients = self._gradient(current, features, labels, weight)
            current = {name: self._stepped(p, gradients[name], weight) for name, p in current.items()}
        return self.model.flatten(current, leading=1) - parameters

    def _stepped(self, parameter: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
        """One SGD step of the users that still train; the gradient of the others is 0·∞ = NaN at worst."""
        training = (weight[:, 0] > 0).reshape(-1, *(1,) * (parameter.ndim - 1))
        return torch.where(training, parameter - self.plan.learning_rate * gradient, parameter)

    def _weighted_loss(
        self, parameters: dict[str, Tensor], features: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
        outputs = torch.func.functional_call(self.model.module, parameters, (features,))
        return (self.loss(outputs, labels) * weights).sum()

    def _batches(self, user_ids: Sequence[str], sizes: NDArray[np.int64], t: int) -> tuple[Tensor, Tensor]:
        """Rows of the block of all users' examples and their weights, shape (steps, users, batch).

        The weights of a real batch sum to 1.
        """
        starts = np.cumsum(sizes) - sizes
        plans = [
            self._user_batches(name, np.arange(start, start + size), t)
            for name, start, size in zip(user_ids, starts, sizes, strict=True)
        ]
        steps = max(len(plan) for plan in plans)
        size = max(batch.size for plan in plans for batch in plan)
        indices = np.zeros((steps, len(plans), size), dtype=np.int64)
        weights = np.zeros((steps, len(plans), size), dtype=np.float32)
        for u, plan in enumerate(plans):
            for s, batch in enumerate(plan):
                indices[s, u] = batch[0]
                indices[s, u, : batch.size] = batch
                weights[s, u, : batch.size] = 1.0 / batch.size
        return torch.from_numpy(indices), torch.from_numpy(weights)

    def _user_batches(self, user_id: str, owned: NDArray[np.int64], t: int) -> list[NDArray[np.int64]]:
        rng = user_generator(self.seed, t, user_id)
        size = self.plan.batch_size
        batches = []
        for _ in range(self.plan.epochs):
            order = rng.permutation(owned)
            batches += [order[i : i + size] for i in range(0, order.size, size)]
        return batches
