"""Limits of b-min-sep and of convex losses against enumeration, quadrature and plain sampling."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp, ndtri
from scipy.stats import binom

from fedmf.accounting.amplification import (
    CohortLaw,
    MinSeparatedPair,
    RunAmplification,
    certified_noise,
    check_run,
    zero_out_budget,
)
from fedmf.accounting.amplification.monte_carlo import contributions, convex_add_limit, estimate, upper_limit
from fedmf.accounting.amplification.separated_proposal import (
    AttractedPairs,
    SeparatedRemoveProposal,
    matchings,
)
from fedmf.accounting.gaussian import gaussian_delta
from fedmf.mechanisms.closed_forms import bsr, identity
from fedmf.participation import Participation

# |z| < 5.2 has a false-alarm rate of 2e-7.
Z = 5.2


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
    """Three rounds of a two-banded strategy; means and weights of all patterns, from the definition."""
    strategy = bsr(2, 3)
    dense, q, s = strategy.materialize(), probability, separation
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
    return MinSeparatedPair.sampled(strategy, s, q), means, np.array(list(law.values()))


@pytest.mark.parametrize(
    ("s", "q", "noise", "epsilon"), [(2, 0.3, 1.0, 1.0), (3, 0.6, 2.5, 0.2), (2, 1.0, 1.0, 2.0)]
)
def test_limits_lie_above_quadrature_and_near_it(s: int, q: float, noise: float, epsilon: float) -> None:
    pair, means, weights = small(s, q)
    removed, added = quadrature(means / noise, weights, epsilon)
    exact = max(removed, added)
    limit = upper_limit(pair, noise, epsilon, 1e-9, 2**13, seed=1)
    assert 0.995 * exact < limit < 1.35 * exact  # halving the cells moves the sum by less than 0.5 %
    found = SeparatedRemoveProposal.of(pair.law, noise, epsilon)
    for order in (2, 4, 6):
        pairs = AttractedPairs.of(pair.law, noise, order - 1.0)
        proposal = dataclasses.replace(found, order=order, pairs=pairs)
        draws = proposal.draw(np.random.default_rng(order), 2**15)
        values, _ = contributions(pair, draws, noise, epsilon, "remove")
        assert abs(values.mean() - removed) < Z * values.std() / math.sqrt(values.size) + 2e-3 * removed
        assert values.max() <= math.exp(proposal.log_bound) * (1 + 1e-9)


@pytest.mark.parametrize("order", [2, 4, 6, 12])
def test_matchings_contain_every_pair_once(order: int) -> None:
    found = [tuple(sorted(pair)) for matching in matchings(order) for pair in matching]
    assert sorted(found) == list(itertools.combinations(range(order), 2))
    assert all(sorted(sum(matching, ())) == list(range(order)) for matching in matchings(order))


@pytest.mark.parametrize(("order", "noise"), [(4, 2.0), (6, 3.0)])
def test_the_density_of_matched_patterns_is_normalised(order: int, noise: float) -> None:
    """Where patterns often meet, R near N and P: E_R N/R = 1 and E_R P/R = 1."""
    law = MinSeparatedPair.sampled(bsr(2, 8), 2, 0.5).law
    found = SeparatedRemoveProposal.of(law, noise, 0.3)
    pairs = AttractedPairs.of(law, noise, order - 1.0)
    near = dataclasses.replace(found, order=order, pairs=pairs, stretch=1.0, shift=0.5 * found.shift)
    draws = near.draw(np.random.default_rng(2), 40_000)
    with_user = np.exp(MinSeparatedPair(law).losses(draws.state, noise) - draws.log_density)
    for weights in (np.exp(-draws.log_density), with_user):
        error = weights.std() / math.sqrt(weights.size)
        assert error < 7e-3
        assert abs(weights.mean() - 1) < Z * error


@pytest.mark.weekly
def test_a_small_epsilon_is_certified_close_to_the_central_estimate() -> None:
    """One user in 64 rounds at ε = ½, where a limit from pairs of patterns alone would not come near."""
    pair = MinSeparatedPair.of(bsr(4, 64), Participation(64, 4, 4))
    noise, limit = certified_noise(pair, 0.5, 1e-5, samples=2**14)
    found = estimate(pair, noise, 0.5, 0.02, 2**15)
    assert found.delta - Z * found.standard_error <= limit <= 0.99e-5
    fewer = estimate(pair, noise / 1.05, 0.5, 0.02, 2**15)
    assert fewer.delta - Z * fewer.standard_error > 1e-5


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.3), (0.3, 1.0), (1.0, 3.0)])
def test_the_convex_limit_of_a_linear_loss_is_near_the_gaussian_closed_form(
    mu: float, epsilon: float
) -> None:
    losses = mu * np.random.default_rng(4).standard_normal(2**16) - mu**2 / 2
    exact = gaussian_delta(1 / mu, epsilon)
    assert exact < convex_add_limit(losses, epsilon, 1e-7) < 3.5 * exact


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.8])
def test_the_convex_limit_holds_for_a_loss_with_a_kink_and_a_threshold_in_its_bulk(epsilon: float) -> None:
    """L = 2(|z| − 1): to the right of x₁ a line lies below the concave H, so x₁ must not be below −ε."""
    losses = 2.0 * (np.abs(np.random.default_rng(4).standard_normal(2**15)) - 1.0)
    z = np.linspace(-8.0, 8.0, 32_001)
    payoff = np.maximum(-np.expm1(epsilon + 2.0 * (np.abs(z) - 1.0)), 0.0)
    exact = float(payoff @ np.exp(-(z**2) / 2)) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    assert exact < convex_add_limit(losses, epsilon, 1e-7) < 2 * exact


@pytest.mark.weekly
def test_the_convex_limit_covers() -> None:
    """500 experiments at β = 0.1 on the linear loss, where H is a line; false alarm 1e-6."""
    rng, mu, epsilon = np.random.default_rng(5), 0.3, 0.8
    exact = gaussian_delta(1 / mu, epsilon)
    failures = sum(
        convex_add_limit(mu * rng.standard_normal(2000) - mu**2 / 2, epsilon, 0.1) < exact for _ in range(500)
    )
    assert failures <= binom.isf(1e-6, 500, 0.1)


def test_quantiles_of_the_loss_are_concave() -> None:
    """Ehrhard's inequality on the losses of a sampler, by quadrature; a concave function breaks it."""
    _, means, weights = small(2, 0.3)
    axis = np.arange(-5.0, 5.0, 0.125)
    grid = np.stack(np.meshgrid(*[axis] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    mass = np.exp(-0.5 * (grid**2).sum(axis=1)) * (0.125 / math.sqrt(2 * math.pi)) ** 3
    loss = np.asarray(logsumexp(1.5 * grid @ means.T - 1.125 * (means**2).sum(axis=1), b=weights, axis=1))

    def bend(values: np.ndarray) -> np.ndarray:
        points = np.quantile(values, np.linspace(0.0, 1.0, 400))[40:-40:40]
        points = np.linspace(points[0], points[-1], 7)
        shares = np.array([mass[values <= x].sum() for x in points])
        return np.diff(ndtri(shares), 2)

    assert bend(loss).max() < 2e-3
    assert bend(-loss).max() > 2e-2


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least 200"):
        convex_add_limit(np.zeros(50), 1.0, 0.1)
    with pytest.raises(ValueError, match="beta"):
        convex_add_limit(np.zeros(500), 1.0, 0.0)
    assert convex_add_limit(np.zeros(500), 1.0, 0.1) == 1.0
    pair = MinSeparatedPair.of(identity(8), Participation(8, 2, 4))
    assert upper_limit(pair, 0.7, 0.5, 1e-3, 512, seed=0) <= 1.0


@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_a_replaced_user_costs_at_most_the_zero_out_budget(mu: float) -> None:
    """Two rounds, one at random with μ or with −μ: quadrature in two dimensions."""
    axis = np.arange(-8.0, 8.0, 0.02)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    normal = np.exp(-(x**2 + y**2) / 2) * 0.02**2 / (2 * math.pi)
    P, P_other = (normal * (np.exp(u * x - u**2 / 2) + np.exp(u * y - u**2 / 2)) / 2 for u in (mu, -mu))
    for delta in (1e-2, 1e-4):
        # The least ε for which (ε', δ') of the budget holds under zero-out.
        low, high = 0.0, 40.0
        for _ in range(40):
            middle = (low + high) / 2
            half, share = zero_out_budget("replace-one", middle, delta)
            sides = (P - math.exp(half) * normal, normal - math.exp(half) * P)
            fits = max(float(np.maximum(side, 0.0).sum()) for side in sides) <= share
            low, high = (low, middle) if fits else (middle, high)
        replaced = float(np.maximum(P - math.exp(high) * P_other, 0.0).sum())
        assert 0.0 < replaced <= delta * (1 + 1e-6)
        # Half of the budget's ε is not enough.
        assert float(np.maximum(P - math.exp(0.5 * high) * P_other, 0.0).sum()) > delta
    assert zero_out_budget("zero-out", 1.5, 1e-5) == (1.5, 1e-5)


def test_a_claim_is_refused_however_far_too_small_its_noise_is() -> None:
    """Where noise is much too small, weighted draws miss where the loss is large and say next to nothing."""
    law, C, delta = CohortLaw("b-min-sep", Participation(64, 4, 16), 1 / 50), bsr(4, 64), 1e-5
    claim = RunAmplification("b-min-sep", 1 / 50, "certified", 0.01 * delta, 0.99 * delta, 3)
    enough = 1.04
    check_run(claim, law, C, enough, "zero-out", 2.0, delta)
    missed = estimate(law.pair(C), 0.1 * enough, 2.0, 0.03, 2**13, seed=1)
    assert missed.delta < delta
    for share in (0.9, 0.2, 0.1, 0.02):
        with pytest.raises(ValueError, match=r"noise .* must give"):
            check_run(claim, law, C, share * enough, "zero-out", 2.0, delta)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "numerical bound"}, "method"),
        ({"method": "equal bins"}, "method"),
        ({"failure": 0.0}, "failure"),
        ({"delta_limit": 1e-5}, "delta_limit"),
        ({"delta_limit": 1e-7}, "delta_limit"),
        ({"seed": None}, "seed"),
        ({"method": "none needed", "failure": 0.0, "seed": None, "delta_limit": 2e-5}, "delta_limit"),
    ],
)
def test_a_claim_says_only_what_its_accountant_records(changes: dict[str, object], message: str) -> None:
    law, C, delta = CohortLaw("b-min-sep", Participation(16, 4, 4), 0.2), bsr(2, 16), 1e-5
    claim = RunAmplification("b-min-sep", 0.2, "certified", 0.01 * delta, 0.99 * delta, 3)
    noise = certified_noise(law.pair(C), 2.0, delta, samples=2**13, seed=3)[0]
    check_run(claim, law, C, noise, "zero-out", 2.0, delta)
    with pytest.raises(ValueError, match=message):
        check_run(dataclasses.replace(claim, **changes), law, C, noise, "zero-out", 2.0, delta)  # type: ignore[arg-type]
