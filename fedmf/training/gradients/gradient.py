"""Gradients of many users' losses, each at its own parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedmf.data import Features, each
from fedmf.models import FlatModel
from fedmf.training.gradients.alignment import aligned_empty

#: (outputs, labels) → per-example losses, shape (batch,).
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Batch:
    """The examples on which each user of a group takes one step, of any type and structure.

    Args:
        features: shape (users, width, …), or several such tensors by name.
        labels: shape (users, width, …).
        weights: shape (users, width), float32; 0 for padding.
    """

    features: Features
    labels: Tensor
    weights: Tensor

    def part(self, rows: Any) -> Batch:
        """What an index takes out of every tensor."""
        return Batch(each(lambda values: values[rows], self.features), self.labels[rows], self.weights[rows])

    def cloned(self) -> Batch:
        """The same numbers elsewhere in memory."""
        features = each(lambda values: values.clone(), self.features)
        return Batch(features, self.labels.clone(), self.weights.clone())


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
        self, parameters: dict[str, Tensor], features: Features, labels: Tensor, weights: Tensor
    ) -> Tensor:
        outputs = self._model.call(parameters, features)
        return (self._loss(outputs, labels) * weights).sum()

    def accumulate(self, batch: Batch, into: Accumulation) -> None:
        """See `Gradient.accumulate`."""
        if len(into.parameters) == 1:  # without the cost of batching
            gradient = flat_gradient(self._model, self._loss, into.parameters[0], batch.part(0))
            into.add(into.target[0], gradient)
            return
        gradients = self._gradients(
            self._model.unflatten(into.parameters), batch.features, batch.labels, batch.weights
        )
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
            user = batch.part(u)
            real = user.part(user.weights > 0)
            if len(real.weights):
                gradient = flat_gradient(self._model, self._loss, parameters, real)
            else:
                gradient = torch.zeros_like(parameters)
            into.add(into.target[u], gradient)


class MicroBatches(Gradient):
    """The gradient of a batch as the sum of those of its parts: what a pass saves is that of one part.

    Args:
        inner: computes the gradient of a part.
        most: examples of each user in a part, at least 1.
    """

    def __init__(self, inner: Gradient, most: int) -> None:
        self._inner, self._most = inner, most
        self.one_by_one = inner.one_by_one

    def accumulate(self, batch: Batch, into: Accumulation) -> None:
        """See `Gradient.accumulate`."""
        width = batch.weights.shape[1]
        if width <= self._most:
            self._inner.accumulate(batch, into)
            return
        target, beta, alpha = into.target, into.beta, into.alpha
        moves = target.data_ptr() == into.parameters.data_ptr()
        if moves:  # parameters must not move before the last part
            target, beta, alpha = aligned_empty(target, *target.shape), 0.0, 1.0
        for first in range(0, width, self._most):
            part = batch.part((slice(None), slice(first, first + self._most)))
            self._inner.accumulate(part, Accumulation(into.parameters, target, beta, alpha))
            beta = 1.0
        if moves:
            into.add(into.target, target)


def flat_gradient(model: FlatModel, loss: Loss, parameters: Tensor, batch: Batch) -> Tensor:
    """One user's gradient, shape (d,), by ordinary automatic differentiation.

    Args:
        model: any.
        loss: (outputs, labels) → per-example losses.
        parameters: shape (d,).
        batch: of that user alone, without the dimension of users.
    """
    with torch.enable_grad():
        point = parameters.detach().clone().requires_grad_()
        losses = loss(model.forward(point, batch.features), batch.labels)
        (gradient,) = torch.autograd.grad((losses * batch.weights).sum(), point)
    return gradient
