"""Losses of common kinds of tasks.

A loss gives one number for each example, which must not depend on other examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmf.data.structure import PADDING

#: (outputs, labels) → per-example losses, shape (batch,).
Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per-example cross-entropy of logits, shape (batch,)."""
    return F.cross_entropy(outputs, labels, reduction="none")


def token_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of an example's positions without padding, shape (batch,).

    Args:
        outputs: logits, shape (batch, …, classes).
        labels: shape (batch, …); −100 is padding.
    """
    real = (labels != PADDING).flatten(1).sum(dim=1)
    return position_losses(outputs, labels).flatten(1).sum(dim=1) / real.clamp(min=1)


def position_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each position, shape (batch, …); 0 for padding.

    That of logits of less precision, as of a model in bfloat16, is computed in float32.
    """
    logits = outputs.flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits, labels.flatten(), reduction="none", ignore_index=PADDING)
    return losses.view(labels.shape)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of an example's numbers, shape (batch,).

    Args:
        outputs: as many numbers as labels, in any shape.
        labels: shape (batch, …).
    """
    return (outputs.reshape(labels.shape) - labels).square().reshape(len(labels), -1).mean(dim=1)


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits over an example's labels of 0 or 1, shape (batch,)."""
    losses = F.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return losses.reshape(len(labels), -1).mean(dim=1)


#: All losses.
LOSSES: Final = (binary_cross_entropy, cross_entropy, squared_error, token_cross_entropy)
