"""Layers of which every user has its own parameters: forward and backward passes written out.

Activations of a group have shape (users, batch, …). The gradient of a layer's parameters never exists by
itself: it is added to its target by the very product that computes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedmf.training.gradients.alignment import aligned, aligned_empty
from fedmf.training.gradients.gradient import Accumulation

__all__ = ["Layer", "Linear", "ParameterFree", "Rectifier"]


class Layer(ABC):
    """One layer; it keeps no state between passes, so that threads can share it."""

    has_parameters: ClassVar[bool] = False

    @abstractmethod
    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """Outputs for the parameters of all layers, shape (users, d), and what `backward` will need."""

    @abstractmethod
    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """Accumulate this layer's parameter gradients; returns the gradient of its inputs if needed."""


class Linear(Layer):
    """y = x·Wᵀ + b.

    Args:
        module: what it stands for.
        start: where its parameters begin in the flat vector; W comes before b.
    """

    has_parameters = True

    def __init__(self, module: nn.Linear, start: int) -> None:
        self._shape = (module.out_features, module.in_features)
        self._weight = slice(start, start + module.weight.numel())
        self._bias = slice(self._weight.stop, self._weight.stop + module.out_features)
        self._has_bias = module.bias is not None

    def _view(self, rows: Tensor) -> Tensor:
        return rows[:, self._weight].view(-1, *self._shape)

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        x = aligned(x)
        inputs = x.view(len(x), -1, x.shape[-1])
        weight = self._view(parameters).mT
        y = aligned_empty(x, *inputs.shape[:2], self._shape[0])
        if self._has_bias:
            torch.baddbmm(parameters[:, None, self._bias], inputs, weight, out=y)
        else:
            torch.bmm(inputs, weight, out=y)
        return y.view(*x.shape[:-1], -1), x

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        dy = aligned(dy)
        dy = dy.view(len(dy), -1, dy.shape[-1])
        x = saved.view(len(saved), -1, saved.shape[-1])
        dx = None
        if need_dx:  # before the parameters move: the target may be the parameters
            dx = torch.bmm(dy, self._view(into.parameters), out=aligned_empty(x, *x.shape)).view(saved.shape)
        self._view(into.target).baddbmm_(dy.mT, x, beta=into.beta, alpha=into.alpha)
        if self._has_bias:
            into.add(into.target[:, self._bias], dy.sum(dim=1))
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
