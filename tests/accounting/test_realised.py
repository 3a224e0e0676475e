"""Realised privacy against dense matrices and another accountant."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest

from fedmf.accounting.patterns import PatternTable
from fedmf.accounting.realised import QUANTILES, realised_privacy
from fedmf.accounting.release import SumRelease
from fedmf.factorization.matrices.toeplitz import Diagonal, InverseToeplitz, Toeplitz, normalized
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.participation import Participation

N = 7
DELTA = 1e-5
CASES = {
    "toeplitz": Toeplitz([1.0, 0.5, 0.25], N),
    "inverse": InverseToeplitz([1.0, -0.9], N),
    "diagonal": Diagonal(np.linspace(2.0, 0.5, N)),
    "normalised": normalized(InverseToeplitz([1.0, -0.5, -0.125], N)),
}


def brute_epsilon(factorization, pattern, released, noise, adjacency) -> float:
    """The largest shift is aligned unit updates: the norm of the sum of dense columns over released rows."""
    dense = factorization.materialize()[:released]
    shift = np.linalg.norm(dense[:, list(pattern)].sum(axis=1)) * {"zero-out": 1, "replace-one": 2}[adjacency]
    return dp_accounting.get_epsilon_gaussian(noise / shift, DELTA) if shift else 0.0


def test_every_user_of_a_small_run():
    """Every pattern of up to three rounds, the i-th shared by i + 1 users, and ten users who never joined."""
    for name in CASES:
        for released in [3, 5, N]:
            for adjacency in ["zero-out", "replace-one"]:
                factorization, noise = CASES[name], 1.7
                patterns = {
                    pattern: index + 1
                    for index, pattern in enumerate(
                        pattern
                        for size in (1, 2, 3)
                        for pattern in itertools.combinations(range(released), size)
                    )
                }
                users = sum(patterns.values()) + 10
                found = realised_privacy(
                    patterns, SumRelease(factorization), noise, DELTA, released, adjacency, users
                )
                epsilons = [0.0] * 10
                for pattern, count in patterns.items():
                    epsilons += [brute_epsilon(factorization, pattern, released, noise, adjacency)] * count
                epsilons.sort()
                assert found.epsilon == pytest.approx(epsilons[-1], rel=1e-9)
                worst = brute_epsilon(factorization, found.worst_pattern, released, noise, adjacency)
                assert worst == pytest.approx(epsilons[-1], rel=1e-9)
                assert (found.users, found.participants) == (users, users - 10)
                for q in QUANTILES:
                    expected = epsilons[max(1, math.ceil(q * users)) - 1]
                    assert found.quantiles[q] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_mu_and_sensitivity_are_consistent():
    found = realised_privacy({(0, 3): 1}, SumRelease(CASES["inverse"]), 2.0, DELTA, N, "replace-one")
    norm = np.linalg.norm(CASES["inverse"].materialize()[:, [0, 3]].sum(axis=1))
    assert found.sensitivity == pytest.approx(norm, rel=1e-12)
    assert found.mu == pytest.approx(norm, rel=1e-12)


def test_unreleased_rows_do_not_count():
    early = realised_privacy({(0,): 1}, SumRelease(CASES["inverse"]), 1.0, DELTA, 1)
    late = realised_privacy({(0,): 1}, SumRelease(CASES["inverse"]), 1.0, DELTA, N)
    assert early.sensitivity == pytest.approx(1.0)
    assert late.sensitivity == pytest.approx(math.sqrt(sum(0.81**j for j in range(N))))


def test_nobody_took_part():
    for patterns, released in (({}, 0), ({}, 4), ({(): 3}, 4)):
        found = realised_privacy(patterns, SumRelease(CASES["toeplitz"]), 1.0, DELTA, released, users=5)
        assert (found.epsilon, found.mu, found.worst_pattern) == (0.0, 0.0, ())
        assert set(found.quantiles.values()) == {0.0}
        assert (found.users, found.participants) == (5, 0)
    empty = realised_privacy({}, SumRelease(CASES["toeplitz"]), 1.0, DELTA, 0)
    assert (empty.users, empty.epsilon) == (0, 0.0)


def test_without_noise_epsilon_is_infinite():
    found = realised_privacy({(0,): 3}, SumRelease(CASES["toeplitz"]), 0.0, DELTA, N, users=4)
    assert math.isinf(found.epsilon)
    assert math.isinf(found.mu)
    assert (found.quantiles[0.0], found.quantiles[0.25], found.quantiles[0.5]) == (0.0, 0.0, math.inf)


def test_planned_noise_is_never_exceeded():
    """For every pattern the contract allows, ε is within the plan, and the worst pattern attains it."""
    contract = Participation(N, 2, 3)
    for factorization in CASES.values():
        planned = stated_sensitivity(factorization, contract)
        allowed = [(i, j) for i, j in itertools.combinations(range(N), 2) if j - i >= 3] + [
            (i,) for i in range(N)
        ]
        noise = 0.8 * planned.value
        found = realised_privacy(dict.fromkeys(allowed, 1), SumRelease(factorization), noise, DELTA, N)
        limit = dp_accounting.get_epsilon_gaussian(0.8, DELTA)
        assert found.epsilon <= limit * (1 + 1e-9)
        if planned.kind == "exact":
            assert found.epsilon == pytest.approx(limit, rel=1e-9)


def test_bad_arguments():
    for change, message in [
        ({"released_rounds": -1}, "T \\(released rounds\\)"),
        ({"released_rounds": N + 1}, "T \\(released rounds\\)"),
        ({"patterns": {(4,): 1}}, "pattern"),
        ({"patterns": {(0,): 1}, "released_rounds": 0}, "T"),
        ({"patterns": {(-1,): 1}}, "pattern"),
        ({"patterns": {(1, 1): 1}}, "pattern"),
        ({"patterns": {(1,): -1}}, "pattern"),
        ({"users": 1}, "N \\(users of the run\\)"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"delta": 0.0}, "δ"),
        ({"adjacency": "add"}, "adjacency"),
    ]:
        arguments = {
            "patterns": {(0, 3): 2},
            "release": SumRelease(CASES["toeplitz"]),
            "sigma": 1.0,
            "delta": DELTA,
            "released_rounds": 4,
            **change,
        }
        with pytest.raises(ValueError, match=message) as caught:
            realised_privacy(**arguments)
        assert "\n" not in str(caught.value)


def test_a_table_of_patterns_gives_the_same_as_a_dict():
    """Random histories with repeated patterns, against the plain dict and against an enumeration."""
    rng = np.random.default_rng(3)
    histories = [sorted(rng.choice(N, size=rng.integers(1, 4), replace=False).tolist()) for _ in range(300)]
    rounds = np.array([t for history in histories for t in history], dtype=np.int32)
    keys = np.repeat(np.arange(300), [len(history) for history in histories]).astype(np.int32)
    table = PatternTable.of_histories(rounds, keys)
    counts = {}
    for history in map(tuple, histories):
        counts[history] = counts.get(history, 0) + 1
    assert table.to_counts() == PatternTable.of_counts(counts).to_counts() == dict(sorted(counts.items()))
    assert (table.participants, table.patterns) == (300, len(counts))
    arguments = (SumRelease(CASES["inverse"]), 1.7, DELTA, N, "zero-out", 310)
    assert realised_privacy(table, *arguments) == realised_privacy(counts, *arguments)


def test_no_histories_no_patterns():
    nothing = np.empty(0, dtype=np.int32)
    assert PatternTable.of_histories(nothing, nothing).to_counts() == {}
    assert PatternTable.of_counts({(): 3, (1,): 0}).to_counts() == {}
