"""Layers of which every user has its own parameters: forward and backward passes written out.

Activations of a group have shape (users, batch, …). The gradient of a layer's parameters never exists by
itself: it is added to its target by the very product that computes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedmf.training.gradients.alignment import aligned, aligned_empty
from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.weights import Places, Weight


class Layer(ABC):
    """One layer; it keeps no state between passes, so that threads can share it."""

    @property
    def one_by_one(self) -> bool:
        """Whether it takes one user at a time."""
        return False

    def weights(self) -> Iterator[Weight]:
        """Its parameter tensors, in the order in which `backward` adds their gradients."""
        return iter(())

    @property
    def trainable(self) -> bool:
        """Whether it adds any gradient."""
        return any(weight.trainable for weight in self.weights())

    @abstractmethod
    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """Outputs for the parameters of all layers, shape (users, d), and what `backward` will need."""

    @abstractmethod
    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """Accumulate this layer's parameter gradients; returns the gradient of its inputs if needed.

        Its own weights are read before their targets move: the target may be the parameters.
        """


class Linear(Layer):
    """y = x·Wᵀ + b.

    Args:
        module: what it stands for.
        places: where its parameters stand.
    """

    def __init__(self, module: nn.Linear, places: Places) -> None:
        self._weight, self._bias = places.of(module.weight), places.maybe(module.bias)

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        yield self._weight
        if self._bias is not None:
            yield self._bias

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        x = aligned(x)
        inputs = x.view(len(x), -1, x.shape[-1])
        weight = self._weight.of(parameters).mT
        y = aligned_empty(x, *inputs.shape[:2], weight.shape[-1])
        if self._bias is not None:
            torch.baddbmm(self._bias.of(parameters)[:, None], inputs, weight, out=y)
        else:
            torch.bmm(inputs, weight, out=y)
        return y.view(*x.shape[:-1], -1), x

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        dy = aligned(dy)
        dy = dy.view(len(dy), -1, dy.shape[-1])
        x = saved.view(len(saved), -1, saved.shape[-1])
        dx = None
        if need_dx:
            weight = self._weight.of(into.parameters)
            dx = torch.bmm(dy, weight, out=aligned_empty(x, *x.shape)).view(saved.shape)
        if self._weight.trainable:
            self._weight.add_product(into, dy.mT, x)
        if self._bias is not None and self._bias.trainable:
            self._bias.add(into, dy.sum(dim=1))
        return dx


class Rectifier(Layer):
    """max(x, 0)."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        y = torch.relu(x)
        return y, y

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        return torch.ops.aten.threshold_backward(dy, saved, 0) if need_dx else None


class ParameterFree(Layer):
    """A function of one example at a time without parameters, differentiated automatically.

    Args:
        function: from a batch of examples to a batch of outputs.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        with torch.enable_grad():
            inputs = x.flatten(0, 1).detach().requires_grad_()
            outputs = self._function(inputs)
        return outputs.detach().unflatten(0, x.shape[:2]), (inputs, outputs)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        if not need_dx:
            return None
        inputs, outputs = saved
        (dx,) = torch.autograd.grad(outputs, inputs, dy.flatten(0, 1))
        return dx.unflatten(0, dy.shape[:2])


class Flatten(Layer):
    """An example as a vector, in the order of its dimensions."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        return x.reshape(*x.shape[:2], -1), x.shape

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        return dy.reshape(saved) if need_dx else None
