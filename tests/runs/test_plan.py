"""The plan: noise calibrated for the budget, and ε so far from the block of C that was released."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from support.small_runs import small_config

from fedmf.noise.key import NoiseKey
from fedmf.runs.config import Config
from fedmf.runs.plan import Plan, plan_run

KEYS = [
    {"mechanism": "identity"},
    {"mechanism": "bsr", "bands": 6},
    {"mechanism": "bisr", "bands": 3},
    {"mechanism": "normalized-bifr", "bands": 3, "mechanism_params": "gamma=0.7"},
    {"mechanism": "optimal-diagonal", "adjacency": "replace-one"},
]


def epsilon_by_enumeration(config: Config, plan: Plan, released: int) -> float:
    """ε of the worst pattern against what the first rounds show: the leading block of C, densely."""
    block = plan.mechanism.factorization.materialize()[:released, :released]
    b, k = config.participation.min_separation, config.participation.max_participations
    worst = 0.0
    for size in range(1, k + 1):
        for pattern in itertools.combinations(range(released), size):
            if all(j - i >= b for i, j in itertools.pairwise(pattern)):
                worst = max(worst, float(np.linalg.norm(block[:, list(pattern)].sum(axis=1))))
    factor = 2.0 if config.adjacency == "replace-one" else 1.0
    return dp_accounting.get_epsilon_gaussian(
        plan.noise_std / (config.clip_norm * factor * worst), config.delta
    )


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: keys["mechanism"])
def test_epsilon_so_far_is_that_of_the_leading_block(keys: dict) -> None:
    config = small_config(**keys)
    plan = plan_run(config)
    assert plan.epsilon_after(0) == 0.0
    for released in range(1, config.rounds + 1):
        expected = epsilon_by_enumeration(config, plan, released)
        assert plan.epsilon_after(released) == pytest.approx(expected, rel=1e-6), released
    assert plan.epsilon_after(config.rounds) == pytest.approx(config.epsilon, rel=1e-6)


def test_without_privacy_nothing_is_promised() -> None:
    plan = plan_run(small_config(mechanism="identity", private=False))
    assert plan.noise_std == 0
    assert plan.epsilon_after(1) == math.inf


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: keys["mechanism"])
def test_a_plan_survives_the_ledgers_header_bit_for_bit(keys: dict) -> None:
    import json

    config = small_config(**keys)
    plan = plan_run(config)
    header = json.loads(json.dumps(plan.header(NoiseKey.from_seed(1), 10).to_dict()))
    again = Plan.from_header(config, header)
    assert again.noise_std == plan.noise_std
    assert np.array_equal(
        again.mechanism.factorization.materialize(), plan.mechanism.factorization.materialize()
    )
