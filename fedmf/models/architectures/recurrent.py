"""Recurrent models of tokens."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import nn

from fedmf.models.architectures.architecture import Architecture, Layers
from fedmf.models.architectures.token_ends import Pooling, embedding_of, output_of, pooled
from fedmf.models.parts import Recurrent
from fedmf.values import Field


@dataclass(frozen=True)
class Lstm(Architecture):
    """Tokens embedded, LSTM layers, a dense layer if asked for, and an output for each position.

    Raises:
        ValueError: a tied output behind a layer of another width.
    """

    kind: ClassVar[str] = "lstm"
    takes_tokens: ClassVar[bool] = True

    embedding: Annotated[int, Field("entries of a token's vector", ge=1)] = 32
    hidden: Annotated[int, Field("state of each LSTM layer", ge=1)] = 64
    layers: Annotated[int, Field("number of layers", ge=1, le=64)] = 1
    dense_units: Annotated[int, Field("of a layer between the last LSTM and the output; 0: none", ge=0)] = 0
    output: Annotated[
        Literal["own", "tied"], Field("own: a weight and a bias; tied: the embedding's weight")
    ] = "own"
    pooling: Annotated[
        Pooling, Field("none: an output for each position; last or mean: one for each example")
    ] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output == "tied" and (self.dense_units or self.hidden) != self.embedding:
            raise ValueError(
                f"output 'tied' needs a last layer as wide as the embedding, {self.embedding}; got "
                f"{self.dense_units or self.hidden}. Set dense_units to {self.embedding}."
            )

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        """See `Architecture.module`."""
        embedding = embedding_of(vocabulary, self.embedding)
        layers: Layers = [("embedding", embedding)]
        width = self.embedding
        for i in range(self.layers):
            layers.append((f"lstm{i}", Recurrent(nn.LSTM(width, self.hidden, batch_first=True))))
            width = self.hidden
        layers += pooled(self.pooling)
        if self.dense_units:
            layers.append(("dense", nn.Linear(width, self.dense_units)))
            width = self.dense_units
        layers.append(("output", output_of(self.kind, embedding, width, outputs, self.output)))
        return nn.Sequential(OrderedDict(layers))


@dataclass(frozen=True)
class StackOverflowLstm(Lstm):
    """The next-word model of StackOverflow: embedding 96, one LSTM of 670, dense 96, an output of its own.

    4,053,428 parameters with 10,004 tokens. By the published layers there are 4,050,748: torch's LSTM has two
    biases where Keras's has one, 4·670 more.

    References:
        Reddi et al. (2021), "Adaptive Federated Optimization", appendix on datasets and models.
    """

    kind: ClassVar[str] = "stackoverflow-lstm"

    embedding: int = 96
    hidden: int = 670
    dense_units: int = 96


@dataclass(frozen=True)
class PflLstm(Lstm):
    """pfl's LSTM for StackOverflow: embedding 96, one LSTM, dense 96, the output tied.

    1,347,552 parameters with 10,004 tokens and a state of 256, the size that pfl's configuration names.

    References:
        benchmarks/model/pytorch/lstm.py and benchmarks/lm/configs/baseline.yaml of apple/pfl-research.
    """

    kind: ClassVar[str] = "pfl-lstm"

    embedding: int = 96
    hidden: int = 256
    dense_units: int = 96
    output: Literal["own", "tied"] = "tied"
