"""Partitions: complete, disjoint, and skewed as they say; what is held out leaves something."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.data import Digits
from fedmf.data.partitions import (
    Partition,
    hold_out,
    hold_out_of_each_user,
    partition_evenly,
)

laws = settings(derandomize=True, max_examples=60, deadline=None, database=None)

KINDS = ("iid", "dirichlet", "each-example")


def check_complete(parts: Partition, examples: int, users: int) -> None:
    """Every example belongs to exactly one user, and every user owns some."""
    assert len(parts) == users
    assert sorted(parts.order.tolist()) == list(range(examples))
    assert (parts.sizes >= 1).all()
    assert all((np.diff(part) > 0).all() for part in parts)


@laws
@given(
    st.sampled_from(KINDS),
    st.integers(1, 60),
    st.integers(0, 7),
    st.sampled_from([1e-300, 1e-9, 0.01, 0.5, 1e3, 1e300, 1.7e308]),
    st.integers(0, 2**32),
)
def test_every_example_belongs_to_one_user(
    kind: str, users: int, extra: int, alpha: float, seed: int
) -> None:
    examples = 2 * users + extra * 11
    if kind == "each-example":
        examples = users
    labels = np.random.default_rng(seed).integers(0, 5, size=examples)
    plan = Digits(users, kind, dirichlet_alpha=alpha)  # type: ignore[arg-type]
    parts = plan.split(labels, np.random.default_rng(seed))
    check_complete(parts, labels.size, users)
    assert np.array_equal(parts.order, plan.split(labels, np.random.default_rng(seed)).order)
    if kind in ("iid", "dirichlet"):
        assert np.ptp(parts.sizes) <= 1


def test_an_even_split_is_random_whatever_the_order_of_rows() -> None:
    labels = np.repeat(np.arange(10), 60)  # sorted: parts in order would have one label each
    for part in partition_evenly(600, 20, np.random.default_rng(0)):
        assert len(set(labels[part])) >= 6


@laws
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0, 99)
)
def test_holding_out_leaves_every_owner_something(
    owners: list[int], fraction: float, seed: int
) -> None:
    owner = np.unique(owners, return_inverse=True)[1].astype(np.int64)
    rng = np.random.default_rng(seed)
    if 1 <= round(fraction * owner.size) < owner.size:
        held, kept = hold_out(owner.size, fraction, rng, "examples")
        assert held.size == round(fraction * owner.size)
        assert sorted([*held.tolist(), *kept.tolist()]) == list(range(owner.size))
    else:
        with pytest.raises(ValueError, match="test_fraction must hold out between 1 and"):
            hold_out(owner.size, fraction, rng, "examples")
    mine = hold_out_of_each_user(owner, fraction, seed)
    others = np.where(owner == 0, 0, (owner * 7 + 1) % 10 + 1)  # other users with other rows
    assert np.array_equal(
        mine[owner == 0], hold_out_of_each_user(others, fraction, seed)[owner == 0]
    )
    assert set(owner[~mine]) == set(owner.tolist())
