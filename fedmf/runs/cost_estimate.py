"""What a run would promise and cost, from its plan and made-up examples: no user's data are trained on."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from fedmf.accounting import at_least, at_most
from fedmf.mechanisms.errors import query_variances
from fedmf.mechanisms.workload import prefix
from fedmf.noise import Domain, GaussianSource, NoiseKey, NoiseStream
from fedmf.runs.plan import Plan
from fedmf.runs.run import Run
from fedmf.runs.session import check_device
from fedmf.training import Task, preflight, seconds_of_training

_ROUNDS = 3


@dataclass(frozen=True)
class NoiseAndSignal:
    """Norms of noise in mean updates, as multiples of the clip norm ζ, which no mean update exceeds.

    Args:
        of_a_round: √d·(root mean square of an entry of a round's noise)/(m·ζ).
        of_all_rounds: the same of the mean over all n rounds, in which correlated noise cancels.
    """

    of_a_round: float
    of_all_rounds: float

    @classmethod
    def of(cls, plan: Plan, dimension: int) -> Self:
        """That of a planned run with d parameters."""
        C, n = plan.mechanism.factorization, plan.participation.rounds
        std = plan.noise_std / plan.privacy.clip_norm
        unit = math.sqrt(dimension) * std / plan.cohorts.users_per_round
        whole = float(query_variances(C, prefix(n))[-1])
        return cls(
            unit * math.sqrt(float(np.mean(C.noise_row_variances()))), unit * math.sqrt(max(whole, 0.0)) / n
        )

    @property
    def words(self) -> str:
        """One line at the beginning of a run."""
        levels = ((0.05, "high"), (0.2, "medium"), (1.0, "low"))
        level = next((word for most, word in levels if self.of_all_rounds <= most), "none")
        return (
            f"signal-to-noise: {level} (noise {100 * self.of_all_rounds:.3g} % of the clip norm in the mean "
            f"update over the run, {self.of_a_round:.3g} times it in a round)"
        )

    @property
    def warning(self) -> str | None:
        """Why a run cannot learn; None where it may."""
        if self.of_all_rounds <= 1:
            return None
        return (
            f"noise is {self.of_all_rounds:.3g} times what all updates together can say (in the mean over "
            "all rounds): no model can be learned. Take more users a round, more rounds, a smaller model, or "
            "a larger epsilon."
        )


def dry_run(run: Run, device: str = "cpu") -> Iterator[tuple[str, str]]:
    """Privacy, noise, memory and time of a round, for people: each as soon as it is known, the time last.

    Users of the declared structure, with as many examples as real ones own, are made up and trained; a few
    rows of noise are made under a key that is thrown away. Nothing is written.

    Args:
        run: what would be run.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: the run cannot be executed.
    """
    check_device(device)
    task = run.task_source.build().to(device)
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    plan = Plan.of(run, optimizer, task.model.dimension)
    model, n, contract = task.model, run.cohorts.rounds, plan.participation
    known, epsilon = plan.known_epsilon_after(n), plan.epsilon_after(n)
    promised = (
        f"{at_least(epsilon)} at delta {at_least(plan.privacy.delta)}, {plan.privacy.adjacency} adjacency"
    )
    if plan.amplification is not None:
        promised += f" while cohorts stay secret; {at_least(known)} against those who know them"
    against = NoiseAndSignal.of(plan, model.dimension)
    params = "".join(f", {name} = {value:.4g}" for name, value in plan.mechanism.params.items())
    stored = plan.mechanism.factorization.recurrence().memory_vectors
    yield "epsilon", promised if run.is_private else "infinite: no noise"
    yield (
        "participation",
        f"{n} rounds, at most {contract.max_participations} a user, {contract.min_separation} apart; "
        f"{run.cohorts.users_per_round} of {plan.users} users a round",
    )
    yield "mechanism", f"{plan.mechanism.name}{params}"
    yield (
        "sensitivity",
        f"{at_least(plan.sensitivity.value)} ({plan.sensitivity.kind.replace('_', ' ')})",
    )
    yield (
        "noise",
        f"multiplier {at_most(plan.noise_multiplier)}, standard deviation {at_most(plan.noise_std)}",
    )
    yield "noise against updates", against.words
    if against.warning is not None:
        yield "warning", against.warning
    yield "model", f"{model.dimension:,} parameters"
    size = 8 * stored * model.dimension / 2**20
    yield "memory of noise", f"{size:,.1f} MiB: {stored} stored vectors"
    preflight(task, run.client)
    training, row = _seconds(run, task, plan, device)
    yield (
        "time of a round",
        f"{1e3 * (training + row):,.0f} ms: local training {1e3 * training:,.0f} on made-up users, "
        f"noise {1e3 * row:,.1f}",
    )


def seconds_of_a_round(run: Run, device: str = "cpu") -> float:
    """About how long a round takes on this machine: local training of made-up users and a row of noise.

    Raises:
        ConfigError: the run cannot be executed.
    """
    task = run.task_source.build().to(device)
    preflight(task, run.client)
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return sum(_seconds(run, task, Plan.of(run, optimizer, task.model.dimension), device))


def _seconds(run: Run, task: Task, plan: Plan, device: str) -> tuple[float, float]:
    """Of local training, and of a row of noise."""
    dimension, n = task.model.dimension, run.cohorts.rounds
    source = GaussianSource(NoiseKey.from_os(), dimension, Domain.TRAINING)
    inverse = plan.mechanism.factorization.recurrence()
    noise = NoiseStream(source, inverse, n, device=torch.device(device))
    rows = [_seconds_of_a_row(noise, dimension, device) for _ in range(min(_ROUNDS, n))]
    training = seconds_of_training(task, run.client, run.cohorts.users_per_round, run.privacy.clip_norm)
    return training, statistics.median(rows)


def _seconds_of_a_row(noise: NoiseStream, dimension: int, device: str) -> float:
    total = torch.zeros(dimension, dtype=torch.float64, device=device)
    begun = time.perf_counter()
    noise.add_(total, 1.0)
    return time.perf_counter() - begun
