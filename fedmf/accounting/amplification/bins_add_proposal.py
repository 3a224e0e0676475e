"""What to draw from for δ of Q against P of the Balls-in-Bins pair, in units of the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from fedmf.accounting.amplification.bins_proposal import log_sum_exp
from fedmf.accounting.amplification.monte_carlo import Draws, log_largest_gain
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
