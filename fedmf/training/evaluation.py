"""A model on users' own examples: plain sums, with no noise and no clipping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import FederatedDataset
from fedmf.models import FlatModel
from fedmf.training.gradients import Loss

__all__ = ["ExampleTotals", "evaluate_users"]

#: Examples in one forward pass.
_ROWS = 1024


@dataclass(frozen=True)
class ExampleTotals:
    """Sums over examples.

    Args:
        loss: sum of the examples' losses.
        correct: how many examples the model labels as they are labelled.
        examples: how many there are.
    """

    loss: float
    correct: int
    examples: int


@torch.no_grad()
def evaluate_users(
    model: FlatModel, dataset: FederatedDataset, loss: Loss, parameters: Tensor, user_ids: Sequence[str]
) -> ExampleTotals:
    """Sum loss and correct labels over all examples of some users.

    The result has no differential privacy. Memory is that of 1024 examples and of one user.

    Args:
        model: the flat model.
        dataset: the users' examples; what is computed is computed where it lives.
        loss: (outputs, labels) → per-example losses, shape (batch,).
        parameters: θ, shape (d,), float32.
        user_ids: at least one user.

    Raises:
        KeyError: an unknown user id.
    """
    summed, correct, examples = 0.0, 0, 0
    for users in _parts(dataset, dataset.indices(user_ids)):
        owned_features, owned_labels = dataset.examples(users)
        theta = parameters.to(owned_features.device)
        for features, labels in zip(owned_features.split(_ROWS), owned_labels.split(_ROWS), strict=True):
            outputs = model.forward(theta, features)
            summed += float(loss(outputs, labels).to(torch.float64).sum())
            correct += int((outputs.argmax(dim=-1) == labels).sum())
            examples += labels.numel()
    return ExampleTotals(summed, correct, examples)


def _parts(dataset: FederatedDataset, users: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut users into parts that own about 1024 examples together."""
    filled = np.cumsum(dataset.sizes(users)) // _ROWS
    yield from np.split(users, np.flatnonzero(np.diff(filled)) + 1)
