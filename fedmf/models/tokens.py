"""Parts of models of tokens that have no parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Sinusoids(nn.Module):
    """√width·x + sine and cosine waves of the position, whose lengths grow geometrically to 10,000·2π.

    References:
        Vaswani et al. (2017), "Attention Is All You Need", sections 3.4 and 3.5.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, positions, width), as x; the width is even."""
        positions, width = x.shape[-2:]
        pairs = torch.arange(0, width, 2, device=x.device, dtype=x.dtype)
        rates = torch.exp(pairs * (-math.log(10_000.0) / width))
        angles = torch.arange(positions, device=x.device, dtype=x.dtype)[:, None] * rates
        return x * math.sqrt(width) + torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class FirstPosition(nn.Module):
    """What stands in the first position: (…, positions, width) to (…, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """The first one."""
        return x[..., 0, :]
