"""Both matrices and λ together: no pair that was tried does better than the certificate allows."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.factorization.matrices.toeplitz import Toeplitz
from fedmf.factorization.objectives.error import query_variances
from fedmf.factorization.sensitivity.joint import UserRange
from fedmf.moments.mechanism import jme
from fedmf.moments.pair_design import Goal, joint_design
from fedmf.participation import Adjacency, Participation
from fedmf.workload.toeplitz import average, exponential, prefix


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("k", "b", "bands"), [(1, 32, 32), (4, 8, 8), (4, 8, 20)])
def test_no_random_pair_beats_the_certified_one(adjacency: Adjacency, k: int, b: int, bands: int) -> None:
    n = 32
    participation, users = Participation(n, k, b), UserRange(0.5, 2, adjacency)
    first, second = Goal(prefix(n), 3, 0.2), Goal(exponential(0.8, n), 6, 5.0)
    made = joint_design(participation, users, 1.3, first, second, bands=bands)
    best = made.mechanism
    assert made.certificate >= 1 - 1e-9
    if bands <= b or adjacency == "zero-out":
        assert made.certificate == pytest.approx(1.0, abs=1e-6)
    rng = np.random.default_rng(2)
    base = [np.array(C.toeplitz_column()) for C in (best.first, best.second)]  # type: ignore[union-attr]
    least = np.inf
    for spread in np.geomspace(1e-3, 0.5, 60):
        pair = []
        for column in base:
            bent = column[:bands] * np.exp(spread * rng.normal(size=bands))
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
