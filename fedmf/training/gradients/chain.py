"""Layers one after another, and a chain beside a shortcut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.layers import Layer
from fedmf.training.gradients.weights import Weight


class Chain(Layer):
    """Layers one after another; none at all is the identity.

    Args:
        layers: from inputs to outputs.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        trainable = [i for i, layer in enumerate(layers) if layer.trainable]
        self._lowest = trainable[0] if trainable else len(layers)

    @property
    def one_by_one(self) -> bool:
        """See `Layer.one_by_one`."""
        return any(layer.one_by_one for layer in self.layers)

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        for layer in reversed(self.layers):
            yield from layer.weights()

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        saved = []
        for layer in self.layers:
            x, needed = layer.forward(parameters, x)
            saved.append(needed)
        return x, saved

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`; nothing is computed below the lowest layer that is trained."""
        gradient: Tensor | None = dy
        for i in range(len(self.layers) - 1, (0 if need_dx else self._lowest) - 1, -1):
            assert gradient is not None
            wanted = need_dx or i > self._lowest
            gradient = self.layers[i].backward(saved.pop(), gradient, into, wanted)
        return gradient if need_dx else None


class Beside(Layer):
    """x ↦ one(x) + other(x).

    Args:
        one: a chain, such as the body of a residual block.
        other: another one, such as its shortcut.
    """

    def __init__(self, one: Chain, other: Chain) -> None:
        self._one, self._other = one, other

    @property
    def one_by_one(self) -> bool:
        """See `Layer.one_by_one`."""
        return self._one.one_by_one or self._other.one_by_one

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        yield from self._one.weights()
        yield from self._other.weights()

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        one, saved = self._one.forward(parameters, x)
        other, saved_too = self._other.forward(parameters, x)
        return one + other, (saved, saved_too)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        one = self._one.backward(saved[0], dy, into, need_dx)
        other = self._other.backward(saved[1], dy, into, need_dx)
        return None if one is None or other is None else one + other


class Scaled(Layer):
    """x ↦ s·x.

    Args:
        factor: s.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        return x * self._factor, None

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        return dy * self._factor if need_dx else None
