"""Tasks that must be refused before anything is spent: what is wrong, and what the one line
says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.models import FlatModel, freeze, mlp
from fedmf.training import Metric, Task, classification
from fedmf.training.metrics import ACCURACY
from support.training_cases import cohort


def healthy() -> Task:
    return classification(cohort([3, 4]), mlp(6, (7,), 4, seed=2))


def with_model(module: nn.Module) -> Task:
    return replace(healthy(), model=FlatModel(module))


def thawed() -> Task:
    task = with_model(nn.Sequential(nn.Linear(6, 4), freeze(nn.BatchNorm1d(4))))
    task.model.module.train()
    return task


def with_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> Task:
    return replace(healthy(), loss=loss)


def with_float_labels() -> Task:
    dataset = cohort([3, 4])
    labels = {name: getattr(dataset, name).float() for name in ("labels", "test_labels")}
    return classification(replace(dataset, **labels), mlp(6, (), 4, 0))  # type: ignore[arg-type]


class Scaled(nn.Module):
    """A linear layer whose outputs pass through a function, so that no engine looks inside."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.after = after

    def forward(self, features: Tensor) -> Tensor:
        return self.after(self.inner(features))


def raising(_: Tensor) -> Tensor:
    raise OSError("disk\non fire")


def branching(outputs: Tensor) -> Tensor:
    """The path depends on the numbers, which torch.func cannot batch."""
    return 2 * outputs if outputs.sum().item() > 0 else outputs


def centered(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, labels, reduction="none")
    return losses - losses.mean()


def unusable(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[:, 9] - labels


def beyond() -> Task:
    dataset = cohort([3])
    return classification(replace(dataset, test_labels=torch.tensor([4])), mlp(6, (), 4, 0))


CROSS_ENTROPY = "loss must take outputs (5, 4) float32 and declared labels"
#: Task, what the one line must say, and whether the cause is an exception of the task's own code.
BROKEN: dict[str, tuple[Callable[[], Task], tuple[str, ...], bool]] = {
    "features of the wrong shape": (
        lambda: with_model(mlp(5, (7,), 4, seed=0)),
        (
            (
                "model must take the declared features, (6,) float32; got RuntimeError: mat1 and"
                " mat2 shapes"
            ),
        ),
        True,
    ),
    "labels of the wrong type": (
        with_float_labels,
        (f"{CROSS_ENTROPY} () float32 below 4; got RuntimeError: expected", "Float"),
        True,
    ),
    "a loss that is a scalar": (
        lambda: with_loss(F.cross_entropy),
        ("loss must return one number for each example, shape (5,); got () float32",),
        False,
    ),
    "a loss that is always NaN": (
        lambda: with_loss(lambda outputs, labels: torch.log(-1 - outputs[:, 0].square())),
        ("loss must be finite; got nan for every made-up example",),
        False,
    ),
    "a gradient that is NaN": (
        lambda: with_loss(lambda outputs, labels: (0 * outputs[:, 0]).sqrt()),
        ("update of a user must be finite; got one that is not for made-up examples",),
        False,
    ),
    "a loss that mixes examples": (
        lambda: with_loss(centered),
        ("loss must treat examples one by one; got another loss for an example among others",),
        False,
    ),
    "an exception in the model": (
        lambda: with_model(Scaled(raising)),
        ("model must take the declared features, (6,) float32; got OSError: disk on fire (/",),
        True,
    ),
    "a model that forgets examples": (
        lambda: with_model(Scaled(lambda outputs: outputs.mean(dim=0))),
        ("model must return one row for each of 5 examples; got (4,) float32",),
        False,
    ),
    "a model with two outputs": (
        lambda: with_model(Scaled(lambda outputs: (outputs, outputs))),  # type: ignore[arg-type]
        ("5 examples; got tuple. Concatenate the outputs into one tensor.",),
        False,
    ),
    "frozen statistics that are live again": (
        thawed,
        ("must use no statistics of a batch", "got BatchNorm1d '1' in training mode. Freeze it"),
        False,
    ),
    "outputs that a metric cannot use": (
        lambda: replace(
            healthy(), metrics=(ACCURACY, Metric("gap", unusable, higher_is_better=False))
        ),
        (
            (
                "metric gap must be a number computed from outputs (5, 4) float32; got IndexError:"
                " index 9 is"
            ),
            "broken_tasks.py:",
        ),
        True,
    ),
    "labels beyond the declared bound": (
        lambda: replace(beyond(), structure=healthy().structure),
        (
            (
                "test part must be as the task's structure declares: test_labels must be () int64"
                " below 4; got 4."
            ),
        ),
        False,
    ),
}
