"""From a run to its plan: the factorization, and the noise that its privacy needs."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from fedmf.accounting import (
    CohortLaw,
    NoSecondStream,
    RunAmplification,
    UserLevel,
    adjacency_factor,
    amplified_run,
    certified_sigma,
)
from fedmf.cohorts import SampledCohorts
from fedmf.errors import ConfigError
from fedmf.mechanisms.registry import Mechanism
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.statements import Plan

if TYPE_CHECKING:
    from fedmf.optim import ServerOptimizer
    from fedmf.runs.run import Run


_log = logging.getLogger("fedmf")


def plan_run(run: Run, optimizer: ServerOptimizer, dimension: int) -> Plan:
    """Build the factorization and calibrate its noise.

    Args:
        run: what is asked for.
        optimizer: the server's, which says whether a second moment must be released beside the sums.
        dimension: d, which matters where stored noise is rounded.

    Raises:
        ConfigError: a mechanism that cannot be built, or that the accountant does not cover.

    Logs a warning where δ is above 1/N.
    """
    contract, privacy = run.participation, run.privacy
    setting = run.setting(optimizer.second_moment is not None, dimension)
    try:
        for part in run.parts:
            part.check(setting)
        mechanism, second = _streams(run, optimizer)
        sensitivity = second.beside(
            mechanism.factorization, privacy.clip_norm, privacy.adjacency, run.cohorts.users_per_round
        ).stated(contract)
        noise_multiplier, amplification = _calibrated(run, mechanism, sensitivity)
        plan = Plan(
            privacy,
            run.cohorts,
            run.task_source.users,
            contract,
            mechanism,
            sensitivity,
            noise_multiplier,
            amplification,
            second,
            run.parts,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if run.is_private and privacy.delta * plan.users > 1:
        unit, many = privacy.unit, privacy.words.plural
        _log.warning(
            "δ (delta) should be at most 1/N for N=%d %s; got %g. Publishing all of one %s, drawn at random, "
            "would keep such a promise: lower privacy.delta.",
            *(plan.users, many, privacy.delta, unit),
        )
    return plan


def _streams(run: Run, optimizer: ServerOptimizer) -> tuple[Mechanism, NoSecondStream]:
    """C, or C₁ and the second stream."""
    if optimizer.second_moment is not None:
        from fedmf.runs.pair_plan import paired_streams  # readers of records load no framework

        return paired_streams(run, optimizer.second_moment, optimizer.second_form)
    return run.noise.choice.build(run.participation, run.workload, run.noise.goal), NoSecondStream()


def _calibrated(
    run: Run, mechanism: Mechanism, sensitivity: Sensitivity
) -> tuple[float, RunAmplification | None]:
    """σ for sensitivity 1 that gives ε, and how it was found.

    Without amplification it is the Gaussian mechanism at the worst pattern that (k, b) allows, which holds
    for every outcome of a random schedule. An amplified run uses the rates of the very schedule that will
    draw its cohorts; the accountant's random numbers are new for every run unless it has a noise seed.
    """
    privacy, cohorts = run.privacy, run.cohorts
    if not isinstance(privacy, UserLevel):
        return 0.0, None
    if not (privacy.amplified and isinstance(cohorts, SampledCohorts)):
        return certified_sigma(privacy.epsilon, privacy.delta), None
    law = CohortLaw(
        cohorts.kind, run.participation, cohorts.probability(run.task_source.users, run.participation)
    )
    seed = secrets.randbits(63) if privacy.noise_seed is None else privacy.noise_seed
    try:
        noise, claim = amplified_run(
            law,
            mechanism.factorization,
            sensitivity.value,
            privacy.adjacency,
            privacy.epsilon,
            privacy.delta,
            seed,
        )
    except ValueError as error:
        raise ConfigError(f"the accountant of {cohorts.kind} cannot calibrate this run: {error}") from None
    return noise / (sensitivity.value * adjacency_factor(privacy.adjacency)), claim
