"""Losses of common kinds of tasks: one number for each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch.nn.functional as F
from torch import Tensor

from fedmf.data.structure import PADDING

#: (outputs, labels) → per-example losses, shape (batch,).
Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per-example cross-entropy of logits, shape (batch,)."""
    return F.cross_entropy(outputs, labels, reduction="none")


def token_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of an example's positions, padding left out, on average: shape (batch,).

    Args:
        outputs: logits, shape (batch, …, classes).
        labels: shape (batch, …); −100 is padding.
    """
    real = (labels != PADDING).flatten(1).sum(dim=1)
    return position_losses(outputs, labels).flatten(1).sum(dim=1) / real.clamp(min=1)


def position_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each position, shape (batch, …); 0 for padding."""
    flat = outputs.flatten(0, -2), labels.flatten()
    return F.cross_entropy(*flat, reduction="none", ignore_index=PADDING).view(labels.shape)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean over an example's numbers of the squared error, shape (batch,); outputs are as many as
    labels.
    """
    return (outputs.reshape(labels.shape) - labels).square().reshape(len(labels), -1).mean(dim=1)


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean over an example's labels, 0 or 1, of the cross-entropy of logits: shape (batch,)."""
    losses = F.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return losses.reshape(len(labels), -1).mean(dim=1)


#: All of them.
LOSSES: Final = (binary_cross_entropy, cross_entropy, squared_error, token_cross_entropy)
