"""Partitions by size and by label: complete, disjoint, and skewed as they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.data.digit_images import Digits
from fedmf.data.options import PARTITIONS
from fedmf.data.partitions import (
    Partition,
    apportion,
    pareto_quantiles,
    partition_by_label,
    partition_by_shards,
)

laws = settings(derandomize=True, max_examples=40, deadline=None, database=None)


def check_complete(parts: Partition, examples: int, users: int) -> None:
    """Every example belongs to exactly one user, and every user owns some."""
    assert len(parts) == users
    assert sorted(parts.order.tolist()) == list(range(examples))
    assert (parts.sizes >= 1).all()
    assert all((np.diff(part) > 0).all() for part in parts)


@laws
@given(
    st.sampled_from(sorted(PARTITIONS)),
    st.integers(1, 60),
    st.integers(0, 7),
    st.floats(1e-3, 1e3),
    st.floats(1.001, 50),
    st.integers(0, 2**32),
)
def test_every_example_belongs_to_one_user(
    kind: str, users: int, extra: int, alpha: float, exponent: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    examples = users if kind == "each-example" else 2 * users + extra * 11
    labels = rng.integers(0, 5, size=examples)
    plan = Digits(users, kind, exponent, dirichlet_alpha=alpha)  # type: ignore[arg-type]
    parts = plan.split(labels, np.random.default_rng(seed))
    check_complete(parts, labels.size, users)
    again = plan.split(labels, np.random.default_rng(seed))
    assert np.array_equal(parts.order, again.order)
    assert np.array_equal(parts.edges, again.edges)


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_as_many_users_as_examples_and_no_more(kind: str) -> None:
    labels = np.array([0, 2, 2, 0, 2, 0, 2])
    plan = Digits(7, kind, shards_per_user=1)  # type: ignore[arg-type]
    check_complete(plan.split(labels, np.random.default_rng(0)), 7, 7)
    with pytest.raises(ValueError, match="number of training examples"):
        replace(plan, users=8).split(labels, np.random.default_rng(0))


def test_shards_give_few_labels() -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 60))
    for shards in (1, 2, 3):
        parts = partition_by_shards(labels, 20, shards, np.random.default_rng(0))
        # 600/(20·s) divides 60: a shard holds a single label.
        assert max(len(set(labels[part])) for part in parts) == shards
        assert set(parts.sizes.tolist()) == {30}


@pytest.mark.parametrize("shards", [0, -1, 31])
def test_impossible_shards_are_refused(shards: int) -> None:
    with pytest.raises(ValueError, match=f"shards_per_user must be at most 600.*20 times {shards}"):
        partition_by_shards(np.zeros(600, dtype=np.int64), 20, shards, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("kind", "knob", "skewed", "even"),
    [("power-law", "size_exponent", 1.1, 40.0), ("dirichlet-sizes", "dirichlet_alpha", 0.1, 500.0)],
)
def test_sizes_are_as_skewed_as_asked(kind: str, knob: str, skewed: float, even: float) -> None:
    labels = np.zeros(10_000, dtype=np.int64)

    def top_share(value: float) -> float:
        plan = Digits(100, kind, **{knob: value})  # type: ignore[arg-type]
        sizes = np.sort(plan.split(labels, np.random.default_rng(0)).sizes)
        return float(sizes[-10:].sum() / sizes.sum())

    assert top_share(skewed) > 0.4
    assert top_share(even) == pytest.approx(0.1, abs=0.04)


def test_label_skew_is_that_of_one_draw_after_the_other() -> None:
    """The mean label counts of each user, against a plain loop that takes one example at a time."""
    labels = np.repeat([0, 1, 2], [30, 10, 5])

    def plain(rng: np.random.Generator) -> np.ndarray:
        left, counts = np.array([30, 10, 5]), np.zeros((3, 3))
        for u in range(3):
            taste = rng.dirichlet(np.full(3, 0.5))
            for _ in range(15):
                weights = np.where(left > 0, taste, 0.0)
                weights = weights if weights.sum() > 0 else left.astype(float)
                c = rng.choice(3, p=weights / weights.sum())
                left[c] -= 1
                counts[u, c] += 1
        return counts

    def batched(rng: np.random.Generator) -> np.ndarray:
        return np.stack(
            [np.bincount(labels[p], minlength=3) for p in partition_by_label(labels, 3, 0.5, rng)]
        )

    draws = {f: np.stack([f(np.random.default_rng([s, 5])) for s in range(600)]) for f in (plain, batched)}
    one, other = draws.values()
    error = np.sqrt((one.var(axis=0) + other.var(axis=0)) / 600)
    # 9 cells at 5.5 standard errors: a false alarm in 10⁶ runs.
    assert (np.abs(one.mean(axis=0) - other.mean(axis=0)) < 5.5 * error).all()
    assert (one.std(axis=0) > 1).all()


@laws
@given(st.integers(1, 50), st.integers(0, 500), st.integers(0, 2**32))
def test_apportioned_sizes_add_up_and_stay_near_their_shares(users: int, extra: int, seed: int) -> None:
    shares = np.random.default_rng(seed).random(users) ** 5
    sizes = apportion(users + extra, shares)
    assert sizes.sum() == users + extra
    assert (np.abs(sizes - 1 - extra * shares / shares.sum()) < 1 + 1e-9).all()
    assert apportion(users + 3, np.zeros(users)).sum() == users + 3


@pytest.mark.parametrize("exponent", [1.5, 2.0, 7.0])
def test_pareto_quantiles_are_those_of_the_law(exponent: float) -> None:
    levels = np.array([0.0, 0.3, 0.9, 0.999])
    start = 12 * (exponent - 1) / exponent
    quantiles = pareto_quantiles(levels, 12.0, exponent)
    assert (start / quantiles) ** exponent == pytest.approx(1 - levels)
    mean = pareto_quantiles((np.arange(10**6) + 0.5) / 10**6, 12.0, exponent).mean()
    assert mean == pytest.approx(12.0, rel=0.01 if exponent > 1.9 else 0.02)


@pytest.mark.parametrize("exponent", [1.0, 0.5, -2.0, np.nan, np.inf])
def test_laws_without_a_mean_are_refused(exponent: float) -> None:
    with pytest.raises(ValueError, match=r"a \(size_exponent\) must be above 1"):
        pareto_quantiles(np.array([0.5]), 1.0, exponent)


def test_a_partition_is_a_sequence_of_its_parts() -> None:
    given_parts = [np.array([3, 1]), np.array([0]), np.array([2, 4, 5])]
    parts = Partition.of(given_parts)
    assert [part.tolist() for part in parts] == [[3, 1], [0], [2, 4, 5]]
    assert parts[-1].tolist() == [2, 4, 5]
    assert [part.tolist() for part in parts[1:]] == [[0], [2, 4, 5]]
    assert parts.rows(np.array([2, 0, 2])).tolist() == [2, 4, 5, 3, 1, 2, 4, 5]
    assert parts.rows(np.array([], dtype=np.int64)).tolist() == []
    with pytest.raises(IndexError):
        parts[3]
