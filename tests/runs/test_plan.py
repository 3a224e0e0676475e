"""The plan: noise calibrated for the budget, and ε so far from the block of C that was released."""

import itertools
import json
import math

import dp_accounting
import numpy as np
import pytest
from support.small_runs import small_run

import fedmf
from fedmf.release.plan import Plan
from fedmf.runs.plan_fields import plan_fields
from fedmf.runs.run import Run

KEYS = [
    {"mechanism": "bsr", "bands": 6},
    {"mechanism": "bisr", "bands": 3},
    {"mechanism": "optimal-diagonal", "adjacency": "replace-one"},
]


def epsilon_by_enumeration(run: Run, plan: Plan, released: int) -> float:
    """ε of the worst pattern against what the first rounds show: the leading block of C,
    densely.
    """
    block = plan.mechanism.factorization.materialize()[:released, :released]
    b = run.participation.min_separation
    k = run.participation.max_participations
    worst = 0.0
    for size in range(1, k + 1):
        for pattern in itertools.combinations(range(released), size):
            if all(j - i >= b for i, j in itertools.pairwise(pattern)):
                worst = max(worst, float(np.linalg.norm(block[:, list(pattern)].sum(axis=1))))
    factor = 2.0 if run.privacy.adjacency == "replace-one" else 1.0
    return dp_accounting.get_epsilon_gaussian(
        plan.noise_std / (run.privacy.clip_norm * factor * worst), run.privacy.delta
    )


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: keys["mechanism"])
def test_epsilon_so_far_is_that_of_the_leading_block(keys: dict) -> None:
    run = small_run(**keys)
    plan = fedmf.plan(run)
    assert plan.epsilon_after(0) == 0.0
    for released in range(1, run.cohorts.rounds + 1):
        expected = epsilon_by_enumeration(run, plan, released)
        assert plan.epsilon_after(released) == pytest.approx(expected, rel=1e-6), released
    assert plan.epsilon_after(run.cohorts.rounds) == pytest.approx(
        run.privacy.requested_epsilon, rel=1e-6
    )


def test_without_privacy_nothing_is_promised() -> None:
    plan = fedmf.plan(small_run(mechanism="identity", private=False))
    assert plan.noise_std == 0
    assert plan.epsilon_after(1) == math.inf


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: keys["mechanism"])
def test_a_plan_survives_the_ledgers_header_bit_for_bit(keys: dict) -> None:
    run = small_run(**keys)
    plan = fedmf.plan(run)
    again = Plan.from_dict(
        json.loads(json.dumps(plan.to_dict())), **plan_fields(run.privacy, run.cohorts, ())
    )
    assert again.to_dict() == plan.to_dict()
    assert again.noise_std == plan.noise_std
    assert np.array_equal(
        again.mechanism.factorization.materialize(), plan.mechanism.factorization.materialize()
    )
