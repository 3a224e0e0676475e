"""A model on users' own examples: plain sums, and bounded rows of single users for sums with noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import Features, FederatedDataset
from fedmf.training.barrier import (
    Failures,
    UserFailure,
    described,
    example_counts,
    load_examples,
    pass_interrupt,
    silent,
)
from fedmf.training.task import Task
from fedmf.training.workers import single_threaded_kernels

#: Examples that are loaded together, about.
_ROWS = 1024


@dataclass(frozen=True)
class ExampleTotals:
    """Sums over examples.

    Args:
        sums: by the name of a metric, ``loss`` included: the sums of its terms; see `Metric`.
        examples: how many there are.
    """

    sums: Mapping[str, tuple[float, ...]]
    examples: int


@torch.no_grad()
def evaluate_users(task: Task, parameters: Tensor, user_ids: Sequence[str]) -> ExampleTotals:
    """Sum loss and metrics over all examples of some users; `Task.values` makes metrics of the sums.

    The result has no differential privacy. Memory is that of 1024 examples and of one user.

    Args:
        task: what is computed is computed where its examples live.
        parameters: θ, shape (d,), float32.
        user_ids: at least one user.

    Raises:
        KeyError: an unknown user id.
    """
    return _added(
        _totals(task, parameters, *task.dataset.examples(users))
        for users in _parts(task.dataset, task.dataset.indices(user_ids))
        if len(users)
    )


def judgement_ranges(task: Task, loss_bound: float) -> dict[str, tuple[float, float]]:
    """The public range that one user's value of the loss, [0, L], and of each metric is clamped to."""
    return {"loss": (0.0, loss_bound), **{metric.name: metric.clip_range for metric in task.metrics}}


def judgements(
    task: Task,
    parameters: Tensor,
    user_ids: Sequence[str],
    loss_bound: float,
) -> tuple[Tensor, list[UserFailure]]:
    """What each user's own examples say of a model, in numbers of [−1, 1].

    With x a user's mean loss, or a metric over its examples, and [c − h, c + h] the range of
    `judgement_ranges`, the entry is (x − c)/h with x clamped; 0 where x is NaN.

    Args:
        task: what is computed is computed where its examples live.
        parameters: θ, shape (d,), float32.
        user_ids: whom to ask.
        loss_bound: L > 0.

    Returns:
        Rows, shape (users, q), float64 on the CPU: the loss, then the metrics in their order; and who failed.
        The row of a user that failed or owns nothing is zero.

    Guarantees:
        A row depends on its own user's examples only, to the last bit, and nothing that they cause is raised.
    """
    ranges, failures = judgement_ranges(task, loss_bound), Failures()
    rows = torch.zeros(len(user_ids), len(ranges), dtype=torch.float64)
    with silent(), single_threaded_kernels(), torch.no_grad():
        for place, user in enumerate(user_ids):
            try:
                totals = _judged(task, parameters, user)
                if totals.examples:
                    values = task.values(totals.sums, totals.examples)
                    entries = [centred(values[name], *ends) for name, ends in ranges.items()]
                    rows[place] = torch.tensor(entries, dtype=torch.float64)
            except BaseException as error:
                pass_interrupt(error)
                failures.note(place, "evaluation", described(error))
    return rows, failures.named(user_ids)


def _judged(task: Task, parameters: Tensor, user: str) -> ExampleTotals:
    """The sums over one user's examples; raises whatever is wrong with them."""

    def fail(_: int, reason: str) -> None:
        raise ValueError(reason)

    users = task.dataset.indices([user])
    counts = example_counts(task.dataset, users, fail)
    if not counts[0]:
        return ExampleTotals({}, 0)
    return _totals(task, parameters, *load_examples(task.dataset, task.structure, users, counts, fail))


def _totals(task: Task, parameters: Tensor, features: Features, labels: Tensor) -> ExampleTotals:
    return ExampleTotals(task.sums(parameters, features, labels), len(labels))


def centred(value: float, low: float, high: float) -> float:
    """(x − c)/h for x clamped to [c − h, c + h]: a number of [−1, 1]; 0 for NaN.

    >>> centred(0.75, 0.0, 1.0), centred(7.0, 0.0, 5.0), centred(float("nan"), 0.0, 1.0)
    (0.5, 1.0, 0.0)
    """
    if math.isnan(value):
        return 0.0
    middle, half = (low + high) / 2, (high - low) / 2
    return max(-1.0, min(1.0, (min(max(value, low), high) - middle) / half))


def _added(parts: Iterable[ExampleTotals]) -> ExampleTotals:
    sums: dict[str, NDArray[np.float64]] = {}
    examples = 0
    for part in parts:
        sums = {name: sums.get(name, 0.0) + np.asarray(terms) for name, terms in part.sums.items()}
        examples += part.examples
    return ExampleTotals({name: tuple(total.tolist()) for name, total in sums.items()}, examples)


def _parts(dataset: FederatedDataset, users: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut users into parts that own about 1024 examples together."""
    filled = np.cumsum(dataset.sizes(users)) // _ROWS
    yield from np.split(users, np.flatnonzero(np.diff(filled)) + 1)
