"""Models by name: logistic regression, multi-layer perceptrons, a small convolutional network."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

__all__ = ["MODELS", "build_model", "cnn", "mlp"]

Layers = list[tuple[str, nn.Module]]


@contextmanager
def _initialised_from(seed: int) -> Iterator[None]:
    """Layers made inside start from a public seed, and no global generator moves."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed every GPU's generator.
        torch.default_generator.manual_seed(seed)
        yield


def mlp(inputs: int, hidden: Sequence[int], classes: int, seed: int) -> nn.Module:
    """A multi-layer perceptron with ReLU; without hidden layers, logistic regression.

    Args:
        inputs: entries of one example.
        hidden: widths of the hidden layers.
        classes: number of outputs.
        seed: public seed of the initial parameters.

    >>> sum(p.numel() for p in mlp(784, (128, 64), 10, seed=0).parameters())
    109386
    """
    _check_widths(hidden)
    with _initialised_from(seed):
        return nn.Sequential(OrderedDict(_dense(inputs, hidden, classes)))


def cnn(shape: Sequence[int], hidden: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Two 3×3 convolutions (16 and 32 channels, padding 1), each with ReLU and 2×2 pooling, then an MLP.

    Args:
        shape: of one example: channels, height, width; both sides at least 4.
        hidden: widths of the hidden dense layers.
        classes: number of outputs.
        seed: public seed of the initial parameters.

    Raises:
        ValueError: examples are not images.

    >>> sum(p.numel() for p in cnn((1, 28, 28), (128,), 10, seed=0).parameters())
    206922
    """
    _check_widths(hidden)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            "model cnn needs examples of shape (channels, height, width) with sides of at least 4; got "
            f"{tuple(shape)}. Give input-shape, or use another model."
        )
    channels, height, width = shape
    with _initialised_from(seed):
        layers: Layers = []
        for i, filters in enumerate((16, 32)):
            layers += [
                (f"convolution{i}", nn.Conv2d(channels, filters, 3, padding=1)),
                (f"activation{i}", nn.ReLU()),
                (f"pool{i}", nn.MaxPool2d(2)),
            ]
            channels = filters
        inputs = channels * (height // 4) * (width // 4)
        layers += [("flatten", nn.Flatten()), *_dense(inputs, hidden, classes)]
        return nn.Sequential(OrderedDict(layers))


def _dense(inputs: int, hidden: Sequence[int], classes: int) -> Layers:
    layers: Layers = []
    for i, units in enumerate(hidden):
        layers += [(f"hidden{i}", nn.Linear(inputs, units)), (f"relu{i}", nn.ReLU())]
        inputs = units
    return [*layers, ("output", nn.Linear(inputs, classes))]


def _check_widths(hidden: Sequence[int]) -> None:
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden-units must be positive; got {tuple(hidden)}.")


def _flattened(shape: Sequence[int], model: nn.Module) -> nn.Module:
    """The model behind a flattening layer, unless examples are flat already."""
    return model if len(shape) == 1 else nn.Sequential(OrderedDict(flatten=nn.Flatten(), layers=model))


Builder = Callable[[Sequence[int], Sequence[int], int, int], nn.Module]

#: By name, as in configurations: (shape of an example, hidden widths, classes, seed) → module.
MODELS: Final[dict[str, Builder]] = {
    "mlp": lambda shape, hidden, classes, seed: _flattened(
        shape, mlp(math.prod(shape), hidden, classes, seed)
    ),
    "cnn": cnn,
    "logistic": lambda shape, hidden, classes, seed: _flattened(
        shape, mlp(math.prod(shape), (), classes, seed)
    ),
}


def build_model(name: str, shape: Sequence[int], hidden: Sequence[int], classes: int, seed: int) -> nn.Module:
    """The model of a configuration.

    Args:
        name: one of `MODELS`.
        shape: of one example.
        hidden: widths of hidden layers; a logistic regression has none and ignores them.
        classes: number of outputs.
        seed: public seed of the initial parameters.

    Raises:
        ValueError: an unknown name, or examples of a shape that the model cannot take.

    >>> sum(p.numel() for p in build_model("logistic", (1, 28, 28), (), 10, seed=0).parameters())
    7850
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}; got {name!r}.")
    return MODELS[name](shape, hidden, classes, seed)
