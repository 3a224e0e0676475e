"""Bounds without sampling against closed forms, quadrature, plain Monte Carlo and adaptive
updates.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from fedmf.accounting.equal_bins import (
    BinOverlaps,
    EqualBins,
    deterministic_delta,
)
from fedmf.accounting.gaussian import gaussian_delta
from fedmf.matrices.factorization import Dense
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.participation import Participation

# |z| < 5.2 has a false-alarm rate of 2e-7 for a normal error; the draws are bounded and many.
Z = 5.2
# The payoff has a kink; halving the cells moves the sum by less than this.
QUADRATURE = 5e-3
GRAMS = {
    "two equal bins": np.array([[1.0, 0.4], [0.4, 1.0]]),
    "two bins": np.array([[1.0, 0.3], [0.3, 0.6]]),
    "three bins": np.array([[1.0, 0.6, 0.2], [0.6, 0.9, 0.3], [0.2, 0.3, 1.0]]),
}


def quadrature(gram: np.ndarray, noise: float, epsilon: float) -> tuple[float, float]:
    """(δ_remove, δ_add) on a grid of as many dimensions as bins, to `QUADRATURE`."""
    b = len(gram)
    root = np.linalg.cholesky(gram + 1e-13 * np.eye(b)) / noise
    axis = np.linspace(-8.0, 8.0 + 1.5 * root.max(), {2: 601, 3: 81}[b])
    grid = np.stack(np.meshgrid(*[axis] * b, indexing="ij"), axis=-1).reshape(-1, b)
    log_q = -0.5 * (grid**2).sum(axis=1) - 0.5 * b * math.log(2 * math.pi)
    losses = np.asarray(logsumexp(grid @ root.T - 0.5 * (root**2).sum(axis=1), axis=1)) - math.log(
        b
    )
    cell = float(np.ptp(axis[:2])) ** b
    remove = np.maximum(np.exp(log_q + losses) - np.exp(log_q + epsilon), 0.0)
    add = np.maximum(np.exp(log_q) - np.exp(log_q + epsilon + losses), 0.0)
    return float(remove.sum() * cell), float(add.sum() * cell)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.4, 0.3), (1.0, 1.0), (1.7, 8.0)])
def test_one_bin_is_the_gaussian_mechanism(mu: float, epsilon: float) -> None:
    exact = gaussian_delta(1 / mu, epsilon)
    for own, common in ((1.0, 0.0), (0.3, 0.7), (0.0, 1.0)):
        bins = EqualBins(1, own * mu**2, common * mu**2)
        assert exact * (1 - 1e-9) <= bins.remove(epsilon, exact) <= 1.01 * exact
        # Where e^ε is large one grid has few points below e^(−ε).
        assert (
            exact * (1 - 1e-9) <= bins.add(epsilon) <= (1.01 if epsilon < 5 else 1.2) * exact + 1e-8
        )


@pytest.mark.parametrize("name", GRAMS)
@pytest.mark.parametrize(("noise", "epsilon"), [(0.5, 4.0), (2.0, 0.2)])
def test_bounds_lie_above_quadrature(name: str, noise: float, epsilon: float) -> None:
    gram = GRAMS[name]
    overlaps = BinOverlaps.of_gram(gram)
    remove, add = quadrature(gram, noise, epsilon)
    covariances = overlaps.circular / noise**2
    g = covariances[0]
    c = covariances[1:].max()
    equal = EqualBins(len(gram), g - c, c)
    assert equal.remove(epsilon, remove) >= remove * (1 - QUADRATURE)
    assert equal.add(epsilon) >= add * (1 - QUADRATURE)
    assert deterministic_delta(overlaps, noise, epsilon, remove) >= max(remove, add) * (
        1 - QUADRATURE
    )
    if name == "two equal bins":
        assert equal.remove(epsilon, remove) <= 1.01 * remove
        assert equal.add(epsilon) <= 1.01 * add + 1e-8


def updates(kind: str, rng: np.random.Generator, past: np.ndarray, t: int) -> np.ndarray:
    """A user's vector of round t, in two dimensions, for each row of past outputs (draws, t, 2)."""
    draws = len(past)
    if kind == "constant" or t == 0:
        return np.tile([1.0, 0.0], (draws, 1))
    if kind == "alternating":
        return np.tile([(-1.0) ** t, 0.0], (draws, 1))
    last = past[:, -1]  # adaptive: towards the last output, or across it
    length = np.linalg.norm(last, axis=1, keepdims=True)
    return last / length if t % 2 else np.stack([-last[:, 1], last[:, 0]], axis=1) / length


@pytest.mark.parametrize("kind", ["alternating", "adaptive"])
@pytest.mark.parametrize("signs", ["plus", "mixed"])
def test_adaptive_updates_stay_below_the_bound(kind: str, signs: str) -> None:
    """Plain Monte Carlo under Q with the likelihood ratio of what the user really does, any signs
    of C.
    """
    n = 6
    b = 3
    noise = 1.6
    epsilon = 0.4
    draws = 40_000
    rng = np.random.default_rng([7, len(kind)])
    C = np.tril(rng.uniform(0.1, 0.6, (n, n))) + np.eye(n)
    if signs == "mixed":
        C *= (-1.0) ** np.subtract.outer(
            np.arange(n), np.arange(n)
        )  # alternating updates undo the signs
    overlaps = BinOverlaps.of(Dense(C), Participation(n, 2, b))
    outputs = noise * rng.standard_normal((draws, n, 2))
    # The user's vector depends on what was released, so each bin's shifts follow the same outputs.
    vectors = np.stack([updates(kind, rng, outputs[:, :t], t) for t in range(n)], axis=1)
    losses = np.zeros((draws, b))
    for j in range(b):
        joined = np.where(np.arange(n) % b == j, 1.0, 0.0)
        shifts = np.einsum("tu,u,kud->ktd", C, joined, vectors)
        losses[:, j] = (
            (outputs * shifts).sum(axis=(1, 2)) - 0.5 * (shifts**2).sum(axis=(1, 2))
        ) / noise**2
    ratio = np.exp(np.asarray(logsumexp(losses, axis=1)) - math.log(b))
    assert abs(ratio.mean() - 1) < Z * ratio.std() / math.sqrt(draws)
    bound = deterministic_delta(overlaps, noise, epsilon, 0.1)
    removed = np.maximum(ratio - math.exp(epsilon), 0.0)
    added = np.maximum(1.0 - math.exp(epsilon) * ratio, 0.0)
    for side in (removed, added):
        assert side.mean() - Z * side.std() / math.sqrt(draws) <= bound
    assert bound < gaussian_delta(noise / math.sqrt(overlaps.circular[0]), epsilon)


def test_overlaps_are_upper_bounds_for_every_pair_of_bins() -> None:
    C = Toeplitz(np.array([1.0, 0.5, -0.25]), 10)
    contract = Participation(10, 3, 4)
    means = np.stack([np.abs(C.columns(np.arange(j, 10, 4))).sum(axis=1) for j in range(4)])
    overlaps = BinOverlaps.of(C, contract)
    apart = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    assert (overlaps.circular[apart] >= means @ means.T).all()
    with pytest.raises(ValueError, match="max_participations"):
        BinOverlaps.of(C, Participation(10, 2, 4))
    with pytest.raises(ValueError, match="positive semidefinite"):
        BinOverlaps(np.array([1.0, 2.0, 2.0]))
    with pytest.raises(ValueError, match="symmetric"):
        BinOverlaps(np.array([1.0, 0.2, 0.1]))
    with pytest.raises(ValueError, match="non-negative"):
        BinOverlaps(np.array([1.0, -0.2]))
