"""C₁, C₂ and λ of a run that releases a second moment beside its sums."""

from __future__ import annotations

import math

from fedmf.accounting import SecondStream, certified_sigma
from fedmf.errors import ConfigError
from fedmf.factorization import Mechanism, UserRange, build
from fedmf.moments import DiagonalMoment, Goal, best_pair
from fedmf.optim import ServerOptimizer, energy_weight, relative_energy_error
from fedmf.runs.config import Config
from fedmf.runs.keys import parse_parameters
from fedmf.runs.workloads import second_workload
from fedmf.workload import ToeplitzWorkload

__all__ = ["paired_streams"]


def paired_streams(
    config: Config, optimizer: ServerOptimizer, workload: ToeplitzWorkload
) -> tuple[Mechanism, SecondStream]:
    """The mechanism of the sums and the stream of second moments.

    C₁ and C₂ are those of `mechanism` for `workload` and `second-workload`, and λ is that of `energy_weight`
    for a block with an even share of the energy. With a `second-moment-importance` w > 0 they
    may be one matrix for both where that is better, and λ, and this choice, minimise the predicted error

        d·τ₁²‖A₁C₁⁻¹‖²/ζ² + w·m·τ₂²‖A₂C₂⁻¹‖²/ζ⁴,

    each moment's relative to the square of its bound.

    Args:
        config: mechanism, participation, ζ, adjacency, w.
        optimizer: which second moment it needs, and in which form.
        workload: A₁.

    Raises:
        ConfigError: an accountant that claims amplification, or a form that runs do not release.
        ValueError: as `build` and `parse_workload`.
    """
    moment, form = optimizer.second_moment, optimizer.second_form
    assert moment is not None
    if config.accountant != "none":
        raise ConfigError(
            f"accountant must be 'none' with a second moment; got {config.accountant!r}. No theorem "
            "covers the amplification of a pair of releases."
        )
    if form not in ("per-user", "squared-mean"):
        raise ConfigError(f"second-moment must be 'per-user' or 'squared-mean' in a run; got {form!r}.")
    part, zeta = config.participation, config.clip_norm
    second_work = second_workload(config)
    params = parse_parameters(config.mechanism_params)
    made = [
        build(config.mechanism, part, work, config.bands or None, params) for work in (workload, second_work)
    ]
    # ‖E‖ ≤ 2ζ‖D‖ makes the squared mean a zero-out pair with 4λ for λ.
    squared = form == "squared-mean"
    users = UserRange(zeta, 1, "zero-out") if squared else UserRange(zeta, moment.size, config.adjacency)
    stretch = 4.0 if squared else 1.0
    if config.second_moment_importance == 0:
        first, second = made
        weight = _even_weight(config, first, second, users, moment.size, stretch)
    else:
        pairs = [(made[0], made[1]), (made[0], made[0]), (made[1], made[1])]
        goals = (
            Goal(workload, moment.dimension, 1 / zeta**2),
            Goal(second_work, moment.size, stretch * config.second_moment_importance / zeta**4),
        )
        matrices = [(one.factorization, other.factorization) for one, other in pairs]
        index, best, _ = best_pair(matrices, part, users, *goals)
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
    config: Config, first: Mechanism, second: Mechanism, users: UserRange, blocks: int, stretch: float
) -> float:
    """λ for blocks with even shares; the bound on a squared mean is √stretch times as large."""
    C_1, C_2, part = first.factorization, second.factorization, config.participation
    sigma = certified_sigma(config.epsilon, config.delta)
    rho = relative_energy_error(C_2, part, sigma, config.cohort_size, 1 / blocks)
    return energy_weight(C_1, C_2, part, users, math.sqrt(stretch) * rho)
