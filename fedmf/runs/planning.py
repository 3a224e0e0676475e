"""From a run to its plan: the factorization, and the noise that its privacy needs."""

from __future__ import annotations

import dataclasses
import logging
import math
import secrets
from typing import TYPE_CHECKING

from fedmf.accounting import (
    CohortLaw,
    DifferentialPrivacy,
    PairRelease,
    Plan,
    RunAmplification,
    RunRelease,
    SecondForm,
    SecondStream,
    SumRelease,
    adjacency_factor,
    amplified_run,
    at_least,
    certified_sigma,
)
from fedmf.cohorts import SampledCohorts
from fedmf.errors import ConfigError
from fedmf.factorization import Factorization, Mechanism, Sensitivity, UserRange
from fedmf.moments import DiagonalMoment, Goal, SecondMoment, best_pair
from fedmf.optim import energy_weight, relative_energy_error
from fedmf.participation import Participation
from fedmf.runs.canaries import check_room
from fedmf.runs.evaluation import PrivateEvaluation, Ranges, shared_plan

if TYPE_CHECKING:
    from fedmf.noise import NoiseStorage
    from fedmf.optim import ServerOptimizer
    from fedmf.runs.run import Run


def paired_streams(run: Run, moment: SecondMoment, form: SecondForm) -> tuple[Mechanism, SecondStream]:
    """The mechanism of the sums and the stream of second moments.

    C₁ and C₂ are those of the run's mechanism for its two workloads, and λ is that of `energy_weight` for a
    block with an even share of the energy. With an importance w > 0 of the second moment they may be one
    matrix for both where that is better, and λ, and this choice, minimise the predicted error

        d·τ₁²‖A₁C₁⁻¹‖²/ζ² + w·m·τ₂²‖A₂C₂⁻¹‖²/ζ⁴,

    each moment's relative to the square of its bound.

    Args:
        run: mechanism, workloads, participation, ζ, adjacency, w.
        moment: which second moment the optimizer needs.
        form: how it is formed.

    Raises:
        ConfigError: a claim of amplification, or a form that runs do not release.
        ValueError: a mechanism that cannot be built.
    """
    privacy = run.privacy
    if privacy.counts_sampling:
        raise ConfigError(
            "amplified must be false for an optimizer that needs a second moment. Accountants of secret "
            "cohorts are not joined to pairs of releases."
        )
    if form not in ("per-user", "squared-mean"):
        raise ConfigError(f"form (of the second moment) must be 'per-user' or 'squared-mean'; got {form!r}.")
    part, zeta, importance = run.participation, privacy.clip_norm, run.noise.second_moment_importance
    goal, works = run.noise.goal, (run.workload, run.second_workload)
    built = [run.noise.choice.build(part, work, goal) for work in works]
    # ‖E‖ ≤ 2ζ‖D‖ makes the squared mean a zero-out pair with 4λ for λ.
    squared = form == "squared-mean"
    users = UserRange(zeta, 1, "zero-out") if squared else UserRange(zeta, moment.size, privacy.adjacency)
    stretch = 4.0 if squared else 1.0
    first, second = built
    if importance == 0:
        matrices = (first.factorization, second.factorization)
        weight = _even_weight(run, *matrices, users, moment.size, stretch)
    else:
        pairs = [(built[0], built[1]), (built[0], built[0]), (built[1], built[1])]
        goals = (
            Goal(run.workload, moment.dimension, 1 / zeta**2),
            Goal(run.second_workload, moment.size, stretch * importance / zeta**4),
        )
        candidates = [(one.factorization, other.factorization) for one, other in pairs]
        index, best, _ = best_pair(candidates, part, users, *goals)
        first, second = pairs[index]
        assert best.weight is not None
        weight = best.weight
    stream = SecondStream(
        form=form,
        moment="squares of coordinates" if isinstance(moment, DiagonalMoment) else "energies of blocks",
        features=moment.size,
        dimension=moment.dimension,
        weight=weight / stretch,
        mechanism=second.name,
        params=dict(second.params),
        factorization=second.factorization,
    )
    return first, stream


def _even_weight(
    run: Run, C_1: Factorization, C_2: Factorization, users: UserRange, blocks: int, stretch: float
) -> float:
    """λ for blocks with even shares; the bound on a squared mean is √stretch times as large."""
    epsilon, part = run.privacy.requested_epsilon, run.participation
    sigma = 1.0 if epsilon is None else certified_sigma(epsilon, run.privacy.delta)
    rho = relative_energy_error(C_2, part, sigma, run.cohorts.size, 1 / blocks)
    return energy_weight(C_1, C_2, part, users, math.sqrt(stretch) * rho)


_log = logging.getLogger("fedmf")


def plan_run(run: Run, optimizer: ServerOptimizer, dimension: int, ranges: Ranges) -> Plan:
    """Build the factorization and calibrate its noise.

    Args:
        run: what is asked for.
        optimizer: the server's, which says whether a second moment must be released beside the sums.
        dimension: d, which matters where stored noise is rounded.
        ranges: of what users say in private evaluations, by name: `Evaluation.ranges`.

    Raises:
        ConfigError: a mechanism that cannot be built, or that the accountant does not cover.

    Logs a warning where δ is above 1/N.
    """
    contract, privacy = run.participation, run.privacy
    check_room(run, optimizer, dimension)
    try:
        mechanism, second = _streams(run, optimizer)
        release: RunRelease = SumRelease(mechanism.factorization)
        if second is not None:
            release = PairRelease(
                mechanism.factorization, second, privacy.clip_norm, privacy.adjacency, run.cohorts.size
            )
        sensitivity = release.stated(contract)
        noise_multiplier, amplification = _calibrated(run, mechanism, sensitivity)
        evaluation = None
        if isinstance(run.evaluation, PrivateEvaluation) and isinstance(privacy, DifferentialPrivacy):
            users = run.task_source.users
            noise_multiplier, evaluation = shared_plan(
                run.evaluation, privacy, run.cohorts.rounds, users, ranges
            )
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
            _inflation(run, mechanism, noise_multiplier * sensitivity.value, dimension),
            evaluation,
            run.clipping,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if isinstance(privacy, DifferentialPrivacy) and plan.allowed_rounds == 0:
        raise ConfigError(
            f"max_epsilon must allow at least one round; got {privacy.max_epsilon!r}, and the first costs "
            f"{at_least(plan.epsilon_after(1))}. Lower epsilon, which makes the noise larger."
        )
    if run.is_private and privacy.delta * plan.users > 1:
        unit, many = privacy.unit.name, privacy.unit.plural
        _log.warning(
            "δ (delta) should be at most 1/N for N=%d %s; got %g. Publishing all of one %s, drawn at random, "
            "would keep such a promise: lower privacy.delta.",
            *(plan.users, many, privacy.delta, unit),
        )
    return plan


def _streams(run: Run, optimizer: ServerOptimizer) -> tuple[Mechanism, SecondStream | None]:
    """C, or C₁ and the second stream."""
    if optimizer.second_moment is not None:
        if run.clipping.adapts:
            raise ConfigError(
                f"clipping must be 'fixed' for an optimizer that needs a second moment; got "
                f"{run.clipping.kind!r}. No theorem covers features of updates whose clip norm moves."
            )

        return paired_streams(run, optimizer.second_moment, optimizer.second_form)
    return run.noise.choice.build(run.participation, run.workload, run.noise.goal), None


def _inflation(run: Run, mechanism: Mechanism, relative_noise: float, dimension: int) -> float:
    """F, by which rounding what is stored makes the noise larger; 1 where nothing is rounded."""
    return storage_inflation(run.noise.storage, mechanism, run.participation, relative_noise, dimension)


def release_of(plan: Plan) -> RunRelease:
    """What a plan's noise multiplier and sensitivity are for: its release before anything is rounded."""
    return dataclasses.replace(plan, inflation=1.0).release


def storage_inflation(
    storage: NoiseStorage,
    mechanism: Mechanism,
    contract: Participation,
    relative_noise: float,
    dimension: int,
) -> float:
    """F for noise that is stored so; ``relative_noise`` is σ·sensitivity, ``dimension`` d."""
    C = mechanism.factorization
    if relative_noise == 0 or storage.dtype == "float64":
        return 1.0
    alone = SumRelease(C).stated(contract).value
    return storage.inflation(C.recurrence(), contract, dimension, relative_noise / alone)


def _calibrated(
    run: Run, mechanism: Mechanism, sensitivity: Sensitivity
) -> tuple[float, RunAmplification | None]:
    """σ for sensitivity 1 that gives ε, and how it was found.

    Without amplification it is the Gaussian mechanism at the worst pattern that (k, b) allows, which holds
    for every outcome of a random schedule. An amplified run uses the rates of the very schedule that will
    draw its cohorts; the accountant's random numbers are new for every run unless it has a noise seed.
    """
    privacy, cohorts = run.privacy, run.cohorts
    if not isinstance(privacy, DifferentialPrivacy):
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
