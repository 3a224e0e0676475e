"""A model on users' own examples: plain sums, with no noise and no clipping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import FederatedDataset
from fedmf.training.task import Task

__all__ = ["ExampleTotals", "evaluate_users"]

#: Examples in one forward pass.
_ROWS = 1024


@dataclass(frozen=True)
class ExampleTotals:
    """Sums over examples.

    Args:
        sums: by the name of a metric, ``loss`` included: the sums of its terms; see `Metric`.
        examples: how many there are.
    """

    sums: Mapping[str, tuple[float, ...]]
    examples: int


@torch.no_grad()
def evaluate_users(task: Task, parameters: Tensor, user_ids: Sequence[str]) -> ExampleTotals:
    """Sum loss and metrics over all examples of some users; `Task.values` makes metrics of the sums.

    The result has no differential privacy. Memory is that of 1024 examples and of one user.

    Args:
        task: what is computed is computed where its examples live.
        parameters: θ, shape (d,), float32.
        user_ids: at least one user.

    Raises:
        KeyError: an unknown user id.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    examples = 0
    for users in _parts(task.dataset, task.dataset.indices(user_ids)):
        owned_features, owned_labels = task.dataset.examples(users)
        theta = parameters.to(owned_features.device)
        for features, labels in zip(owned_features.split(_ROWS), owned_labels.split(_ROWS), strict=True):
            outputs = task.model.forward(theta, features)
            parts = {metric.name: metric.sums(outputs, labels) for metric in task.metrics}
            parts["loss"] = (float(task.loss(outputs, labels).to(torch.float64).sum()),)
            sums = {name: sums.get(name, 0.0) + np.asarray(part) for name, part in parts.items()}
            examples += len(labels)
    return ExampleTotals({name: tuple(total.tolist()) for name, total in sums.items()}, examples)


def _parts(dataset: FederatedDataset, users: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut users into parts that own about 1024 examples together."""
    filled = np.cumsum(dataset.sizes(users)) // _ROWS
    yield from np.split(users, np.flatnonzero(np.diff(filled)) + 1)
