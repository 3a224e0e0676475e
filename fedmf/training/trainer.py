"""Sums of updates that are checked before they are sent, and the time that training takes."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum, SumSpec
from fedmf.data import InMemoryDataset
from fedmf.data.structure import each
from fedmf.errors import UnsoundSumError
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task
from fedmf.training.user_failures import UserFailure, example_counts, load_examples, silent

#: Most users that are trained, or loaded, to measure the time.
_MOST_USERS: Final = 64
#: Passes over them, of which the median counts, and seconds after which there is no further one.
_PASSES: Final = 9
_MOST_SECONDS: Final = 2.0

_log = logging.getLogger("fedmf")


def checked_sum(
    trainer: LocalTrainer,
    sums: SumSpec,
    parameters: Tensor,
    users: Sequence[str],
    t: int,
    reported: Mapping[str, NDArray[np.float64]] = MappingProxyType({}),
) -> tuple[ClippedSum, list[UserFailure]]:
    """Train users and sum their clipped updates, such that a server accepts the sum.

    If no clipped updates can have the sum, users are trained again on path "loop" and each
    contribution is checked alone: an engine's mistake about one user must not turn the others'
    contributions into zeros.

    Args:
        trainer: trains the users.
        sums: the contents of the sum, and the clip norm.
        parameters: θ_t, shape (d,), float32.
        users: their ids.
        t: 0-based round.
        reported: numbers of the users by name, shape (users,), which are added as well.

    Returns:
        The sum over all users, and the failures.

    Raises:
        UnsoundSumError: a user's contribution is above the clip norm on path "loop" as well.
    """
    total = sums.empty(trainer.task.device)
    failures = trainer.add_updates(parameters, users, t, total, reported)
    try:
        total.check_bounds()
        return total, failures
    except ValueError as error:
        _log.error(
            "a sum over %d users is computed again, user by user: %s This is a bug.",
            len(users),
            error,
        )
    reference = trainer.reference()
    failures = []
    total = sums.empty(trainer.task.device)
    for place, user in enumerate(users):
        alone = total.like()
        numbers = {name: values[place : place + 1] for name, values in reported.items()}
        failures += reference.add_updates(parameters, [user], t, alone, numbers)
        try:
            alone.check_bounds()
        except ValueError as error:
            raise UnsoundSumError(
                "contribution (of one user) must be within the clip norm; got one that is not:"
                f" {error} This is a bug of fedmf; nothing of this round is released. Please"
                " report it."
            ) from error
        total.merge(alone)
    return total, failures


def seconds_of_training(task: Task, local: LocalSGD, cohort_size: int, clip_norm: float) -> float:
    """Seconds of a cohort's local training and clipping on this machine.

    As many made-up users as fit into a cohort, but at most 64, are trained some times, with the
    numbers of examples that the first users own; the median counts, scaled to the cohort.

    Args:
        task: the task; its users' examples are not read.
        local: local training.
        cohort_size: m.
        clip_norm: ζ > 0.
    """
    users = min(cohort_size, _MOST_USERS, task.dataset.users)
    sizes = np.maximum(1, example_counts(task.dataset, np.arange(users)))
    features, labels = task.structure.sample(torch.Generator().manual_seed(0), (int(sizes.sum()),))
    names = tuple(f"made-up user {u}" for u in range(users))
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])),
        user_ids=names,
        test_features=each(lambda values: values[:1], features),
        test_labels=labels[:1],
    )
    here = replace(task, dataset=dataset.to(task.device))
    trainer = LocalTrainer(here, local, users=cohort_size)
    parameters = task.model.initial().to(task.device)
    total = ClippedSum(parameters.numel(), clip_norm, task.device)
    seconds = _median_seconds(lambda: trainer.add_updates(parameters, names, 0, total))
    return seconds * cohort_size / users


def _median_seconds(work: Callable[[], object]) -> float:
    """Seconds of repeated work, without the first time, which may have to prepare something."""
    work()
    seconds = list[float]()
    while len(seconds) < _PASSES and sum(seconds) < _MOST_SECONDS:
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def seconds_of_loading(task: Task, cohort_size: int) -> float:
    """Seconds in which one thread loads the examples of a cohort; 0 if they are in memory.

    The examples of as many users as fit into a cohort, but at most 64, are loaded some times and
    dropped; the median time is scaled to the cohort. Whether some cannot be loaded does not matter.

    Args:
        task: the task.
        cohort_size: m.
    """
    dataset = task.dataset
    if isinstance(dataset, InMemoryDataset) or task.after_frozen_layers is not task:
        return 0.0
    users = np.arange(min(cohort_size, _MOST_USERS, dataset.users))
    counts = example_counts(dataset, users)
    owning = users[counts > 0]
    if not owning.size:
        return 0.0
    owned = counts[owning]
    with silent():
        seconds = _median_seconds(lambda: load_examples(dataset, task.structure, owning, owned))
    return seconds * cohort_size / users.size
