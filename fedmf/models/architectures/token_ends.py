"""The two ends of models of tokens: the embedding, and what is made of the last positions."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import nn

from fedmf.models.architectures.architecture import Layers
from fedmf.models.parts import LastPosition, MeanPosition

#: Which positions are one example's output.
Pooling = Literal["none", "last", "mean"]
#: Embeddings start uniformly within ±this, as Keras's and pfl's do.
_RANGE: Final = 0.05


def embedding_of(vocabulary: int, width: int) -> nn.Embedding:
    """A vector for each token."""
    return nn.Embedding(vocabulary, width, _weight=torch.empty(vocabulary, width).uniform_(-_RANGE, _RANGE))


def pooled(pooling: Pooling) -> Layers:
    """The layer that leaves one position, if any."""
    parts: dict[str, type[nn.Module]] = {"last": LastPosition, "mean": MeanPosition}
    return [("pooling", parts[pooling]())] if pooling in parts else []


def output_of(
    kind: str, embedding: nn.Embedding, width: int, outputs: int, weights: Literal["own", "tied"]
) -> nn.Linear:
    """The last layer; if tied, its weight is the embedding's and it has no bias.

    Raises:
        ValueError: a tied one whose outputs are not the tokens.
    """
    if weights == "own":
        return nn.Linear(width, outputs)
    if outputs != embedding.num_embeddings:
        raise ValueError(
            f"model {kind} with output 'tied' needs an output for each of the {embedding.num_embeddings} "
            f"tokens; got {outputs}. Set output to 'own'."
        )
    layer = nn.Linear(width, outputs, bias=False)
    layer.weight = embedding.weight
    return layer
