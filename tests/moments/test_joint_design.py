"""Both matrices and λ together: no pair that was tried does better than the certificate allows."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.factorization import build
from fedmf.factorization.matrices.toeplitz import Toeplitz
from fedmf.factorization.objectives.error import query_variances
from fedmf.factorization.sensitivity import pattern_layers
from fedmf.factorization.sensitivity.joint import UserRange
from fedmf.moments.mechanism import jme
from fedmf.moments.pair_design import Goal, best_pair, joint_design, shared_multipliers
from fedmf.participation import Adjacency, Participation
from fedmf.workload.toeplitz import average, exponential, prefix


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("k", "b", "bands"), [(1, 32, 32), (4, 8, 8), (4, 8, 20)])
def test_no_random_pair_beats_the_certified_one(adjacency: Adjacency, k: int, b: int, bands: int) -> None:
    n = 32
    participation, users = Participation(n, k, b), UserRange(0.5, 2, adjacency)
    goals = first, second = Goal(prefix(n), 3, 0.2), Goal(exponential(0.8, n), 6, 5.0)
    made = joint_design(participation, users, 1.3, first, second, bands=bands)
    best = made.mechanism
    assert made.certificate >= 1 - 1e-9
    assert made.certificate < 1.6
    rng = np.random.default_rng(2)
    base = [build("banded-toeplitz", participation, goal.workload, bands).factorization for goal in goals]
    least = np.inf
    for spread in np.geomspace(1e-3, 0.5, 60):
        pair = []
        for C in base:
            bent = C.columns([0])[:bands, 0] * np.exp(spread * rng.normal(size=bands))
            pair.append(Toeplitz(np.minimum.accumulate(bent), n))
        weight = (best.weight or 0.0) * np.exp(spread * rng.normal())
        other = jme(*pair, participation, users, 1.3, weight)
        assert other.second_std is not None
        error = sum(
            goal.importance * goal.noises * std**2 * query_variances(C, goal.workload).sum()
            for goal, std, C in zip((first, second), (other.first_std, other.second_std), pair, strict=True)
        )
        least = min(least, float(error))
    assert made.error <= made.certificate * least * (1 + 1e-9)


def test_error_is_that_of_the_mechanism_and_zero_weight_is_refused() -> None:
    n = 16
    participation = Participation(n, 1, n)
    goals = Goal(average(n), 2), Goal(average(n), 3)
    made = joint_design(participation, UserRange(1.0, 2, "replace-one"), 1.0, *goals)
    alone = made.mechanism.first
    assert made.mechanism.second is not None
    total = 2 * made.mechanism.first_std**2 * query_variances(alone, average(n)).sum()
    total += (
        3 * (made.mechanism.second_std or 0.0) ** 2 * query_variances(made.mechanism.second, average(n)).sum()
    )
    assert made.error == pytest.approx(float(total), rel=1e-12)
    with pytest.raises(ValueError, match="positive"):
        Goal(average(n), 2, 0.0)


def test_longer_horizons_say_that_nothing_is_certified() -> None:
    n = 2100
    made = joint_design(
        Participation(n, 1, n), UserRange(1.0, 2), 1.0, Goal(prefix(n), 3), Goal(average(n), 6), "square-root"
    )
    assert made.certificate == np.inf


@pytest.mark.parametrize(("k", "b"), [(1, 24), (2, 12), (3, 8)])
def test_shared_multipliers_are_accounted_for_and_pay(k: int, b: int) -> None:
    """Prefix sums want small late columns, averages small early ones: the same divisors help both."""
    n = 24
    participation, users = Participation(n, k, b), UserRange(1.0, 2)
    goals = Goal(prefix(n), 3), Goal(average(n), 6)
    C_1, C_2 = (build("square-root", participation, goal.workload).factorization for goal in goals)
    _, before, error = best_pair([(C_1, C_2)], participation, users, *goals)
    divided = shared_multipliers(before, goals)
    _, after, lower = best_pair([divided], participation, users, *goals)
    assert lower < 0.99 * error
    for plain, scaled in zip((C_1, C_2), divided, strict=True):
        shares = plain.materialize() / np.where(plain.materialize() == 0, 1.0, scaled.materialize())
        np.testing.assert_allclose(
            np.diag(shares), np.diag(plain.materialize()) / np.diag(scaled.materialize())
        )
    first, second = (C.materialize() for C in divided)
    X = first.T @ first + after.weight * second.T @ second  # type: ignore[operator]
    worst = max(
        float(X[np.ix_(pattern, pattern)].sum()) for layer in pattern_layers(n, k, b) for pattern in layer
    )
    assert after.sensitivity.value >= np.sqrt(worst) * (1 - 1e-12)
