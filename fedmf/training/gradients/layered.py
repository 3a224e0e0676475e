"""Gradients of a chain of common layers, written out: several times faster than the general way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.models import (
    FirstPosition,
    FlatModel,
    LastPosition,
    MeanPosition,
    Positions,
    Recurrent,
    Residual,
    SelfAttention,
    Sinusoids,
)
from fedmf.training.gradients.alignment import aligned_empty
from fedmf.training.gradients.chain import Beside, Chain, Scaled
from fedmf.training.gradients.convolutions import ConvolutionByProducts, ConvolutionByUser, MaxPool
from fedmf.training.gradients.gradient import Accumulation, Batch, Gradient, Loss
from fedmf.training.gradients.layers import Flatten, Layer, Linear, ParameterFree, Rectifier
from fedmf.training.gradients.norms import GroupNorm, LayerNorm
from fedmf.training.gradients.recurrent import Gru, Lstm
from fedmf.training.gradients.tokens import AddedPositions, Embedding, LastOfPositions, MeanOfPositions
from fedmf.training.gradients.weights import Own, Places

#: Modules without parameters or state that treat examples separately and change nothing in place.
PARAMETER_FREE = (
    *(nn.Tanh, nn.Sigmoid, nn.GELU, nn.Softplus, nn.SiLU, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(FirstPosition, Sinusoids),
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
LORA = "peft.tuners.lora.layer.Linear"


class _Other(Exception):
    """A module that has no passes written out."""


class Adapted(NamedTuple):
    """y = base(x) + s·up(down(x)), of dense layers."""

    base: nn.Linear
    down: nn.Linear
    up: nn.Linear
    scale: float


def adapted(module: nn.Module) -> Adapted | None:
    """What peft's `Linear` with one low-rank adapter computes; None for other modules, and for one whose
    adapter drops numbers, is merged, switched off or of another variant."""
    if f"{type(module).__module__}.{type(module).__qualname__}" != LORA:
        return None
    layer: Any = module
    names = list(layer.active_adapters)
    if len(names) != 1 or layer.merged or layer.disable_adapters or layer.fan_in_fan_out:
        return None
    (name,) = names
    variants = {**getattr(layer, "lora_variant", {}), **getattr(layer, "use_dora", {})}
    if variants.get(name) or not _does_nothing(layer.lora_dropout[name]):
        return None
    parts = layer.base_layer, layer.lora_A[name], layer.lora_B[name]
    if any(type(part) is not nn.Linear for part in parts):
        return None
    return Adapted(*parts, float(layer.scaling[name]))


def chain_of(module: nn.Module, device: torch.device) -> Chain | None:
    """The module as a chain of layers written out here, or None if it is not one."""
    places = Places(module)
    try:
        chain = _Builder(places, device).chain(module)
    except _Other:
        return None
    return chain if places.all_used and chain.trainable else None


class _Builder:
    """Makes layers of modules; exact types only: a subclass may compute something else.

    Args:
        places: where the model's parameters stand.
        device: where users are trained.
    """

    def __init__(self, places: Places, device: torch.device) -> None:
        self._places, self._on_processor = places, device.type == "cpu"

    def chain(self, module: nn.Module) -> Chain:
        """A chain of the module's parts, or of itself."""
        modules = _pooled_first([part for part in _parts(module) if not _does_nothing(part)])
        return Chain([self._layer(part) for part in modules])

    def _layer(self, module: nn.Module) -> Layer:
        if any(_hooked(part) for part in module.modules()):
            raise _Other
        if (parts := adapted(module)) is not None:
            return self._adapted(parts)
        if type(module) in PARAMETER_FREE:
            return ParameterFree(module)
        make = self._MAKERS.get(type(module))
        if make is None:
            raise _Other
        return make(self, module)

    def _linear(self, module: nn.Linear) -> Layer:
        return Linear(module, self._places)

    def _embedding(self, module: nn.Embedding) -> Layer:
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise _Other
        return Embedding(module, self._places)

    def _convolution(self, module: nn.Conv2d) -> Layer:
        if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise _Other
        return (ConvolutionByUser if self._on_processor else ConvolutionByProducts)(module, self._places)

    def _pool(self, module: nn.MaxPool2d) -> Layer:
        if module.return_indices:
            raise _Other
        return MaxPool(module)

    def _flatten(self, module: nn.Flatten) -> Layer:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise _Other
        return Flatten()

    def _residual(self, module: Residual) -> Layer:
        if any(getattr(part, "inplace", False) for part in _first(module)):  # the other branch would see it
            raise _Other
        return Beside(self.chain(module.body), self.chain(module.shortcut))

    def _recurrent(self, module: Recurrent) -> Layer:
        makers: dict[type, Callable[..., Layer]] = {nn.LSTM: Lstm, nn.GRU: Gru}
        make = makers.get(type(module.layer))
        if make is None:
            raise _Other
        return make(module.layer, self._places)

    def _attention(self, module: SelfAttention) -> Layer:
        mixed = ParameterFree(partial(_mixed, heads=module.heads, causal=module.causal))
        return Chain([self.chain(module.inputs), mixed, self.chain(module.output)])

    def _adapted(self, parts: Adapted) -> Layer:
        low_rank = Chain([self._linear(parts.down), self._linear(parts.up), Scaled(parts.scale)])
        return Beside(low_rank, Chain([self._linear(parts.base)]))

    _MAKERS: ClassVar[dict[type, Callable[[Any, Any], Layer]]] = {
        nn.Linear: _linear,
        nn.Embedding: _embedding,
        nn.Conv2d: _convolution,
        nn.MaxPool2d: _pool,
        nn.Flatten: _flatten,
        nn.ReLU: lambda self, module: Rectifier(),
        nn.LayerNorm: lambda self, module: LayerNorm(module, self._places),
        nn.GroupNorm: lambda self, module: GroupNorm(module, self._places),
        Residual: _residual,
        Recurrent: _recurrent,
        SelfAttention: _attention,
        Positions: lambda self, module: AddedPositions(module, self._places),
        LastPosition: lambda self, module: LastOfPositions(),
        MeanPosition: lambda self, module: MeanOfPositions(),
    }


def _mixed(x: Tensor, heads: int, causal: bool) -> Tensor:
    """Attention from queries, keys and values side by side."""
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(-2, -3) for part in x.chunk(3, dim=-1))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return mixed.transpose(-2, -3).flatten(-2)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential and not _hooked(module):
        for child in module:
            yield from _parts(child)
    else:
        yield module


def _does_nothing(module: nn.Module) -> bool:
    if _hooked(module):
        return False
    return type(module) is nn.Identity or (type(module) is nn.Dropout and module.p == 0)


def _pooled_first(modules: list[nn.Module]) -> list[nn.Module]:
    """Maxima before rectifiers: the same values and gradients, with fewer numbers to rectify."""
    for i in range(len(modules) - 1):
        if type(modules[i]) is nn.ReLU and type(modules[i + 1]) is nn.MaxPool2d:
            modules[i : i + 2] = modules[i + 1], modules[i]
    return modules


def _hooked(module: nn.Module) -> bool:
    """Whether something else than its class says is computed."""
    return "forward" in vars(module) or any(getattr(module, name) for name in HOOKS)


def _first(module: nn.Module) -> Iterator[nn.Module]:
    """What the inputs of a module reach as they came."""
    if type(module) is Residual:
        yield from (*_first(module.body), *_first(module.shortcut))
    else:
        yield from [part for part in _parts(module) if not _does_nothing(part)][:1]


class LayeredGradient(Gradient):
    """A chain of layers and a loss on its outputs.

    Args:
        layers: from inputs to outputs.
        loss: (outputs, labels) → per-example losses.
    """

    def __init__(self, layers: Chain, loss: Loss) -> None:
        self._layers, self._loss = layers, loss
        #: Whether a layer reads on its way back what one with the same tensor has moved by then.
        self._read_late = False
        written: set[int] = set()
        for weight in layers.weights():
            if isinstance(weight, Own):
                weight.added = weight.part.start in written
                written.add(weight.part.start)
                self._read_late |= weight.added and weight.read_back

    def accumulate(self, batch: Batch, into: Accumulation) -> None:
        """See `Gradient.accumulate`."""
        if self._read_late and into.target.data_ptr() == into.parameters.data_ptr():
            before = aligned_empty(into.parameters, *into.parameters.shape).copy_(into.parameters)
            into = replace(into, parameters=before)
        if not self._layers.one_by_one:
            return self._pass(batch, into)
        for u in range(len(into.parameters)):
            one = slice(u, u + 1)
            self._pass(
                Batch(batch.features[one], batch.labels[one], batch.weights[one]),
                replace(into, parameters=into.parameters[one], target=into.target[one]),
            )

    def _pass(self, batch: Batch, into: Accumulation) -> None:
        outputs, saved = self._layers.forward(into.parameters, batch.features)
        self._layers.backward(saved, self._loss_gradient(outputs, batch), into, need_dx=False)

    def _loss_gradient(self, outputs: Tensor, batch: Batch) -> Tensor:
        """∂(Σ w·loss)/∂outputs; losses are per example, so users need no separating."""
        with torch.enable_grad():
            flat = outputs.flatten(0, 1).detach().requires_grad_()
            losses = self._loss(flat, batch.labels.flatten(0, 1))
            # One number: with weights beside it torch.autograd would load its symbolic shapes, and sympy.
            (gradient,) = torch.autograd.grad((losses * batch.weights.flatten()).sum(), flat)
        return gradient.unflatten(0, outputs.shape[:2])


def layers_of(model: FlatModel, device: torch.device) -> Chain | None:
    """The model as a chain of layers written out here, or None if it is not one.

    Its flat vectors hold the parameters that are trained, tied ones once, in the module's order.
    """
    return chain_of(model.module, device)
