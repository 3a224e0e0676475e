"""Gradients of many users' losses, each at its own parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedmf.models import FlatModel

__all__ = ["Accumulation", "Batch", "FunctionalGradient", "Gradient", "LoopGradient", "Loss", "flat_gradient"]

#: (outputs, labels) → per-example losses, shape (batch,).
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Batch:
    """The examples on which each user of a group takes one step, of any type and structure.

    Args:
        features: shape (users, width, …).
        labels: shape (users, width, …).
        weights: shape (users, width), float32; 0 for padding.
    """

    features: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Accumulation:
    """target ← β·target + α·gradient, in place; with β = 0 the old target is not read.

    Args:
        parameters: where gradients are taken, shape (users, d), float32.
        target: shape (users, d); may be ``parameters`` itself, which makes one step of SGD.
        beta: weight of the old target.
        alpha: weight of the gradient.
    """

    parameters: Tensor
    target: Tensor
    beta: float
    alpha: float

    def add(self, target: Tensor, gradient: Tensor) -> None:
        """Do it to a part of the target, given as a view."""
        if self.beta == 0.0:
            torch.mul(gradient, self.alpha, out=target)
            return
        if self.beta != 1.0:
            target.mul_(self.beta)
        target.add_(gradient, alpha=self.alpha)


class Gradient(ABC):
    """The gradient of Σ_i w_i·loss_i(θ_u) for each user u of a group, at its own parameters θ_u."""

    #: Whether users are computed one after another, so that there is nothing to gain from groups.
    one_by_one: bool = False

    @abstractmethod
    def accumulate(self, batch: Batch, into: Accumulation) -> None:
        """Add the gradients of a step."""


class FunctionalGradient(Gradient):
    """Any module that torch.func can differentiate and batch."""

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self._model, self._loss = model, loss
        self._gradients = vmap(grad(self._weighted_loss))

    def _weighted_loss(
        self, parameters: dict[str, Tensor], features: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
        outputs = functional_call(self._model.module, parameters, (features,))
        return (self._loss(outputs, labels) * weights).sum()

    def accumulate(self, batch: Batch, into: Accumulation) -> None:
        """See `Gradient.accumulate`."""
        examples = batch.features, batch.labels, batch.weights
        if len(into.parameters) == 1:  # without the cost of batching
            user = (values[0] for values in examples)
            into.add(into.target[0], flat_gradient(self._model, self._loss, into.parameters[0], *user))
            return
        gradients = self._gradients(self._model.unflatten(into.parameters), *examples)
        for name, view in self._model.unflatten(into.target).items():
            into.add(view, gradients[name])


class LoopGradient(Gradient):
    """Any module at all: one user after another, without padding, by ordinary automatic differentiation."""

    one_by_one = True

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self._model, self._loss = model, loss

    def accumulate(self, batch: Batch, into: Accumulation) -> None:
        """See `Gradient.accumulate`."""
        for u, parameters in enumerate(into.parameters):
            real = batch.weights[u] > 0
            user = (values[u][real] for values in (batch.features, batch.labels, batch.weights))
            into.add(into.target[u], flat_gradient(self._model, self._loss, parameters, *user))


def flat_gradient(
    model: FlatModel, loss: Loss, parameters: Tensor, features: Tensor, labels: Tensor, weights: Tensor
) -> Tensor:
    """One user's gradient, shape (d,), by ordinary automatic differentiation."""
    with torch.enable_grad():
        point = parameters.detach().clone().requires_grad_()
        losses = loss(model.forward(point, features), labels)
        (gradient,) = torch.autograd.grad((losses * weights).sum(), point)
    return gradient
