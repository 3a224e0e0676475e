"""Transformers: models of tokens with attention."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import nn

from fedmf.models.architectures.architecture import Architecture, Layers, normal_
from fedmf.models.architectures.token_ends import Pooling, embedding_of, output_of, pooled
from fedmf.models.parts import FirstPosition, Positions, Residual, SelfAttention, Sinusoids
from fedmf.values import Field


@dataclass(frozen=True)
class _Attentive(Architecture):
    """What all transformers have."""

    takes_tokens: ClassVar[bool] = True

    width: Annotated[int, Field("entries of a position, a multiple of heads", ge=1)] = 64
    layers: Annotated[int, Field("number of blocks", ge=1, le=256)] = 2
    heads: Annotated[int, Field("heads of each attention", ge=1)] = 4
    feed_forward: Annotated[int, Field("units between the two dense layers of a block", ge=1)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads; got {self.width} and {self.heads}.")


@dataclass(frozen=True)
class Transformer(_Attentive):
    """Blocks of causal attention over embedded tokens, and an output for each position.

    A position sees itself and what is before it, so that padding behind a text changes none of its outputs.

    References:
        Vaswani et al. (2017), "Attention Is All You Need"; Xiong et al. (2020), "On Layer Normalization in
        the Transformer Architecture", for the norms before.
    """

    kind: ClassVar[str] = "transformer"

    positions: Annotated[Literal["sinusoidal", "learnt"], Field("sinusoidal (no parameters) or learnt")] = (
        "sinusoidal"
    )
    norms: Annotated[Literal["after", "before"], Field("LayerNorm after each sum, or before each part")] = (
        "before"
    )
    output: Annotated[
        Literal["own", "tied"], Field("own: a weight and a bias; tied: the embedding's weight")
    ] = "own"
    pooling: Annotated[
        Pooling, Field("none: an output for each position; last or mean: one for each example")
    ] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"width must be even with sinusoidal positions; got {self.width}.")

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`."""
        embedding = embedding_of(vocabulary, self.width)
        places = Sinusoids() if self.positions == "sinusoidal" else _positions(shape[0], self.width)
        layers: Layers = [("embedding", embedding), ("positions", places)]
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
    norms: Literal["after", "before"] = "after"
    output: Literal["own", "tied"] = "tied"


@dataclass(frozen=True)
class Bert(_Attentive):
    """BERT with a dense output on its first position, of the size of BERT-tiny unless said otherwise.

    4,385,922 parameters with 30,522 tokens and two classes. As published there are 4,385,920, without the
    output (258) and with the 2·128 of the two kinds of segments, of which a text has one. Training starts
    from the file ``initial`` or from random parameters. All positions are seen, also those of padding.

    References:
        Devlin et al. (2019), "BERT"; Turc et al. (2019), "Well-Read Students Learn Better", for BERT-tiny.
    """

    kind: ClassVar[str] = "bert"

    width: int = 128
    layers: int = 2
    heads: int = 2
    feed_forward: int = 512
    longest: Annotated[int, Field("most positions of an example", ge=1)] = 512

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`."""
        if shape[0] > self.longest:
            raise ValueError(
                f"model {self.kind} needs examples of at most {self.longest} positions; got {shape[0]}. "
                "Cut them, or set longest."
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


def _positions(length: int, width: int) -> Positions:
    places = Positions(length, width)
    normal_(places.weight, 0.02)
    return places


def _initialised(attention: SelfAttention) -> SelfAttention:
    """As torch's own multi-head attention."""
    nn.init.xavier_uniform_(attention.inputs.weight)
    nn.init.zeros_(attention.inputs.bias)
    nn.init.zeros_(attention.output.bias)
    return attention
