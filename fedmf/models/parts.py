"""Parts of sequence models and residual networks, as modules that may stand in an `nn.Sequential`.

Everything here treats examples one by one and keeps no state, so that users' passes can be batched.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
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


class Residual(nn.Module):
    """x ↦ shortcut(x) + body(x).

    Args:
        body: keeps the shape, or changes it as the shortcut does.
        shortcut: the identity if left out.
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Both summed."""
        return self.shortcut(x) + self.body(x)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer that starts from zeros, shape (examples, positions, hidden).

    Args:
        layer: an `nn.LSTM` or `nn.GRU` with ``batch_first``, one layer in one direction.

    Raises:
        ValueError: any other kind of layer.
    """

    def __init__(self, layer: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        if not layer.batch_first or layer.num_layers != 1 or layer.bidirectional or layer.proj_size:
            raise ValueError("layer must have batch_first, one layer, one direction and no projection.")
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """h_1, …, h_T for x of shape (examples, positions, inputs)."""
        return self.layer(x)[0]


class SelfAttention(nn.Module):
    """softmax(QKᵀ/√(width of a head))·V, heads side by side, then a dense layer.

    Args:
        width: entries of a position; a multiple of ``heads``.
        heads: how many.
        causal: whether a position sees itself and what is before it alone.

    Raises:
        ValueError: a width that heads do not divide.

    References:
        Vaswani et al. (2017), "Attention Is All You Need", section 3.2.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads; got {width} and {heads}.")
        self.heads, self.causal = heads, causal
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (examples, positions, width), as x."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in self.inputs(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(-2, -3).flatten(-2))


class Positions(nn.Module):
    """x + a learnt vector for each position.

    Args:
        length: most positions.
        width: entries of a position.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, positions, width), as x."""
        return x + self.weight[: x.shape[-2]]


class LastPosition(nn.Module):
    """What stands in the last position: (…, positions, width) to (…, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """The last one."""
        return x[..., -1, :]


class MeanPosition(nn.Module):
    """The mean over positions: (…, positions, width) to (…, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean."""
        return x.mean(dim=-2)
