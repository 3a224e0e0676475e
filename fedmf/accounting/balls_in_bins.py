"""The dominating pair of Balls-in-Bins sampling, for Monte Carlo estimates of its δ.

Every user is thrown into one of b bins once and joins the rounds bin, bin + b, bin + 2b, …
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedmf.accounting.balls_in_bins_draws import BinsAddProposal, BinsRemoveProposal, log_sum_exp
from fedmf.accounting.monte_carlo import NegativeEntriesError, Proposal, Side
from fedmf.matrices.arrays import Matrix
from fedmf.matrices.factorization import Factorization
from fedmf.participation import Participation

_MOST_BINS: Final = 4096


def bin_columns(
    factorization: Factorization, participation: Participation
) -> Iterator[tuple[int, Matrix]]:
    """The columns of C by turns of the bins.

    Yields:
        The first round of a turn, and the columns of its rounds, shape (n, ≤ b).

    Raises:
        ValueError: k < ⌈n/b⌉ (a user in the first bin joins so many rounds), or b exceeds 4096.
    """
    n = participation.rounds
    k = participation.max_participations
    b = min(participation.min_separation, n)
    if b > _MOST_BINS:
        raise ValueError(
            f"b (bins) must be at most {_MOST_BINS} for the Balls-in-Bins accountant; got {b}."
        )
    if k < -(-n // b):
        raise ValueError(
            f"k (max_participations) must be at least {-(-n // b)} for Balls-in-Bins with n={n}"
            f" rounds in b={b} bins; got {k}."
        )
    for start in range(0, n, b):
        yield start, factorization.columns(np.arange(start, min(start + b, n)))


@dataclass(frozen=True, eq=False)
class BallsInBinsPair:
    """The dominating pair P = (1/b) Σ_i N(m_i, s²I), Q = N(0, s²I) of a mechanism with C ≥ 0.

    m_i = Σ_l C_{:,i+lb} is the contribution of a user in bin i to C·G, at clip norm 1 and with one
    unit vector in all rounds. Only inner products of the m_i matter, so any rows with the same Gram
    matrix will do.

    Args:
        means: rows m_i, shape (b, r).

    Raises:
        ValueError: an inner product is negative.

    References:
        Choquette-Choo, Ganesh, Haque, Steinke, Thakurta (2024), "Near Exact Privacy Amplification
        for Matrix Mechanisms", arXiv:2410.06266.
    """

    means: Matrix

    def __post_init__(self) -> None:
        gram = self.means @ self.means.T
        if gram.min() < -1e-9 * gram.max():
            raise ValueError(
                "<m_i, m_j> (bin means) must be non-negative; C must have no negative entries."
            )
        self.means.setflags(write=False)

    @classmethod
    def of(cls, factorization: Factorization, participation: Participation) -> BallsInBinsPair:
        """The pair of C when b bins are visited in turn for all n rounds.

        Raises:
            ValueError: C has a negative entry, k < ⌈n/b⌉ (a user in the first bin joins so many
                rounds), or b exceeds 4096.
        """
        means = np.zeros(
            (min(participation.min_separation, participation.rounds), participation.rounds)
        )
        for start, columns in bin_columns(factorization, participation):
            if columns.min() < 0:
                row, column = np.unravel_index(int(columns.argmin()), columns.shape)
                raise NegativeEntriesError(
                    "C (strategy) must have no negative entries for Balls-in-Bins; got "
                    f"{columns[row, column]:.6g} at index ({row}, {start + column})."
                )
            means[: columns.shape[1]] += columns.T
        return cls(_compressed(means))

    @property
    def size(self) -> int:
        """b, the number of summands of a draw's loss."""
        return len(self.means)

    @property
    def largest_norm(self) -> float:
        """max_i |m_i|."""
        return float(np.sqrt(np.einsum("ij,ij->i", self.means, self.means).max()))

    def proposal(self, noise: float, epsilon: float, side: Side) -> Proposal:
        """The proposal of `balls_in_bins_draws` for a side."""
        if side == "remove":
            return BinsRemoveProposal.of(self.means, noise, epsilon)
        return BinsAddProposal.of(self.means, noise, epsilon)

    def draw_without(self, rng: np.random.Generator, count: int) -> Matrix:
        """Products <y, m_j> of draws from Q, shape (N, b)."""
        return rng.standard_normal((count, self.means.shape[1])) @ self.means.T

    def losses(self, state: Matrix, noise: float) -> Matrix:
        """L = log (1/b) Σ_j exp(<y, m_j>/s − |m_j|²/(2s²)) from products <y, m_j>, shape (N, b)."""
        norms = np.einsum("ij,ij->i", self.means, self.means)
        return log_sum_exp(state / noise - norms / (2 * noise**2)) - math.log(len(self.means))


def _compressed(means: Matrix) -> Matrix:
    """Rows with the same inner products in at most b dimensions: the triangular factor of a QR."""
    if means.shape[1] <= means.shape[0]:
        return means
    return np.asarray(np.linalg.qr(means.T, mode="r")).T
