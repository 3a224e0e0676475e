"""Transformers: models of tokens with causal attention."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.models.architecture import Architecture, Layers, Residual
from fedmf.models.recurrent import Pooling, embedding_of, pooled
from fedmf.values import Field


class Sinusoids(nn.Module):
    """√width·x + sine and cosine waves of the position.

    Wavelengths grow geometrically from 2π to 10,000·2π.

    References:
        Vaswani et al. (2017), "Attention Is All You Need", sections 3.4 and 3.5.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, shape (…, positions, width), as x; the width is even."""
        positions, width = x.shape[-2:]
        pairs = torch.arange(0, width, 2, device=x.device, dtype=x.dtype)
        rates = torch.exp(pairs * (-math.log(10_000.0) / width))
        angles = torch.arange(positions, device=x.device, dtype=x.dtype)[:, None] * rates
        return x * math.sqrt(width) + torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class SelfAttention(nn.Module):
    """softmax(QKᵀ/√(width of a head))·V, heads side by side, then a dense layer.

    A position sees only itself and earlier ones.

    Args:
        width: entries of a position; a multiple of ``heads``.
        heads: number of attention heads.

    Raises:
        ValueError: ``heads`` does not divide ``width``.

    References:
        Vaswani et al. (2017), "Attention Is All You Need", section 3.2.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads; got {width} and {heads}.")
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention of each position, shape (examples, positions, width), as x."""
        query, key, value = self.inputs(x).chunk(3, dim=-1)
        query = self._of_heads(query)
        key = self._of_heads(key)
        value = self._of_heads(value)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(-2, -3).flatten(-2))

    def _of_heads(self, part: Tensor) -> Tensor:
        """Split the last dimension among heads, shape (examples, heads, positions, …)."""
        return part.unflatten(-1, (self.heads, -1)).transpose(-2, -3)


@dataclass(frozen=True)
class Transformer(Architecture):
    """Blocks of causal attention over embedded tokens, and an output for each position.

    A position sees only itself and earlier ones, so that padding after a text changes none of its
    outputs.

    References:
        Vaswani et al. (2017), "Attention Is All You Need"; Xiong et al. (2020), "On Layer
        Normalization in the Transformer Architecture", for the norms before.
    """

    kind: ClassVar[str] = "transformer"
    takes_tokens: ClassVar[bool] = True

    width: Annotated[int, Field("dimension of each position, a multiple of heads", ge=1)] = 64
    layers: Annotated[int, Field("number of blocks", ge=1, le=256)] = 2
    heads: Annotated[int, Field("number of attention heads", ge=1)] = 4
    feed_forward: Annotated[int, Field("units between the two dense layers of a block", ge=1)] = 256
    pooling: Pooling = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads; got {self.width} and {self.heads}."
            )
        if self.width % 2:
            raise ValueError(f"width must be even with sinusoidal positions; got {self.width}.")

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        layers: Layers = [
            ("embedding", embedding_of(vocabulary, self.width)),
            ("positions", Sinusoids()),
        ]
        for i in range(self.layers):
            attention = _initialized(SelfAttention(self.width, self.heads))
            layers.append((f"attention{i}", self._block(attention)))
            units = self.feed_forward
            forward = nn.Sequential(
                nn.Linear(self.width, units), nn.ReLU(), nn.Linear(units, self.width)
            )
            layers.append((f"dense{i}", self._block(forward)))
        layers.append(("norm", nn.LayerNorm(self.width)))
        layers += pooled(self.pooling)
        layers.append(("output", nn.Linear(self.width, outputs)))
        return nn.Sequential(OrderedDict(layers))

    def _block(self, part: nn.Module) -> Residual:
        """Return a part that follows a LayerNorm and is added to its input."""
        return Residual(nn.Sequential(OrderedDict(norm=nn.LayerNorm(self.width), part=part)))


def _initialized(attention: SelfAttention) -> SelfAttention:
    """Initialize a layer like torch's own multi-head attention."""
    nn.init.xavier_uniform_(attention.inputs.weight)
    nn.init.zeros_(attention.inputs.bias)
    nn.init.zeros_(attention.output.bias)
    return attention
