"""Frozen parts of models: constants, whose outputs for an example never change."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedmf.errors import ConfigError

M = TypeVar("M", bound=nn.Module)


def freeze(module: M) -> M:
    """Make a module, or a part of one, a constant of the model.

    Its parameters are not trained (``requires_grad_(False)``), and BatchNorm and dropout act as in
    evaluation (``eval()``), also while the rest is trained. Constants are neither clipped, noised
    nor counted in d. They must be public, or released by a run on the same people that is accounted
    together with this one (``fedmf account A B``).

    Args:
        module: it is changed and returned. Do not call ``train()`` on it, or on a module that
            contains it, afterwards.

    >>> model = nn.Sequential(freeze(nn.BatchNorm1d(3)), nn.Linear(3, 2))
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['1.weight', '1.bias']
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch module; got {type(module).__name__}.")
    return module.requires_grad_(False).eval()


def own_copy(module: nn.Module) -> Any:
    """A copy of a module that shares its tensors."""
    shared: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        shared[id(tensor)] = tensor
    return copy.deepcopy(module, shared)


def refuse_live_statistics(module: nn.Module) -> None:
    """Reject a module in which one example changes the outputs, or the buffers, of another.

    Raises:
        ConfigError: a layer normalizes by the statistics of a batch, or collects them.
    """
    for name, part in module.named_modules():
        if not isinstance(part, _NormBase):
            continue
        collects = part.training and part.running_mean is not None
        mixes = isinstance(part, _BatchNorm) and (part.training or part.running_mean is None)
        if collects or mixes:
            raise ConfigError(
                "model must use no statistics of a batch, which mix examples and would be released"
                f" without clipping or noise; got {type(part).__name__} {name!r}"
                f" {_state_of(part)}"
            )


def _state_of(layer: _NormBase) -> str:
    if layer.running_mean is None:
        return "without running statistics. Use GroupNorm or LayerNorm."
    return (
        "in training mode. Freeze it with fedmf.freeze(module) if its statistics are public, or use"
        " GroupNorm or LayerNorm."
    )


def frozen_layers(module: nn.Module) -> int:
    """The number of first layers of a chain that are frozen, 0 without any.

    Args:
        module: a chain is an `nn.Sequential` without hooks.

    Guarantees: no part of these layers trains a parameter or is in training mode, and at least one
    of them has a parameter.
    """
    if type(module) is not nn.Sequential or _has_hooks(module):
        return 0
    layers = 0
    parameters = 0
    for layer in module:
        if any(parameter.requires_grad for parameter in layer.parameters()):
            break
        if any(part.training for part in layer.modules()):
            break
        layers += 1
        parameters += sum(1 for _ in layer.parameters())
    if not parameters:
        return 0
    return layers


def _has_hooks(module: nn.Module) -> bool:
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    return any(hooks)
