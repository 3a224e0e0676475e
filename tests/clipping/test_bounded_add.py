"""`add_bounded`: any row of an engine moves the sums by at most 2ᴮ, in exact integers."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from clipping.exact import block_features, square_sum
from numpy.typing import NDArray
from support.small_runs import small_run

import fedmf
from fedmf.clipping.bounded_add import FRACTION_BITS, add_bounded, square_limit
from fedmf.clipping.clipped_sum import SumSpec
from fedmf.errors import UnsoundSumError
from fedmf.moments import BlockEnergies, DiagonalMoment, SecondMoment
from fedmf.training import LocalTrainer, Task, checked_sum

UNIT = 2**FRACTION_BITS
ENGINES = {
    "without weights": {},
    "one call a user": {"epochs": 9},
    "vmap": {"engine": "vmap"},
    "loop": {"engine": "loop"},
}


def empty(dimension: int, sizes: list[int]) -> tuple[NDArray[np.int64], ...]:
    """Sums that hold something already, and the ends of blocks."""
    ends = np.cumsum(sizes) if max(sizes) > 1 else np.zeros(0, np.int64)
    return np.arange(dimension), np.arange(len(sizes)), ends


#: B and F of the units.
UNITS = [(31, 31), (31, 40), (20, 31), (9, 9)]


@pytest.mark.parametrize(("bits", "feature_bits"), UNITS)
@pytest.mark.parametrize("dimension", [1, 16, 47])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_user_adds_at_most_its_worth_or_nothing(
    dtype: type[np.floating], dimension: int, bits: int, feature_bits: int
) -> None:
    """Rows of every scale, NaN and infinity among them, times factors that are right, nearly so, or
    wrong.
    """
    unit = 2**bits
    limit = square_limit(dimension, bits)
    shift = 2 * bits - feature_bits
    rng = np.random.default_rng(dimension)
    seen = {True: 0, False: 0}
    lowest, highest = {np.float32: (-44, 38), np.float64: (-90, 90)}[dtype]
    for turn in range(600):
        row = (rng.standard_normal(dimension) * 10.0 ** rng.uniform(lowest, highest)).astype(dtype)
        norm = float(np.linalg.norm(row.astype(np.float64))) or 1.0
        factor = (
            unit
            / norm
            * 10.0 ** rng.choice([0.0, -1e-9, 1e-9, -3.0, 3.0, 200.0])
            * rng.choice([-1, 1])
        )
        if turn % 9 == 0:
            row[rng.integers(dimension)] = rng.choice([math.nan, math.inf, -math.inf])
        if turn % 31 == 0:
            factor = rng.choice([math.nan, math.inf, 0.0])
        sizes = [1] * dimension if turn % 2 else [dimension]
        into = empty(dimension, sizes)
        before = empty(dimension, sizes)
        origin = np.zeros(0, dtype)
        change = row
        with np.errstate(over="ignore", invalid="ignore"):
            if turn % 5 == 0:
                origin = row[::-1].copy()
                change = row - origin
            scaled = change.astype(np.float64) * factor
        total, second, ends = into
        square = add_bounded(row, origin, factor, limit, total, second, shift, ends)
        seen[square >= 0] += 1
        if square < 0:
            for x, y in zip(into, before, strict=True):
                assert np.array_equal(x, y)
            if np.isfinite(scaled).all():
                assert square_sum(map(int, scaled)) > unit**2 * (1 - 1e-12)
            continue
        integers = (into[0] - before[0]).tolist()
        assert integers == list(map(int, scaled))
        assert square_sum(integers) <= unit**2
        assert square == pytest.approx(square_sum(integers), rel=1e-12)
        assert (into[1] - before[1]).tolist() == block_features(integers, sizes, shift)
    assert min(seen.values()) > 100


@pytest.mark.parametrize("dimension", [1, 64])
def test_the_limit_is_where_it_must_be(dimension: int) -> None:
    """Equal entries: the largest that are let in have Σ n² ≤ 2⁶², and hardly less."""
    low = 0
    high = 2 * UNIT
    while high - low > 1:
        middle = (low + high) // 2
        one = np.ones(dimension, np.float32)
        none = np.zeros(0, np.float32)
        total, second, ends = empty(dimension, [dimension])
        limit = square_limit(dimension, FRACTION_BITS)
        square = add_bounded(one, none, float(middle), limit, total, second, FRACTION_BITS, ends)
        if square >= 0:
            low = middle
        else:
            high = middle
    assert UNIT**2 * (1 - 1e-8) < dimension * low**2 <= UNIT**2


def test_a_row_that_only_rounding_makes_short_enough_adds_nothing() -> None:
    """Σ n² is 2⁶² + 1, and 2⁶² in float64."""
    row = np.array([UNIT, 1.0], np.float32)
    total = np.zeros(2, np.int64)
    none = np.zeros(0, np.float32)
    no_features = np.zeros(0, np.int64)
    limit = square_limit(2, FRACTION_BITS)
    assert add_bounded(row, none, 1.0, limit, total, no_features, 0, no_features) == -1.0
    assert not total.any()


def digits(engine: str) -> tuple[LocalTrainer, Task, list[str]]:
    settings = ENGINES[engine]
    run = small_run(dataset="digits", **{f"local_{key}": value for key, value in settings.items()})
    task = run.task_source.build()
    return LocalTrainer(task, run.client), task, [str(user) for user in task.dataset.user_ids]


def moments(dimension: int) -> dict[str, tuple[SecondMoment, list[int]]]:
    blocks = [5, 1, dimension - 6]
    return {
        "squares": (DiagonalMoment(dimension), [1] * dimension),
        "blocks": (BlockEnergies(blocks), blocks),
    }


@pytest.mark.parametrize(
    ("engine", "moment"), list(zip(ENGINES, ("squares", "blocks") * 2, strict=True))
)
def test_second_moments_are_those_of_each_users_integers(engine: str, moment: str) -> None:
    """By brute force, from a sum of each user alone."""
    trainer, task, users = digits(engine)
    form, sizes = moments(task.model.dimension)[moment]
    expected = np.zeros(len(sizes), np.int64)
    origin = task.model.initial()
    whole = SumSpec(form.dimension, 0.05, form).empty()
    assert trainer.add_updates(origin, users[:6], 0, whole) == []
    for user in users[:6]:
        alone = SumSpec(form.dimension, 0.05, form).empty()
        trainer.add_updates(origin, [user], 0, alone)
        integers = alone.fixed_point.tolist()
        features = block_features(integers, sizes, FRACTION_BITS)
        assert alone.parts["second"].tolist() == features
        assert 0.99 < sum(features) / UNIT <= 1.0
        expected += alone.parts["second"].numpy()
    assert np.array_equal(whole.parts["second"].numpy(), expected)


class Mistaken:
    """Makes a trainer add a sum that no clipped update has, for one user and some engines."""

    def __init__(self, user: str, engines: set[str]) -> None:
        self.user = user
        self.engines = engines
        self.true = LocalTrainer.add_updates

    def __call__(self, trainer, parameters, users, t, total, *more):  # type: ignore
        failures = self.true(trainer, parameters, users, t, total, *more)
        if self.user in users and trainer.local.engine in self.engines:
            total.fixed_point[0] = -(2**63)
        return failures

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LocalTrainer, "add_updates", lambda *arguments: self(*arguments))


def test_a_bad_slice_is_made_again_on_the_reference_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, task, users = digits("without weights")
    sums = SumSpec(task.model.dimension, 0.05)
    origin = task.model.initial()
    right = sums.empty()
    trainer.reference().add_updates(origin, users, 0, right)
    Mistaken(users[2], {"auto"}).install(monkeypatch)
    with caplog.at_level(logging.ERROR, "fedmf"):
        total, failures = checked_sum(trainer, sums, origin, users, 0)
    assert "computed again, user by user" in caplog.text
    assert failures == []
    assert total.users == len(users)
    assert torch.equal(total.fixed_point, right.fixed_point)


def test_a_second_failure_ends_a_run_before_anything_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(dataset="digits")
    task = run.task_source.build()
    Mistaken(str(task.dataset.user_ids[0]), {"auto", "loop"}).install(monkeypatch)
    with pytest.raises(UnsoundSumError, match="a bug of fedmf"):
        fedmf.simulate(run, tmp_path / "run")
