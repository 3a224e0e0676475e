"""What to draw from for δ of P against Q of the Balls-in-Bins pair, in units of the noise.

The event that matters, L ≥ ε under P, is reached in many ways: one bin far out, a cluster of neighbours, all
bins a little. Three proposals cover them and are mixed:

* the points nearest to 0 on {L = ε + ½} that are found from each bin, with a unit Gaussian around each;
* Q·e^{qL}/Z_q for q ≤ 3, a mixture over q-tuples of bins with a known Z_q; it bounds the weights;
* the same with as many bins as it takes (`grown`), drawn one after the other, each attracted by those before.

The last is not a density in y but one in y and the sequence J of bins, against the reference N(0, I)·κ(J|y)
where κ draws bins independently from the softmax of the summands of L. docs/theory/amplification.md proves
the identity dR/d(Nκ) = e^{|J|·L}/Ω(J).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.amplification.monte_carlo import Draws
from fedmf.typing import Matrix, Vector

_SHARE_POINTS, _SHARE_TILTED, _SHARE_GROWN = 0.45, 0.15, 0.40
_MOST_POINTS = 512
_MOST_BINS_FOR_TRIPLES = 1024
_LONGEST = 256
# Bins are picked in two steps, of which the first is among blocks of so many.
_BLOCK = 16
_OVERSHOOT = 0.5
_FIXED_POINT_STEPS = 8
# Any points will do; these need not be exact.
_LEVEL_TOLERANCE = 0.02
_ALIKE = 0.7
# What single precision may add to log Ω of a sequence.
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
        point_log_weights: log of the mixture's weights less half the points' squared norms, shape (K,).
        order: q.
        log_normalizer: log Z_q.
    """

    noise: float
    means: Matrix
    gram: Matrix
    epsilon: float
    combinations: Matrix
    point_log_weights: Vector
    order: int
    log_normalizer: float

    @classmethod
    def of(cls, unscaled: Matrix, noise: float, epsilon: float) -> BinsRemoveProposal:
        """The proposal for these means, noise s and ε."""
        means = unscaled / noise
        gram = np.maximum(means @ means.T, 0.0)
        combinations = _nearest_points(gram, epsilon + _OVERSHOOT)
        squares = np.einsum("ij,ij->i", combinations @ gram, combinations)
        weights = np.exp(-0.5 * (squares - squares.min()))
        weights = 0.9 * weights / weights.sum() + 0.1 / len(weights)
        order, log_normalizer = _best_order(gram, epsilon)
        log_weights = np.log(weights) - 0.5 * squares
        return cls(noise, means, gram, epsilon, combinations, log_weights, order, log_normalizer)

    @property
    def log_bound(self) -> float:
        """(1 − e^{ε−L})·e^L ≤ c_q·e^{qL−(q−1)ε} with c_q = (q−1)^{q−1}/q^q, and dR/dN ≥ share·e^{qL}/Z_q.

        Also dR/d(Nκ) ≥ share·e^{|J|L}/Ω(J), with Ω(J)·e^{−(|J|−1)ε} bounded by `_steepest_growth`.
        """
        tilted = _log_tilted_bound(self.order, self.log_normalizer, self.epsilon) - math.log(_SHARE_TILTED)
        growth = _steepest_growth(self.gram, self.epsilon)
        grown = _log_tilted_bound(len(growth) + 1, float(growth.sum()), self.epsilon) - math.log(_SHARE_GROWN)
        return min(tilted, grown + _SINGLE_PRECISION)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws with state <y, m_j>·s, to be divided by the noise again: shape (N, b)."""
        kinds = rng.choice(3, size=count, p=[_SHARE_POINTS, _SHARE_TILTED, _SHARE_GROWN])
        half = 0.5 * np.diag(self.gram)
        shift = np.empty((count, self.means.shape[1]))
        shift[kinds == 0] = self._points(rng, int((kinds == 0).sum()))
        shift[kinds == 1] = self._tilted(rng, int((kinds == 1).sum()))
        grown = kinds == 2
        length, log_omega = np.ones(count), np.zeros(count)
        shift[grown], length[grown], log_omega[grown] = self._grow(rng, None, int(grown.sum()))
        y = shift + rng.standard_normal(shift.shape)
        products = y @ self.means.T
        losses = log_sum_exp(products - half) - math.log(len(half))
        others = np.flatnonzero(~grown)
        _, length[others], log_omega[others] = self._grow(rng, products[others] - half, others.size)
        log_density = np.logaddexp(
            math.log(_SHARE_POINTS) + log_sum_exp(products @ self.combinations.T + self.point_log_weights),
            math.log(_SHARE_TILTED) + self.order * losses - self.log_normalizer,
        )
        log_density = np.logaddexp(log_density, math.log(_SHARE_GROWN) + length * losses - log_omega)
        return Draws(products * self.noise, log_density)

    def _points(self, rng: np.random.Generator, count: int) -> Matrix:
        squares = np.einsum("ij,ij->i", self.combinations @ self.gram, self.combinations)
        weights = np.exp(self.point_log_weights + 0.5 * squares)
        chosen = rng.choice(len(weights), size=count, p=weights / weights.sum())
        return (self.combinations @ self.means)[chosen]

    def _tilted(self, rng: np.random.Generator, count: int) -> Matrix:
        """Sums of q means, a tuple with probability proportional to exp of its inner products."""
        b = len(self.means)
        if self.order == 1:
            return self.means[rng.integers(b, size=count)]
        pairs = np.exp(self.gram - self.gram.max())
        table = pairs if self.order == 2 else pairs * (pairs @ pairs)
        cumulative = np.cumsum(table)
        first, second = np.divmod(
            np.minimum(np.searchsorted(cumulative, rng.random(count) * cumulative[-1], "right"), b * b - 1), b
        )
        total = self.means[first] + self.means[second]
        if self.order == 3:
            total = total + self.means[_pick(rng, pairs[first] * pairs[second])]
        return total

    def _grow(
        self, rng: np.random.Generator, log_odds: Matrix | None, count: int
    ) -> tuple[Matrix, Vector, Vector]:
        """Sequences J: (Σ_J m, |J|, log Ω(J)).

        Ω(J) is the product of μ(K) = (1/b) Σ_j exp<Σ_K m, m_j> over J's own prefixes K. A sequence ends once
        log μ(J) ≥ ε, or at 256. Without log_odds each next bin has probability proportional to
        exp<Σ_K m, m_j>; with them, shape (N, b), to exp(log_odds).
        """
        b = len(self.means)
        # Single precision: the probabilities that are drawn from are the ones that enter Ω.
        gram = self.gram.astype(np.float32)
        cumulative: NDArray[Any] = np.zeros((0, b), dtype=np.float32)
        if log_odds is not None:
            weights = np.exp((log_odds - log_odds.max(axis=1, keepdims=True)).astype(np.float32))
            cumulative = np.cumsum(weights, axis=1)
        chosen = rng.integers(b, size=count) if log_odds is None else _pick_cumulative(rng, cumulative)
        total, length, log_omega = self.means[chosen], np.ones(count), np.zeros(count)
        field = gram[chosen]
        active = np.arange(count)
        for _ in range(1, _LONGEST):
            peak = field.max(axis=1)
            summands = np.exp(field - peak[:, None])
            log_mu = np.log(summands.sum(axis=1, dtype=np.float64) / b) + peak
            going = log_mu < self.epsilon
            if not going.all():
                active, field, summands = active[going], field[going], summands[going]
                log_mu, cumulative = log_mu[going], cumulative[going] if log_odds is not None else cumulative
            if not active.size:
                break
            log_omega[active] += log_mu
            chosen = _pick(rng, summands) if log_odds is None else _pick_cumulative(rng, cumulative)
            field += gram[chosen]
            total[active] += self.means[chosen]
            length[active] += 1
        return total, length, log_omega


def _nearest_points(gram: Matrix, level: float) -> Matrix:
    """Combinations α of the means whose points y = Σ α_j m_j satisfy y = τ·∇L(y), L(y) = level; local ones.

    The fixed point starts at the directions of the means, at most 512 of them, evenly spaced; where
    neighbours nearly agree they are further apart.
    """
    b = len(gram)
    half, log_b = 0.5 * np.diag(gram), math.log(b)
    starts = np.unique(np.linspace(0, b - 1, min(-(-b // _spacing(gram)), _MOST_POINTS)).astype(int))
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

    log μ(S) = log (1/b) Σ_i exp<S, m_i> is convex, so log μ(Σ_K m) ≤ g(|K|): no sequence grows faster. One
    that goes on while log μ(K) < ε has |J| > c for all these c, and any further factors of
    Ω(J)·e^{−(|J|−1)ε} = Π_K μ(K)·e^{−ε} are below 1. The same holds at length 256.
    """
    growths: list[float] = []
    while len(growths) < _LONGEST - 1:
        level = float(log_sum_exp((len(growths) + 1) * gram).max()) - math.log(len(gram))
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


def _best_order(gram: Matrix, epsilon: float) -> tuple[int, float]:
    """q ≤ 3 with the smallest bound, and log Z_q; Z_q = b^{−q}·Σ over q-tuples of exp of inner products."""
    b, peak = len(gram), float(gram.max())
    pairs = np.exp(gram - peak)
    logs = {1: 0.0, 2: math.log(pairs.mean()) + peak}
    if b <= _MOST_BINS_FOR_TRIPLES:
        logs[3] = math.log(float((pairs * (pairs @ pairs)).mean()) / b) + 3 * peak
    order = min(logs, key=lambda q: _log_tilted_bound(q, logs[q], epsilon))
    return order, logs[order]


def _log_tilted_bound(order: int, log_normalizer: float, epsilon: float) -> float:
    q = order
    constant = (q - 1) * math.log(q - 1) - q * math.log(q) if q > 1 else 0.0
    return constant + log_normalizer - (q - 1) * epsilon


def _pick(rng: np.random.Generator, weights: Matrix) -> NDArray[np.intp]:
    """One index per row, with probability proportional to the row's weights: a block, then within it."""
    count, b = weights.shape
    if b % _BLOCK or b == _BLOCK:
        return _pick_cumulative(rng, np.cumsum(weights, axis=1))
    blocks = weights.reshape(count, b // _BLOCK, _BLOCK)
    block = _pick_cumulative(rng, np.cumsum(blocks.sum(axis=2), axis=1))
    inside = blocks[np.arange(count), block]
    return block * _BLOCK + _pick_cumulative(rng, np.cumsum(inside, axis=1))


def _pick_cumulative(rng: np.random.Generator, cumulative: NDArray[Any]) -> NDArray[np.intp]:
    """The same from the weights' running sums."""
    targets = rng.random((len(cumulative), 1)).astype(cumulative.dtype) * cumulative[:, -1:]
    return np.minimum(np.count_nonzero(cumulative <= targets, axis=1), cumulative.shape[1] - 1)
