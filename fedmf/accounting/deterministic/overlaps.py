"""What one user in a random bin can add, as far as a bound without sampling needs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmf.mechanisms.matrix import Factorization
from fedmf.participation import Participation
from fedmf.typing import Matrix, Vector

_MOST_BINS = 4096
# Sums of at most some 10⁵ products are rounded by far less than this share.
_ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class BinOverlaps:
    """Bounds g_d on ⟨μ_i, μ_j⟩ for bins at circular distance d, where μ_i = Σ_l |C_{:,i+lb}|.

    By the theorem of docs/theory/amplification.md any mechanism with these overlaps is at least as private
    under Balls-in-Bins as b jointly Gaussian log-likelihoods with covariance g_{|i−j|}/s², whatever the signs
    of C.

    Args:
        circular: g_0 … g_{b−1} with g_d = g_{b−d}, per unit clip norm. The circulant matrix of g must be
            positive semidefinite.

    Raises:
        ValueError: g is not symmetric or not positive semidefinite, or has a negative entry.
    """

    circular: Vector

    def __post_init__(self) -> None:
        g = self.circular
        if g.ndim != 1 or len(g) == 0 or not np.isfinite(g).all() or g.min() < 0:
            raise ValueError(
                f"g (overlaps) must be non-negative and finite, one for each distance; got {g.shape}."
            )
        if not np.array_equal(g[1:], g[:0:-1]):
            raise ValueError("g (overlaps) must be symmetric: g_d = g_{b−d}.")
        if np.fft.fft(g).real.min() < -_ROUNDING * len(g) * g[0]:
            raise ValueError("g (overlaps) must be positive semidefinite as a circulant matrix.")
        g.setflags(write=False)

    @classmethod
    def of(cls, factorization: Factorization, participation: Participation) -> BinOverlaps:
        """The overlaps of C when b bins are visited in turn for all n rounds.

        Raises:
            ValueError: k < ⌈n/b⌉ (a user in the first bin joins so many rounds), or b exceeds 4096.
        """
        n, k, b = participation.rounds, participation.max_participations, participation.min_separation
        b = min(b, n)
        if b > _MOST_BINS:
            raise ValueError(f"b (bins) must be at most {_MOST_BINS} for this accountant; got {b}.")
        if k < -(-n // b):
            raise ValueError(
                f"k (max_participations) must be at least {-(-n // b)} for Balls-in-Bins with n={n} "
                f"rounds in b={b} bins; got {k}."
            )
        means = np.zeros((b, n))
        for start in range(0, n, b):
            columns = factorization.columns(np.arange(start, min(start + b, n)))
            means[: columns.shape[1]] += np.abs(columns).T
        return cls.of_gram(means @ means.T)

    @classmethod
    def of_gram(cls, gram: Matrix) -> BinOverlaps:
        """Circular bounds on the entries of a Gram matrix; g_0 is raised until they are semidefinite."""
        b = len(gram)
        bins = np.arange(b)
        largest = np.array([gram[bins, (bins + d) % b].max() for d in range(b)])
        g = np.maximum(np.maximum(largest, largest[-bins % b]), 0.0) * (1.0 + _ROUNDING)
        g[0] += max(0.0, -float(np.fft.fft(g).real.min())) * (1.0 + _ROUNDING)
        return cls(g)

    @property
    def bins(self) -> int:
        """b."""
        return len(self.circular)

    def largest_beyond(self, distance: int) -> float:
        """max g_d over bins at least so far apart; 0 where there are none."""
        away = self.circular[distance : self.bins - distance + 1]
        return float(away.max()) if len(away) else 0.0
