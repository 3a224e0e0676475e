"""Statistics and second moments, which a run releases with their own noise next to its sums of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedmf.clipping import FRACTION_BITS, FixedPointSum, clip_to_fixed_point, fixed_point_energies
from fedmf.mechanisms.matrix import Factorization
from fedmf.moments import SecondMoment
from fedmf.noise import Domain, GaussianSource, KeySchedule, NoiseStream
from fedmf.runs.plan import Plan
from fedmf.runs.statistics import Statistic


class OwnNoise:
    """τ·[C⁻¹z']_t, z' independent of all other noise of the run.

    Args:
        keys: which key makes which row.
        size: entries of z'.
        domain: of z'.
        factorization: C.
        std: τ ≥ 0.
    """

    def __init__(
        self, keys: KeySchedule, size: int, domain: Domain, factorization: Factorization, std: float
    ) -> None:
        source, inverse = GaussianSource(keys, size, domain), factorization.recurrence()
        self._noise, self.std = NoiseStream(source, inverse, factorization.rounds), std

    def added(self, t: int, vector: Tensor) -> Tensor:
        """The vector, float64 of shape (size,), to which row t was added in place."""
        self._noise.seek(t)
        if self.std > 0:
            self._noise.add_(vector, self.std)
        else:
            self._noise.skip()
        return vector

    def state_dict(self) -> dict[str, Any]:
        """Position and identity of the noise, JSON-able."""
        return self._noise.state_dict()

    def check(self, saved: Mapping[str, Any]) -> None:
        """Reject other noise than the saved; without noise any key will do.

        Raises:
            ValueError: it is another.
        """
        if self.std > 0:
            self._noise.load_state(saved)


class StatisticRelease:
    """(Σ_u s_u + c·(τ₀/b)·[C⁻¹z']_t)/m in round t.

    Args:
        statistic: s, of absolute value at most c.
        plan: of the run; it has C, m and τ₀, the noise of a sum of vectors of norm 1 that has all of μ².
        keys: which key makes which row.

    Attributes:
        state: of the statistic, after the last round that is final.
    """

    def __init__(self, statistic: Statistic, plan: Plan, keys: KeySchedule) -> None:
        self.statistic, self._summed, self._size = statistic, statistic.summed(), plan.cohorts.users_per_round
        std = plan.relative_noise_std * statistic.factor * self._summed.most
        C, domain = plan.mechanism.factorization, Domain.of_part(statistic.name)
        self._noise = OwnNoise(keys, 1, domain, C, std)
        self.state = statistic.begin(plan.privacy.clip_norm)

    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        """The state once round t is released; the round's row of noise is drawn, and nothing else is kept."""
        told = torch.tensor([float(total.told(self._summed))], dtype=torch.float64)
        noisy = self._noise.added(t, told)
        return self.statistic.after(t, float(noisy) / self._size, self.state)

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state with the position and identity of the noise, for a checkpoint."""
        return {"state": dict(state), "noise": self._noise.state_dict()}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was made.

        Raises:
            ValueError: it was made with other noise.
        """
        self._noise.check(saved["noise"])
        self.state = saved["state"]


class SecondMomentRelease:
    """The second moment of every round, of an optimizer that needs it.

    With m the planned cohort size and τ₂ = τ₁/√λ, round t releases

        q_t = (F_t + τ₂·[C₂⁻¹z']_t) / m,

    where F_t is Σ_u features(x_u) ("per-user"), or m times the features of the mean of the x_u, projected
    onto the ball of radius ζ ("squared-mean").

    Args:
        plan: of a run with a second stream.
        moment: which features the optimizer needs, as the plan counted.
        keys: which key makes which row; the same as for the sums.
    """

    def __init__(self, plan: Plan, moment: SecondMoment, keys: KeySchedule) -> None:
        assert plan.second is not None
        self._plan, self._moment, self._form = plan, moment, plan.second.form
        C = plan.second.factorization
        self._row_variances = C.noise_row_variances()
        self.noise = OwnNoise(keys, plan.second.features, Domain.SECOND_MOMENT, C, plan.second_noise_std)

    def release(self, t: int, total: FixedPointSum) -> tuple[Tensor, float]:
        """q_t, float64 of shape (m,), and the variance of the noise in each of its entries."""
        m = self._plan.cohorts.users_per_round
        noisy = self.noise.added(t, self._features(total))
        return noisy / m, (self.noise.std / m) ** 2 * float(self._row_variances[t])

    def _features(self, total: FixedPointSum) -> Tensor:
        """F_t without noise."""
        if self._form == "per-user":
            return total.second_total()
        m, zeta = self._plan.cohorts.users_per_round, self._plan.privacy.clip_norm
        point, _ = clip_to_fixed_point((total.total() / m)[None], zeta)
        features = fixed_point_energies(point, self._moment)[0].double()
        return features * (m * zeta**2 * 2.0**-FRACTION_BITS)
