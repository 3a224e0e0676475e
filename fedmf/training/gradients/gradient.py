"""Gradients of many users' losses, each at its own parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedmf.models import FlatModel

__all__ = ["FunctionalGradient", "Gradient", "LoopGradient", "Loss"]

#: (outputs, labels) → per-example losses, shape (batch,).
Loss = Callable[[Tensor, Tensor], Tensor]


class Gradient(ABC):
    """The gradient of Σ_i w_i·loss_i(θ_u) for each user u of a group, at its own parameters θ_u."""

    #: Whether users are computed one after another, so that there is nothing to gain from groups.
    one_by_one: bool = False

    @abstractmethod
    def accumulate(
        self,
        parameters: Tensor,
        features: Tensor,
        labels: Tensor,
        weights: Tensor,
        target: Tensor,
        beta: float,
        alpha: float,
    ) -> None:
        """target ← β·target + α·gradient, in place; with β = 0 the old target is not read.

        Args:
            parameters: shape (users, d), float32.
            features: shape (users, width, …).
            labels: shape (users, width).
            weights: shape (users, width); 0 for padding.
            target: shape (users, d); may be ``parameters`` itself, which makes one step of SGD.
            beta: what is kept of the target.
            alpha: weight of the gradient.
        """


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

    def accumulate(
        self,
        parameters: Tensor,
        features: Tensor,
        labels: Tensor,
        weights: Tensor,
        target: Tensor,
        beta: float,
        alpha: float,
    ) -> None:
        """See `Gradient.accumulate`."""
        if len(parameters) == 1:  # without the cost of batching
            gradient = flat_gradient(
                self._model, self._loss, parameters[0], features[0], labels[0], weights[0]
            )
            add_scaled(target[0], gradient, beta, alpha)
            return
        gradients = self._gradients(self._model.unflatten(parameters), features, labels, weights)
        for name, view in self._model.unflatten(target).items():
            add_scaled(view, gradients[name], beta, alpha)


class LoopGradient(Gradient):
    """Any module at all: one user after another, without padding, by ordinary automatic differentiation."""

    one_by_one = True

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self._model, self._loss = model, loss

    def accumulate(
        self,
        parameters: Tensor,
        features: Tensor,
        labels: Tensor,
        weights: Tensor,
        target: Tensor,
        beta: float,
        alpha: float,
    ) -> None:
        """See `Gradient.accumulate`."""
        for u in range(len(parameters)):
            real = weights[u] > 0
            gradient = flat_gradient(
                self._model, self._loss, parameters[u], features[u][real], labels[u][real], weights[u][real]
            )
            add_scaled(target[u], gradient, beta, alpha)


def flat_gradient(
    model: FlatModel, loss: Loss, parameters: Tensor, features: Tensor, labels: Tensor, weights: Tensor
) -> Tensor:
    """One user's gradient, shape (d,), by ordinary automatic differentiation."""
    with torch.enable_grad():
        point = parameters.detach().clone().requires_grad_()
        losses = loss(model.forward(point, features), labels)
        (gradient,) = torch.autograd.grad((losses * weights).sum(), point)
    return gradient


def add_scaled(target: Tensor, gradient: Tensor, beta: float, alpha: float) -> None:
    """target ← β·target + α·gradient; with β = 0 the old target is not read, so it may hold anything."""
    if beta == 0.0:
        torch.mul(gradient, alpha, out=target)
        return
    if beta != 1.0:
        target.mul_(beta)
    target.add_(gradient, alpha=alpha)
