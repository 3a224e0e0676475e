"""b-min-sep sampling against enumeration of patterns, Poisson sampling and Balls-in-Bins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp

from fedmf.accounting.amplification.bins import BallsInBinsPair
from fedmf.accounting.amplification.min_separated import MinSeparatedPair
from fedmf.accounting.amplification.monte_carlo import contributions, estimate
from fedmf.accounting.amplification.poisson import poisson_delta
from fedmf.accounting.amplification.separated_law import SeparatedLaw
from fedmf.accounting.amplification.separated_proposal import AttractedPairs
from fedmf.mechanisms.closed_forms import bsr, cgd, identity
from fedmf.mechanisms.registry import build
from fedmf.participation import Participation

# |z| < 5.2 has a false-alarm rate of 2e-7.
Z = 5.2


def enumerated(n: int, s: int, q: float) -> dict[tuple[int, ...], float]:
    """Probability of each pattern, by running the sampler's definition from its stationary state."""
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
                    else [(open_from, pattern, weight * (1 - q)), (t + s, (*pattern, t), weight * q)]
                )
                for new_open, new_pattern, new_weight in options:
                    key = (new_open, new_pattern)
                    following[key] = following.get(key, 0.0) + new_weight
            states = following
        for (_, pattern), weight in states.items():
            law[pattern] = law.get(pattern, 0.0) + weight
    return law


CASE = MinSeparatedPair.of(bsr(2, 5), Participation(5, 2, 2))


def test_every_round_has_the_same_expected_number_of_users():
    law = enumerated(6, 3, 0.4)
    assert sum(law.values()) == pytest.approx(1.0)
    rates = [sum(weight for pattern, weight in law.items() if t in pattern) for t in range(6)]
    np.testing.assert_allclose(rates, 0.4 / 1.8, rtol=1e-12)


def test_the_recursion_agrees_with_enumeration():
    law = enumerated(5, CASE.law.separation, CASE.law.probability)
    dense = bsr(2, 5).materialize()
    y, noise = np.random.default_rng(0).normal(size=(5, 7)), 0.7
    terms = []
    for pattern, weight in law.items():
        if weight > 0:
            mean = dense[:, list(pattern)].sum(axis=1) / noise
            terms.append(math.log(weight) + mean @ y - 0.5 * mean @ mean)
    state = CASE.law.correlations(y)
    np.testing.assert_allclose(CASE.losses(state, noise), _loss(dense, law, y, noise), rtol=1e-10)
    np.testing.assert_allclose(logsumexp(terms, axis=0), _loss(dense, law, y, noise), rtol=1e-12)


@pytest.mark.parametrize(("s", "q"), [(1, 0.3), (3, 0.4), (4, 1.0)])
def test_sums_and_logarithms_agree(s, q):
    law = SeparatedLaw(np.ones((1, 12)), s, q)
    exponents = np.random.default_rng(7).normal(size=(12, 5))
    shifted = exponents.copy()
    # One draw beyond the range of sums; the others must not notice.
    shifted[:, 4] += 700.0
    np.testing.assert_allclose(
        law.weighted(exponents).logs[:, :4], law.weighted(shifted).logs[:, :4], atol=1e-12
    )


def _loss(dense, law, y, noise):
    means = np.stack([dense[:, list(pattern)].sum(axis=1) for pattern in law]) / noise
    weights = np.array(list(law.values()))[:, None]
    return np.log((weights * np.exp(means @ y - 0.5 * (means**2).sum(axis=1)[:, None])).sum(axis=0))


def test_patterns_are_drawn_by_their_probabilities():
    law, count = enumerated(5, 2, 0.4), 40_000
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
    strategy, noise, count = bsr(bands, n), 1.1, 40_000
    law, dense = enumerated(n, s, q), strategy.materialize()
    found = AttractedPairs.of(MinSeparatedPair.sampled(strategy, s, q).law, noise)
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
        # Six standard errors and one draw: pairs that are expected less than once are seen twice at times.
        assert abs(seen - share) < 6 * math.sqrt(share * (1 - share) / count) + 4 / count


@pytest.mark.parametrize("side", ["remove", "add"])
def test_both_sides_agree_with_plain_sampling_over_enumerated_patterns(side):
    noise, epsilon, count = 0.9, 0.7, 200_000
    law = enumerated(5, CASE.law.separation, CASE.law.probability)
    dense = bsr(2, 5).materialize()
    rng = np.random.default_rng(4)
    y = rng.normal(size=(5, count))
    if side == "remove":
        chosen = rng.choice(len(law), size=count, p=np.array(list(law.values())))
        means = np.stack([dense[:, list(pattern)].sum(axis=1) for pattern in law]) / noise
        y += means[chosen].T
    signed = _loss(dense, law, y, noise) * (1 if side == "remove" else -1)
    plain = -np.expm1(np.minimum(epsilon - signed, 0.0))
    proposal = CASE.proposal(noise, epsilon, side)
    values, _ = contributions(CASE, proposal.draw(np.random.default_rng(1), 20_000), noise, epsilon, side)
    assert values.max() <= math.exp(proposal.log_bound) * (1 + 1e-9)
    error = math.hypot(values.std() / math.sqrt(values.size), plain.std() / math.sqrt(count))
    assert abs(values.mean() - plain.mean()) < Z * error


def test_separation_one_is_poisson_sampling():
    pair = MinSeparatedPair.of(identity(24), Participation(24, 3, 8))
    found = estimate(pair, 0.8, 1.0, 0.02)
    exact = poisson_delta(0.8, 1 / 8, 24, 1.0)  # an upper bound on a fine grid
    assert pair.law.separation == 1
    assert abs(found.delta - exact) < Z * found.standard_error + 2e-3 * exact


def test_certain_sampling_is_balls_in_bins():
    """p = n/k: q = 1, and the stationary start throws the user into one of p bins."""
    strategy, contract = bsr(4, 12), Participation(12, 3, 4)
    found = estimate(MinSeparatedPair.of(strategy, contract), 1.0, 1.0, 0.02)
    bins = estimate(BallsInBinsPair.of(strategy, contract), 1.0, 1.0, 0.02)
    error = math.hypot(found.standard_error, bins.standard_error)
    assert abs(found.delta - bins.delta) < Z * error


def test_largest_norm_is_the_worst_pattern():
    dense = bsr(2, 5).materialize()
    patterns = [p for r in range(4) for p in itertools.combinations(range(5), r)]
    separated = [p for p in patterns if all(b - a >= 2 for a, b in itertools.pairwise(p))]
    worst = max(np.linalg.norm(dense[:, list(p)].sum(axis=1)) for p in separated)
    assert CASE.largest_norm == pytest.approx(worst)


def test_refusals():
    with pytest.raises(ValueError, match="banded strategies only"):
        MinSeparatedPair.of(cgd(0.5, 12), Participation(12, 3, 4))
    with pytest.raises(ValueError, match="banded strategies only"):
        MinSeparatedPair.of(
            build("bsr", Participation(12, 3, 4), bands=8).factorization, Participation(12, 3, 4)
        )
