"""A sum over users of a statistic, with noise that is correlated as that of the sums of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmf.noise import Domain, GaussianSource, NoiseStream
from fedmf.parts.part import Stage
from fedmf.training import FixedPointSum, RowStatistic, Statistic


class NoisedSum:
    """Σ_u s_u + c·(τ₀/b)·[C⁻¹z']_t in round t, z' independent of all other noise of the run.

    Args:
        statistic: s, of absolute value or norm at most c.
        stage: of the run; it has C and τ₀.
        own_factor: 1/b, `Part.own_factor`.
        domain: of z', `Domain.of_part` of the part's name unless it has a number.

    Attributes:
        noise: the running stream.
    """

    def __init__(
        self, statistic: Statistic | RowStatistic, stage: Stage, own_factor: float, domain: Domain
    ) -> None:
        self._statistic, self._std = statistic, stage.noise_std * own_factor * statistic.most
        source = GaussianSource(stage.keys, statistic.size, domain)
        self.noise = NoiseStream(source, stage.factorization.recurrence(), stage.factorization.rounds)

    def released(self, t: int, total: FixedPointSum) -> list[float]:
        """What round t releases, one number for each entry of the statistic."""
        noisy = total.told_vector(self._statistic)
        self.noise.seek(t)
        if self._std > 0:
            self.noise.add_(noisy, self._std)
        else:
            self.noise.skip()
        return noisy.tolist()

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            ValueError: it is of other noise.
        """
        if self._std > 0:
            self.noise.load_state(saved)
