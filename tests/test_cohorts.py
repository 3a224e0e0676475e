"""Cohort schedules: every schedule keeps the contract, is reproducible and leaves nobody out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedmf.cohorts import (
    AvailableCohorts,
    Cohorts,
    CohortSchedule,
    CyclicCohorts,
    cyclic_participation,
)
from fedmf.participation import Participation

laws = settings(derandomize=True, max_examples=150, deadline=None, database=None)

SEEDS = st.integers(0, 2**32)


def schedule_of(
    kind: type[Cohorts], users: int, m: int, contract: Participation, seed: int
) -> CohortSchedule:
    return kind(contract.rounds, m).schedule(users, contract, seed)


def all_cohorts(schedule: CohortSchedule) -> list[list[int]]:
    return [schedule.cohort(t).tolist() for t in range(schedule.rounds)]


def check_contract(
    schedule: CohortSchedule, users: int, m: int, contract: Participation
) -> np.ndarray:
    """Assert size, order, cap and separation of every cohort; returns participations by user."""
    n = contract.rounds
    k = contract.max_participations
    b = contract.min_separation
    last: dict[int, int] = {}
    counts = np.zeros(users, dtype=int)
    for t, cohort in enumerate(all_cohorts(schedule)):
        assert len(cohort) == m
        assert cohort == sorted(set(cohort))
        assert cohort[0] >= 0
        assert cohort[-1] < users
        for user in cohort:
            assert t - last.get(user, -b) >= b, (user, last.get(user), t)
            last[user] = t
            counts[user] += 1
    assert counts.sum() == n * m
    assert counts.max() <= k
    return counts


@st.composite
def settings_of_a_schedule(draw: st.DrawFn) -> tuple[int, int, Participation]:
    """Any users, cohort size and contract, feasible or not; b may exceed n."""
    n = draw(st.integers(1, 30))
    b = draw(st.integers(1, n + 3))
    k = draw(st.integers(1, Participation.as_many_as_fit(n, b).max_participations))
    m = draw(st.integers(1, 6))
    users = draw(st.integers(1, 60))
    return users, m, Participation(n, k, b)


def is_feasible(users: int, m: int, contract: Participation) -> bool:
    """Whether any schedule exists: min(b, n) consecutive rounds need different users, and k caps
    the sum.
    """
    window = min(contract.min_separation, contract.rounds)
    return m * window <= users and m * contract.rounds <= users * contract.max_participations


@laws
@given(settings_of_a_schedule(), SEEDS)
def test_a_cyclic_schedule_keeps_the_contract_or_none_exists(
    setting: tuple[int, int, Participation], seed: int
) -> None:
    users, m, contract = setting
    if is_feasible(*setting):
        counts = check_contract(schedule_of(CyclicCohorts, *setting, seed), *setting)
        assert counts.max() - counts.min() <= 1
        assert counts.min() >= 1 or m * contract.rounds < users
    else:
        with pytest.raises(ValueError, match=r"cohort size|max_participations") as caught:
            schedule_of(CyclicCohorts, *setting, seed)
        assert "\n" not in str(caught.value)


@laws
@given(st.integers(1, 12), st.integers(1, 120), st.integers(1, 60))
def test_cyclic_participation_is_the_tightest_contract(m: int, users: int, n: int) -> None:
    assume(m <= users)
    contract = cyclic_participation(users, m, n)
    schedule = schedule_of(CyclicCohorts, users, m, contract, seed=0)
    counts = check_contract(schedule, users, m, contract)
    assert counts.max() == contract.max_participations
    cohorts = all_cohorts(schedule)
    gaps = [t - s for t in range(n) for s in range(t) if set(cohorts[s]) & set(cohorts[t])]
    assert min(gaps, default=n) == contract.min_separation


def test_the_order_of_available_users_is_another_in_every_round_and_fair() -> None:
    """Each user is as often in the first place as any other: 6 of 6,000 draws within five
    deviations.
    """
    contract = Participation(6000, 3000, 2)
    schedule = schedule_of(AvailableCohorts, 6, 2, contract, seed=3)
    orders = np.array([schedule.cohort(t) for t in range(6000)])
    assert (np.sort(orders, axis=1) == np.arange(6)).all()
    assert len({tuple(order) for order in orders.tolist()}) == 720
    first = np.bincount(orders[:, 0], minlength=6)
    assert np.abs(first - 1000).max() < 5 * np.sqrt(6000 * 5 / 36)
    assert not np.array_equal(
        orders, all_cohorts(schedule_of(AvailableCohorts, 6, 2, contract, seed=4))
    )
    with pytest.raises(IndexError, match=r"t \(round\)"):
        schedule.cohort(6000)
