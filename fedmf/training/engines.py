"""Which program computes the gradients of a group of users."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.data import each
from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.training.barrier import described, silent
from fedmf.training.fused import FusedProgram
from fedmf.training.gradients import (
    Accumulation,
    Batch,
    FunctionalGradient,
    Gradient,
    LayeredGradient,
    LoopGradient,
    MicroBatches,
    layers_of,
)
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.losses import LOSSES
from fedmf.training.low_rank import LowRankProgram
from fedmf.training.task import Task

#: Users that a compiled program takes at once: on one core, and few enough for several to be busy.
PROGRAM_USERS = 256, 16
_TRIED_USERS, _TRIED_WIDTH = 2, 3


@dataclass(frozen=True)
class GradientProgram:
    """How gradients are computed.

    Args:
        make: makes the gradient of one thread: torch.func works on the module itself, so each has a copy.
        fallback: why users are trained one by one although groups were wished for; empty if they are not.
        confined: whether nothing but code of fedmf and torch is shown a model: no module, loss or hook of
            somebody's own, which could show it to others.
    """

    make: Callable[[], Gradient]
    fallback: str = ""
    confined: bool = False


def gradient_program(task: Task, local: LocalSGD) -> GradientProgram:
    """Choose how gradients are computed; a module is tried on made-up examples.

    Args:
        task: model, loss and structure of examples.
        local: its engine, precision and micro-batches.

    Raises:
        ConfigError: the module mixes examples, engine is "vectorised" and torch.func cannot handle it, or the
            device has not that precision.
    """
    refuse_batch_statistics(task.model.module)
    program = _of_whole_batches(task, local)
    if not local.micro_batch:
        return program
    return replace(program, make=lambda: MicroBatches(program.make(), local.micro_batch))


def compiled_programs(task: Task, local: LocalSGD) -> list[LowRankProgram | FusedProgram]:
    """The programs that train users from examples to integers."""
    found = (LowRankProgram.of(task, local), FusedProgram.of(task, local))
    return [program for program in found if program is not None]


def chosen(programs: list[LowRankProgram | FusedProgram], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which program trains each user, from 1 on, the cheapest; 0 for none: a function of its own number of
    examples.

    Args:
        programs: that could train the model.
        counts: examples of each user.
    """
    numbers, which = np.unique(counts, return_inverse=True)
    costs = np.array([[math.inf, *(p.cost(int(number)) for p in programs)] for number in numbers])
    return np.argmin(costs.reshape(numbers.size, 1 + len(programs)), axis=1)[which]


def _of_whole_batches(task: Task, local: LocalSGD) -> GradientProgram:
    model, loss = task.model, task.loss
    if local.precision == "bfloat16":
        model = FlatModel(InBfloat16(model.module, task.device))
    loop = lambda: LoopGradient(model.copied(), loss)  # noqa: E731
    functional = lambda: FunctionalGradient(model.copied(), loss)  # noqa: E731
    if local.engine == "loop":
        return GradientProgram(loop)
    layers = layers_of(model, task.device)
    if layers is not None:
        return GradientProgram(lambda: LayeredGradient(layers, loss), confined=loss in LOSSES)
    try:
        with silent():  # operations that torch.func batches slowly
            _try_groups(functional(), task)
    except Exception as error:  # a module may raise anything
        reason = described(error)
        if local.engine == "vectorised":
            raise ConfigError(
                f"model must be one that torch.func can batch with engine 'vectorised'; got {reason}. "
                "Use 'auto' or 'loop'."
            ) from error
        return GradientProgram(loop, fallback=reason)
    return GradientProgram(functional)


class InBfloat16(nn.Module):
    """A module whose products are computed in bfloat16; parameters, outputs and gradients are float32.

    Args:
        inner: the module; its parameters have "inner." before their names here.
        device: where it is computed.

    Raises:
        ConfigError: a GPU without bfloat16.
    """

    def __init__(self, inner: nn.Module, device: torch.device) -> None:
        super().__init__()
        if device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ConfigError(
                "precision (of local training) must be 'float32' on this GPU, which has no bfloat16; got "
                "'bfloat16'."
            )
        self.inner, self._device = inner, device.type

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        """Outputs in float32, so that the loss is too."""
        with torch.autocast(self._device, torch.bfloat16, cache_enabled=False):
            return self.inner(*arguments, **named).float()


def _try_groups(gradient: Gradient, task: Task) -> None:
    """Compute the gradients of a few users; what the module raises gets out."""
    device, shape = task.device, (_TRIED_USERS, _TRIED_WIDTH)
    rows = task.model.initial().to(device).repeat(_TRIED_USERS, 1)
    features, labels = task.structure.sample(torch.Generator().manual_seed(0), shape)
    features = each(lambda values: values.to(device), features)
    batch = Batch(features, labels.to(device), torch.full(shape, 1.0 / _TRIED_WIDTH, device=device))
    gradient.accumulate(batch, Accumulation(rows, torch.empty_like(rows), beta=0.0, alpha=1.0))


def refuse_batch_statistics(module: nn.Module) -> None:
    """ConfigError for a module in which one example changes another's outputs."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"model must treat examples one by one; got {type(part).__name__} {name!r}. The statistics "
                "of a batch mix them, padding included: use GroupNorm or LayerNorm."
            )
