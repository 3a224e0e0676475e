"""Balls-in-Bins: every user is thrown into one of b bins once and joins the rounds bin, bin + b, …"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from fedmf.accounting.amplification.bins_proposal import BinsRemoveProposal, log_sum_exp
from fedmf.accounting.amplification.monte_carlo import (
    Draws,
    NegativeEntriesError,
    Proposal,
    Side,
    log_largest_gain,
)
from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.mechanisms.matrix import Factorization
from fedmf.participation import Participation
from fedmf.typing import Matrix, Vector

_SHARE_SHIFTED = 0.2
_FIXED_POINT_STEPS = 8


@dataclass(frozen=True, eq=False)
class BinsAddProposal:
    """Two normals for δ of Q against P.

    L is convex: with g = ∇L(y₀) and h = ε + L(y₀) − <g, y₀> every y with L = −ε − u has <g, y> ≤ −h − u. The
    first part, a unit normal at −τg, has weights exp(τ<g, y> + τ²|g|²/2), so for u ≥ 0 a contribution is at
    most (1 − e^{−u})·exp(−τ(h + u) + τ²|g|²/2). The second approximates Q on {L = −ε}: mean and covariance
    are such that the expectation of e^L is e^{−ε}.

    Args:
        noise: s.
        means: m_i/s.
        shift: −τg, shape (r,).
        center: mean of the second part, shape (r,).
        factor: lower triangular F with FFᵀ the inverse of its covariance, shape (r, r).
        log_bound: the largest of these bounds, less the log of the first part's share.
    """

    noise: float
    means: Matrix
    shift: Vector
    center: Vector
    factor: Matrix
    log_bound: float

    @classmethod
    def of(cls, unscaled: Matrix, noise: float, epsilon: float) -> BinsAddProposal:
        """The proposal for these means, noise s and ε."""
        means = unscaled / noise
        shift, log_weight = _nearest(means, epsilon)
        center, factor = _conditional(means, epsilon)
        return cls(noise, means, shift, center, factor, log_weight - math.log(_SHARE_SHIFTED))

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <y, m_j>·s, shape (N, b)."""
        from scipy.linalg import solve_triangular

        y = rng.standard_normal((count, self.means.shape[1]))
        second = rng.random(count) >= _SHARE_SHIFTED
        y[~second] += self.shift
        y[second] = solve_triangular(self.factor.T, y[second].T).T + self.center
        whitened = (y - self.center) @ self.factor
        log_density = np.logaddexp(
            math.log(_SHARE_SHIFTED) + y @ self.shift - 0.5 * (self.shift @ self.shift),
            math.log(1.0 - _SHARE_SHIFTED)
            + float(np.log(np.diag(self.factor)).sum())
            + 0.5 * (np.einsum("ij,ij->i", y, y) - np.einsum("ij,ij->i", whitened, whitened)),
        )
        return Draws(self.noise * (y @ self.means.T), log_density)


def _nearest(means: Matrix, epsilon: float) -> tuple[Vector, float]:
    """−τg at the point y₀ nearest to 0 with L = −ε, and the log of its largest contribution."""
    gram = np.maximum(means @ means.T, 0.0)
    half, log_b = 0.5 * np.diag(gram), math.log(len(gram))
    weights, start = np.full(len(gram), 1.0 / len(gram)), 0.0
    for _ in range(_FIXED_POINT_STEPS):
        slopes = gram @ weights
        start = _root(slopes, -half, epsilon, log_b)
        summands = -start * slopes - half
        new = np.exp(summands - log_sum_exp(summands))
        done = np.abs(new - weights).max() < 1e-6
        weights = 0.5 * (weights + new)
        if done:
            break
    base = -start * (gram @ weights) - half
    loss = float(log_sum_exp(base)) - log_b
    gradient = np.exp(base - log_sum_exp(base)) @ means
    y0 = -start * (weights @ means)
    height = epsilon + loss - float(gradient @ y0)
    square = float(gradient @ gradient)
    step = max(height, 0.0) / square
    log_weight = -step * height + 0.5 * step**2 * square
    return -step * gradient, log_weight + log_largest_gain(step)


def _conditional(means: Matrix, epsilon: float) -> tuple[Vector, Matrix]:
    """Mean −τg and precision I + τ(Σ_j w_j m_j m_jᵀ − ggᵀ) of the second part, g = Σ_j w_j m_j.

    w_j is proportional to the expectation of summand j of e^L, and τ makes their mean e^{−ε}.
    """
    from scipy.linalg import solve_triangular

    b, r = means.shape
    half = 0.5 * np.einsum("ij,ij->i", means, means)
    weights, factor, step = np.full(b, 1.0 / b), np.eye(r), 0.0
    for _ in range(_FIXED_POINT_STEPS):
        spread = solve_triangular(factor, means.T, lower=True)
        offsets = 0.5 * np.einsum("ij,ij->j", spread, spread) - half
        gradient = weights @ means
        slopes = means @ gradient
        step = _root(slopes, offsets, epsilon, math.log(b))
        summands = offsets - step * slopes
        new = np.exp(summands - log_sum_exp(summands))
        done = np.abs(new - weights).max() < 1e-3 / b
        weights = 0.5 * (weights + new)
        gradient = weights @ means
        precision = np.eye(r) + step * ((means.T * weights) @ means - np.outer(gradient, gradient))
        factor = np.linalg.cholesky(precision)
        if done:
            break
    return -step * (weights @ means), factor


def _root(slopes: Vector, offsets: Vector, epsilon: float, log_b: float) -> float:
    """τ ≥ 0 with log (1/b) Σ exp(offset − τ·slope) = −ε, by Newton from 0 on a convex decreasing function."""
    step = 0.0
    for _ in range(200):
        values = offsets - step * slopes
        level = float(log_sum_exp(values))
        gap = level - log_b + epsilon
        if gap <= 1e-9:
            break
        step += gap / float(np.exp(values - level) @ slopes)
    return step


_MOST_BINS = 4096
# For the lower bound on the noise: thresholds in units of the noise, directions, halvings.
_THRESHOLDS = np.arange(0.5, 8.01, 0.25)
_DIRECTIONS, _BISECTIONS = 3, 12


@dataclass(frozen=True, eq=False)
class BallsInBinsPair:
    """The dominating pair P = (1/b) Σ_i N(m_i, s²I), Q = N(0, s²I) of a matrix mechanism with C ≥ 0.

    m_i = Σ_l C_{:,i+lb} is what a user in bin i adds to C·G, at clip norm 1 and with the same unit vector in
    each round. Only inner products of the m_i matter, so any rows with the same Gram matrix will do.

    Args:
        means: rows m_i, shape (b, r).

    Raises:
        ValueError: an inner product is negative, or b exceeds 4096.

    References:
        Choquette-Choo, Ganesh, Haque, Steinke, Thakurta (2024), "Near Exact Privacy Amplification for Matrix
        Mechanisms", arXiv:2410.06266.
    """

    means: Matrix

    def __post_init__(self) -> None:
        if len(self.means) > _MOST_BINS:
            raise ValueError(
                f"b (bins) must be at most {_MOST_BINS} for the Balls-in-Bins accountant; got "
                f"{len(self.means)}."
            )
        gram = self.means @ self.means.T
        if gram.min() < -1e-9 * gram.max():
            raise ValueError("<m_i, m_j> (bin means) must be non-negative; C must have no negative entries.")
        self.means.setflags(write=False)

    @classmethod
    def of(cls, factorization: Factorization, participation: Participation) -> BallsInBinsPair:
        """The pair of C when b bins are visited in turn for all n rounds.

        Raises:
            ValueError: C has a negative entry, k < ⌈n/b⌉ (a user in the first bin joins so many rounds), or
                b exceeds 4096.
        """
        n, k, b = participation.rounds, participation.max_participations, participation.min_separation
        b = min(b, n)
        if b > _MOST_BINS:
            raise ValueError(
                f"b (bins) must be at most {_MOST_BINS} for the Balls-in-Bins accountant; got {b}."
            )
        if k < -(-n // b):
            raise ValueError(
                f"k (max_participations) must be at least {-(-n // b)} for Balls-in-Bins with n={n} "
                f"rounds in "
                f"b={b} bins; got {k}."
            )
        means = np.zeros((b, n))
        for start in range(0, n, b):
            columns = factorization.columns(np.arange(start, min(start + b, n)))
            if columns.min() < 0:
                row, column = np.unravel_index(int(columns.argmin()), columns.shape)
                raise NegativeEntriesError(
                    f"C (strategy) must have no negative entries for Balls-in-Bins; got "
                    f"{columns[row, column]:.6g} at index ({row}, {start + column})."
                )
            means[: columns.shape[1]] += columns.T
        return cls(_compressed(means))

    @property
    def size(self) -> int:
        """b, the losses' summands that a draw needs."""
        return len(self.means)

    @property
    def largest_norm(self) -> float:
        """max_i |m_i|."""
        return float(np.sqrt(np.einsum("ij,ij->i", self.means, self.means).max()))

    def least_noise(self, epsilon: float, delta: float) -> float:
        """A noise below which some test of one projection of y tells P from Q better than (ε, δ) allows.

        For every unit vector v and threshold τ, δ(ε) ≥ P(⟨y, v⟩ ≥ τ) − e^ε Q(⟨y, v⟩ ≥ τ), which is
        (1/b) Σ_j Φ̄((τ − ⟨m_j, v⟩)/s) − e^ε Φ̄(τ/s). Tried are the directions
        of the mean of the m_j and of some m_j.
        """
        chosen = self.means[np.unique(np.linspace(0, len(self.means) - 1, _DIRECTIONS).astype(int))]
        directions = np.vstack([self.means.mean(axis=0), chosen])
        lengths = np.linalg.norm(directions, axis=1)
        shifts = self.means @ (directions[lengths > 0] / lengths[lengths > 0, None]).T
        low, high = 0.0, self.largest_norm * gaussian_sigma(epsilon, delta)
        for _ in range(_BISECTIONS):
            noise = 0.5 * (low + high)
            levels = noise * _THRESHOLDS[:, None, None]
            told = (
                ndtr((shifts - levels) / noise).mean(axis=1) - math.exp(epsilon) * ndtr(-_THRESHOLDS)[:, None]
            )
            low, high = (noise, high) if float(told.max()) > delta else (low, noise)
        return low

    def proposal(self, noise: float, epsilon: float, side: Side) -> Proposal:
        """The proposal for a side; see `bins_proposal` and `bins_add_proposal`."""
        kind = BinsRemoveProposal if side == "remove" else BinsAddProposal
        return kind.of(self.means, noise, epsilon)

    def draw_without(self, rng: np.random.Generator, count: int) -> Matrix:
        """Products <y, m_j> of draws from Q, shape (N, b)."""
        return rng.standard_normal((count, self.means.shape[1])) @ self.means.T

    def losses(self, state: Matrix, noise: float) -> Matrix:
        """L = log (1/b) Σ_j exp(<y, m_j>/s − |m_j|²/(2s²)) from the products <y, m_j>, shape (N, b)."""
        norms = np.einsum("ij,ij->i", self.means, self.means)
        return log_sum_exp(state / noise - norms / (2 * noise**2)) - math.log(len(self.means))


def _compressed(means: Matrix) -> Matrix:
    """Rows with the same inner products in at most b dimensions: the triangular factor of a QR."""
    if means.shape[1] <= means.shape[0]:
        return means
    return np.asarray(np.linalg.qr(means.T, mode="r")).T
