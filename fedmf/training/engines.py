"""Which program computes the gradients of a group of users."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.training.barrier import described
from fedmf.training.gradients import (
    Accumulation,
    Batch,
    FunctionalGradient,
    Gradient,
    LayeredGradient,
    LoopGradient,
    layers_of,
)
from fedmf.training.local_sgd import LocalEngine
from fedmf.training.task import Task

__all__ = ["GradientProgram", "gradient_program"]

_TRIED_USERS, _TRIED_WIDTH = 2, 3


@dataclass(frozen=True)
class GradientProgram:
    """How gradients are computed.

    Args:
        make: makes the gradient of one thread: torch.func works on the module itself, so each has a copy.
        fallback: why users are trained one by one although groups were wished for; empty if they are not.
    """

    make: Callable[[], Gradient]
    fallback: str = ""


def gradient_program(task: Task, engine: LocalEngine) -> GradientProgram:
    """Choose how gradients are computed; a module is tried on made-up examples.

    Args:
        task: model, loss and structure of examples.
        engine: see `LocalSGD`.

    Raises:
        ConfigError: the module mixes examples, or engine is "vectorised" and torch.func cannot handle it.
    """
    model, loss = task.model, task.loss
    refuse_batch_statistics(model.module)
    loop = lambda: LoopGradient(copied(model), loss)  # noqa: E731
    functional = lambda: FunctionalGradient(copied(model), loss)  # noqa: E731
    if engine == "loop":
        return GradientProgram(loop)
    layers = layers_of(model, task.device)
    if layers is not None:
        return GradientProgram(lambda: LayeredGradient(layers, loss))
    try:
        _try_groups(functional(), task)
    except Exception as error:  # a module may raise anything
        reason = described(error)
        if engine == "vectorised":
            raise ConfigError(
                f"model must be one that torch.func can batch with engine 'vectorised'; got {reason}. "
                "Use 'auto' or 'loop'."
            ) from error
        return GradientProgram(loop, fallback=reason)
    return GradientProgram(functional)


def copied(model: FlatModel) -> FlatModel:
    """A model that shares nothing with another thread's."""
    return FlatModel(copy.deepcopy(model.module))


def _try_groups(gradient: Gradient, task: Task) -> None:
    """Compute the gradients of a few users; what the module raises gets out."""
    device, shape = task.device, (_TRIED_USERS, _TRIED_WIDTH)
    rows = task.model.initial().to(device).repeat(_TRIED_USERS, 1)
    features, labels = task.structure.sample(torch.Generator().manual_seed(0), shape)
    batch = Batch(
        features.to(device), labels.to(device), torch.full(shape, 1.0 / _TRIED_WIDTH, device=device)
    )
    gradient.accumulate(batch, Accumulation(rows, torch.empty_like(rows), beta=0.0, alpha=1.0))


def refuse_batch_statistics(module: nn.Module) -> None:
    """ConfigError for a module in which one example changes another's outputs."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"model must treat examples one by one; got {type(part).__name__} {name!r}. The statistics "
                "of a batch mix them, padding included: use GroupNorm or LayerNorm."
            )
