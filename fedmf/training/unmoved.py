"""Parameters that no user moves: they receive noise in every round and learn nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

from fedmf.data.structure import each
from fedmf.models import FlatModel
from fedmf.training.engines import outputs_of
from fedmf.training.task import Task

#: Made-up examples. A parameter that they do not reach is tried with more of them, which may take
#: another way through the model.
_EXAMPLES: Final = (4, 64)
#: Most names in a warning.
_NAMES: Final = 4


def unmoved_parameters(task: Task) -> str:
    """Find parameters that no made-up user moves, however the others are trained.

    They are those on which the loss does not depend: no path of automatic differentiation leads to
    them. A gradient that happens to be zero, as behind a ReLU, does not count.

    Returns:
        A warning that names them and the remedy; empty if there are none.
    """
    gradients: dict[str, Tensor | None] = {}
    module = copy.deepcopy(task.model.module)
    for examples in _EXAMPLES:
        gradients = _gradients(task, module, examples)
        if all(gradient is not None for gradient in gradients.values()):
            break
    trained = task.model.trained
    names = [name for name, gradient in gradients.items() if gradient is None]
    sentences: list[str] = []
    if names:
        numbers = sum(trained[name].numel() for name in names)
        shown = ", ".join(map(repr, names[:_NAMES]))
        if len(names) > _NAMES:
            shown += f", … ({len(names)} in all)"
        sentences.append(
            f"no user can move {shown} ({numbers:,} of {task.model.dimension:,} parameters), which"
            " get noise in every round: freeze them with requires_grad_(False), or remove them"
        )
    for name, row in _padding_rows(module, gradients):
        sentences.append(
            f"no user can move row {row} (padding_idx) of {name!r}, which gets noise in every"
            f" round: multiply its vectors by (tokens != {row}) where padding must stay zero"
        )
    return "; ".join(sentences)


def _gradients(task: Task, module: nn.Module, examples: int) -> dict[str, Tensor | None]:
    """The gradient of each trained parameter; None for those on which the loss does not depend."""
    model = FlatModel(module)
    features, labels = task.structure.sample(torch.Generator().manual_seed(1), (examples,))
    features = each(lambda values: values.to(task.device), features)
    with torch.enable_grad():
        loss = task.loss(outputs_of(module, features), labels.to(task.device)).sum()
        found = torch.autograd.grad(loss, [*model.trained.values()], allow_unused=True)
    return dict(zip(model.trained, found, strict=True))


def _padding_rows(
    module: nn.Module, gradients: dict[str, Tensor | None]
) -> Iterator[tuple[str, int]]:
    """The rows of trained embeddings that stand for padding, unless another layer moves them."""
    for prefix, part in module.named_modules():
        if not isinstance(part, nn.Embedding) or part.padding_idx is None:
            continue
        name = f"{prefix}.weight".lstrip(".")
        gradient = gradients.get(name)
        if gradient is not None and not gradient[part.padding_idx].any():
            yield name, part.padding_idx
