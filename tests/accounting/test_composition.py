"""Several independent releases joined by user, against covariances, integrals and simulated adversaries."""

from __future__ import annotations

import html
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from support.continuations import covariance, furthest
from support.oracles import patterns

from fedmf.accounting import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
    odometer_epsilon,
    remaining_epsilons,
)
from fedmf.accounting.release import SumRelease
from fedmf.errors import LedgerError
from fedmf.factorization import Dense, Factorization, Toeplitz
from fedmf.factorization.matrices.toeplitz import InverseToeplitz
from fedmf.statements import UserCosts, compose, joined_mu
from fedmf.statements.composed.costs import SampledGaussians, StatedCost
from fedmf.statements.composed.loss_distribution import ComposedLosses

DELTA = 1e-5
#: Relative; sums of some ten float64 Gram entries against the inverse of a covariance.
TOLERANCE = 1e-9


def costs(name: str, mu: dict[str, float], **changes: object) -> UserCosts:
    made = UserCosts(
        name, "user", "zero-out", "people", f"key of {name}", False, DELTA, list(mu),
        np.array([*mu.values()], dtype=np.float64), max(mu.values(), default=0.0),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


FIRST, SECOND = (4, 2, 2), (5, 2, 3)
STRATEGIES: dict[str, tuple[Factorization, Factorization]] = {
    "toeplitz, banded": (Toeplitz([1.0, 0.75, 0.5], 4), Toeplitz([1.0, 0.6], 5)),
    "toeplitz, dense": (
        Toeplitz([1.0, 0.5, 0.25, 0.125], 4),
        Dense(np.tril(np.random.default_rng(5).uniform(0.1, 1.0, (5, 5)))),
    ),
}
NOISE = (1.7, 0.9)


def stacked(parts: list[tuple[np.ndarray, float]], one_key: bool = False) -> np.ndarray:
    """Covariance of all sums that several runs release; with one key their z are equal, row by row."""
    sizes = [len(C) for C, _ in parts]
    blocks = [[np.zeros((n, m)) for m in sizes] for n in sizes]
    for (i, (C, noise)), (j, (D, other)) in itertools.product(enumerate(parts), repeat=2):
        if i == j or one_key:
            shared = np.eye(len(C), len(D))
            blocks[i][j] = noise * other * np.linalg.inv(C) @ shared @ np.linalg.inv(D).T
    return np.block(blocks)


@pytest.mark.parametrize("pair", STRATEGIES)
def test_every_pair_of_patterns_costs_what_the_stacked_release_gives(pair: str) -> None:
    """Mahalanobis distance under the covariance of both releases, over all patterns and signs."""
    C, D = STRATEGIES[pair]
    cov = stacked([(C.materialize(), NOISE[0]), (D.materialize(), NOISE[1])])
    users = {
        f"{p} {q}": (p, q)
        for p, q in itertools.product([(), *patterns(*FIRST)], [(), *patterns(*SECOND)])
        if p or q
    }
    joined = [
        costs(name, dict(zip(users, SumRelease(made).of_patterns(taken) / noise, strict=True)))
        for name, made, noise, taken in (
            ("a", C, NOISE[0], [p for p, _ in users.values()]),
            ("b", D, NOISE[1], [q for _, q in users.values()]),
        )
    ]
    names, mu = joined_mu(joined)
    assert names == list(users)
    for name, found in zip(names, mu.tolist(), strict=True):
        p, q = users[name]
        expected = furthest(cov, [*p, *(4 + t for t in q)])
        assert found == pytest.approx(expected, rel=TOLERANCE)
        assert found >= expected * (1 - 1e-12)


def test_signed_strategies_are_never_counted_too_low() -> None:
    C, D = InverseToeplitz([1.0, 0.7, -0.3], 4), InverseToeplitz([1.0, -0.8], 5)
    cov = stacked([(C.materialize(), 1.0), (D.materialize(), 1.0)])
    for p, q in itertools.product(patterns(*FIRST), patterns(*SECOND)):
        found = math.hypot(SumRelease(C).of_patterns([p])[0], SumRelease(D).of_patterns([q])[0])
        assert found >= furthest(cov, [*p, *(4 + t for t in q)]) * (1 - 1e-12)


def test_one_key_twice_protects_nobody() -> None:
    """Differences of the two releases hold no noise: the covariance has a direction with none, along which a
    user's contribution shows. Such a pair is refused."""
    C, D = Toeplitz([1.0, 0.75, 0.5], 4), Toeplitz([1.0, 0.6], 4)
    cov = stacked([(C.materialize(), 1.0), (D.materialize(), 1.0)], one_key=True)
    values, vectors = np.linalg.eigh(cov)
    silent = vectors[:, values < 1e-12]
    assert silent.shape[1] == 4
    assert np.abs(silent[0]).max() > 0.1
    with pytest.raises(LedgerError, match=r"noise keys must be different; a and b have k\."):
        compose([costs("a", {"u": 1.0}, key="k"), costs("b", {"u": 1.0}, key="k")])


def test_independent_keys_leave_no_direction_without_noise() -> None:
    parts = [(Toeplitz([1.0, 0.75, 0.5], 4).materialize(), 1.0), (Toeplitz([1.0, 0.6], 4).materialize(), 1.0)]
    assert np.linalg.eigvalsh(stacked(parts)).min() > 0.1
    one = covariance(parts[0][0], ["abcd"])
    assert stacked(parts[:1]) == pytest.approx(one)


def test_figures_of_the_statement_are_those_of_the_users() -> None:
    made = compose(
        [
            costs("a", {"ann": 0.5, "bob": 1.0, "eve": 0.3}),
            costs("b", {"bob": 1.5, "joe": 0.2}, delta=1e-6),
            costs("c", {"ann": 1.2, "bob": 2.0}),
        ]
    )
    expected = {"ann": 1.3, "bob": math.sqrt(1 + 1.5**2 + 4), "eve": 0.3, "joe": 0.2}
    assert made.users == list(expected)
    assert made.mu == pytest.approx([*expected.values()], rel=1e-12)
    epsilons = sorted(gaussian_epsilon(1 / mu, 1e-6) for mu in expected.values())
    told = made.to_dict()
    assert told["delta"] == 1e-6
    assert told["epsilon_realised"] == pytest.approx(epsilons[-1], rel=1e-8)
    assert told["epsilon_realised_median"] == pytest.approx(epsilons[1], rel=1e-8)
    assert told["users_by_directories"] == {"1": 2, "2": 1, "3": 1}
    assert told["epsilon_planned"] == pytest.approx(
        gaussian_epsilon(1 / math.sqrt(1 + 1.5**2 + 4), 1e-6), rel=1e-8
    )
    added = sum(gaussian_epsilon(1 / mu, delta) for mu, delta in ((1.0, DELTA), (1.5, 1e-6), (2.0, DELTA)))
    assert told["epsilon_sum"] == pytest.approx(added, rel=1e-8)
    assert told["delta_sum"] == pytest.approx(2.1e-5)
    assert told["epsilon_realised"] < told["epsilon_odometer"] < told["epsilon_sum"]
    said = made.document()
    assert "what summing would say" in said.text()
    assert "The promise is against whoever sees everything that was released" in said.text()
    page = re.sub("<[^>]*>", "", html.unescape(said.page()))
    for part in (said.headline, *(value for _, value in said.facts), *said.members, *told["assumptions"]):
        assert part in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adjacency": "replace-one"}, "adjacency must be the same to account for several together; a has"),
        ({"unit": "example"}, "unit must be the same"),
        ({"namespace": "others"}, "user_namespace must be the same"),
        ({"namespace": ""}, "user_namespace .what ids are ids of. must be named"),
        ({"key": "key of a"}, "noise keys must be different"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_line(changes: dict[str, str], message: str) -> None:
    with pytest.raises(LedgerError, match=message) as refused:
        compose([costs("a", {"u": 1.0}), costs("b", {"u": 1.0}, **changes)])
    assert "\n" not in str(refused.value)


def test_a_namespace_may_be_asserted_where_none_was_named() -> None:
    nameless = costs("b", {"u": 1.0}, namespace="")
    made = compose([costs("a", {"u": 1.0}), nameless], "people")
    assert any("asserted, not recorded" in text for text in made.to_dict()["assumptions"])
    with pytest.raises(LedgerError, match="--user-namespace 'others'"):
        compose([costs("a", {"u": 1.0}), nameless], "others")


def test_nobody_and_a_delta_out_of_range_are_refused() -> None:
    with pytest.raises(LedgerError, match="nobody took part"):
        compose([costs("a", {}), costs("b", {})])
    stated = costs("c", {"u": 1.0}, amplified=StatedCost(1.0, 1e-6))
    with pytest.raises(LedgerError, match=r"at least 1e-06"):
        compose([costs("a", {"u": 1.0}), stated], delta=1e-7)


def grid(half: float, middle: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of the midpoint rule, no point at the middle."""
    step = half / 20_000
    x = middle + step * (np.arange(-20_000, 20_000) + 0.5)
    return x, np.full(x.size, step)


def exact_delta(epsilon: float, mu: float, noise: float, q: float) -> float:
    """The larger δ of both orders for one sampled Gaussian beside N(0, 1) against N(μ, 1), by quadrature."""
    x, weights = grid(14 * noise, 0.5)

    def density(shift: float) -> np.ndarray:
        return np.exp(-((x - shift) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

    without, sampled = density(0.0), (1 - q) * density(0.0) + q * density(1.0)

    def side(p: np.ndarray, other: np.ndarray) -> float:
        left = epsilon - np.log(p / other)  # what is left for the Gaussian
        inner = ndtr(mu / 2 - left / mu) - np.exp(left) * ndtr(-mu / 2 - left / mu)
        return float(weights @ (p * inner))

    return max(side(sampled, without), side(without, sampled))


@pytest.mark.parametrize(("mu", "noise", "q"), [(0.8, 1.0, 0.3), (1.5, 0.7, 0.1), (0.3, 2.0, 0.5)])
def test_a_gaussian_and_a_sampled_run_compose_as_the_integral_says(mu: float, noise: float, q: float) -> None:
    losses = ComposedLosses([SampledGaussians(noise, q, 1)])
    for delta in (1e-3, 1e-5):
        epsilon = losses.epsilon_with(mu, delta)
        assert exact_delta(epsilon, mu, noise, q) <= delta * (1 + 1e-9)
        assert exact_delta(epsilon - 2e-3, mu, noise, q) > delta


def test_runs_of_which_epsilon_alone_is_known_compose_as_their_dominating_pairs() -> None:
    """Two (ε, 0) randomised responses: δ(x) of the product, from its three outcomes."""
    e = 0.7
    losses = ComposedLosses([StatedCost(e, 1e-12)] * 2)
    p = math.exp(e) / (1 + math.exp(e))
    worst = p**2 - math.exp(e) * (1 - p) ** 2
    assert losses.epsilon_with(0.0, worst) == pytest.approx(e, abs=5e-3)
    both = ComposedLosses([StatedCost(1.0, 1e-6), StatedCost(2.0, 1e-6)])
    assert both.least_delta == pytest.approx(2e-6)
    assert both.epsilon_with(0.0, 2.1e-6) <= 3.0 + 5e-3
    assert both.epsilon_with(0.0, 1e-6) == math.inf


def test_amplified_runs_cost_everybody_while_cohorts_stay_secret() -> None:
    """Also users whom the amplified run's record does not name: they may have been drawn."""
    amplified = costs("b", {"ann": 3.0}, amplified=SampledGaussians(1.0, 0.1, 20), delta=DELTA)
    made = compose([costs("a", {"ann": 0.5, "bob": 1.0}), amplified])
    losses = ComposedLosses([SampledGaussians(1.0, 0.1, 20)])
    assert made.hidden is not None
    assert made.hidden[1.0] == losses.epsilon_with(made.hidden_mu[1].item(), DELTA)
    assert made.hidden[0.0] == losses.epsilon_with(made.hidden_mu[0].item(), DELTA)
    known = gaussian_epsilon(1 / math.hypot(0.5, 3.0), DELTA)
    assert made.quantiles[1.0] == pytest.approx(known, rel=1e-8)
    assert made.hidden[1.0] < known


def adaptive_delta(epsilon: float, first: float, second: dict[bool, float]) -> float:
    """δ of a release of shift μ₁, then one whose shift depends on the sign of the first, by quadrature."""
    x, weights = grid(12.0)
    total = 0.0
    for positive, mu in second.items():
        chosen = (x > 0) == positive
        left = epsilon - first * x[chosen] + first**2 / 2  # loss of the first under shift μ₁
        density = np.exp(-((x[chosen] - first) ** 2) / 2) / math.sqrt(2 * math.pi)
        inner = (
            ndtr(mu / 2 - left / mu) - np.exp(left) * ndtr(-mu / 2 - left / mu)
            if mu > 0
            else np.maximum(0.0, 1 - np.exp(left))
        )
        total += float(weights[chosen] @ (density * inner))
    return total


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_a_filter_holds_for_noise_chosen_in_sight_of_releases(epsilon: float) -> None:
    """Σ μ² ≤ B² on every path is B-GDP; with Σ μ² ≤ B² on average alone it is not."""
    B, first = 1.0, 0.6
    rest = math.sqrt(B**2 - first**2)
    limit = gaussian_delta(1 / B, epsilon)
    for second in ({True: rest, False: rest}, {True: rest, False: 0.0}, {True: 0.0, False: rest}):
        assert adaptive_delta(epsilon, first, second) <= limit * (1 + 1e-6)
    assert adaptive_delta(epsilon, first, {True: rest, False: rest}) == pytest.approx(limit, rel=1e-5)
    # P[x > 0] under the shift is about 0.73, so that the average of Σ μ² is B² here.
    greedy = math.sqrt(rest**2 / float(ndtr(first)))
    assert adaptive_delta(epsilon, first, {True: greedy, False: 0.0}) > limit * 1.05


def test_what_remains_of_a_budget_is_never_more_than_the_filter_allows() -> None:
    total, spent = 8.0, np.array([0.0, 0.1, 0.8, 1.6, 1.666])
    left = remaining_epsilons(spent, total, DELTA)
    for mu, epsilon in zip(spent.tolist(), left.tolist(), strict=True):
        more = 0.0 if epsilon == 0 else 1 / gaussian_sigma(epsilon, DELTA)
        assert math.hypot(mu, more) <= 1 / gaussian_sigma(total, DELTA) * (1 + 1e-12)
        assert gaussian_epsilon(1 / math.hypot(mu, more), DELTA) > 0.985 * total
    assert (np.diff(left) < 0).all()
    with pytest.raises(ValueError, match=r"ε .total. must be at least what was spent"):
        remaining_epsilons(np.array([1.7]), total, DELTA)


def test_an_odometer_holds_at_all_times_and_a_fixed_time_bound_does_not() -> None:
    """20,000 adversaries who go on in small steps until the loss exceeds the bound. At δ = 0.05 the odometer
    is passed by at most 5 % of them: a false alarm (six standard errors) has probability below 1e-8. Passing
    the bound that holds at each time by itself is easy."""
    rng, delta, paths = np.random.default_rng(7), 0.05, 20_000
    spent, loss, last = np.zeros(paths), np.zeros(paths), np.zeros(paths)
    passed, naive = np.zeros(paths, dtype=bool), np.zeros(paths, dtype=bool)
    for step in np.geomspace(1e-4, 0.5, 300):
        mu = math.sqrt(step) * np.where(last > 0, 1.5, 0.5)  # chosen in sight of what was released
        last = rng.normal(size=paths)
        loss += mu * last + mu**2 / 2
        spent += mu**2
        passed |= loss > odometer_epsilon(np.sqrt(spent), delta)
        naive |= loss > spent / 2 - np.sqrt(spent) * float(ndtri(delta))
    error = math.sqrt(delta * (1 - delta) / paths)
    assert passed.mean() <= delta + 6 * error
    assert passed.mean() > 0.0
    assert naive.mean() > 2 * delta
