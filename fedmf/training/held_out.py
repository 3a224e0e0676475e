"""Loss and metrics of a model on the examples that each user holds out, user by user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.held_out import ExamplesPart
from fedmf.training.engines import training_conditions
from fedmf.training.task import Task
from fedmf.training.user_failures import (
    Failures,
    UserFailure,
    described,
    example_counts,
    load_examples,
    pass_interrupt,
)


def training_part(task: Task, share: float) -> Task:
    """The task without the examples that users hold out."""
    if not share:
        return task
    return replace(task, dataset=ExamplesPart(task.dataset, share, held_out=False))


class HeldOutExamples:
    """The examples that users do not train on.

    Args:
        task: with all examples.
        share: of each user's examples that are held out.

    Guarantees:
        The values of a user depend on its own examples and the model alone; whatever fails in
        computing them concerns that user's values.
    """

    def __init__(self, task: Task, share: float) -> None:
        self._task = task
        if share:
            part = ExamplesPart(task.dataset, share, held_out=True)
            self._task = replace(task, dataset=part).after_frozen_layers

    @torch.inference_mode(False)
    @torch.no_grad()
    def metrics(
        self, parameters: Tensor, user_ids: Sequence[str]
    ) -> tuple[dict[str, NDArray[np.float64]], list[UserFailure]]:
        """The loss and the metrics of a model for each user.

        Args:
            parameters: θ, shape (d,).
            user_ids: the users.

        Returns:
            Numbers by the name of the metric, shape (users,): 0 for a user that holds nothing out,
            NaN for one that fails. And the failures, for the operator alone.
        """
        dataset = self._task.dataset
        users = dataset.indices(user_ids)
        failures = Failures()
        names = ["loss", *(metric.name for metric in self._task.metrics)]
        values = np.zeros((len(names), users.size))
        origin = parameters.to(self._task.device)
        with training_conditions(origin.device):
            counts = example_counts(
                dataset, users, lambda place, reason: failures.note(place, "held-out", reason)
            )
            for place in np.flatnonzero(counts > 0).tolist():
                own = slice(place, place + 1)
                try:
                    values[:, place] = self._of_user(origin, users[own], counts[own])
                except BaseException as error:
                    pass_interrupt(error)
                    values[:, place] = math.nan
                    failures.note(place, "held-out", described(error))
        return dict(zip(names, values, strict=True)), failures.named(user_ids)

    def _of_user(
        self, origin: Tensor, user: NDArray[np.int64], count: NDArray[np.int64]
    ) -> list[float]:
        task = self._task
        reasons: dict[int, str] = {}
        features, labels = load_examples(
            task.dataset, task.structure, user, count, reasons.__setitem__
        )
        for reason in reasons.values():
            raise ValueError(reason)
        sums = task.sums(origin, features, labels)
        return list(task.values(sums, int(count[0])).values())
