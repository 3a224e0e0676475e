"""Gradients of a chain of common layers, written out: several times faster than the general way."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedmf.models import FlatModel
from fedmf.training.gradients.convolutions import ConvolutionByProducts, ConvolutionByUser, MaxPool
from fedmf.training.gradients.gradient import Accumulation, Batch, Gradient, Loss
from fedmf.training.gradients.layers import Flatten, Layer, Linear, ParameterFree, Rectifier

__all__ = ["LayeredGradient", "layers_of"]

#: Modules without parameters or state that treat examples separately and change nothing in place.
PARAMETER_FREE = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.Softplus, nn.Identity, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class LayeredGradient(Gradient):
    """A chain of layers and a loss on its outputs.

    Args:
        layers: from inputs to outputs.
        loss: (outputs, labels) → per-example losses.
    """

    def __init__(self, layers: list[Layer], loss: Loss) -> None:
        self._layers, self._loss = layers, loss
        self._first = next(i for i, layer in enumerate(layers) if layer.has_parameters)

    def accumulate(self, batch: Batch, into: Accumulation) -> None:
        """See `Gradient.accumulate`."""
        x, saved = batch.features, []
        for layer in self._layers:
            x, needed = layer.forward(into.parameters, x)
            saved.append(needed)
        dy: Tensor | None = self._loss_gradient(x, batch)
        for i in range(len(self._layers) - 1, self._first - 1, -1):
            assert dy is not None
            dy = self._layers[i].backward(saved.pop(), dy, into, need_dx=i > self._first)

    def _loss_gradient(self, outputs: Tensor, batch: Batch) -> Tensor:
        """∂(Σ w·loss)/∂outputs; losses are per example, so users need no separating."""
        with torch.enable_grad():
            flat = outputs.flatten(0, 1).detach().requires_grad_()
            losses = self._loss(flat, batch.labels.flatten(0, 1))
            (gradient,) = torch.autograd.grad(losses, flat, batch.weights.flatten())
        return gradient.unflatten(0, outputs.shape[:2])


def layers_of(model: FlatModel, device: torch.device) -> list[Layer] | None:
    """The model as a chain of layers written out here, or None if it is not one."""
    layers: list[Layer] = []
    start = 0
    for module in _pooled_first(list(_chain(model.module))):
        layer = _layer(module, start, device)
        if layer is None:
            return None
        layers.append(layer)
        start += sum(p.numel() for p in module.parameters())
    if start != model.dimension or not any(layer.has_parameters for layer in layers):
        return None  # a module used twice
    return layers


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential and not _hooked(module):
        for child in module:
            yield from _chain(child)
    else:
        yield module


def _pooled_first(modules: list[nn.Module]) -> list[nn.Module]:
    """Maxima before rectifiers: the same values and gradients, with fewer numbers to rectify."""
    for i in range(len(modules) - 1):
        if type(modules[i]) is nn.ReLU and type(modules[i + 1]) is nn.MaxPool2d:
            modules[i : i + 2] = modules[i + 1], modules[i]
    return modules


def _hooked(module: nn.Module) -> bool:
    return any(getattr(module, name) for name in HOOKS)


def _layer(module: nn.Module, start: int, device: torch.device) -> Layer | None:
    """Exact types only: a subclass may compute something else."""
    if _hooked(module):
        return None
    if type(module) is nn.Linear:
        return Linear(module, start)
    if type(module) is nn.Conv2d:
        if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
            return None
        by_user = device.type == "cpu"
        return ConvolutionByUser(module, start) if by_user else ConvolutionByProducts(module, start)
    if type(module) is nn.ReLU:
        return Rectifier()
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return Flatten()
    if type(module) is nn.MaxPool2d and not module.return_indices:
        return MaxPool(module)
    if type(module) in PARAMETER_FREE:
        return ParameterFree(module)
    return None
