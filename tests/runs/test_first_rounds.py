"""What the first rounds of an amplified run spend, and stopping there, beside all patterns of the sampler."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp
from support.amplified_runs import BINS, COHORT, ROUNDS, USERS, keys
from support.small_runs import small_run

import fedmf
from fedmf.accounting import CohortLaw
from fedmf.errors import ConfigError
from fedmf.factorization import bsr
from fedmf.participation import Participation
from fedmf.statements.planned import planned_privacy

# |z| < 5.2 has a false-alarm rate of 2e-7.
Z, DRAWS = 5.2, 100_000


def prefix_delta(accountant: str, rounds: int, noise: float, epsilon: float) -> tuple[float, float]:
    """(δ, standard error) of the first rounds: every pattern of the sampler, all of C's leading block."""
    rate = COHORT[accountant] / USERS
    if accountant == "balls-in-bins":
        listed = [(tuple(range(j, rounds, BINS)), 1 / BINS) for j in range(BINS)]
    else:
        turns, q = tuple(range(0, rounds, BINS)), rate * BINS
        chosen = itertools.chain.from_iterable(
            itertools.combinations(turns, size) for size in range(len(turns) + 1)
        )
        listed = [(pi, q ** len(pi) * (1 - q) ** (len(turns) - len(pi))) for pi in chosen]
    weights = np.array([weight for _, weight in listed])
    C = bsr(BINS, ROUNDS).materialize()[:rounds, :rounds]
    means = np.array([C[:, list(pi)].sum(axis=1) for pi, _ in listed]) / noise
    worst = (0.0, 0.0)
    for side in (1, -1):
        rng = np.random.default_rng(5)
        y = rng.standard_normal((DRAWS, rounds))
        if side == 1:
            y += means[rng.choice(len(listed), DRAWS, p=weights)]
        losses = side * np.asarray(logsumexp(y @ means.T - 0.5 * (means**2).sum(axis=1), b=weights, axis=1))
        values = -np.expm1(np.minimum(epsilon - losses, 0.0))
        worst = max(worst, (float(values.mean()), float(values.std() / DRAWS**0.5)))
    return worst


@pytest.mark.parametrize("accountant", ["cyclic-poisson", "balls-in-bins"])
@pytest.mark.parametrize("rounds", [2, 4, 7, 12])
def test_the_bound_lies_above_plain_sampling_and_near_it(accountant: str, rounds: int) -> None:
    q = COHORT[accountant] / USERS * BINS if accountant == "cyclic-poisson" else 1 / BINS
    law = CohortLaw(accountant, Participation(ROUNDS, 3, BINS), q)
    noise, epsilon = 1.6, 0.8
    exact, error = prefix_delta(accountant, rounds, noise, epsilon)
    bound = law.delta_after(rounds, bsr(BINS, ROUNDS), noise, epsilon, exact)
    assert exact - Z * error <= bound
    # The largest overlap stands for all: a bin that has come once more than the others stands for them too.
    assert bound <= (1.05 if accountant == "cyclic-poisson" else 4.0) * exact + Z * error


@pytest.mark.parametrize(
    ("accountant", "adjacency"),
    [("cyclic-poisson", "zero-out"), ("cyclic-poisson", "replace-one"), ("balls-in-bins", "zero-out")],
)
def test_a_run_may_stop_where_a_theorem_keeps_the_limit(accountant: str, adjacency: str) -> None:
    whole = fedmf.plan(small_run(**keys(accountant, adjacency=adjacency)))
    plan = fedmf.plan(small_run(**keys(accountant, adjacency=adjacency, max_epsilon=0.7)))
    allowed = plan.allowed_rounds
    assert 0 < allowed < ROUNDS == whole.allowed_rounds
    assert plan.epsilon_after(allowed) <= 0.7
    assert plan.known_epsilon_after(allowed) > 0.7  # the secrecy of the cohorts is what allows so many
    assert plan.epsilon_after(allowed + 1) > 0.7
    assert whole.epsilon_after(allowed) > 0.7  # without a limit the bound is that of the whole run
    assert planned_privacy(plan, allowed, []).so_far <= 0.7
    if adjacency == "zero-out":
        exact, error = prefix_delta(accountant, allowed, plan.relative_noise_std, 0.7)
        assert exact - Z * error <= plan.privacy.delta


def test_the_least_limit_that_counts_nothing_changes_nothing() -> None:
    assert fedmf.plan(small_run(**keys("balls-in-bins", max_epsilon=1.0))).allowed_rounds == ROUNDS
    with pytest.raises(ConfigError, match="max_epsilon must allow at least one round"):
        fedmf.plan(small_run(**keys("cyclic-poisson", max_epsilon=1e-3)))


def test_draws_alone_keep_no_limit() -> None:
    with pytest.raises(ConfigError, match="max_epsilon must be unset for amplified b-min-sep cohorts"):
        fedmf.plan(small_run(**keys("b-min-sep", max_epsilon=0.7)))
    law = CohortLaw("b-min-sep", Participation(ROUNDS, 3, BINS), 0.2)
    with pytest.raises(ValueError, match="no theorem"):
        law.delta_after(4, bsr(BINS, ROUNDS), 1.0, 1.0, 1e-2)
