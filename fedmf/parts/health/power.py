"""What noisy counts can tell, from the plan alone."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization import Factorization, query_variances
from fedmf.workload import prefix

#: Of a call and of its absence, each way.
CONFIDENCE: Final = 0.99
_QUANTILE: Final = NormalDist().inv_cdf(CONFIDENCE)


@dataclass(frozen=True, eq=False)
class Power:
    """From when on a run without contributions is told from one in which all of them count.

    A total over rounds r+1, …, t is that over the first t less that over the first r; its standard deviation
    is at most the sum of both. The first total is one number, of standard deviation τ·s_t.

    Args:
        size: m, the planned number of contributions a round.
        stds: standard deviation of the noise of Σ_{i≤t} of the counts, t = 1 … n, shape (n,).
    """

    size: int
    stds: NDArray[np.float64]

    @classmethod
    def of(cls, factorization: Factorization, size: int, noise_std: float) -> Power:
        """That of counts with noise noise_std·[C⁻¹z]."""
        workload = prefix(factorization.rounds)
        return cls(size, noise_std * np.sqrt(query_variances(factorization, workload)))

    @property
    def rounds(self) -> int | None:
        """Smallest t with m·t/2 ≥ z_{0.99}·τ·s_t: then half of m·t tells 0 from m·t, each way with 99 %.

        None if there is none among the n rounds.
        """
        rounds = np.arange(1, len(self.stds) + 1)
        (enough,) = np.nonzero(self.size * rounds >= 2 * _QUANTILE * self.stds)
        return int(enough[0]) + 1 if enough.size else None

    def is_dead(self, begun: int, rounds: int, total: float) -> bool:
        """Whether a noisy total of rounds begun + 1, …, rounds is below half of what was planned, where that
        can be told.

        Of a run in which all contributions count it is so with probability at most 1 %, at any one t.
        """
        return self.tells(begun, rounds) and total < self.size * (rounds - begun) / 2

    def tells(self, begun: int, rounds: int) -> bool:
        """Whether the total over rounds begun + 1, …, rounds tells 0 from m a round, each way with 99 %."""
        half = self.size * (rounds - begun) / 2
        return rounds > begun and half >= _QUANTILE * self.std(begun, rounds)

    def std(self, begun: int, rounds: int) -> float:
        """At most the standard deviation of the total over rounds begun + 1, …, rounds."""
        return float(self.stds[rounds - 1]) + (float(self.stds[begun - 1]) if begun else 0.0)

    def error(self, begun: int, rounds: int) -> float:
        """At most that of the mean a round over the same rounds."""
        return self.std(begun, rounds) / (rounds - begun)

    def words(self) -> str:
        """One line for whoever begins a run."""
        if self.rounds is None:
            return f"cannot tell 0 from {self.size} contributions a round within {len(self.stds)} rounds"
        plural = "s" if self.rounds > 1 else ""
        return (
            f"can tell 0 from {self.size} contributions a round after {self.rounds} round{plural}, "
            f"with {100 * CONFIDENCE:g} %"
        )
