"""Functions of users' clipped updates, as somebody may write them."""

from __future__ import annotations

import torch
from torch import Tensor


def halves(update: Tensor) -> Tensor:
    """Norms of both halves."""
    middle = update.numel() // 2
    return torch.stack([update[:middle].norm(), update[middle:].norm()])


def greedy(update: Tensor) -> Tensor:
    """Far above its bound, and it overwrites what it is given."""
    told = 1e12 * update[:2].sign()
    update.fill_(7.0)
    return told


def moody(update: Tensor) -> Tensor:
    """Fails for some users, gives NaN for others, another shape for yet others."""
    first = float(update[0])
    if first > 0.3:
        raise RuntimeError("not today")
    if first > 0.1:
        return torch.tensor([first, float("nan")])
    return torch.ones(3 if first < -0.3 else 2)


def three(update: Tensor) -> Tensor:
    """More numbers than are named."""
    return update[:3]


NOT_A_FUNCTION = 1.0
