"""The two ends of models of tokens, and recurrent models of tokens."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from fedmf.models.architecture import Architecture, Layers
from fedmf.values import Field

Output = Annotated[Literal["own", "tied"], Field("own: a weight and a bias; tied: the embedding's weight")]
Pooling = Annotated[
    Literal["none", "last", "mean"],
    Field("none: one output for each position; last or mean: one for each example"),
]
#: Embeddings start uniformly within ±this, as Keras's and pfl's do.
_RANGE: Final = 0.05


def embedding_of(vocabulary: int, width: int) -> nn.Embedding:
    """A vector for each token."""
    return nn.Embedding(vocabulary, width, _weight=torch.empty(vocabulary, width).uniform_(-_RANGE, _RANGE))


def pooled(pooling: str) -> Layers:
    """The layer that leaves one position, if any."""
    parts: dict[str, type[nn.Module]] = {"last": LastPosition, "mean": MeanPosition}
    return [("pooling", parts[pooling]())] if pooling in parts else []


def output_of(kind: str, embedding: nn.Embedding, width: int, outputs: int, weights: str) -> nn.Linear:
    """The last layer; if tied, its weight is the embedding's and it has no bias.

    Raises:
        ValueError: a tied one with outputs that are not the tokens.
    """
    if weights == "own":
        return nn.Linear(width, outputs)
    if outputs != embedding.num_embeddings:
        raise ValueError(
            f"model {kind} with output 'tied' needs an output for each of the {embedding.num_embeddings} "
            f"tokens; got {outputs}. Take another model."
        )
    layer = nn.Linear(width, outputs, bias=False)
    layer.weight = embedding.weight
    return layer


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


@dataclass(frozen=True)
class Lstm(Architecture):
    """Embedded tokens, LSTM layers, an optional dense layer, and an output for each position.

    Raises:
        ValueError: a tied output behind a layer of another width.
    """

    kind: ClassVar[str] = "lstm"
    takes_tokens: ClassVar[bool] = True

    embedding: Annotated[int, Field("dimension of a token's embedding", ge=1)] = 32
    hidden: Annotated[int, Field("state size of each LSTM layer", ge=1)] = 64
    layers: Annotated[int, Field("number of layers", ge=1, le=64)] = 1
    dense_units: Annotated[int, Field("units of a dense layer before the output; 0: none", ge=0)] = 0
    output: ClassVar[Output] = "own"
    pooling: Pooling = "none"

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
    """The next-word model for StackOverflow: embedding 96, one LSTM of 670, dense 96, a separate output.

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
    """pfl's LSTM for StackOverflow: embedding 96, one LSTM, dense 96, tied output.

    1,347,552 parameters with 10,004 tokens and a state of 256, the size that pfl's configuration names.

    References:
        benchmarks/model/pytorch/lstm.py and benchmarks/lm/configs/baseline.yaml of apple/pfl-research.
    """

    kind: ClassVar[str] = "pfl-lstm"

    embedding: int = 96
    hidden: int = 256
    dense_units: int = 96
    output: ClassVar[Output] = "tied"
