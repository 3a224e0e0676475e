"""A task: the data, the model and the loss that a run trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmf.data import FederatedDataset
from fedmf.models import FlatModel

__all__ = ["Task", "cross_entropy"]


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per-example cross-entropy of logits, shape (batch,)."""
    return F.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, eq=False)
class Task:
    """What is learnt, from whom.

    Args:
        dataset: users' examples and the central test part.
        model: the flat model; its template's parameters are θ_0.
        loss: (outputs, labels) → per-example losses, shape (batch,).
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def to(self, device: torch.device | str) -> Self:
        """The same task with its examples on ``device``."""
        return replace(self, dataset=self.dataset.to(device))

    @torch.no_grad()
    def evaluate(self, parameters: Tensor) -> dict[str, float]:
        """Mean loss and accuracy of θ on the central test part, which no user owns."""
        outputs = self.model.forward(parameters, self.dataset.test_features)
        labels = self.dataset.test_labels
        return {
            "loss": float(self.loss(outputs, labels).mean()),
            "accuracy": float((outputs.argmax(dim=-1) == labels).to(torch.float64).mean()),
        }
