"""Transformers: models of tokens with attention."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.models.architecture import Architecture, Layers, Residual, normal_
from fedmf.models.recurrent import Output, Pooling, embedding_of, output_of, pooled
from fedmf.values import Field


class Sinusoids(nn.Module):
    """√width·x + sine and cosine waves of the position; their lengths grow geometrically to 10,000·2π.

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


class Positions(nn.Module):
    """x + a learned vector for each position.

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


class SelfAttention(nn.Module):
    """softmax(QKᵀ/√(width of a head))·V, heads side by side, then a dense layer.

    Args:
        width: entries of a position; a multiple of ``heads``.
        heads: how many.
        causal: whether a position sees only itself and earlier ones.

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


class FirstPosition(nn.Module):
    """What stands in the first position: (…, positions, width) to (…, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """The first one."""
        return x[..., 0, :]


@dataclass(frozen=True)
class _Attentive(Architecture):
    """What all transformers have."""

    takes_tokens: ClassVar[bool] = True

    width: Annotated[int, Field("dimension of each position, a multiple of heads", ge=1)] = 64
    layers: Annotated[int, Field("number of blocks", ge=1, le=256)] = 2
    heads: Annotated[int, Field("number of attention heads", ge=1)] = 4
    feed_forward: Annotated[int, Field("units between the two dense layers of a block", ge=1)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads; got {self.width} and {self.heads}.")


@dataclass(frozen=True)
class Transformer(_Attentive):
    """Blocks of causal attention over embedded tokens, and an output for each position.

    A position sees only itself and earlier ones, so that padding after a text changes none of its outputs.

    References:
        Vaswani et al. (2017), "Attention Is All You Need"; Xiong et al. (2020), "On Layer Normalization in
        the Transformer Architecture", for the norms before.
    """

    kind: ClassVar[str] = "transformer"

    #: LayerNorm after each sum, as first published, or before each part and once at the end.
    norms: ClassVar[Literal["after", "before"]] = "before"
    output: ClassVar[Output] = "own"

    pooling: Pooling = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise ValueError(f"width must be even with sinusoidal positions; got {self.width}.")

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`."""
        embedding = embedding_of(vocabulary, self.width)
        layers: Layers = [("embedding", embedding), ("positions", Sinusoids())]
        for i in range(self.layers):
            attention = _initialised(SelfAttention(self.width, self.heads, causal=True))
            forward = _feed_forward(self.width, self.feed_forward, nn.ReLU())
            for name, part in ((f"attention{i}", attention), (f"dense{i}", forward)):
                norm = nn.LayerNorm(self.width)
                if self.norms == "after":
                    layers += [(name, Residual(part)), (f"{name}_norm", norm)]
                else:
                    layers.append((name, Residual(nn.Sequential(OrderedDict(norm=norm, part=part)))))
        if self.norms == "before":
            layers.append(("norm", nn.LayerNorm(self.width)))
        layers += pooled(self.pooling)
        layers.append(("output", output_of(self.kind, embedding, self.width, outputs, self.output)))
        return nn.Sequential(OrderedDict(layers))


@dataclass(frozen=True)
class PflTransformer(Transformer):
    """pfl's transformer for StackOverflow: 96 wide, 3 layers of 8 heads, 1,536 dense units, the output tied.

    1,962,912 parameters with 10,004 tokens, as pfl's. Without its dropout of 0.1: passes here are functions
    of the examples alone.

    References:
        benchmarks/model/pytorch/transformer.py and benchmarks/lm/configs/baseline.yaml of
        apple/pfl-research, after Wang et al. (2021), "A Field Guide to Federated Optimization".
    """

    kind: ClassVar[str] = "pfl-transformer"

    width: int = 96
    layers: int = 3
    heads: int = 8
    feed_forward: int = 1536
    norms: ClassVar[Literal["after", "before"]] = "after"
    output: ClassVar[Output] = "tied"


@dataclass(frozen=True)
class Bert(_Attentive):
    """BERT with a dense output on its first position; by default, the size of BERT-tiny.

    4,385,922 parameters with 30,522 tokens and two classes. As published there are 4,385,920, without the
    output (258) and with the 2·128 of the two kinds of segments; a single text has one. Training starts
    from the file ``initial`` or from random parameters. All positions are seen, also padding.

    References:
        Devlin et al. (2019), "BERT"; Turc et al. (2019), "Well-Read Students Learn Better", for BERT-tiny.
    """

    kind: ClassVar[str] = "bert"

    width: int = 128
    layers: int = 2
    heads: int = 2
    feed_forward: int = 512
    #: Positions that there are parameters for.
    longest: ClassVar[int] = 512

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`."""
        if shape[0] > self.longest:
            raise ValueError(
                f"model {self.kind} needs examples of at most {self.longest} positions; got {shape[0]}. "
                "Cut them."
            )
        layers: Layers = [
            ("embedding", embedding_of(vocabulary, self.width)),
            ("positions", Positions(self.longest, self.width)),
            ("norm", self._norm()),
        ]
        for i in range(self.layers):
            attention = SelfAttention(self.width, self.heads, causal=False)
            forward = _feed_forward(self.width, self.feed_forward, nn.GELU())
            layers += [(f"attention{i}", Residual(attention)), (f"attention{i}_norm", self._norm())]
            layers += [(f"dense{i}", Residual(forward)), (f"dense{i}_norm", self._norm())]
        layers += [
            ("first", FirstPosition()),
            ("pooler", nn.Linear(self.width, self.width)),
            ("tanh", nn.Tanh()),
            ("output", nn.Linear(self.width, outputs)),
        ]
        module = nn.Sequential(OrderedDict(layers))
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Embedding | Positions):
                normal_(part.weight, 0.02, most=2.0)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)
        return module

    def _norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.width, eps=1e-12)


def _feed_forward(width: int, units: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, units), activation, nn.Linear(units, width))


def _initialised(attention: SelfAttention) -> SelfAttention:
    """As torch's own multi-head attention."""
    nn.init.xavier_uniform_(attention.inputs.weight)
    nn.init.zeros_(attention.inputs.bias)
    nn.init.zeros_(attention.output.bias)
    return attention
