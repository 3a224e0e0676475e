"""Clipping in exact integer arithmetic: the norm bound, finiteness, and sums that do not depend on
order.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from clipping.exact import square_sum
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmf.clipping import clipped_sum
from fedmf.clipping.bounded_add import FRACTION_BITS
from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.clipping.clipped_sum import MAX_USERS, ClippedSum
from fedmf.clipping.user_statistics import SIGNS
from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment

UNIT = 2**FRACTION_BITS
laws = settings(derandomize=True, max_examples=150, deadline=None, database=None)
# A row within the ball loses at most one unit per coordinate to truncation and 2⁻⁴⁵ to the margin.
TRUNCATION = 2.0**-30

ENTRIES = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 5e-324, -5e-324, 1e-310, 1e-300, 1e-38, 1.0, -1.0, 1e38, 1e300, -1e300, 1.7e308]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)
NORMS = st.one_of(st.sampled_from([1e-30, 0.3, 1.0, 1e30]), st.floats(1e-100, 1e100))


def projection(entries: list[float], zeta: float) -> list[Decimal]:
    """The projection onto the ball of radius ζ in units of ζ, to 60 digits whatever the
    exponents.
    """
    with localcontext(prec=60):
        exact = [Decimal(x) for x in entries]
        norm = sum((x * x for x in exact), Decimal(0)).sqrt()
        return [x / max(norm, Decimal(zeta)) for x in exact]


@laws
@given(st.lists(ENTRIES, min_size=1, max_size=12), NORMS)
def test_a_clipped_row_is_the_projection_onto_the_ball(entries: list[float], zeta: float) -> None:
    """Norm at most ζ exactly; the direction is kept; rows inside the ball come back unchanged."""
    rows, finite = clip_to_fixed_point(torch.tensor([entries], dtype=torch.float64), zeta)
    assert finite.tolist() == [True]
    assert rows.dtype == torch.int64
    assert square_sum(rows[0].tolist()) <= UNIT**2
    for x, expected, integer in zip(
        entries, projection(entries, zeta), rows[0].tolist(), strict=True
    ):
        assert integer / UNIT == pytest.approx(float(expected), rel=TRUNCATION, abs=TRUNCATION)
        assert integer == 0 or (integer > 0) == (x > 0)


def test_equal_entries_never_exceed_the_norm() -> None:
    """The worst case for rounding: every coordinate errs the same way."""
    values = torch.tensor([1.0, 1 / 3, 0.1, 1e38, 1e300, 1e-300, 5e-324, -7.0], dtype=torch.float64)
    for dimension in (1, 2, 7, 1000):
        for zeta in (1.0, 0.3, 1e-3, 1e10):
            rows, _ = clip_to_fixed_point(values[:, None].expand(-1, dimension), zeta)
            assert max(map(square_sum, rows.tolist())) <= UNIT**2


def test_long_rows_never_exceed_the_norm() -> None:
    """Float64 sums of a million squares are off by more than 2⁻⁴⁰; the bound is on the exact
    norm.
    """
    dimension = 2**20
    row = torch.full((1, dimension), 0.4886772984810419, dtype=torch.float64)
    row[0, 0] = 1.0
    rows, _ = clip_to_fixed_point(row, 1.0)
    first = int(rows[0, 0])
    other = int(rows[0, 1])
    assert (rows[0, 1:] == other).all()
    square = first**2 + (dimension - 1) * other**2
    assert square <= UNIT**2
    assert square >= UNIT**2 * (1 - Fraction(1, 10**5))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_counts_for_nothing(poison: float) -> None:
    updates = torch.tensor([[1.0, 2.0], [poison, 1.0], [1.0, poison], [0.0, 0.0]])
    rows, finite = clip_to_fixed_point(updates, 1.0)
    assert finite.tolist() == [True, False, False, True]
    assert not rows[1:].any()
    assert torch.equal(rows[:1], clip_to_fixed_point(updates[:1], 1.0)[0])


def updates_of(users: int, dimension: int, seed: int = 0) -> Tensor:
    """Updates of very different sizes, so that a float sum would depend on its order."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** (8 * torch.rand(users, 1, generator=generator) - 6)
    return torch.randn(users, dimension, generator=generator) * sizes


@laws
@given(st.permutations(range(12)), st.lists(st.integers(0, 12), max_size=4), st.integers(0, 2**16))
def test_a_sum_does_not_depend_on_order_or_grouping(
    order: list[int], cuts: list[int], seed: int
) -> None:
    updates = updates_of(12, 9, seed)
    whole = ClippedSum(9, 0.7)
    whole.add_updates(updates)
    grouped = ClippedSum(9, 0.7)
    edges = [0, *sorted(cuts), 12]
    for i, (start, stop) in enumerate(pairwise(edges)):
        part = updates[list(order)][start:stop]
        if i % 2:
            grouped.add_updates(part)
        else:
            worker = ClippedSum(9, 0.7)
            worker.add_updates(part)
            grouped.add_clipped_sum(worker.fixed_point, worker.users)
    assert torch.equal(whole.fixed_point, grouped.fixed_point)
    assert torch.equal(whole.total(), grouped.total())
    assert whole.users == grouped.users == 12


def test_the_total_is_the_sum_of_the_clipped_updates() -> None:
    updates = updates_of(30, 8)
    total = ClippedSum(8, 0.7)
    assert total.add_updates(updates).all()
    integers, _ = clip_to_fixed_point(updates, 0.7)
    expected = integers.double().sum(dim=0) * (0.7 / UNIT)
    torch.testing.assert_close(total.total(), expected, rtol=1e-12, atol=1e-12)
    assert total.total().dtype == torch.float64


def test_each_user_moves_the_total_by_at_most_the_clip_norm() -> None:
    updates = updates_of(20, 8)
    whole = ClippedSum(8, 0.7)
    whole.add_updates(updates)
    for user in range(20):
        without = ClippedSum(8, 0.7)
        without.add_updates(torch.cat([updates[:user], updates[user + 1 :]]))
        assert square_sum((whole.fixed_point - without.fixed_point).tolist()) <= UNIT**2


def test_users_that_are_not_finite_add_zeros() -> None:
    total = ClippedSum(2, 1.0)
    assert total.add_updates(torch.tensor([[math.nan, 0.0], [3.0, 0.0]])).tolist() == [False, True]
    assert total.users == 2
    assert total.add_updates(torch.zeros(0, 2)).tolist() == []
    total.add_nothing(3)
    assert total.users == 5
    assert torch.equal(
        total.fixed_point, clip_to_fixed_point(torch.tensor([[3.0, 0.0]]), 1.0)[0][0]
    )


@pytest.mark.parametrize("shape", [(3, 1), (4,), (1, 3, 4)])
def test_updates_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """Above all (users, 1), which would broadcast one clipped entry over the whole model."""
    total = ClippedSum(4, 1.0)
    with pytest.raises(ValueError, match=r"updates must have shape \(users, 4\)"):
        total.add_updates(torch.ones(shape))
    assert not total.fixed_point.any()
    assert total.users == 0


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(3, dtype=torch.float64),
        torch.zeros(4, dtype=torch.int64),
        torch.zeros(1, 3, dtype=torch.int64),
    ],
    ids=str,
)
def test_slice_sums_of_another_type_or_shape_are_refused(bad: Tensor) -> None:
    total = ClippedSum(3, 1.0)
    with pytest.raises(ValueError, match=r"slice sum must be int64 of shape \(3,\)"):
        total.add_clipped_sum(bad, 1)
    assert total.users == 0


@pytest.mark.parametrize(
    ("entries", "users"),
    [
        ([UNIT, UNIT // 1000, 0], 1),
        ([2 * UNIT, 2 * UNIT, 0], 2),
        ([1, 0, 0], 0),
        ([0, 0, 0], -1),
        ([2**63 - 1, 0, 0], 5),
        ([-(2**63), 0, 0], 5),
    ],
)
def test_a_slice_sum_that_no_clipped_users_can_make_is_refused(
    entries: list[int], users: int
) -> None:
    total = ClippedSum(3, 1.0)
    with pytest.raises(
        ValueError, match=f"slice sum must have norm at most {users} clip norms; got "
    ):
        total.add_clipped_sum(torch.tensor(entries, dtype=torch.int64), users)
    assert not total.fixed_point.any()
    assert total.users == 0


@pytest.mark.parametrize("clip_norm", [0.0, 3e-312, 1e300, math.inf, math.nan])
def test_clip_norms_at_which_sums_are_not_what_they_say_are_refused(clip_norm: float) -> None:
    with pytest.raises(ValueError, match=r"ζ \(clip norm\) must lie in"):
        ClippedSum(1, clip_norm)


def test_more_users_than_an_int64_holds_are_refused() -> None:
    assert MAX_USERS * UNIT < 2**63
    total = ClippedSum(1, 1.0)
    total.add_clipped_sum(torch.tensor([(MAX_USERS - 1) * UNIT]), MAX_USERS - 1)
    before = total.fixed_point.clone()
    for attempt in (
        lambda: total.add_clipped_sum(torch.tensor([UNIT]), 2),
        lambda: total.add_updates(torch.ones(2, 1)),
    ):
        with pytest.raises(
            ValueError, match=f"must be at most {MAX_USERS} users; the integer sum could overflow"
        ):
            attempt()
        assert torch.equal(total.fixed_point, before)
    total.add_updates(torch.ones(1, 1))
    assert total.users == MAX_USERS
    assert total.fixed_point.item() > before.item()


@pytest.mark.parametrize("moment", [None, DiagonalMoment(5), BlockEnergies([2, 3])])
def test_features_on_a_gpu_are_those_of_a_processor(
    moment: DiagonalMoment | BlockEnergies | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From integers of each user, on a processor, three users at a time."""
    updates = updates_of(20, 5).to(torch.float64)
    updates[7, 2] = math.nan
    here = ClippedSum(5, 0.01, second_moment=moment, statistics=[SIGNS])
    there = here.like()
    monkeypatch.setattr(clipped_sum, "_AT_ONCE", 15)
    assert torch.equal(there._add_apart(updates, None), here.add_updates(updates))
    assert there.lengths == here.lengths
    assert torch.equal(torch.cat(list(there.parts.values())), torch.cat(list(here.parts.values())))
    assert bool((here.fixed_point != 0).all())
