"""Made-up users of a task's declared structure, to measure what a round of local training costs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from fedmf.data import InMemoryDataset, each
from fedmf.training.barrier import example_counts
from fedmf.training.clipping import FixedPointSum
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task

__all__ = ["seconds_of_training"]

_MOST_USERS: Final = 64


def seconds_of_training(task: Task, local: LocalSGD, cohort_size: int, clip_norm: float) -> float:
    """How long a cohort's local training and clipping takes on this machine.

    As many made-up users as fit into a cohort, 64 at most, are trained twice, with the numbers of examples
    that the first users own; the second time counts, scaled to the cohort.

    Args:
        task: any; its users' examples are not looked at.
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
    trainer = LocalTrainer(replace(task, dataset=dataset.to(task.device)), local)
    parameters, seconds = task.model.initial().to(task.device), 0.0
    for t in range(2):
        total = FixedPointSum(parameters.numel(), clip_norm, task.device)
        begun = time.perf_counter()
        trainer.add_updates(parameters, names, t, total)
        seconds = time.perf_counter() - begun
    return seconds * cohort_size / users
