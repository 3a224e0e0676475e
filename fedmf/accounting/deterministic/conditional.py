"""δ_remove from two conditional moments of the likelihood ratio in cells of the outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import ndtr

from fedmf.typing import Matrix, Vector

# Cells of each direction between −REACH and REACH standard deviations, and one beyond each end.
_CELLS = ((192,), (96, 32), (96, 32, 24))
_REACH = 6.0
# How steeply weights of a direction fall with the overlap.
_STEEP, _NEAR, _WIDE = 2.0, 1.5, 0.5
# Where the majorants vanish and touch, in multiples of e^ε: t(3 − 2t) = root.
_ROOTS = np.geomspace(1e-5, 0.999, 250)
_TOUCHES = np.concatenate(
    [(3.0 + np.sqrt(9.0 - 8.0 * _ROOTS)) / 4.0, np.linspace(1.5, 2.0, 30), np.geomspace(2.01, 60.0, 60)]
)
_ROUNDING = 1e-9
# Terms that are held at once.
_CHUNK = 2**14


@dataclass(frozen=True, eq=False)
class ConditionalMoments:
    """Bins whose log-likelihoods have the circulant covariance g_{|i−j|}/s².

    δ_remove = E_{P_0}(1 − e^ε/X)₊. The space is cut into cells by r linear statistics of y; in each cell
    (1 − e^ε/x)₊ ≤ α + βx + γx² for all x ≥ 0, and the moments of X within a cell are known in closed form.

    Args:
        covariances: g_d/s² for d = 0 … b − 1.
        directions: r, from 1 to 3.
    """

    covariances: Vector
    directions: int

    def remove(self, epsilon: float) -> float:
        """An upper bound on δ_remove(ε)."""
        mass, first, second = self._moments
        constant, slope, curve = quadratic_majorants(math.exp(epsilon))
        bounds = mass[:, None] * constant + first[:, None] * slope + second[:, None] * curve
        # Rounding of a sum of both signs is relative to its terms.
        slack = _ROUNDING * (
            mass[:, None] * constant + first[:, None] * np.abs(slope) + second[:, None] * curve
        )
        best = np.minimum((bounds + slack).min(axis=1), mass)
        return min(float(best.sum()) * (1.0 + _ROUNDING), 1.0)

    @cached_property
    def _moments(self) -> tuple[Vector, Vector, Vector]:
        """P_0(cell), E_{P_0} X 1(cell) and E_{P_0} X² 1(cell), cells flattened."""
        G, b = circulant(self.covariances), len(self.covariances)
        loads = _loads(G, self.directions)
        first, second = np.triu_indices(b)
        twice = np.where(first == second, 1.0, 2.0)
        pairs = twice * np.exp(G[0, first] + G[0, second] + G[first, second]) / b**2
        singles = np.exp(G[0]) / b
        edges = [
            np.concatenate([[-np.inf], np.linspace(-_REACH, _REACH, cells + 1), [np.inf]])
            for cells in _CELLS[self.directions - 1]
        ]
        shifts = (np.zeros((1, self.directions)), loads, loads[first] + loads[second])
        weights = (np.ones(1), singles, pairs)
        mass, one, two = (
            sum(
                _over_cells(
                    weight[at : at + _CHUNK],
                    [_shares(cuts, shift[at : at + _CHUNK, axis]) for axis, cuts in enumerate(edges)],
                )
                for at in range(0, len(weight), _CHUNK)
            )
            for weight, shift in zip(weights, shifts, strict=True)
        )
        return np.asarray(mass), np.asarray(one), np.asarray(two)


def quadratic_majorants(K: float) -> tuple[Vector, Vector, Vector]:
    """(α, β, γ) with (1 − K/x)₊ ≤ α + βx + γx² for all x ≥ 0, each touching it at a point x₂ > K."""
    t = _TOUCHES
    x, value, slope = t * K, 1.0 - 1.0 / t, 1.0 / (t * t * K)
    low, high = t <= 1.5, t > 2.0
    root = np.where(low, x * (3.0 - 2.0 * t), 0.0)
    curve = np.where(low, value / (x - root) ** 2, np.where(high, 0.0, (2.0 / t - 1.0) / x**2))
    linear = np.where(low, -2.0 * curve * root, slope - 2.0 * curve * x)
    constant = np.where(low, curve * root**2, np.where(high, 1.0 - 2.0 / t, 0.0))
    return constant, linear, np.maximum(curve, 0.0)


def circulant(row: Vector) -> Matrix:
    """The symmetric circulant matrix with entries row_{|i−j|}."""
    bins = np.arange(len(row))
    return row[np.abs(bins[:, None] - bins)]


def _loads(G: Matrix, directions: int) -> Matrix:
    """Covariances of the log-likelihoods with r independent standard statistics, shape (b, r)."""
    b = len(G)
    fall = G[0] - G[0, 0]
    if directions == 1:
        weights = np.exp(_STEEP * fall)[None]
    elif directions == 2:
        weights = np.stack([np.eye(b)[0], np.exp(_NEAR * fall)])
    else:
        weights = np.stack([np.eye(b)[0], np.exp(_NEAR * fall), np.exp(_WIDE * fall)])
    weights /= weights.sum(axis=1, keepdims=True)
    root = cholesky(weights @ G @ weights.T + 1e-12 * G[0, 0] * np.eye(directions), lower=True)
    return solve_triangular(root, weights @ G, lower=True).T


def _shares(cuts: Vector, shifts: Vector) -> Matrix:
    """P(cut_k < u + shift ≤ cut_{k+1}) for a standard normal u, shape (cells, shifts)."""
    z = cuts[:, None] - shifts
    above, below = ndtr(-z), ndtr(z)
    return np.where(z[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])


def _over_cells(weights: Vector, shares: list[Matrix]) -> Vector:
    """Σ_k weight_k Π_axis share for each cell of the product."""
    total = weights * shares[0]
    if len(shares) == 1:
        return total.sum(axis=1)
    rest = shares[1]
    if len(shares) == 3:
        rest = (shares[1][:, None] * shares[2]).reshape(-1, rest.shape[1])
    return (total @ rest.T).reshape(-1)
