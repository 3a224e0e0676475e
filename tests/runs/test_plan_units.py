"""The units of a plan: one W for all that a round releases, and records that understate it are
refused.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.amplified_runs import keys
from support.mean_norms import UNIT, MeanNorm
from support.pair_runs import RecordedPair, pair_run
from support.small_runs import small_run

import fedmf
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.user_statistics import SIGNS
from fedmf.errors import LedgerError
from fedmf.moments import DiagonalMoment
from fedmf.noise.key import NoiseKey
from fedmf.noise.schedule import KeySchedule
from fedmf.release.noisy_sum import NoisyStatistic
from fedmf.release.plan import Plan
from fedmf.release.statistics import update_factor
from fedmf.runs.plan_fields import cohort_law, plan_fields
from fedmf.runs.run import Run
from fedmf.runs.run_plan import plan_of
from fedmf.runs.statistics import QuantileClipping

DIMENSION = 10**6
LARGEST_SCALE = 2.0**36


def planned(run: Run, dimension: int = DIMENSION) -> Plan:
    optimizer = run.optimizer_source.build([(3,)], run.cohorts.rounds)
    return plan_of(run, optimizer, dimension)


def with_statistics(**changes: object) -> Run:
    run = small_run(mechanism="bsr", bands=4, **changes)
    clipping = QuantileClipping(budget_share=0.1)
    return dataclasses.replace(run, clipping=clipping, extra_releases=(MeanNorm(budget_share=0.2),))


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_noise_covers_sensitivity_and_movement(adjacency: str) -> None:
    """1/σ = μ = (s + W)/τ, with W = max C_tt·√(dn)·(1 + 2η)·2⁻ᴮ of a strategy with feedback."""
    plan = planned(small_run(mechanism="bsr", bands=4, adjacency=adjacency))
    factor = {"zero-out": 1, "replace-one": 2}[adjacency]
    C = plan.mechanism.factorization.materialize()
    (noise,) = plan.rounding.parts
    assert noise.bits == 31
    assert 0 <= noise.eta < 0.1
    movement = C.diagonal().max() * math.sqrt(DIMENSION * len(C)) * (1 + 2 * noise.eta) / 2**31
    assert plan.rounding.movement == pytest.approx(movement, rel=1e-9)
    assert plan.rounding.movement >= movement
    mu = (plan.sensitivity.value * factor + plan.rounding.movement) / plan.relative_noise_std
    assert mu <= 1 / plan.noise_multiplier
    assert mu == pytest.approx(1 / plan.noise_multiplier, rel=1e-9)
    assert plan.moved(plan.sensitivity.value) * factor * plan.noise_multiplier == pytest.approx(
        plan.relative_noise_std, rel=1e-9
    )
    assert noise.std == pytest.approx(plan.relative_noise_std * 2**31, rel=1e-12)


def test_statistics_count_among_what_integers_cost() -> None:
    """Updates, signs and norms each have noise that their share of μ² allows, and a movement."""
    plan = planned(with_statistics())
    updates, signs, norms = plan.rounding.parts
    ratios = [update_factor(plan.statistics)]
    ratios += [plan.statistics[0].factor, plan.statistics[1].factor * UNIT]
    for noise, ratio in zip((updates, signs, norms), ratios, strict=True):
        assert noise.std == pytest.approx(plan.relative_noise_std * ratio * 2.0**noise.bits)
    squares = [(n.movement / r) ** 2 for n, r in zip(plan.rounding.parts, ratios, strict=True)]
    assert plan.rounding.movement == pytest.approx(math.sqrt(sum(squares)), rel=1e-9)
    assert plan.rounding.movement > math.sqrt(squares[0])
    assert norms.bits < signs.bits == 31  # the noise of a norm is 2²⁰ times as large
    assert plan.rounding.failure == pytest.approx(updates.failure + signs.failure + norms.failure)


def test_second_moments_count_among_what_integers_cost() -> None:
    run = pair_run(RecordedPair(DiagonalMoment(50)), clip_norm=0.25)
    plan = planned(run, 50)
    assert plan.second is not None
    updates, second = plan.rounding.parts
    ratio = 1 / (math.sqrt(plan.second.weight) * 0.25)
    assert second.std == pytest.approx(plan.relative_noise_std * ratio * 2.0**second.bits)
    absolute = second.std * 0.25**2 * 2.0**-second.bits
    assert absolute == pytest.approx(plan.second_noise_std, rel=1e-12)
    joint = math.hypot(updates.movement, second.movement / ratio)
    assert plan.rounding.movement == pytest.approx(joint, rel=1e-9)


def test_huge_noise_has_a_coarser_unit() -> None:
    """ρ_t stays at most 2³⁶, and noise is what ε asks for all the same."""
    plan = planned(small_run(mechanism="bsr", bands=4, epsilon=0.001))
    (noise,) = plan.rounding.parts
    assert 8 <= noise.bits < 31
    diagonal = plan.mechanism.factorization.materialize().diagonal()
    assert LARGEST_SCALE / 4 < noise.std / diagonal.min() <= LARGEST_SCALE
    assert plan.bits_of(0) == noise.bits
    assert plan.allowed(0).epsilon == pytest.approx(0.001, rel=1e-6)


def altered(values: Mapping[str, Any], path: str, change: float) -> dict[str, Any]:
    changed = copy.deepcopy(dict(values))
    place: Any = changed
    *above, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in above:
        place = place[key]
    place[last] = type(place[last])(place[last] * change)
    return changed


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("rounding.movement", 0.5),
        ("rounding.parts.0.bits", 30 / 31),
        ("rounding.parts.0.std", 0.999),
        ("rounding.parts.2.std", 0.999),
        ("relative_noise_std", 0.999),
        ("relative_noise_std", 1.001),
        ("dimension", 100),
    ],
)
def test_a_record_that_understates_noise_or_movement_is_refused(path: str, change: float) -> None:
    run = with_statistics()
    plan = planned(run)
    values = json.loads(json.dumps(plan.to_dict()))
    asked = plan_fields(run.privacy, run.cohorts, run.statistics)
    again = Plan.from_dict(values, **asked)
    assert again.allowed(3) == plan.allowed(3)
    wrong = altered(values, path, change)
    doctored = Plan.from_dict(wrong, **asked)
    with pytest.raises(LedgerError, match=r"the header states noise"):
        doctored.allowed(3)


@pytest.mark.parametrize("accountant", ["cyclic-poisson", "balls-in-bins"])
def test_amplified_claims_leave_room_for_the_movement(accountant: str) -> None:
    """W/τ of a large model is paid from ε and δ, and a record that allowed for less is refused."""
    run = small_run(None, **keys(accountant))
    plan = planned(run, 10**9)
    law = cohort_law(run.cohorts, plan.users, plan.participation)
    assert plan.amplification is not None
    actual = plan.rounding.movement / plan.relative_noise_std
    assert 1e-5 < actual <= plan.amplification.rounding < 10 * actual
    assert plan.allowed(0, law).epsilon == 1.0
    values = altered(json.loads(json.dumps(plan.to_dict())), "amplification.rounding", 0.01)
    doctored = Plan.from_dict(values, **plan_fields(run.privacy, run.cohorts, run.statistics))
    with pytest.raises(LedgerError, match=r"rounding .* must be at least"):
        doctored.allowed(0, law)


def signs_of(users: int) -> ClippedSum:
    total = ClippedSum(2, 1.0, statistics=[SIGNS])
    total.add_updates(torch.full((users, 2), 0.1))
    return total


def test_counts_of_adaptive_clipping_are_released_in_fine_units() -> None:
    """One user is 2³¹ units of a count, so W is nothing; five users are exactly five."""
    rule = QuantileClipping(budget_share=0.1, rounds_per_update=4)
    run = dataclasses.replace(small_run(mechanism="identity"), clipping=rule)
    plan = fedmf.plan(run)
    noise = plan.noise_of(1)
    assert noise is not None
    assert noise.bits == 31
    assert noise.movement < 1e-8
    counts = []
    for users in (0, 5):
        released = NoisyStatistic(rule, plan, KeySchedule.of(NoiseKey.from_seed(7)))
        mean = float(released.release(0, signs_of(users)).mean(plan.users_per_round))
        share = rule.after(0, mean, rule.begin(plan.clip_norm))["shares"]
        counts.append((share - 0.5) * 2 * run.cohorts.users_per_round)
    assert counts[1] - counts[0] == pytest.approx(5, abs=1e-9)
    assert abs(counts[0] - round(counts[0])) > 1e-3


def test_large_statistics_without_noise_do_not_overflow() -> None:
    """Fine units are for noise alone: sums of 2²⁰ a user in units of 2⁻³¹ pass 2⁶³ at 4,096
    users.
    """
    run = small_run(private=False, mechanism="identity")
    run = dataclasses.replace(run, extra_releases=(MeanNorm(budget_share=0.2),))
    plan = fedmf.plan(run)
    released = NoisyStatistic(plan.statistics[0], plan, KeySchedule.of(NoiseKey.from_seed(7)))
    total = ClippedSum(2, 1.0, statistics=[MeanNorm(budget_share=0.2).summed()])
    total.add_updates(torch.full((5000, 2), 2.0))
    mean = float(released.release(0, total).mean(plan.users_per_round)) / UNIT
    assert mean == pytest.approx(5000 / run.cohorts.users_per_round, rel=1e-5)
