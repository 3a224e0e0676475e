"""The release of a statistic: its sum over a round's users, with noise correlated as that of the updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedmf.noise import Domain, GaussianSource, KeySchedule, NoiseStream
from fedmf.runs.statistics.statistic import Statistic
from fedmf.training import FixedPointSum

if TYPE_CHECKING:
    from fedmf.runs.plan import Plan


class StatisticRelease:
    """(Σ_u s_u + c·(τ₀/b)·[C⁻¹z']_t)/m in round t, z' independent of all other noise of the run.

    Args:
        statistic: s, of absolute value or norm at most c.
        plan: of the run; it has C, m and τ₀, the noise of a sum of vectors of norm 1 that has all of μ².
        keys: which key makes which row.

    Attributes:
        state: of the statistic, after the last round that is final.
    """

    def __init__(self, statistic: Statistic, plan: Plan, keys: KeySchedule) -> None:
        self.statistic, self._summed, self._size = statistic, statistic.summed(), plan.cohorts.users_per_round
        self._std = plan.relative_noise_std * statistic.factor * self._summed.most
        source = GaussianSource(keys, self._summed.size, Domain.of_part(statistic.name))
        C = plan.mechanism.factorization
        self._noise = NoiseStream(source, C.recurrence(), C.rounds)
        self.state = statistic.begin(plan.privacy.clip_norm)

    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        """The state once round t is released; the round's row of noise is drawn, and nothing else is kept."""
        noisy = total.told_vector(self._summed)
        self._noise.seek(t)
        if self._std > 0:
            self._noise.add_(noisy, self._std)
        else:
            self._noise.skip()
        return self.statistic.after(t, (noisy / self._size).tolist(), self.state)

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state with the position and identity of the noise, for a checkpoint."""
        return {"state": dict(state), "noise": self._noise.state_dict()}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was made.

        Raises:
            ValueError: it was made with other noise.
        """
        if self._std > 0:
            self._noise.load_state(saved["noise"])
        self.state = saved["state"]
