"""What compiled training asks of a task and of local SGD, and the layers it recognises in a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from fedmf.data import TensorStructure
from fedmf.training.blocks import Rule
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.losses import cross_entropy
from fedmf.training.task import Task

#: Fields of `LocalSGD` that compiled programs do as said: `rule_of`, and the steps of a group.
DONE: Final = frozenset(
    {
        *("epochs", "batch_size", "learning_rate", "momentum", "proximal"),
        *("engine", "micro_batch", "precision", "seed"),
    }
)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LORA: Final = "peft.tuners.lora.layer.Linear"


def rule_of(local: LocalSGD) -> Rule:
    """How a step goes on from a gradient."""
    return Rule(local.learning_rate, local.momentum, local.proximal)


def compilable(task: Task, local: LocalSGD) -> bool:
    """Whether compiled programs compute what is asked: cross-entropy of numbers to classes in float32 on a
    processor, by a model without hooks, and local SGD of which they know every field that is not at its
    default."""
    features, labels = task.structure.features, task.structure.labels
    numbers = isinstance(features, TensorStructure) and features.dtype == torch.float32
    classes = labels.dtype == torch.int64 and not labels.shape
    wished = local.engine == "auto" and local.precision == "float32" and task.device.type == "cpu"
    known = all(
        getattr(local, field.name) == field.default
        for field in dataclasses.fields(local)
        if field.name not in DONE
    )
    fits = wished and known and numbers and classes and task.loss is cross_entropy
    return fits and not any(map(_hooked, task.model.module.modules()))


def chain_of(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested `Sequential`s in their order, those left out that do nothing."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from chain_of(child)
    elif not _does_nothing(module):
        yield module


class Adapted(NamedTuple):
    """y = base(x) + s·up(down(x)), of dense layers."""

    base: nn.Linear
    down: nn.Linear
    up: nn.Linear
    scale: float


def adapted(module: nn.Module) -> Adapted | None:
    """What peft's `Linear` with one low-rank adapter computes; None for other modules, and for one whose
    adapter drops numbers, is merged, switched off or of another variant."""
    if f"{type(module).__module__}.{type(module).__qualname__}" != _LORA:
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


def _does_nothing(module: nn.Module) -> bool:
    return type(module) is nn.Identity or (type(module) is nn.Dropout and module.p == 0)


def _hooked(module: nn.Module) -> bool:
    """Whether something else than its class says is computed."""
    return "forward" in vars(module) or any(getattr(module, name) for name in _HOOKS)
