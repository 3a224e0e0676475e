"""Guarantee and cost of a planned run, from its plan and synthetic examples.

No user's data are trained on, and nothing is written.
"""

from __future__ import annotations

import math
import statistics
import timeit
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from fedmf.accounting.rounding import at_least, at_most
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.workload import prefix
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.schedule import KeySchedule
from fedmf.release.noisy_sum import NoisyParts
from fedmf.release.plan import Plan
from fedmf.runs.run import Run
from fedmf.runs.run_plan import plan_of
from fedmf.runs.session import check_device
from fedmf.training import Task, preflight, seconds_of_training

_ROUNDS: Final = 3
#: Upper limits of the noise of the mean update over a run, in units of ζ.
_LEVELS: Final = ((0.05, "high"), (0.2, "medium"), (1.0, "low"))


class NoiseAndSignal:
    """Norms of the noise in mean updates, relative to the clip norm ζ, the bound of these updates.

    Args:
        plan: the plan of a run.
        dimension: d of its model.

    Attributes:
        words: one line at the beginning of a run: √d·(root mean square of an entry of a round's
            noise)/(m·ζ), and this ratio for the mean over all n rounds, in which correlated noise
            cancels.
        warning: the reason why a run cannot learn; None if it may.
    """

    def __init__(self, plan: Plan, dimension: int) -> None:
        C = plan.mechanism.factorization
        n = plan.participation.rounds
        std = plan.noise_std / plan.clip_norm
        unit = math.sqrt(dimension) * std / plan.users_per_round
        of_a_round = unit * math.sqrt(float(np.mean(C.noise_row_variances())))
        of_all = unit * math.sqrt(max(float(query_variances(C, prefix(n))[-1]), 0.0)) / n
        level = "none"
        for limit, word in reversed(_LEVELS):
            if of_all <= limit:
                level = word
        self.words = (
            f"signal-to-noise: {level} (noise {100 * of_all:.3g} % of the clip norm in the mean "
            f"update over the run, {of_a_round:.3g} times it in a round)"
        )
        self.warning: str | None = None
        if of_all > 1:
            self.warning = (
                f"noise is {of_all:.3g} times what all updates together can say (in the mean over"
                " all rounds): no model can be learned. Take more users a round, more rounds, a"
                " smaller model, or a larger epsilon."
            )


def dry_run(run: Run, device: str = "cpu") -> Iterator[tuple[str, str]]:
    """Yield privacy, noise, memory and time of a round, as label and text for people.

    The time comes last: it trains synthetic users of the declared structure, with as many examples
    as real ones, and computes a few rows of noise under a temporary key. Nothing is written.

    Args:
        run: the planned run.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: the run cannot be executed.
    """
    task, plan = _planned(run, device)
    model = task.model
    n = run.cohorts.rounds
    contract = plan.participation
    noise = NoiseAndSignal(plan, model.dimension)
    params = "".join(f", {name} = {value:.4g}" for name, value in plan.mechanism.params.items())
    stored = plan.mechanism.factorization.streaming_inverse().memory_vectors
    yield "epsilon", _guarantee(run, plan)
    yield (
        "participation",
        (
            f"{n} rounds, at most {contract.max_participations} a user, {contract.min_separation}"
            f" apart; {run.cohorts.users_per_round} of {plan.users} users a round"
        ),
    )
    yield "mechanism", f"{plan.mechanism.name}{params}"
    kind = plan.sensitivity.kind.replace("_", " ")
    yield "sensitivity", f"{at_least(plan.sensitivity.value)} ({kind})"
    yield (
        "noise",
        (
            f"multiplier {at_most(plan.noise_multiplier)}, standard deviation"
            f" {at_most(plan.noise_std)}"
        ),
    )
    yield "noise against updates", noise.words
    if noise.warning is not None:
        yield "warning", noise.warning
    yield "model", f"{model.dimension:,} parameters"
    rest = task.after_frozen_layers
    if rest is not task:
        features = rest.structure.features
        yield "frozen layers", f"features, {features}, are computed once for each user"
    if task.dataset.row_counts is not None:  # a dry run is the operator's
        yield from task.dataset.row_counts.lines()
    size = 8 * stored * model.dimension / 2**20
    yield "memory of noise", f"{size:,.1f} MiB: {stored} stored vectors"
    preflight(task, run.client)
    training, row = _seconds(run, task, plan, device)
    yield (
        "time of a round",
        (
            f"{1e3 * (training + row):,.0f} ms: local training {1e3 * training:,.0f} on made-up"
            f" users, noise {1e3 * row:,.1f}"
        ),
    )


def _guarantee(run: Run, plan: Plan) -> str:
    if not run.is_private:
        return "infinite: no noise"
    n = run.cohorts.rounds
    epsilon = at_least(plan.epsilon_after(n))
    text = f"{epsilon} at delta {at_least(plan.delta)}, {plan.adjacency} adjacency"
    if plan.amplification is not None:
        known = at_least(plan.known_epsilon_after(n))
        text += f" while cohorts stay secret; {known} against those who know them"
    return text


def seconds_of_a_round(run: Run, device: str = "cpu") -> float:
    """The approximate time of a round on this machine, from synthetic users and a row of noise.

    Raises:
        ConfigError: the run cannot be executed.
    """
    task, plan = _planned(run, device)
    preflight(task, run.client)
    return sum(_seconds(run, task, plan, device))


def _planned(run: Run, device: str) -> tuple[Task, Plan]:
    check_device(device)
    task = run.task_source.build().to(device)
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return task, plan_of(run, optimizer, task.model.dimension)


def _seconds(run: Run, task: Task, plan: Plan, device: str) -> tuple[float, float]:
    """Seconds of local training in a round, and of a row of noise."""
    keys = KeySchedule.constant(NoiseKey.from_os())
    noisy = NoisyParts(keys, Domain.TRAINING, plan.parts[0], plan.noise_of(0))
    total = torch.zeros(task.model.dimension, dtype=torch.int64, device=device)
    repeat = min(_ROUNDS, run.cohorts.rounds)
    rows = timeit.repeat(lambda: noisy.stream.release(total), number=1, repeat=repeat)
    training = seconds_of_training(
        task, run.client, run.cohorts.users_per_round, run.privacy.clip_norm
    )
    return training, statistics.median(rows)
