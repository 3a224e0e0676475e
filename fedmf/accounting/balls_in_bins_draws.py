"""Proposals for the two sides of the Balls-in-Bins pair, in units of the noise.

For δ of P against Q the event that matters, L ≥ ε under P, is reached in many ways: one bin far
out, a cluster of neighbors, all bins a little. Two proposals cover them and are mixed:

* the points nearest to 0 on {L = ε + ½} that are found from each bin, with a unit Gaussian around
  each;
* unit Gaussians around sums of as many bins as it takes (`grown`), drawn one after the other, each
  attracted by those before; they bound the weights.

The second is not a density in y but one in y and the sequence J of bins, against the reference N(0,
I)·κ(J|y) where κ draws bins independently from the softmax of the summands of L.
docs/theory/amplification.md proves the identity dR/d(Nκ) = e^{|J|·L}/Ω(J).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from fedmf.accounting.monte_carlo import Draws, log_largest_gain
from fedmf.matrices.arrays import Matrix, Vector

_SHARE_POINTS = 0.3
_SHARE_GROWN = 0.7
_MOST_POINTS = 512
_LONGEST = 256
_OVERSHOOT = 0.5
_FIXED_POINT_STEPS = 8
# Of the two normals for δ of Q against P.
_SHARE_SHIFTED = 0.2
# The points need not be exact: any will do.
_LEVEL_TOLERANCE = 0.02
_ALIKE = 0.7
# Single precision may add so much to log Ω of a sequence.
_SINGLE_PRECISION = 1e-3


def log_sum_exp(values: Matrix) -> Vector:
    """log Σ_j exp of the last axis."""
    peak = values.max(axis=-1)
    shifted = np.exp(values - peak[..., None])
    return peak + np.log(shifted.sum(axis=-1))


@dataclass(frozen=True, eq=False)
class BinsRemoveProposal:
    """The mixture for δ of P against Q.

    Args:
        noise: s.
        means: m_i/s, shape (b, r).
        gram: inner products, shape (b, b).
        epsilon: ε.
        combinations: rows α with points Σ_j α_j m_j, shape (K, b).
        point_log_weights: log of the mixture's weights less half the points' squared norms, shape
            (K,).
    """

    noise: float
    means: Matrix
    gram: Matrix
    epsilon: float
    combinations: Matrix
    point_log_weights: Vector

    @classmethod
    def of(cls, unscaled: Matrix, noise: float, epsilon: float) -> BinsRemoveProposal:
        """The proposal for these means, noise s and ε."""
        means = unscaled / noise
        gram = np.maximum(means @ means.T, 0.0)
        combinations = _nearest_points(gram, epsilon + _OVERSHOOT)
        squares = np.einsum("ij,ij->i", combinations @ gram, combinations)
        weights = np.exp(-0.5 * (squares - squares.min()))
        weights = 0.9 * weights / weights.sum() + 0.1 / len(weights)
        return cls(noise, means, gram, epsilon, combinations, np.log(weights) - 0.5 * squares)

    @property
    def log_bound(self) -> float:
        """dR/d(Nκ) ≥ share·e^{|J|L}/Ω(J), and Ω(J)·e^{−(|J|−1)ε} is bounded by `_steepest_growth`.

        Hence (1 − e^{ε−L})·e^L·d(Nκ)/dR ≤ c_q·Ω(J)·e^{−(q−1)ε}/share with q = |J|, c_q =
        (q−1)^{q−1}/q^q.
        """
        growth = _steepest_growth(self.gram, self.epsilon)
        largest = log_largest_gain(len(growth)) + float((growth - self.epsilon).sum())
        return largest - math.log(_SHARE_GROWN) + _SINGLE_PRECISION

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <y, m_j>·s, to be divided by the noise again, shape (N, b)."""
        half = 0.5 * np.diag(self.gram)
        grown = rng.random(count) < _SHARE_GROWN
        others = np.flatnonzero(~grown)
        shift = np.empty((count, self.means.shape[1]))
        length = np.ones(count)
        log_omega = np.zeros(count)
        shift[others] = self._points(rng, others.size)
        shift[grown], length[grown], log_omega[grown] = self._attracted(rng, count - others.size)
        y = shift + rng.standard_normal(shift.shape)
        products = y @ self.means.T
        losses = log_sum_exp(products - half) - math.log(len(half))
        length[others], log_omega[others] = self._independent(rng, products[others] - half)
        log_density = np.logaddexp(
            math.log(_SHARE_POINTS)
            + log_sum_exp(products @ self.combinations.T + self.point_log_weights),
            math.log(_SHARE_GROWN) + length * losses - log_omega,
        )
        return Draws(products * self.noise, log_density)

    def _points(self, rng: np.random.Generator, count: int) -> Matrix:
        squares = np.einsum("ij,ij->i", self.combinations @ self.gram, self.combinations)
        weights = np.exp(self.point_log_weights + 0.5 * squares)
        chosen = rng.choice(len(weights), size=count, p=weights / weights.sum())
        return (self.combinations @ self.means)[chosen]

    def _attracted(
        self, rng: np.random.Generator, count: int
    ) -> tuple[Matrix, NDArray[np.float64], NDArray[np.float64]]:
        """Sequences J: (Σ_J m, |J|, log Ω(J)), each bin attracted by those before it.

        The next bin j after the prefix K has probability proportional to exp<Σ_K m, m_j>.
        """
        growth = _Growth(self, rng.integers(len(self.means), size=count))
        while growth.go_on():
            growth.append(_pick(rng, np.cumsum(growth.summands, axis=1)))
        return growth.total, growth.length, growth.log_omega

    def _independent(
        self, rng: np.random.Generator, log_odds: Matrix
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sequences J by κ: (|J|, log Ω(J)), bins with odds exp(log_odds), shape (N, b)."""
        weights = np.exp((log_odds - log_odds.max(axis=1, keepdims=True)).astype(np.float32))
        cumulative = np.cumsum(weights, axis=1)
        growth = _Growth(self, _pick(rng, cumulative))
        while growth.go_on():
            if growth.active.size < len(cumulative):
                cumulative = cumulative[growth.survivors]
            growth.append(_pick(rng, cumulative))
        return growth.length, growth.log_omega


class _Growth:
    """Sequences J of bins that grow together until log μ(J) ≥ ε, or to 256 bins.

    Ω(J) is the product of μ(K) = (1/b) Σ_j exp<Σ_K m, m_j> over J's own prefixes K.

    Args:
        proposal: the means, their Gram matrix and ε.
        first: the first bin of each sequence.
    """

    def __init__(self, proposal: BinsRemoveProposal, first: NDArray[np.intp]) -> None:
        self._means = proposal.means
        self._epsilon = proposal.epsilon
        # Single precision: the probabilities that are drawn from are the ones that enter Ω.
        self._gram = proposal.gram.astype(np.float32)
        self._field = self._gram[first]
        self._bins = 1
        #: Indices of the sequences that still grow, and which of the previous ones they are; for
        #: each of them exp<Σ_J m, m_j> over the largest.
        self.active = np.arange(first.size)
        self.survivors = np.ones(first.size, dtype=bool)
        self.summands = np.empty_like(self._field)
        #: Σ_J m, |J| and log Ω(J) of all sequences.
        self.total = self._means[first]
        self.length = np.ones(first.size)
        self.log_omega = np.zeros(first.size)

    def go_on(self) -> bool:
        """End sequences that are long enough, weigh the others; False if none is left."""
        if self._bins == _LONGEST:
            return False
        peak = self._field.max(axis=1)
        summands = np.exp(self._field - peak[:, None])
        log_mu = np.log(summands.sum(axis=1, dtype=np.float64) / len(self._means)) + peak
        self.survivors = log_mu < self._epsilon
        if not self.survivors.all():
            self.active = self.active[self.survivors]
            self._field = self._field[self.survivors]
            summands = summands[self.survivors]
            log_mu = log_mu[self.survivors]
        self.summands = summands
        self.log_omega[self.active] += log_mu
        return self.active.size > 0

    def append(self, bins: NDArray[np.intp]) -> None:
        """Add a bin to each sequence that still grows."""
        self._field += self._gram[bins]
        self.total[self.active] += self._means[bins]
        self.length[self.active] += 1
        self._bins += 1


def _nearest_points(gram: Matrix, level: float) -> Matrix:
    """Combinations α of the means with points y = Σ α_j m_j where y = τ·∇L(y) and L(y) = level.

    They are nearest to 0 among their neighbors. The fixed point starts at the directions of the
    means, at most 512 of them, evenly spaced; where neighbors nearly agree they are further apart.
    """
    b = len(gram)
    half = 0.5 * np.diag(gram)
    log_b = math.log(b)
    starts = np.unique(
        np.linspace(0, b - 1, min(-(-b // _spacing(gram)), _MOST_POINTS)).astype(int)
    )
    weights = np.eye(b)[starts]
    # From the right of the root Newton's steps on a convex increasing function never cross it.
    steps = (level + log_b + half.max()) / (weights @ gram).max(axis=1)
    local = weights
    for _ in range(_FIXED_POINT_STEPS):
        slopes = weights @ gram
        for _ in range(20):
            summands = steps[:, None] * slopes - half
            values = log_sum_exp(summands)
            local = np.exp(summands - values[:, None])
            move = (values - log_b - level) / np.einsum("ij,ij->i", local, slopes)
            steps = steps - move
            if np.abs(values - log_b - level).max() <= _LEVEL_TOLERANCE:
                break
        done = np.abs(local - weights).max() < 1e-2
        if done:
            break
        weights = local
    return steps[:, None] * weights


def _steepest_growth(gram: Matrix, epsilon: float) -> Vector:
    """g(c) = max_j log (1/b) Σ_i exp(c<m_i, m_j>) for c = 1, 2, … while it is below ε.

    log μ(S) = log (1/b) Σ_i exp<S, m_i> is convex, so log μ(Σ_K m) ≤ g(|K|): no sequence grows
    faster. One that continues while log μ(K) < ε has |J| > c for all these c, and any further
    factors of Ω(J)·e^{−(|J|−1)ε} = Π_K μ(K)·e^{−ε} are below 1. The same holds at length 256.
    """
    growths: list[float] = []
    while len(growths) < _LONGEST - 1:
        c = len(growths) + 1
        level = float(log_sum_exp(c * gram).max()) - math.log(len(gram))
        if level >= epsilon:
            break
        growths.append(level)
    return np.array(growths)


def _spacing(gram: Matrix) -> int:
    """The largest distance at which means still have a mean correlation of 0.7."""
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    correlation = gram / np.outer(scale, scale)
    spacing = 1
    while 2 * spacing < len(gram) and float(np.diagonal(correlation, 2 * spacing).mean()) > _ALIKE:
        spacing *= 2
    return spacing


def _pick(rng: np.random.Generator, cumulative: NDArray[Any]) -> NDArray[np.intp]:
    """One index per row, drawn with probabilities that have its running sums."""
    targets = rng.random((len(cumulative), 1)).astype(cumulative.dtype) * cumulative[:, -1:]
    return np.minimum(np.count_nonzero(cumulative <= targets, axis=1), cumulative.shape[1] - 1)


@dataclass(frozen=True, eq=False)
class BinsAddProposal:
    """Two normals for δ of Q against P.

    L is convex: with g = ∇L(y₀) and h = ε + L(y₀) − <g, y₀> every y with L = −ε − u has <g, y> ≤ −h
    − u. The first part, a unit normal at −τg, has weights exp(τ<g, y> + τ²|g|²/2), so for u ≥ 0 a
    contribution is at most (1 − e^{−u})·exp(−τ(h + u) + τ²|g|²/2). The second approximates Q on {L
    = −ε}: mean and covariance are such that the expectation of e^L is e^{−ε}.

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
    half = 0.5 * np.diag(gram)
    log_b = math.log(len(gram))
    weights = np.full(len(gram), 1.0 / len(gram))
    start = 0.0
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
    weights = np.full(b, 1.0 / b)
    factor = np.eye(r)
    step = 0.0
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
    """τ ≥ 0 with log (1/b) Σ exp(offset − τ·slope) = −ε, by Newton's method from 0.

    The left side is convex and decreasing in τ.
    """
    step = 0.0
    for _ in range(200):
        values = offsets - step * slopes
        level = float(log_sum_exp(values))
        gap = level - log_b + epsilon
        if gap <= 1e-9:
            break
        step += gap / float(np.exp(values - level) @ slopes)
    return step
