"""The release that an optimizer gets: wrong ones are rejected, and its noise variance is true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import linear_task, small_run
from torch import Tensor

import fedmf
from fedmf.accounting.queries import SecondForm
from fedmf.mechanisms.workload import LearningRateSchedule
from fedmf.moments import SecondMoment
from fedmf.optim import Move, RoundRelease, ServerOptimizer, ServerSGD

DIMENSION = 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 2), 0.0), r"u \(mean\) must be a flat vector; got shape \(2, 2\)"),
        ((torch.zeros(2), -1.0), r"noise in u \(mean\) must be finite and >= 0; got -1"),
        ((torch.zeros(2), math.nan), "must be finite and >= 0; got nan"),
        ((torch.zeros(2), 1.0, torch.zeros(2)), "must come together"),
        ((torch.zeros(2), 1.0, None, 1.0), "must come together"),
        ((torch.zeros(2), 1.0, torch.zeros(()), 1.0), r"q \(second\) must be a flat vector"),
        ((torch.zeros(2), 1.0, torch.zeros(2), math.inf), r"noise in q \(second\) must be finite"),
    ],
)
def test_a_release_that_cannot_be_is_rejected(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoundRelease(*arguments)


class Watched:
    """A server optimizer that remembers what it was shown."""

    def __init__(self, inner: ServerOptimizer) -> None:
        self.inner: ServerOptimizer = inner
        self.seen: list[RoundRelease] = []
        self.second_moment: SecondMoment | None = inner.second_moment
        self.second_form: SecondForm = inner.second_form

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        return self.inner.init(parameters)

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.seen.append(release)
        return self.inner.step(t, parameters, release, state)


def shown(path: Path, **keys: object) -> tuple[list[RoundRelease], float]:
    """The releases of a run without users, and the noise level of its plan."""
    optimizer = Watched(ServerSGD(Move(LearningRateSchedule("constant", 0.1, 12)), 0.9))
    run = replace(small_run(linear_task(24, DIMENSION), **keys), server=optimizer)
    with fedmf.start(run, path) as session:
        for _ in range(session.server.horizon):
            session.server.release(session.server.new_sum(), [])
        return optimizer.seen, session.plan.noise_std


def test_the_server_states_the_variance_of_each_round(tmp_path: Path) -> None:
    """[C⁻¹C⁻ᵀ]_tt of (1 − x)^{1/2} by hand: it rises, where [(CCᵀ)⁻¹]_tt would fall."""
    seen, std = shown(tmp_path / "run", mechanism="square-root")
    coefficients = np.cumprod([1.0, *((j - 1.5) / j for j in range(1, 12))])
    expected = (std / 6) ** 2 * np.cumsum(coefficients**2)
    assert [release.mean_variance for release in seen] == pytest.approx(expected, rel=1e-12)
    for release in seen:
        assert release.second is None
        assert release.mean.shape == (DIMENSION,)
