"""Random cohorts follow the law that their accountants assume: whole paths of users, independent
users.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import log

import numpy as np
import pytest

from fedmf.cohorts import COHORTS, CohortSchedule, SampledCohorts
from fedmf.participation import Participation

FALSE_ALARM = 1e-6
SAMPLED = ("cyclic-poisson", "balls-in-bins", "b-min-sep")
Path = tuple[int, ...]
Law = dict[Path, float]


def chi_square_threshold(degrees: int) -> float:
    """An upper bound on the 1 − FALSE_ALARM quantile of χ² (Laurent and Massart, 2000, lemma 1)."""
    x = -log(FALSE_ALARM)
    return degrees + 2 * (degrees * x) ** 0.5 + 2 * x


def law_of_cyclic_poisson(n: int, b: int, p: float) -> Law:
    """Group uniform; then a coin of probability p in each of its turns."""
    law: Law = {}
    for group in range(b):
        turns = range(group, n, b)
        for coins in itertools.product((0, 1), repeat=len(turns)):
            path = tuple(turn for turn, coin in zip(turns, coins, strict=True) if coin)
            chance = np.prod([p if coin else 1 - p for coin in coins]) / b
            law[path] = law.get(path, 0.0) + float(chance)
    return law


def law_of_balls_in_bins(n: int, b: int, p: float) -> Law:
    law: Law = {}
    for start in range(b):
        path = tuple(range(start, n, b))
        law[path] = law.get(path, 0.0) + 1 / b
    return law


def law_of_min_separation(n: int, b: int, p: float) -> Law:
    """Round by round over (rounds still to rest, path so far), from the stationary law of the
    rest.
    """
    weight = 1 + p * (b - 1)
    states = {(r, ()): (1 if r == 0 else p) / weight for r in range(b)}
    for t in range(n):
        following: dict[tuple[int, Path], float] = {}

        def add(rest: int, path: Path, chance: float, into=following) -> None:
            into[rest, path] = into.get((rest, path), 0.0) + chance

        for (rest, path), chance in states.items():
            if rest:
                add(rest - 1, path, chance)
            else:
                add(b - 1, (*path, t), chance * p)
                add(0, path, chance * (1 - p))
        states = following
    law: Law = {}
    for (_, path), chance in states.items():
        law[path] = law.get(path, 0.0) + chance
    return law


#: schedule, rounds, separation, users per planned cohort member, p by hand, the law of one user's
#: path
CASES: dict[str, tuple[int, int, int, float, Callable[[int, int, float], Law]]] = {
    "cyclic-poisson": (6, 2, 5, 0.4, law_of_cyclic_poisson),
    "balls-in-bins": (7, 3, 3, 1.0, law_of_balls_in_bins),
    "b-min-sep": (7, 3, 5, 1 / 3, law_of_min_separation),
}
COHORT = 6_000


def schedule_of(
    name: str, users: int, cohort_size: int, contract: Participation, seed: int
) -> CohortSchedule:
    return COHORTS[name](contract.rounds, cohort_size).schedule(users, contract, secret_seed=seed)


def paths(schedule: CohortSchedule, users: int) -> list[Path]:
    found: list[list[int]] = [[] for _ in range(users)]
    for t in range(schedule.rounds):
        cohort = schedule.cohort(t)
        assert np.array_equal(cohort, np.unique(cohort))
        for user in cohort.tolist():
            found[user].append(t)
    return [tuple(path) for path in found]


def rejects(seen: dict, law: dict, total: int) -> bool:
    """Pearson's χ² against the exact law; cells with an expectation below 5 are pooled."""
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert set(seen) <= {cell for cell, chance in law.items() if chance > 0}
    rare = [cell for cell, chance in law.items() if chance * total < 5]
    pooled = {cell: chance for cell, chance in law.items() if cell not in rare}
    expected = [total * chance for chance in pooled.values()]
    observed = [seen.get(cell, 0) for cell in pooled]
    if sum(law[cell] for cell in rare) * total >= 5:
        expected.append(total * sum(law[cell] for cell in rare))
        observed.append(sum(seen.get(cell, 0) for cell in rare))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return statistic > chi_square_threshold(len(expected) - 1)


def drawn(name: str) -> tuple[list[Path], Law, Law]:
    """Paths of all users, their law, and the law for a p that is a tenth too large."""
    n, b, ratio, p, law = CASES[name]
    users = COHORT * ratio
    contract = Participation.as_many_as_fit(n, b)
    kind = COHORTS[name](n, COHORT)
    if name != "balls-in-bins":
        assert isinstance(kind, SampledCohorts)
        assert kind.probability(users, contract) == pytest.approx(p, rel=1e-12)
    schedule = schedule_of(name, users, COHORT, contract, seed=2**200 + 11)
    return paths(schedule, users), law(n, b, p), law(n, b, 1.1 * p)


def counts(cells: list) -> dict:
    found: dict = {}
    for cell in cells:
        found[cell] = found.get(cell, 0) + 1
    return found


@pytest.mark.parametrize("name", SAMPLED)
def test_the_path_of_a_user_has_the_law_the_accountant_assumes(name: str) -> None:
    found, law, wrong = drawn(name)
    seen = counts(found)
    assert not rejects(seen, law, len(found))
    if name != "balls-in-bins":
        assert rejects(seen, wrong, len(found))


@pytest.mark.parametrize("name", SAMPLED)
def test_every_round_has_the_same_inclusion_probability(name: str) -> None:
    """In the exact law, so that a fixed denominator fits every round: the warm start is what makes
    it so.
    """
    n, b, ratio, p, law = CASES[name]
    exact = law(n, b, p)
    for t in range(n):
        assert sum(chance for path, chance in exact.items() if t in path) == pytest.approx(
            1 / ratio, abs=1e-12
        )


@pytest.mark.parametrize("name", SAMPLED)
def test_separation_and_cap_hold_for_many_shapes(name: str) -> None:
    for users, m, n in itertools.product((1, 7, 50), (1, 2, 9), (1, 5, 23)):
        for b in range(1, users // m + 1) if users >= m else ():
            if name == "balls-in-bins" and b != users // m:
                continue
            contract = Participation.as_many_as_fit(n, b)
            for path in paths(schedule_of(name, users, m, contract, seed=b), users):
                assert len(path) <= contract.max_participations
                assert all(t - s >= b for s, t in itertools.pairwise(path))


@pytest.mark.parametrize("name", SAMPLED)
def test_at_probability_1_every_user_joins_in_each_of_its_turns(name: str) -> None:
    """Whatever a user's place in a group is; 3 users a round, of 12 that may join every 4th."""
    found = paths(schedule_of(name, 12, 3, Participation.as_many_as_fit(8, 4), seed=5), 12)
    assert all(path == (path[0], path[0] + 4) for path in found)
