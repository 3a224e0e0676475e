"""b-min-sep sampling against enumeration of patterns, Poisson sampling and Balls-in-Bins."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp

from fedmf.accounting.min_separated import (
    AttractedPairs,
    MinSeparatedPair,
    SeparatedRemoveProposal,
    matchings,
)
from fedmf.accounting.min_separated_law import SeparatedLaw
from fedmf.accounting.monte_carlo import contributions, estimate, upper_limit
from fedmf.accounting.noise_level import amplified_noise
from fedmf.accounting.poisson import poisson_delta
from fedmf.mechanisms.closed_forms import bsr, identity

# |z| < 5.2 has a false-alarm rate of 2e-7.
Z = 5.2


def enumerated(n: int, s: int, q: float) -> dict[tuple[int, ...], float]:
    """Probability of each pattern, by running the sampler's definition from its stationary
    state.
    """
    total = 1 + (s - 1) * q
    law: dict[tuple[int, ...], float] = {}
    # The start: blocked for the first j rounds.
    for j in range(s):
        states = {(j, ()): (1.0 if j == 0 else q) / total}
        for t in range(n):
            following: dict[tuple[int, tuple[int, ...]], float] = {}
            for (open_from, pattern), weight in states.items():
                options = (
                    [(open_from, pattern, weight)]
                    if t < open_from
                    else [
                        (open_from, pattern, weight * (1 - q)),
                        (t + s, (*pattern, t), weight * q),
                    ]
                )
                for new_open, new_pattern, new_weight in options:
                    key = (new_open, new_pattern)
                    following[key] = following.get(key, 0.0) + new_weight
            states = following
        for (_, pattern), weight in states.items():
            law[pattern] = law.get(pattern, 0.0) + weight
    return law


CASE = MinSeparatedPair.of(bsr(2, 5), 2, 2 / 3)


def test_the_recursion_agrees_with_enumeration():
    law = enumerated(5, CASE.law.separation, CASE.law.probability)
    dense = bsr(2, 5).materialize()
    y = np.random.default_rng(0).normal(size=(5, 7))
    noise = 0.7
    terms = []
    for pattern, weight in law.items():
        if weight > 0:
            mean = dense[:, list(pattern)].sum(axis=1) / noise
            terms.append(math.log(weight) + mean @ y - 0.5 * mean @ mean)
    state = CASE.law.correlations(y)
    np.testing.assert_allclose(CASE.losses(state, noise), _loss(dense, law, y, noise), rtol=1e-10)
    np.testing.assert_allclose(logsumexp(terms, axis=0), _loss(dense, law, y, noise), rtol=1e-12)


def _loss(dense, law, y, noise):
    means = np.stack([dense[:, list(pattern)].sum(axis=1) for pattern in law]) / noise
    weights = np.array(list(law.values()))[:, None]
    return np.log((weights * np.exp(means @ y - 0.5 * (means**2).sum(axis=1)[:, None])).sum(axis=0))


def test_patterns_are_drawn_by_their_probabilities():
    law = enumerated(5, 2, 0.4)
    count = 40_000
    drawn = SeparatedLaw(np.ones((2, 5)), 2, 0.4).patterns(np.random.default_rng(2), count)
    for pattern, weight in law.items():
        wanted = np.zeros(5, dtype=bool)
        wanted[list(pattern)] = True
        seen = (drawn == wanted[:, None]).all(axis=0).mean()
        assert abs(seen - weight) < Z * math.sqrt(weight * (1 - weight) / count) + 1e-12


@pytest.mark.parametrize(
    ("n", "bands", "s", "q"), [(6, 2, 3, 0.4), (7, 3, 3, 0.7), (5, 1, 1, 0.3), (6, 2, 2, 1.0)]
)
def test_pairs_are_drawn_by_their_probabilities(n, bands, s, q):
    """Z₂ and every pair's share of it against enumeration of all pairs of patterns."""
    strategy = bsr(bands, n)
    noise = 1.1
    count = 40_000
    law = enumerated(n, s, q)
    dense = strategy.materialize()
    found = AttractedPairs.of(MinSeparatedPair.of(strategy, s, q).law, noise)
    sums = {pattern: dense[:, list(pattern)].sum(axis=1) / noise for pattern in law}
    weights = {
        (first, second): law[first] * law[second] * math.exp(sums[first] @ sums[second])
        for first, second in itertools.product(law, law)
    }
    assert found.log_normalizer == pytest.approx(math.log(sum(weights.values())), rel=1e-12)
    drawn = [np.packbits(x, axis=0)[0] for x in found.draw(np.random.default_rng(6), count)]
    total = sum(weights.values())
    for (first, second), weight in weights.items():
        codes = [sum(128 >> t for t in pattern) for pattern in (first, second)]
        seen = ((drawn[0] == codes[0]) & (drawn[1] == codes[1])).mean()
        share = weight / total
        # Six standard errors and one draw: pairs that are expected less than once are seen twice at
        # times.
        assert abs(seen - share) < 6 * math.sqrt(share * (1 - share) / count) + 4 / count


def test_separation_one_is_poisson_sampling():
    pair = MinSeparatedPair.of(identity(24), 1, 1 / 8)
    found = estimate(pair, 0.8, 1.0, 0.02)
    exact = poisson_delta(0.8, 1 / 8, 24, 1.0)  # an upper bound on a fine grid
    assert pair.law.separation == 1
    assert abs(found.delta - exact) < Z * found.standard_error + 2e-3 * exact


def test_an_estimate_that_may_miss_most_of_delta_is_refused():
    """Here Poisson sampling needs 0.1906; the draws said 0.1204 ± 0.0009."""
    with pytest.raises(ValueError, match="may miss most of delta"):
        amplified_noise(MinSeparatedPair.of(identity(8), 1, 0.05), 64.0, 1e-5, 0.1, 2**12)


def quadrature(means: np.ndarray, weights: np.ndarray, epsilon: float) -> tuple[float, float]:
    """(δ_remove, δ_add) of Σ w N(m, I) against N(0, I) in three dimensions, midpoint rule."""
    axis = np.arange(-6.0, 8.0, 0.2)
    grid = np.stack(np.meshgrid(*[axis] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    log_q = -0.5 * (grid**2).sum(axis=1) - 1.5 * math.log(2 * math.pi)
    loss = np.asarray(logsumexp(grid @ means.T - 0.5 * (means**2).sum(axis=1), b=weights, axis=1))
    density = np.exp(log_q) * 0.2**3
    remove = density * np.maximum(np.exp(loss) - math.exp(epsilon), 0.0)
    add = density * np.maximum(1.0 - np.exp(epsilon + loss), 0.0)
    return float(remove.sum()), float(add.sum())


def small(separation: int, probability: float) -> tuple[MinSeparatedPair, np.ndarray, np.ndarray]:
    """Three rounds of a two-banded strategy; means and weights of all patterns, from the
    definition.
    """
    strategy = bsr(2, 3)
    dense = strategy.materialize()
    q = probability
    s = separation
    law: dict[tuple[int, ...], float] = {}

    def follow(t: int, rounds: tuple[int, ...], weight: float) -> None:
        if t >= 3:
            law[rounds] = law.get(rounds, 0.0) + weight
            return
        follow(t + 1, rounds, weight * (1 - q))
        follow(t + s, (*rounds, t), weight * q)

    for start in range(s):
        follow(start, (), (1.0 if start == 0 else q) / (1 + (s - 1) * q))
    means = np.array([dense[:, list(rounds)].sum(axis=1) for rounds in law])
    return MinSeparatedPair.of(strategy, s, q), means, np.array(list(law.values()))


@pytest.mark.parametrize(
    ("s", "q", "noise", "epsilon"), [(2, 0.3, 1.0, 1.0), (3, 0.6, 2.5, 0.2), (2, 1.0, 1.0, 2.0)]
)
def test_limits_lie_above_quadrature_and_near_it(
    s: int, q: float, noise: float, epsilon: float
) -> None:
    pair, means, weights = small(s, q)
    removed, added = quadrature(means / noise, weights, epsilon)
    exact = max(removed, added)
    limit = upper_limit(pair, noise, epsilon, 1e-9, 2**13, seed=1)
    assert (
        0.995 * exact < limit < 1.35 * exact
    )  # halving the cells moves the sum by less than 0.5 %
    found = SeparatedRemoveProposal.of(pair.law, noise, epsilon)
    for order in (2, 4, 6):
        pairs = AttractedPairs.of(pair.law, noise, order - 1.0)
        proposal = dataclasses.replace(found, order=order, pairs=pairs)
        draws = proposal.draw(np.random.default_rng(order), 2**15)
        values = contributions(pair, draws, noise, epsilon, "remove")
        assert (
            abs(values.mean() - removed)
            < Z * values.std() / math.sqrt(values.size) + 2e-3 * removed
        )
        assert values.max() <= math.exp(proposal.log_bound) * (1 + 1e-9)


@pytest.mark.parametrize("order", [2, 4, 6, 12])
def test_matchings_contain_every_pair_once(order: int) -> None:
    found = [tuple(sorted(pair)) for matching in matchings(order) for pair in matching]
    assert sorted(found) == list(itertools.combinations(range(order), 2))
    assert all(sorted(sum(matching, ())) == list(range(order)) for matching in matchings(order))


def test_largest_norm_is_the_worst_pattern():
    dense = bsr(2, 5).materialize()
    patterns = [p for r in range(4) for p in itertools.combinations(range(5), r)]
    separated = [p for p in patterns if all(b - a >= 2 for a, b in itertools.pairwise(p))]
    worst = max(np.linalg.norm(dense[:, list(p)].sum(axis=1)) for p in separated)
    assert CASE.largest_norm == pytest.approx(worst)
