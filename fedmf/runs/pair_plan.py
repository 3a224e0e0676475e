"""C₁, C₂ and λ of a run that releases a second moment beside its sums."""

from __future__ import annotations

from fedmf.accounting import SecondStream
from fedmf.factorization import Mechanism, UserRange, build
from fedmf.moments import Diagonal, Goal, best_pair
from fedmf.optim import ServerOptimizer
from fedmf.runs.config import Config, ConfigError, parse_parameters
from fedmf.workload import ToeplitzWorkload, parse_workload

__all__ = ["paired_streams"]


def paired_streams(
    config: Config, optimizer: ServerOptimizer, workload: ToeplitzWorkload
) -> tuple[Mechanism, SecondStream]:
    """The mechanism of the sums and the stream of second moments.

    C₁ and C₂ are those of `mechanism` for `workload` and `second-workload`, or one of them for both where
    that is better. λ, and this choice, minimise the predicted error

        d·τ₁²‖A₁C₁⁻¹‖²/ζ² + w·m·τ₂²‖A₂C₂⁻¹‖²/ζ⁴,

    each moment's relative to the square of its bound, with w the `second-moment-importance`.

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
    second_work = parse_workload(config.second_workload, part.rounds)
    params = parse_parameters(config.mechanism_params)
    made = [
        build(config.mechanism, part, work, config.bands or None, params) for work in (workload, second_work)
    ]
    pairs = [(made[0], made[1]), (made[0], made[0]), (made[1], made[1])]
    # ‖E‖ ≤ 2ζ‖D‖ makes the squared mean a zero-out pair with 4λ for λ.
    squared = form == "squared-mean"
    users = UserRange(zeta, 1, "zero-out") if squared else UserRange(zeta, moment.size, config.adjacency)
    stretch = 4.0 if squared else 1.0
    goals = (
        Goal(workload, moment.dimension, 1 / zeta**2),
        Goal(second_work, moment.size, stretch * config.second_moment_importance / zeta**4),
    )
    matrices = [(one.factorization, other.factorization) for one, other in pairs]
    index, best, _ = best_pair(matrices, part, users, *goals)
    first, second = pairs[index]
    assert best.weight is not None
    stream = SecondStream(
        form=form,
        moment="squares of coordinates" if isinstance(moment, Diagonal) else "energies of blocks",
        features=moment.size,
        dimension=moment.dimension,
        weight=best.weight / stretch,
        mechanism=second.name,
        params=dict(second.params),
        factorization=second.factorization,
    )
    return first, stream
