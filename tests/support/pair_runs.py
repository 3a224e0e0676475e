"""Runs whose optimizer needs a second moment and writes down everything it is shown."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fedmf.accounting.queries import SecondForm
from fedmf.mechanisms.workload import ToeplitzWorkload, exponential
from fedmf.moments import SecondMoment
from fedmf.optim import RoundRelease
from fedmf.runs.run import Run
from fedmf.training import Task
from support.small_runs import small_run


class RecordedPair:
    """θ ← θ + u; keeps each round's release. Its second moments are averaged with decay 0.5."""

    def __init__(
        self, second_moment: SecondMoment | None, second_form: SecondForm = "per-user"
    ) -> None:
        self.second_moment: SecondMoment | None = second_moment
        self.second_form: SecondForm = second_form
        self.seen: list[RoundRelease] = []

    def __getstate__(self) -> dict[str, Any]:
        """What it has seen is no part of what it is: a resumed run takes it for the same
        optimizer.
        """
        return {"second_moment": self.second_moment, "second_form": self.second_form}

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        """A₂."""
        return exponential(0.5, rounds)

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        return {}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.seen.append(release)
        return parameters + release.mean.to(parameters.dtype), {}

    def means(self) -> np.ndarray:
        """u_t, shape (rounds, d)."""
        return np.stack([release.mean.cpu().numpy() for release in self.seen])

    def seconds(self) -> np.ndarray:
        """q_t, shape (rounds, m)."""
        return np.stack(
            [release.second.cpu().numpy() for release in self.seen if release.second is not None]
        )


def pair_run(optimizer: RecordedPair, task: Task | None = None, **named: object) -> Run:
    """The small run with this optimizer, and a task of its own if one is given."""
    return replace(small_run(task, **named), server=optimizer)
