"""The best of some pairs of matrices, each with its own weight."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.mechanisms.closed_forms import identity, square_root
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import average, exponential, prefix
from fedmf.moments import AIMS, METHODS, BlockEnergies, FullMatrix, jme, weight_for
from fedmf.moments.weights import Goal, best_pair, best_weight
from fedmf.participation import Participation


def test_the_best_pair_has_the_least_error_of_its_mechanism() -> None:
    n = 32
    part = Participation(n, 4, 8)
    users = UserRange(0.5, 2, "replace-one")
    goals = Goal(prefix(n), 3, 0.2), Goal(exponential(0.8, n), 6, 5.0)
    made = [
        build(name, part, goals[0].workload).factorization for name in ("identity", "square-root")
    ]
    pairs = [(first, second) for first in made for second in made]
    index, best, error = best_pair(pairs, part, users, *goals, 1.3)
    stds = best.first_std, best.second_noise[1]
    total = sum(
        goal.importance * goal.noises * std**2 * query_variances(C, goal.workload).sum()
        for goal, std, C in zip(goals, stds, pairs[index], strict=True)
    )
    assert error == pytest.approx(float(total), rel=1e-12)
    assert error == min(best_pair([pair], part, users, *goals, 1.3)[2] for pair in pairs)
    with pytest.raises(ValueError, match="positive"):
        Goal(average(n), 2, 0.0)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_best_weight_minimizes_the_weighted_error(  # type: ignore[no-untyped-def]
    adjacency,
) -> None:
    C1 = square_root(12)
    C2 = identity(12)
    p = Participation(12, 3, 4)
    users = UserRange(0.7, 2, adjacency)
    for costs in ((1.0, 0.01), (1.0, 1.0), (1.0, 500.0)):
        found = best_weight(C1, C2, p, users, *costs)

        def error(weight: float, costs: tuple[float, float] = costs) -> float:
            made = jme(C1, C2, p, users, 1.0, weight)
            return costs[0] * made.first_std**2 + costs[1] * (made.second_std or 0.0) ** 2

        tried = [error(found * factor) for factor in np.geomspace(1e-4, 1e4, 400)]
        assert error(found) <= min(tried) * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_weight_is_for_what_is_asked(adjacency) -> None:  # type: ignore[no-untyped-def]
    """The mean's noise is 1.05 times that alone; a covariance's error, a density's divergence is
    least.
    """
    C = square_root(12)
    p = Participation(12, 3, 4)
    d = 5
    users = UserRange(0.7, d, adjacency)
    moment = FullMatrix(d)
    q = (0.04, 0.04)
    sigma = 2.0
    weights = {aim: weight_for(aim, [C], p, users, moment, q, sigma) for aim in AIMS}
    alone = METHODS["pp"].mechanism([C], p, users, sigma).first_std
    assert jme(C, C, p, users, sigma, weights["mean"]).first_std == pytest.approx(
        1.05 * alone, rel=1e-9
    )
    spread = users.norm_bound**2 / (2 * d)
    m = d * (d + 1)

    def divergence(weight: float, of_mean: float) -> float:
        made = jme(C, C, p, users, sigma, weight)
        v = made.first_std**2 * q[0]
        v_2 = made.second_noise[1] ** 2 * q[1]
        matrix = m * (v_2 / 2 + v**2) + 2 * (d + 1) * v * users.norm_bound**2 / 2
        return of_mean * d * v / (2 * spread) + matrix / (4 * spread**2)

    for aim, of_mean in (("covariance", 0.0), ("density", 1.0)):
        tried = [
            divergence(weights[aim] * factor, of_mean) for factor in np.geomspace(0.01, 100, 200)
        ]
        assert divergence(weights[aim], of_mean) <= min(tried) * (1 + 1e-9)
    for aim in ("covariance", "variance"):
        with pytest.raises(ValueError, match="weight must be a number or mean"):
            weight_for(aim, [C], p, users, BlockEnergies([d]), q, sigma)
