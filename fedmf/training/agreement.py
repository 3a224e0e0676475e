"""Checks that a faster engine has the updates of a loop, with the same bits at each place.

Users of a group are computed together, and a user's place must not show in its bits. Matrix
products may round differently where a matrix does not begin on a cache line, and functions of
single numbers where the last of them fill no vector of the processor. Three things make places
equal: the reproducible mode of Intel's math library, which importing `fedmf` chooses; groups of 32
users, which fill whole vectors with any number of float32 each; and rows of parameters that do not
touch. The functions here try on this machine, with the model and batch size of a run, that they do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedmf.training.batches import StepRows, widths_of
from fedmf.training.engines import (
    Engine,
    LoopEngine,
    VmapEngine,
    made_up_group,
    training_conditions,
    tried_batch,
)
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task
from fedmf.training.user_failures import Group
from fedmf.training.workers import single_threaded_products

#: Largest difference from automatic differentiation, as a share of an update's norm: it is some
#: 10⁻⁶, 10⁻⁴ for models that magnify rounding, and more where a number falls on ReLU's other side.
_TOLERANCE: Final = 1e-2
#: On a GPU kernels may add in another order each time.
_ROUNDING_ON_GPU: Final = 1e-3
#: Rows and columns of products (m × k by k × n) that MKL rounds by place without its reproducible
#: mode, on processors with AVX2 or AVX-512.
_PRODUCTS: Final = (
    (2, 33, 17),
    (7, 28, 6),
    (10, 17, 5),
    (5, 13, 7),
    (17, 26, 5),
    (1, 29, 25),
    (29, 61, 5),
)
#: Pairs in one batched product.
_PAIRS: Final = 16
#: Examples of a user that is copied, or those of one step.
_EXAMPLES: Final = 4


@cache
def uneven_products() -> str:
    """Multiply equal pairs of matrices in one batch.

    Returns:
        Why their products are unequal in this process; empty if they are equal.
    """
    generator = torch.Generator().manual_seed(0)
    with single_threaded_products():
        for m, k, n in _PRODUCTS:
            left = torch.randn(m, k, generator=generator).expand(_PAIRS, m, k).contiguous()
            right = torch.randn(k, n, generator=generator).expand(_PAIRS, k, n).contiguous()
            if not _equal_rows(torch.bmm(left, right)):
                return (
                    "the rounding of matrix products depends on their place in a group; import"
                    " fedmf before torch's first product, or set MKL_CBWR=AUTO in the environment"
                )
    return ""


def uneven_places(task: Task, local: LocalSGD) -> str:
    """Train a group of copies of a made-up user for each width of a step.

    All copies must have the same bits.

    Returns:
        The fault, as the end of a sentence; empty if there is none.
    """
    engine = VmapEngine(task, local)
    origin = task.model.initial()
    with training_conditions(task.device):
        for width in widths_of(tried_batch(local)):
            models = engine.train(origin, _copies(task, width, engine.size))
            if not _equal_rows(models):
                return (
                    f"a user's update depends on its place in a group, with steps of {width}"
                    " examples"
                )
    return ""


def mixed_examples(task: Task, local: LocalSGD) -> str:
    """Train a group of users twice with different padding, which shows mixed examples.

    Steps of a group are filled with examples of weight zero, which add exact zeros to a gradient.

    Returns:
        The fault, as the end of a sentence; empty if there is none.
    """
    group = made_up_group(task, max(2, tried_batch(local)))
    origin = task.model.initial().to(task.device)
    rows = group.steps.rows
    weights = group.steps.weights
    other = replace(group.steps, rows=np.where(weights > 0, rows, rows.size - 1 - rows))
    engine = VmapEngine(task, local)
    engine.expect(len(group))
    with training_conditions(task.device):
        update = engine.train(origin, group) - origin
        difference = engine.train(origin, replace(group, steps=other)) - origin - update
    allowed = 0.0
    if task.device.type == "cuda":
        allowed = _ROUNDING_ON_GPU * float(update.norm())
    if float(difference.norm()) <= allowed:
        return ""
    return "the model mixes a user's examples, so that padding changes updates"


def disagreement(engine_class: type[Engine], task: Task, local: LocalSGD) -> str:
    """Compare an engine's updates with those of automatic differentiation.

    Made-up users with unequal numbers of examples are trained.

    Args:
        engine_class: the class of the engine.
        task: model, loss and structure of examples; its users' examples are not read.
        local: local SGD with the run's batch size.

    Returns:
        The fault, as the end of a sentence; empty if there is none.
    """
    group = made_up_group(task, max(2, tried_batch(local)))
    origin = task.model.initial().to(task.device)
    engine = engine_class(task, local)
    engine.expect(len(group))
    with training_conditions(task.device):
        expected = LoopEngine(task, local).train(origin, group) - origin
        error = torch.linalg.vector_norm(engine.train(origin, group) - origin - expected, dim=1)
    allowed = _TOLERANCE * torch.linalg.vector_norm(expected, dim=1)
    if bool((error <= allowed).all()):
        return ""
    return "updates differ from those of automatic differentiation"


def _copies(task: Task, width: int, users: int) -> Group:
    """A group of ``users`` users with the same examples, in several steps if these are narrow."""
    steps = max(1, _EXAMPLES // width)
    group = made_up_group(task, max(2, steps * width), users=1)
    rows = np.arange(steps * width).reshape(steps, 1, width).repeat(users, axis=1)
    weights = np.full((steps, users, width), 1.0 / width, np.float32)
    return replace(
        group,
        positions=np.arange(users),
        width=width,
        edges=np.zeros(users + 1, np.int64),
        steps=StepRows(rows, weights, np.full(steps, users)),
        seeds=np.zeros(users, np.uint64),
    )


def _equal_rows(values: Tensor) -> bool:
    """Whether all rows have the numbers of the first."""
    return torch.equal(values, values[:1].expand_as(values))
