"""Logistic regression and multi-layer perceptrons."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn

from fedmf.models.architecture import Architecture, Layers
from fedmf.values import Field


@dataclass(frozen=True)
class Mlp(Architecture):
    """A multi-layer perceptron with ReLU; without hidden layers, logistic regression.

    >>> sum(p.numel() for p in Mlp(hidden_units=(128, 64)).build((1, 28, 28), 10).parameters())
    109386
    """

    kind: ClassVar[str] = "mlp"
    hidden_units: Annotated[tuple[int, ...], Field("widths of the hidden layers", ge=1)] = (32,)

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        return _flattened(shape, dense(math.prod(shape), self.hidden_units, outputs))


@dataclass(frozen=True)
class Logistic(Architecture):
    """Softmax regression on all entries of an example.

    >>> sum(p.numel() for p in Logistic().build((1, 28, 28), 10).parameters())
    7850
    """

    kind: ClassVar[str] = "logistic"

    def module(self, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
        return _flattened(shape, dense(math.prod(shape), (), outputs))


def mlp(inputs: int, hidden: Sequence[int], outputs: int, seed: int) -> nn.Module:
    """Return the module of `Mlp` for examples that are vectors.

    Args:
        inputs: number of entries of one example.
        hidden: widths of the hidden layers.
        outputs: number of outputs.
        seed: public seed of the initial parameters.
    """
    return Mlp(hidden_units=tuple(hidden)).build((inputs,), outputs, seed=seed)


def dense(inputs: int, hidden: Sequence[int], outputs: int) -> Layers:
    """Return dense layers with ReLU between them."""
    layers: Layers = []
    for i, units in enumerate(hidden):
        layers += [(f"hidden{i}", nn.Linear(inputs, units)), (f"relu{i}", nn.ReLU())]
        inputs = units
    return [*layers, ("output", nn.Linear(inputs, outputs))]


def _flattened(shape: Sequence[int], layers: Layers) -> nn.Module:
    """Return the layers, after a flattening one unless examples are flat already."""
    model = nn.Sequential(OrderedDict(layers))
    if len(shape) == 1:
        return model
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), layers=model))
