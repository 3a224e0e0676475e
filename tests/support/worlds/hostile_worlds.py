"""The whole command in two worlds that differ in one user's data, told apart as well as can be."""

from __future__ import annotations

import dataclasses
import math
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc

import fedmf
from fedmf.accounting import at_least, at_most
from fedmf.cohorts import SampledCohorts
from fedmf.errors import ConfigError
from fedmf.optim import Sgd
from fedmf.runs import Run, dotted_keys
from fedmf.statements import Plan
from support.worlds.observed import Command, Leaving, compare, observe
from support.worlds.stage import Hostile, Stage
from support.worlds.tasks import LINEAR


@dataclass(frozen=True)
class HostileWorld:
    """What the runs of a world in which one user misbehaves showed, against those in which nobody does.

    Args:
        behaviour: of the user's data.
        mu_exact: ‖C·D‖/σ̃ with D the difference of the sums of twin runs under one key: the μ at which the two
            worlds can be told apart if the noise is what it should be.
        mu_low: lower confidence limit of μ from runs under fresh keys; nan without such runs.
        mu_high: upper limit.
        outside: what else leaves differently: a line each; nothing of it may.
    """

    behaviour: str
    mu_exact: float
    mu_low: float
    mu_high: float
    outside: tuple[str, ...]

    @property
    def measured(self) -> str:
        """The interval of μ, rounded outwards; empty without one."""
        if math.isnan(self.mu_low):
            return ""
        return f"[{at_most(self.mu_low, 3)}, {at_least(self.mu_high, 3)}]"


def hostile_worlds(
    run: Run,
    command: Command,
    behaviours: Sequence[str],
    runs: int,
    confidence: float,
    on_run: Callable[[], None],
) -> tuple[HostileWorld, ...]:
    """Part two of `audit_end_to_end`."""
    if isinstance(run.cohorts, SampledCohorts):
        runs = 0
    found = []
    with tempfile.TemporaryDirectory() as folder:
        stages = _Stages(Path(folder), run, command, on_run)
        twin = stages.stage(secrets.randbits(62))
        benign = stages.observed(twin, None)
        user = _most_asked(benign)
        fresh = [stages.observed(stages.stage(secrets.randbits(62)), None) for _ in range(runs)]
        plan = fedmf.plan(twin.run())
        for behaviour in behaviours:
            verdict = compare(command, twin, (user, behaviour), benign)
            on_run()
            hostile = verdict.hostile
            if len(hostile.models) != len(benign.models):
                found.append(HostileWorld(behaviour, np.nan, np.nan, np.nan, verdict.outside))
                continue
            shift = _whitened(plan, benign) - _whitened(plan, hostile)
            exact = float(np.linalg.norm(shift)) / plan.noise_std
            low = high = np.nan
            if runs and exact > 0:
                others = [
                    stages.observed(stages.stage(secrets.randbits(62)), (user, behaviour))
                    for _ in range(runs)
                ]
                scale = exact * plan.noise_std**2
                good, bad = (
                    np.array([float((shift * _whitened(plan, leaving)).sum()) / scale for leaving in world])
                    for world in (fresh, others)
                )
                low, high = shift_interval(good, bad, confidence)
            found.append(HostileWorld(behaviour, exact, low, high, verdict.outside))
    return tuple(found)


@dataclass(frozen=True)
class _Stages:
    """Runs of the whole command with linear users, in one folder, under keys of one's choice."""

    place: Path
    run: Run
    command: Command
    on_run: Callable[[], None]

    def stage(self, seed: int) -> Stage:
        """The run under a key, with an optimizer whose models show the noisy sums."""
        optimizer = Sgd(learning_rate=1.0, momentum=0.0)
        privacy = dataclasses.replace(self.run.privacy, user_budgets="", noise_seed=seed)
        execution = dataclasses.replace(
            self.run.execution,
            evaluate_every=self.run.cohorts.rounds,
            output_dir="",
        )
        kept = dataclasses.replace(self.run, optimizer=optimizer, privacy=privacy, execution=execution)
        own = ("task.", "data.", "model.")
        settings = {name: value for name, value in dotted_keys(kept).items() if not name.startswith(own)}
        return Stage(self.place, LINEAR, self.run.task_source.users, settings)

    def observed(self, stage: Stage, hostile: Hostile | None) -> Leaving:
        """What leaves one run."""
        stage.act(hostile)
        leaving = observe(self.command, stage)
        self.on_run()
        return leaving


def _most_asked(leaving: Leaving) -> int:
    """The user asked most often, by index."""
    times: Mapping[str, int] = {
        name: sum(name in cohort for cohort in leaving.asked) for cohort in leaving.asked for name in cohort
    }
    if not times:
        raise ConfigError(f"the audited run asked nobody: {leaving.stderr.strip() or leaving.stdout.strip()}")
    return int(max(sorted(times), key=lambda name: times[name]).removeprefix("user-"))


def _whitened(plan: Plan, leaving: Leaving) -> NDArray[np.float64]:
    """C·Y, Y the noisy sums that the models show."""
    sums = np.diff(np.array([model.astype(np.float64) for model in leaving.models]), axis=0)
    C = plan.mechanism.factorization.materialize()[: len(sums), : len(sums)]
    return C @ sums * plan.cohorts.size


def shift_interval(
    good: NDArray[np.float64], bad: NDArray[np.float64], confidence: float
) -> tuple[float, float]:
    """Limits of μ = (E good − E bad)/σ from two samples of one variance, each limit failing with (1 − c)/2.

    Both samples must be normal, which the statistics are if the noise is; `leakage_bound` needs no such thing
    and many more runs. With R values each and the pooled standard deviation s, t = (mean good − mean bad)/s
    times √(R/2) has a noncentral t distribution with noncentrality μ·√(R/2), which is inverted.

    >>> low, high = shift_interval(np.array([3.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]), 0.9)
    >>> low < 3.0 < high
    True
    """
    scale = 1 / np.sqrt(1 / good.size + 1 / bad.size)
    freedom = good.size + bad.size - 2
    pooled = np.sqrt((good.var() * good.size + bad.var() * bad.size) / freedom)
    t, tail = float((good.mean() - bad.mean()) / pooled * scale), (1 - confidence) / 2
    return float(_noncentrality(freedom, 1 - tail, t) / scale), float(
        _noncentrality(freedom, tail, t) / scale
    )


def _noncentrality(freedom: int, probability: float, t: float) -> float:
    """The ν with P(T_{freedom, ν} ≤ t) = probability."""
    return float(nctdtrinc(freedom, probability, t))
