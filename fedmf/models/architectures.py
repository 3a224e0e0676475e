"""Models by kind: logistic regression, multi-layer perceptrons, a small convolutional network."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import nn

from fedmf.values import Value, by_kind, check_sizes, check_whole

__all__ = ["MODELS", "Architecture", "Cnn", "Logistic", "Mlp", "mlp"]

Layers = list[tuple[str, nn.Module]]


@dataclass(frozen=True)
class Architecture(Value, ABC):
    """A model whose initial parameters are a function of its fields and of the shape of an example.

    Args:
        seed: public seed of the initial parameters, 0 ≤ seed < 2⁶³.
        initial: a public file of tensors by parameter name (.safetensors or .pt) that training starts from
            instead; only the server reads it.

    Raises:
        ValueError: a value is out of range.
    """

    seed: int = 0
    initial: str = ""

    def __post_init__(self) -> None:
        check_whole("seed (of the model)", self.seed, 0, 2**63 - 1)

    @abstractmethod
    def build(self, shape: tuple[int, ...], outputs: int, vocabulary: int = 0) -> nn.Module:
        """The module, freshly initialised; no global random generator moves.

        Args:
            shape: of one example.
            outputs: length of the output for one example.

        Raises:
            ValueError: the model cannot take examples of that shape.
        """


@dataclass(frozen=True)
class Mlp(Architecture):
    """A multi-layer perceptron with ReLU; without hidden layers, logistic regression.

    Args:
        hidden_units: widths of the hidden layers.

    >>> sum(p.numel() for p in Mlp(hidden_units=(128, 64)).build((1, 28, 28), 10).parameters())
    109386
    """

    kind: ClassVar[str] = "mlp"
    hidden_units: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes("hidden_units", self.hidden_units)

    def build(self, shape: tuple[int, ...], outputs: int, vocabulary: int = 0) -> nn.Module:
        """See `Architecture.build`."""
        return _flattened(shape, mlp(math.prod(shape), self.hidden_units, outputs, self.seed))


@dataclass(frozen=True)
class Logistic(Architecture):
    """Softmax regression on all entries of an example.

    >>> sum(p.numel() for p in Logistic().build((1, 28, 28), 10).parameters())
    7850
    """

    kind: ClassVar[str] = "logistic"

    def build(self, shape: tuple[int, ...], outputs: int, vocabulary: int = 0) -> nn.Module:
        """See `Architecture.build`."""
        return _flattened(shape, mlp(math.prod(shape), (), outputs, self.seed))


@dataclass(frozen=True)
class Cnn(Mlp):
    """Two 3×3 convolutions (16 and 32 channels, padding 1), each with ReLU and 2×2 pooling, then an `Mlp`.

    Args:
        hidden_units: widths of the hidden dense layers.

    >>> sum(p.numel() for p in Cnn(hidden_units=(128,)).build((1, 28, 28), 10).parameters())
    206922
    """

    kind: ClassVar[str] = "cnn"

    def build(self, shape: tuple[int, ...], outputs: int, vocabulary: int = 0) -> nn.Module:
        """See `Architecture.build`; both sides of an image are at least 4."""
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ValueError(
                "model cnn needs examples of shape (channels, height, width) with sides of at least 4; got "
                f"{tuple(shape)}. Give the data an input_shape, or use another model."
            )
        channels, height, width = shape
        with _initialised_from(self.seed):
            layers: Layers = []
            for i, filters in enumerate((16, 32)):
                layers += [
                    (f"convolution{i}", nn.Conv2d(channels, filters, 3, padding=1)),
                    (f"activation{i}", nn.ReLU()),
                    (f"pool{i}", nn.MaxPool2d(2)),
                ]
                channels = filters
            inputs = channels * (height // 4) * (width // 4)
            layers += [("flatten", nn.Flatten()), *_dense(inputs, self.hidden_units, outputs)]
            return nn.Sequential(OrderedDict(layers))


#: What `[model]` may be, by kind.
MODELS: Final[dict[str, type[Architecture]]] = by_kind(Mlp, Cnn, Logistic)


def mlp(inputs: int, hidden: Sequence[int], outputs: int, seed: int) -> nn.Module:
    """The layers of `Mlp` for examples that are vectors.

    Args:
        inputs: entries of one example.
        hidden: widths of the hidden layers.
        outputs: number of outputs.
        seed: public seed of the initial parameters.
    """
    check_sizes("hidden (widths of layers)", tuple(hidden))
    with _initialised_from(seed):
        return nn.Sequential(OrderedDict(_dense(inputs, hidden, outputs)))


@contextmanager
def _initialised_from(seed: int) -> Iterator[None]:
    """Layers made inside start from a public seed, and no global generator moves."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed every GPU's generator.
        torch.default_generator.manual_seed(seed)
        yield


def _dense(inputs: int, hidden: Sequence[int], outputs: int) -> Layers:
    layers: Layers = []
    for i, units in enumerate(hidden):
        layers += [(f"hidden{i}", nn.Linear(inputs, units)), (f"relu{i}", nn.ReLU())]
        inputs = units
    return [*layers, ("output", nn.Linear(inputs, outputs))]


def _flattened(shape: Sequence[int], model: nn.Module) -> nn.Module:
    """The model behind a flattening layer, unless examples are flat already."""
    return model if len(shape) == 1 else nn.Sequential(OrderedDict(flatten=nn.Flatten(), layers=model))
