"""C₁, C₂ and λ of a run that releases a second moment with its sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedmf.accounting.gaussian import certified_sigma
from fedmf.accounting.queries import SecondForm, SecondStream
from fedmf.errors import ConfigError
from fedmf.matrices.factorization import BuiltMechanism, Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.moments import Goal, SecondMoment, best_pair
from fedmf.optim import energy_weight, relative_energy_error

if TYPE_CHECKING:
    from fedmf.runs.run import Run


def paired_streams(
    run: Run, moment: SecondMoment, form: SecondForm
) -> tuple[BuiltMechanism, SecondStream]:
    """The mechanism of the sums and the stream of second moments.

    C₁ and C₂ are the run's mechanism for its two workloads, and λ comes from `energy_weight` for a
    block with an even share of the energy. With a weight w > 0 of the second moment, one matrix may
    serve both if that is better; then λ and this choice minimize the predicted error

        d·τ₁²‖A₁C₁⁻¹‖²/ζ² + w·m·τ₂²‖A₂C₂⁻¹‖²/ζ⁴,

    each moment's relative to the square of its bound.

    Args:
        run: mechanism, workloads, participation, ζ, adjacency, w.
        moment: the second moment that the optimizer needs.
        form: the form in which it is released.

    Raises:
        ConfigError: a claim of amplification, or a form that runs do not release.
        ValueError: a mechanism that cannot be built.
    """
    privacy = run.privacy
    if privacy.counts_sampling:
        raise ConfigError(
            "amplified must be false for an optimizer that needs a second moment. Accountants of"
            " secret cohorts are not joined to pairs of releases."
        )
    if form not in ("per-user", "squared-mean"):
        raise ConfigError(
            f"form (of the second moment) must be 'per-user' or 'squared-mean'; got {form!r}."
        )
    part = run.participation
    zeta = privacy.clip_norm
    w = run.mechanism_config.second_moment_weight
    goal = run.mechanism_config.goal
    choice = run.mechanism_config.choice
    first = choice.build(part, run.workload, goal)
    second = choice.build(part, run.second_workload, goal)
    users = UserRange(zeta, moment.size, privacy.adjacency)
    stretch = 1.0
    if form == "squared-mean":
        # ‖E‖ ≤ 2ζ‖D‖ makes the squared mean a zero-out pair with 4λ for λ.
        users = UserRange(zeta, 1, "zero-out")
        stretch = 4.0
    if w == 0:
        matrices = (first.factorization, second.factorization)
        weight = _even_weight(run, *matrices, users, moment.size, stretch)
    else:
        pairs = [(first, second), (first, first), (second, second)]
        goals = (
            Goal(run.workload, moment.dimension, 1 / zeta**2),
            Goal(run.second_workload, moment.size, stretch * w / zeta**4),
        )
        candidates = [(C_1.factorization, C_2.factorization) for C_1, C_2 in pairs]
        index, best, _ = best_pair(candidates, part, users, *goals)
        first, second = pairs[index]
        assert best.weight is not None
        weight = best.weight
    stream = SecondStream(
        form=form,
        moment=moment.described,
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
    epsilon = run.privacy.requested_epsilon
    part = run.participation
    sigma = 1.0
    if epsilon is not None:
        sigma = certified_sigma(epsilon, run.privacy.delta)
    rho = relative_energy_error(C_2, part, sigma, run.cohorts.users_per_round, 1 / blocks)
    return energy_weight(C_1, C_2, part, users, math.sqrt(stretch) * rho)
