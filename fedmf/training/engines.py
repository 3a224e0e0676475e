"""Which program computes the gradients of a group of users."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from fedmf.models import FlatModel
from fedmf.training.gradients import (
    FunctionalGradient,
    Gradient,
    LayeredGradient,
    LoopGradient,
    Loss,
    layers_of,
)

__all__ = ["LocalEngine", "make_gradient"]

_log = logging.getLogger("fedmf")

LocalEngine = Literal["auto", "vectorised", "loop"]
_TRIED_USERS, _TRIED_WIDTH = 2, 3


def make_gradient(
    model: FlatModel, loss: Loss, engine: LocalEngine, features: Tensor, labels: Tensor
) -> Callable[[], Gradient]:
    """Choose how gradients are computed.

    Args:
        model: the flat model.
        loss: (outputs, labels) → per-example losses.
        engine: "vectorised" trains users in groups: a chain of common layers by passes written out, any
            other module by torch.func. "loop" trains one user after another. "auto" is vectorised, or the
            loop for a module that torch.func cannot handle.
        features: one example, shape (1, …), to try the module on.
        labels: its label, shape (1,).

    Returns:
        Makes a gradient for one thread: torch.func works on the module itself, so each thread has a copy.

    Raises:
        ValueError: the module mixes examples, or engine is "vectorised" and torch.func cannot handle it.
    """
    _refuse_batch_statistics(model.module)
    if engine == "loop":
        return lambda: LoopGradient(_own(model), loss)
    layers = layers_of(model, features.device)
    if layers is not None:
        return lambda: LayeredGradient(layers, loss)
    reason = _try(FunctionalGradient(_own(model), loss), model, features, labels)
    if reason is None:
        return lambda: FunctionalGradient(_own(model), loss)
    if engine == "vectorised":
        raise ValueError(
            f"model must be one that torch.func can batch with local-engine 'vectorised'; got {reason}. "
            "Use 'auto' or 'loop'."
        )
    _log.warning(
        "users are trained one by one, which is slower: torch.func cannot batch the model (%s)", reason
    )
    return lambda: LoopGradient(_own(model), loss)


def _own(model: FlatModel) -> FlatModel:
    return FlatModel(copy.deepcopy(model.module))


def _try(gradient: Gradient, model: FlatModel, features: Tensor, labels: Tensor) -> str | None:
    """Why the gradient cannot be computed, in one line; None if it can."""
    rows = model.initial().to(features.device).repeat(_TRIED_USERS, 1)
    shape = (_TRIED_USERS, _TRIED_WIDTH)
    try:
        gradient.accumulate(
            rows,
            features.expand(*shape, *features.shape[1:]),
            labels.expand(*shape, *labels.shape[1:]),
            torch.full(shape, 1.0 / _TRIED_WIDTH, device=features.device),
            torch.empty_like(rows),
            beta=0.0,
            alpha=1.0,
        )
    except Exception as error:  # a module may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None


def _refuse_batch_statistics(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"model must treat examples one by one; got {type(part).__name__} {name!r}. The statistics "
                "of a batch mix them, padding included: use GroupNorm or LayerNorm."
            )
