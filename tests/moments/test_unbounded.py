"""Streams without an end: nobody loses more than a share, by every pattern, to noise as it was drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.covariance import FALSE_ALARM, covariance_fits

from fedmf.accounting import certified_sigma
from fedmf.factorization import Toeplitz, UserRange
from fedmf.moments import (
    ENDLESS,
    DiagonalMoment,
    Lifetime,
    RunningWorkload,
    SegmentMechanisms,
    Steady,
    UnboundedStream,
    jme,
)
from fedmf.moments.unbounded import unbounded_stream
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.participation import Participation
from fedmf.streaming import Layout, Settings
from fedmf.streaming.plans import UnboundedPlan, unbounded
from fedmf.workload import prefix

SIGMA = certified_sigma(8.0, 1e-5)
STEPS, WIDE = 14, 8000


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2, 4, 8, … steps."""
    monkeypatch.setattr(unbounded, "FIRST", 2)
    monkeypatch.setattr(unbounded, "GROWTH", 2)


def planned(dimension: int = 1, **more: Any) -> UnboundedPlan:
    """Rows of norm at most 1 and their squares: a row that is a unit vector moves both by 1."""
    asked = {"workloads": ("prefix",), "second": "diagonal", "bands": 3, "seed": 1, **more}
    settings = Settings(norm_bound=1.0, epsilon=8.0, delta=1e-5, unbounded=True, **asked)
    layout = Layout(tuple(f"x{i}" for i in range(dimension)), False, dimension, None)
    return UnboundedPlan.of(settings, layout)


def patterns(most: int, apart: int, steps: int = STEPS) -> Iterator[tuple[int, ...]]:
    """Every set of at most so many steps, no two less than `apart` from each other."""
    for count in range(1, most + 1):
        for steps_of_user in combinations(range(steps), count):
            if all(b - a >= apart for a, b in pairwise(steps_of_user)):
                yield steps_of_user


def scaled_strategies(plan: UnboundedPlan, steps: int = STEPS) -> list[np.ndarray]:
    """C/τ of both moments over the first steps, block after block: the noise is its inverse times z."""
    found = []
    for moment in range(2):
        whole = np.zeros((steps, steps))
        for j in range(plan.segments.of_step(steps - 1) + 1):
            made, start = plan.mechanisms.of(j), plan.segments.start(j)
            C, std = made.second_noise if moment else (made.first, made.first_std)
            stop = min(steps, start + plan.segments.steps(j))
            whole[start:stop, start:stop] = C.materialize()[: stop - start, : stop - start] / std
        found.append(whole)
    return found


def worst_loss(precisions: list[np.ndarray], most: int, apart: int) -> float:
    """max over patterns of μ²/m: one unit vector in every step of a pattern, zeros in the other world."""
    worst = 0.0
    for pattern in patterns(most, apart, len(precisions[0])):
        chosen = np.ix_(pattern, pattern)
        assert all(
            (precision[chosen] >= -1e-12).all() for precision in precisions
        )  # so this user is the worst
        worst = max(worst, sum(precision[chosen].sum() for precision in precisions) / len(pattern))
    return worst


CASES = [
    pytest.param({"max_participations": 1}, id="once"),
    pytest.param({"max_participations": 3, "min_separation": 3}, id="bands fit"),
    pytest.param({"max_participations": 3, "min_separation": 2}, id="bands overlap"),
    pytest.param({"max_participations": 4, "min_separation": 1}, id="every step"),
    pytest.param({"max_participations": 2, "min_separation": 2, "method": "ime"}, id="ime"),
    pytest.param({"max_participations": 2, "min_separation": 1, "workloads": ("average",)}, id="average"),
    pytest.param(
        {"max_participations": 3, "min_separation": 2, "workloads": ("exponential:0.8",)}, id="exponential"
    ),
    pytest.param({"max_participations": 3, "min_separation": 4, "workloads": ("window:4",)}, id="window"),
]


@pytest.mark.parametrize("more", CASES)
def test_no_pattern_costs_more_than_its_share(more: dict[str, Any]) -> None:
    """Over all patterns of a user, from the matrices: μ² ≤ (m/k)/σ², and for one row a user it is reached."""
    plan, k = planned(**more), more["max_participations"]
    share = 1 / (k * SIGMA**2)
    grams = [C.T @ C for C in scaled_strategies(plan)]
    found = worst_loss(grams, k, more.get("min_separation", 1))
    assert found <= share * (1 + 1e-9)
    assert found >= share * (1 - 1e-9 if k == 1 else 0.35)
    assert plan.multiplier_under(k, None) == pytest.approx(SIGMA, rel=1e-12)


def test_a_forgotten_share_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment calibrated as if it were the whole stream: k rows in k segments cost more than stated."""
    monkeypatch.setattr(Lifetime, "_inflation", lambda self, unit: 1.0)
    plan = planned(max_participations=3, min_separation=3)
    grams = [C.T @ C for C in scaled_strategies(plan)]
    losses = {p: sum(gram[np.ix_(p, p)].sum() for gram in grams) for p in patterns(3, 3)}
    assert max(losses.values()) > 1.5 / SIGMA**2


def noise_of(plan: UnboundedPlan, key: NoiseKey, stops: tuple[int, ...]) -> list[np.ndarray]:
    """Prefix sums of zero rows, a new stream from a saved state after each stop, undone to rows."""
    d, state = plan.layout.dimension, None
    parts: list[list[np.ndarray]] = [[], []]
    for start, stop in zip((0, *stops), (*stops, STEPS), strict=False):
        stream = plan.stream(key)
        if state is not None:
            stream.load_state_dict(state)
        block = stream.extend(torch.zeros(stop - start, d, dtype=torch.float64))
        assert block.t == start + 1
        parts[0].append(block.first.numpy())
        parts[1].append(block.second.numpy())
        state = stream.state_dict(kept_vectors=True)
    return [np.diff(np.concatenate(part), axis=0, prepend=0) for part in parts]


@pytest.mark.parametrize("more", CASES[:4])
def test_the_running_noise_costs_no_more_than_stated(more: dict[str, Any]) -> None:
    """μ of the worst user from the covariance of the noise as it was drawn: it is that of the matrices.

    The mean of 1ᵀS⁻¹1 over Wishart S is d/(d − T − 1) of the true one, with relative deviation √(2/d); six of
    them and 10⁻⁹ false alarms a pattern.
    """
    plan, k = planned(dimension=WIDE, **more), more["max_participations"]
    noises = noise_of(plan, NoiseKey.from_seed(2), ())
    for noise, C in zip(noises, scaled_strategies(plan), strict=True):
        assert covariance_fits(noise, C, 1.0)
        assert not covariance_fits(1.1 * noise, C, 1.0), "a wrong sigma must be rejected"
    precisions = [np.linalg.inv(noise @ noise.T / WIDE) * (WIDE - STEPS - 1) / WIDE for noise in noises]
    apart, worst = more.get("min_separation", 1), 0.0
    for pattern in patterns(k, apart):
        loss = sum(precision[np.ix_(pattern, pattern)].sum() for precision in precisions)
        worst = max(worst, loss * k / len(pattern))
    assert worst <= (1 + 6 * math.sqrt(2 / WIDE)) / SIGMA**2


def test_noise_goes_on_after_any_stop_with_the_same_bits() -> None:
    plan = planned(dimension=3, max_participations=3, min_separation=3)
    key = NoiseKey.from_seed(4)
    whole = noise_of(plan, key, ())
    for stops in ((1,), (2,), (5, 6, 7), tuple(range(1, STEPS))):
        again = noise_of(planned(dimension=3, max_participations=3, min_separation=3), key, stops)
        for one, other in zip(whole, again, strict=True):
            np.testing.assert_array_equal(one, other)


def test_segments_that_share_keys_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeySchedule, "part", lambda self, name, first: self)
    plan = planned(dimension=WIDE, max_participations=3, min_separation=3)
    noise, _ = noise_of(plan, NoiseKey.from_seed(2), ())
    assert not covariance_fits(noise, scaled_strategies(plan)[0], 1.0)


def steady_noise(steps: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Noise of one matrix of 3 bands over segments of 6 and 4 steps, and the matrix over τ."""
    c = [1.0, 0.6, 0.2]
    cut, contract = Steady(6, 2), Participation(6, 1, 6)
    made = jme(Toeplitz(c, 6), Toeplitz(c, 6), contract, UserRange(1.0, 2), 1.0)
    stream = UnboundedStream(
        cut,
        SegmentMechanisms(made, None, lambda segment, mechanism: None),
        DiagonalMoment(WIDE),
        (RunningWorkload(prefix(8), WIDE, rounds=ENDLESS), RunningWorkload(prefix(8), WIDE, rounds=ENDLESS)),
        (False, False),
        NoiseKey.from_seed(seed),
    )
    parts = [stream.extend(torch.zeros(m, WIDE, dtype=torch.float64)).first for m in (3, 4, steps - 7)]
    noise = np.diff(torch.cat(parts).numpy(), axis=0, prepend=0)
    return noise, Toeplitz(c, steps).materialize() / made.first_std


def test_one_matrix_goes_on_over_segments() -> None:
    noise, C = steady_noise(20)
    assert covariance_fits(noise, C, 1.0)
    assert not covariance_fits(1.1 * noise, C, 1.0), "a wrong sigma must be rejected"


def test_a_matrix_that_begins_again_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = unbounded_stream._carried

    def forgetting(*arguments: Any) -> dict[str, Any]:
        state = real(*arguments)
        state["first_noise"]["kept"] = torch.zeros_like(state["first_noise"]["kept"])
        return state

    monkeypatch.setattr(unbounded_stream, "_carried", forgetting)
    assert not covariance_fits(*steady_noise(20), 1.0)


@pytest.mark.parametrize("workload", ["prefix", "average", "exponential:0.8", "window:4"])
def test_standard_errors_are_those_of_the_releases(workload: str) -> None:
    """Sums of squares of the noise against χ² with d degrees of freedom, every step, both moments."""
    plan = planned(dimension=WIDE, max_participations=2, min_separation=3, workloads=(workload,))
    block = plan.stream(NoiseKey.from_seed(6)).extend(torch.zeros(STEPS, WIDE, dtype=torch.float64))
    alpha = FALSE_ALARM / (4 * STEPS)
    for moment, released in enumerate((block.first.numpy(), block.second.numpy())):
        squares = (released**2).sum(1) / plan.variances(moment, np.arange(1, STEPS + 1))
        assert (squares > stats.chi2.ppf(alpha, WIDE)).all()
        assert (squares < stats.chi2.isf(alpha, WIDE)).all()
        assert not (1.1**2 * squares < stats.chi2.isf(alpha, WIDE)).all()


@pytest.mark.parametrize("workload", ["prefix", "average", "exponential:0.8", "window:4"])
def test_releases_are_the_workload_of_rows_and_noise(workload: str) -> None:
    """Two streams with one key differ by the workload of their rows, and `row_sums` are its sums."""
    plan = planned(dimension=2, max_participations=1, workloads=(workload,))
    x = 0.5 * torch.rand(STEPS, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with_rows = plan.stream(NoiseKey.from_seed(7)).extend(x).first
    alone = plan.stream(NoiseKey.from_seed(7)).extend(torch.zeros_like(x)).first
    lag = np.subtract.outer(np.arange(STEPS), np.arange(STEPS)).astype(float)
    t = np.arange(1.0, STEPS + 1)[:, None]
    A = {
        "prefix": lag >= 0,
        "average": (lag >= 0) / t,
        "exponential:0.8": np.where(lag >= 0, 0.8 ** np.abs(lag), 0),
        "window:4": np.where((lag >= 0) & (lag < 4), 0.25, 0),
    }[workload]
    np.testing.assert_allclose((with_rows - alone).numpy(), A @ x.numpy(), atol=1e-12)
    np.testing.assert_allclose(plan.row_sums(0, np.arange(1, STEPS + 1)), A.sum(1), rtol=1e-12)


def test_every_number_of_rows_is_measured() -> None:
    """Beyond 64 they are taken together, never with less than the share of the smallest among them."""
    C = Toeplitz([1.0, 0.9, 0.8], 400)
    users, contract = UserRange(1.0, 1), Participation(400, 200, 2)
    unit = jme(C, C, contract, users, 1.0)
    life = Lifetime(200, 2, 1.0)
    exact = max(math.sqrt(200 / m) / unit.multiplier_under(Participation(400, m, 2)) for m in range(1, 201))
    assert exact * (1 - 1e-12) <= life._inflation(unit) <= 1.03 * exact
