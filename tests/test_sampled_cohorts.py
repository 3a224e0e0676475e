"""Random cohorts follow the law that their accountants assume: whole paths of users, independent users."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import log

import numpy as np
import pytest

from fedmf.cohorts.catalogue import SCHEDULES, cohort_schedule
from fedmf.cohorts.cohort import CohortSchedule
from fedmf.cohorts.fixed import CyclicSchedule, RandomSchedule
from fedmf.cohorts.sampled import BallsInBins, CyclicPoisson, MinSeparationSampling
from fedmf.errors import ConfigError
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from fedmf.runs.config import Config
from fedmf.runs.plan import cohort_seed

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
    """Round by round over (rounds still to rest, path so far), from the stationary law of the rest."""
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


#: schedule, rounds, separation, users per planned cohort member, p by hand, the law of one user's path
CASES: dict[str, tuple[int, int, int, float, Callable[[int, int, float], Law]]] = {
    "cyclic-poisson": (6, 2, 5, 0.4, law_of_cyclic_poisson),
    "balls-in-bins": (7, 3, 3, 1.0, law_of_balls_in_bins),
    "b-min-sep": (7, 3, 5, 1 / 3, law_of_min_separation),
}
COHORT = 6_000


def paths(schedule: CohortSchedule) -> list[Path]:
    found: list[list[int]] = [[] for _ in range(schedule.users)]
    for t in range(schedule.participation.rounds):
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
    schedule = cohort_schedule(
        name, COHORT * ratio, COHORT, Participation.as_many_as_fit(n, b), seed=2**200 + 11
    )
    if isinstance(schedule, CyclicPoisson | MinSeparationSampling):
        assert schedule.probability == pytest.approx(p, rel=1e-12)
    return paths(schedule), law(n, b, p), law(n, b, 1.1 * p)


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
def test_users_are_independent(name: str) -> None:
    """The first rounds of users far apart and next to one another; dealt cards would be rejected."""
    found, law, _ = drawn(name)
    n = CASES[name][0]
    first: dict[int, float] = {}
    for path, chance in law.items():
        first[min(path, default=n)] = first.get(min(path, default=n), 0.0) + chance
    joint = {(s, t): first[s] * first[t] for s in first for t in first}
    starts = [min(path, default=n) for path in found]
    half = len(starts) // 2
    for pairs in (list(zip(starts[::2], starts[1::2], strict=True)), list(zip(starts, starts[half:]))):  # noqa: B905
        assert not rejects(counts(pairs), joint, len(pairs))
    twins = list(zip(starts, [starts[0], *starts[:-1]], strict=True))
    twins[: half // 4] = [(s, s) for s, _ in twins[: half // 4]]
    assert rejects(counts(twins), joint, len(twins))


@pytest.mark.parametrize("name", SAMPLED)
def test_every_round_has_the_same_inclusion_probability(name: str) -> None:
    """In the exact law, so that a fixed denominator fits every round: the warm start is what makes it so."""
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
            for path in paths(cohort_schedule(name, users, m, contract, seed=b)):
                assert len(path) <= contract.max_participations
                assert all(t - s >= b for s, t in itertools.pairwise(path))


def test_special_cases_of_min_separation_sampling() -> None:
    """p = 1 puts every user in one of b bins; b = 1 is Poisson sampling."""
    bins = MinSeparationSampling(60, 15, Participation.as_many_as_fit(12, 4), 3)
    assert all(path == tuple(range(path[0], 12, 4)) for path in paths(bins))
    assert MinSeparationSampling(60, 15, Participation.as_many_as_fit(12, 1), 3).probability == 0.25
    exact, poisson = law_of_min_separation(5, 1, 0.25), law_of_cyclic_poisson(5, 1, 0.25)
    assert exact.keys() == poisson.keys()
    assert all(exact[path] == pytest.approx(poisson[path]) for path in exact)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_schedule_is_a_function_of_its_seed(name: str) -> None:
    contract = Participation.as_many_as_fit(20, 4)
    first, second = (cohort_schedule(name, 100, 25, contract, seed=5) for _ in range(2))
    forwards = [first.cohort(t).tolist() for t in range(20)]
    assert forwards == [second.cohort(t).tolist() for t in reversed(range(20))][::-1]
    first.cohort(0)[:] = -1
    assert first.cohort(0).tolist() == forwards[0]
    others = {str(cohort_schedule(name, 100, 25, contract, seed).cohort(0).tolist()) for seed in range(8)}
    assert len(others) == 8
    for t in (-1, 20):
        with pytest.raises(IndexError, match=r"t \(round\) must lie in 0\.\.19"):
            first.cohort(t)


def test_the_seed_comes_from_the_key_and_not_from_the_configuration() -> None:
    config = Config.from_mapping({"schedule": "b-min-sep", "seed": 3})
    with pytest.raises(ValueError, match="needs the secret seed of its run"):
        config.cohort_schedule()
    seeds = [cohort_seed(NoiseKey.from_os()) for _ in range(4)]
    assert len({seed >> 128 for seed in seeds} | {seed % 2**128 for seed in seeds}) == 8
    one, two = (config.cohort_schedule(seed).cohort(0).tolist() for seed in seeds[:2])
    assert one != two
    fixed = Config.from_mapping({"schedule": "random"})
    assert fixed.cohort_schedule(seeds[0]).cohort(0).tolist() == fixed.cohort_schedule().cohort(0).tolist()


MATRIX = {
    CyclicSchedule: {"none"},
    RandomSchedule: {"none"},
    CyclicPoisson: {"none", "cyclic-poisson"},
    BallsInBins: {"none", "balls-in-bins"},
    MinSeparationSampling: {"none", "b-min-sep"},
}


def test_a_schedule_refuses_accountants_that_assume_another_sampling() -> None:
    accountants = sorted(set().union(*MATRIX.values()))
    assert set(MATRIX) == set(SCHEDULES.values())
    for schedule, fitting in MATRIX.items():
        for accountant in accountants:
            if accountant in fitting:
                schedule.require_accountant(accountant)
            else:
                with pytest.raises(ValueError, match=rf"accountant .* with schedule '{schedule.name}'; got"):
                    schedule.require_accountant(accountant)
    assert {schedule for schedule in MATRIX if schedule.secret} == {
        schedule for schedule, fitting in MATRIX.items() if len(fitting) > 1
    }


def test_the_configuration_asks_the_schedule() -> None:
    with pytest.raises(ConfigError, match=r"accountant .* must be 'none' with schedule 'cyclic'"):
        Config.from_mapping({"schedule": "cyclic", "accountant": "balls-in-bins"})
    assert Config.from_mapping({"schedule": "balls-in-bins"}).accountant == "none"


@pytest.mark.parametrize(
    ("name", "contract", "m", "seed", "message"),
    [
        ("b-min-sep", (20, 5, 4), 26, 0, r"m \(cohort size\) must be at most U/b .*; got m=26 with U=100"),
        (
            "cyclic-poisson",
            (20, 4, 4),
            5,
            0,
            r"k \(max_participations\) must be 5 = ceil\(n/b\) .*; got k=4",
        ),
        (
            "balls-in-bins",
            (20, 5, 4),
            20,
            0,
            r"b \(min_separation\) must be floor\(U/m\) = 5 .*; got b=4\. 4 bins",
        ),
        ("b-min-sep", (20, 5, 4), 5, 2**256, r"seed \(of the cohorts\) must lie in"),
        ("b-min-sep", (20, 5, 4), 5, -1, r"seed \(of the cohorts\) must lie in"),
        ("b-min-sep", (20, 5, 4), 0, 0, r"m \(cohort size\) must be at least 1"),
    ],
)
def test_impossible_samplings_say_why(
    name: str, contract: tuple[int, int, int], m: int, seed: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cohort_schedule(name, 100, m, Participation(*contract), seed)


@pytest.mark.parametrize("name", SAMPLED)
def test_what_the_configuration_derives_can_be_sampled(name: str) -> None:
    for users, m, n, bands in itertools.product((1, 7, 360), (1, 6, 36), (1, 9, 240), (0, 1, 9)):
        if m <= users:
            values = {"users": users, "cohort-size": m, "rounds": n, "bands": bands, "schedule": name}
            try:
                config = Config.from_mapping(values)
            except ConfigError as error:
                assert bands > n or bands * m > users, error  # noqa: PT017
            else:
                assert config.participation.max_participations == -(-n // config.participation.min_separation)


def test_successive_gaps_are_independent() -> None:
    """U = 3m and b = 2 make p = 1/2: a gap exceeds 2 + g with probability 2^−(g+1). 80 rounds leave nobody
    short of four participations with chance 1 − 1e-9."""
    schedule = MinSeparationSampling(30_000, 10_000, Participation.as_many_as_fit(80, 2), seed=17)
    gaps = [np.minimum(np.diff(path)[:3] - 2, 3).tolist() for path in paths(schedule)]
    chance = {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.125}
    joint = {cell: float(np.prod([chance[g] for g in cell])) for cell in itertools.product(chance, repeat=3)}
    assert not rejects(counts([tuple(gap) for gap in gaps]), joint, len(gaps))
