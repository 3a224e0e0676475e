"""The second moment of a run: C₁, C₂ and λ, and its noisy release in each round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedmf.accounting import SecondForm, SecondStream, certified_sigma
from fedmf.errors import ConfigError
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.registry import Mechanism
from fedmf.moments import Goal, SecondMoment, best_pair
from fedmf.noise import Domain, GaussianSource, KeySchedule, NoiseStream
from fedmf.optim import energy_weight, relative_energy_error
from fedmf.training import FRACTION_BITS, FixedPointSum, clip_to_fixed_point, fixed_point_energies

if TYPE_CHECKING:
    from fedmf.runs.plan import Plan
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
    epsilon, part = run.privacy.requested_epsilon, run.participation
    sigma = 1.0 if epsilon is None else certified_sigma(epsilon, run.privacy.delta)
    rho = relative_energy_error(C_2, part, sigma, run.cohorts.users_per_round, 1 / blocks)
    return energy_weight(C_1, C_2, part, users, math.sqrt(stretch) * rho)


class SecondMomentRelease:
    """Adds noise of its own to the second moment of every round.

    With m the planned cohort size and τ₂ = τ₁/√λ, round t releases

        q_t = (F_t + τ₂·[C₂⁻¹z']_t) / m,

    where F_t is Σ_u features(x_u) ("per-user"), or m times the features of the mean of the x_u, projected
    onto the ball of radius ζ ("squared-mean"); z' is independent of the noise of the sums.

    Args:
        plan: of a run with a second stream.
        second_moment: which features the optimizer needs, as the plan counted.
        form: how they are formed.
        keys: which key makes which row; those of the sums.
        device: where sums and noise live.

    Raises:
        ValueError: the plan has no second stream, or one for other features.
    """

    def __init__(
        self,
        plan: Plan,
        second_moment: SecondMoment,
        form: SecondForm,
        keys: KeySchedule,
        device: torch.device,
    ) -> None:
        planned = plan.second.require(form, second_moment.size)
        self._plan, self._moment, self._form = plan, second_moment, form
        self._row_variances = planned.factorization.noise_row_variances()
        source = GaussianSource(keys, second_moment.size, Domain.SECOND_MOMENT)
        inverse = planned.factorization.recurrence()
        self.noise = NoiseStream(source, inverse, plan.participation.rounds, device=device)

    def release(self, t: int, total: FixedPointSum) -> tuple[Tensor, float]:
        """q_t, float64 of shape (m,), and the variance of the noise in each of its entries."""
        m, std = self._plan.cohorts.users_per_round, self._plan.second_noise_std
        noisy = self._features(total)
        self.noise.seek(t)
        if std > 0:
            self.noise.add_(noisy, std)
        else:
            self.noise.skip()
        variance = (std / m) ** 2 * float(self._row_variances[t])
        return noisy / m, variance

    def _features(self, total: FixedPointSum) -> Tensor:
        """F_t without noise."""
        if self._form == "per-user":
            return total.second_total()
        m, zeta = self._plan.cohorts.users_per_round, self._plan.privacy.clip_norm
        point, _ = clip_to_fixed_point((total.total() / m)[None], zeta)
        features = fixed_point_energies(point, self._moment)[0].to(torch.float64)
        return features * (m * zeta**2 * 2.0**-FRACTION_BITS)

    def state_dict(self) -> dict[str, Any]:
        """Position and identity of the noise, JSON-able."""
        return self.noise.state_dict()

    def load_state(self, saved: Mapping[str, Any], t: int) -> None:
        """Go to a saved position.

        Args:
            saved: its state.
            t: where the first one is.

        Raises:
            ValueError: it is of other noise, or not where the first stream was.
        """
        self.noise.load_state(saved)
        if self.noise.t != t:
            raise ValueError(
                f"t (round of the saved second noise) must be {t}, that of the first; got {self.noise.t}. "
                "Restore checkpoint and ledger from the same copy."
            )
