"""Recurrent models of tokens, and the embedding and pooling that all models of tokens share."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from fedmf.models.architecture import Architecture, Layers
from fedmf.values import Field

Pooling = Annotated[
    Literal["none", "last", "mean"],
    Field("none: one output for each position; last or mean: one for each example"),
]
#: Embeddings start uniformly within ± this, as those of Keras and pfl do.
_RANGE: Final = 0.05


def embedding_of(vocabulary: int, width: int) -> nn.Embedding:
    """Return an embedding of tokens with uniform initial vectors."""
    weight = torch.empty(vocabulary, width).uniform_(-_RANGE, _RANGE)
    return nn.Embedding(vocabulary, width, _weight=weight)


def pooled(pooling: str) -> Layers:
    """Return the layer that leaves one vector for each example, if any."""
    if pooling == "last":
        return [("pooling", LastPosition())]
    if pooling == "mean":
        return [("pooling", MeanPosition())]
    return []


class LastPosition(nn.Module):
    """The vector of the last position: (…, positions, width) to (…, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the last vector."""
        return x[..., -1, :]


class MeanPosition(nn.Module):
    """The mean over positions: (…, positions, width) to (…, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean vector."""
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
            raise ValueError(
                "layer must have batch_first, one layer, one direction and no projection."
            )
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return h_1, …, h_T for x of shape (examples, positions, inputs)."""
        return self.layer(x)[0]


@dataclass(frozen=True)
class Lstm(Architecture):
    """Embedded tokens, LSTM layers, an optional dense layer, and an output for each position."""

    kind: ClassVar[str] = "lstm"
    takes_tokens: ClassVar[bool] = True

    embedding: Annotated[int, Field("dimension of a token's embedding", ge=1)] = 32
    hidden: Annotated[int, Field("state size of each LSTM layer", ge=1)] = 64
    layers: Annotated[int, Field("number of layers", ge=1, le=64)] = 1
    dense_units: Annotated[
        int, Field("units of a dense layer before the output; 0: none", ge=0)
    ] = 0
    pooling: Pooling = "none"

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        layers: Layers = [("embedding", embedding_of(vocabulary, self.embedding))]
        width = self.embedding
        for i in range(self.layers):
            layers.append((f"lstm{i}", Recurrent(nn.LSTM(width, self.hidden, batch_first=True))))
            width = self.hidden
        layers += pooled(self.pooling)
        if self.dense_units:
            layers.append(("dense", nn.Linear(width, self.dense_units)))
            width = self.dense_units
        layers.append(("output", nn.Linear(width, outputs)))
        return nn.Sequential(OrderedDict(layers))
