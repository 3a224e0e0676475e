"""docs/theory/check-in.md by brute force: every world of one user, every rule of staying away."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmf.cohorts import CheckIns, DeviceRule
from fedmf.factorization import Factorization, InverseToeplitz, Toeplitz, stated_sensitivity
from fedmf.participation import Participation

Days = tuple[tuple[int, ...], ...]
#: Check-ins of all users ↦ the users of each round.
Selection = Callable[[Days], list[set[int]]]

N, K, B = 5, 2, 2
CONTRACT = Participation(N, K, B)
#: With it no device has to wait before its first turn, so that all patterns are reached.
SEED = 4
#: When users 1 and 2 check in; user 0 is the one whose worlds differ.
OTHERS: Days = ((0, 1, 2, 3, 4), (1, 3))
MATRICES = {
    "positive": Toeplitz(np.array([1.0, 0.7, 0.5, 0.4, 0.35]), N),
    "identity": Toeplitz(np.array([1.0]), N),
    "negative inverse": InverseToeplitz(np.array([1.0, -0.9, 0.0, 0.0, 0.0]), N),
}
#: Rounding of sums of five doubles.
TOLERANCE = 1e-9


def every_subset(rounds: int) -> list[tuple[int, ...]]:
    return [s for size in range(rounds + 1) for s in itertools.combinations(range(rounds), size)]


def check_ins_of(days: Days) -> CheckIns:
    return CheckIns.of_rounds(len(days), [[u for u, own in enumerate(days) if t in own] for t in range(N)])


def ours(days: Days, q: float = 1.0) -> list[set[int]]:
    found = DeviceRule(CONTRACT, q, seed=SEED).participations(check_ins_of(days))
    return [set(map(int, cohort)) for cohort in found.cohorts]


def shared_slots(days: Days) -> list[set[int]]:
    """One slot a round, for the first that is there and rested."""
    return _selected(days, B, slots=1)


def off_by_one(days: Days) -> list[set[int]]:
    return _selected(days, B - 1)


def without_cap(days: Days) -> list[set[int]]:
    return _selected(days, B, cap=N)


def _selected(days: Days, apart: int, slots: int = 99, cap: int = K) -> list[set[int]]:
    last, turns, rounds = dict.fromkeys(range(3), -9), dict.fromkeys(range(3), 0), []
    for t in range(N):
        rested = [u for u, own in enumerate(days) if t in own and t - last[u] >= apart and turns[u] < cap]
        rounds.append(set(rested[:slots]))
        for user in rested[:slots]:
            last[user], turns[user] = t, turns[user] + 1
    return rounds


def sums(rounds: Sequence[set[int]], own: Sequence[float]) -> NDArray[np.float64]:
    """G for contributions of norm 1: user 0 as it likes, user 1 upwards, user 2 downwards."""
    return np.array([sum((own[t], 1.0, -1.0)[user] for user in cohort) for t, cohort in enumerate(rounds)])


def largest_move(C: Factorization, select: Selection, adjacency: str) -> float:
    """max ‖C(G − G′)‖ over all worlds of user 0: its check-ins and the signs of its updates."""
    matrix = C.materialize()
    signs = list(itertools.product((1.0, -1.0), repeat=N))
    worlds = [(select((own, *OTHERS)), sign) for own in every_subset(N) for sign in signs]
    found = list({value.tobytes(): value for value in (matrix @ sums(*world) for world in worlds)}.values())
    zero = [matrix @ sums(select((own, *OTHERS)), [0.0] * N) for own in every_subset(N)]
    against = zero if adjacency == "zero-out" else found
    return max(float(np.linalg.norm(one - other)) for one in found for other in against)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("name", MATRICES)
def test_no_world_of_a_user_moves_the_release_further_than_the_contract(name: str, adjacency: str) -> None:
    """Check-ins and updates of the user differ between the worlds; nobody else's participation does."""
    C = MATRICES[name]
    allowed = stated_sensitivity(C, CONTRACT).value * (1 if adjacency == "zero-out" else 2)
    reached = largest_move(C, ours, adjacency)
    assert reached <= allowed + TOLERANCE
    if adjacency == "zero-out":
        assert reached == pytest.approx(allowed, rel=1e-9)  # it is exact, so a smaller one would be wrong


@pytest.mark.parametrize("select", [shared_slots, off_by_one, without_cap])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_shared_slots_and_wrong_timers_break_the_bound(select: Selection, adjacency: str) -> None:
    C = MATRICES["positive"]
    allowed = stated_sensitivity(C, CONTRACT).value * (1 if adjacency == "zero-out" else 2)
    assert largest_move(C, select, adjacency) > 1.02 * allowed


@pytest.mark.parametrize("q", [1.0, 0.6])
def test_nobody_else_takes_part_otherwise_whatever_one_user_does(q: float) -> None:
    """Also with coins: they belong to users."""
    others = {
        tuple(tuple(sorted(cohort - {0})) for cohort in ours((own, *OTHERS), q)) for own in every_subset(N)
    }
    alone = [{u + 1 for u in cohort} for cohort in _of_others(q)]
    assert others == {tuple(tuple(sorted(cohort)) for cohort in alone)}
    assert len({str(shared_slots((own, *OTHERS))) for own in every_subset(N)}) > 1


def _of_others(q: float) -> list[set[int]]:
    """Users 1 and 2 with an absent user 0."""
    return [{u - 1 for u in cohort} for cohort in ours(((), *OTHERS), q)]


# Staying away under amplification.

GRID = np.linspace(-9.0, 9.0, 181)
STEP = GRID[1] - GRID[0]
#: What a user adds: nothing, or a unit update either way.
CHOICES = (0.0, 1.0, -1.0)
ALWAYS: dict[tuple[int, bool], float] = {(a, above): 1.0 for a in (0, 1) for above in (False, True)}
#: Quadrature on the grid; δ is a difference of densities that are smooth at scale 1.
SLACK = 2e-5


def density(mean: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return np.exp(-0.5 * (GRID - mean) ** 2) / np.sqrt(2 * np.pi)


def deltas(P: NDArray[np.float64], Q: NDArray[np.float64], epsilon: float) -> tuple[float, float]:
    """δ of both directions by quadrature."""
    cell = STEP**2
    grown = np.exp(epsilon)
    return (
        float(np.maximum(P - grown * Q, 0).sum() * cell),
        float(np.maximum(Q - grown * P, 0).sum() * cell),
    )


def mixture(
    C: NDArray[np.float64],
    law: dict[tuple[int, int], float],
    first: float,
    second: dict[tuple[int, bool], float],
) -> NDArray[np.float64]:
    """Density of two released rows.

    Args:
        law: probability of (drawn in round 0, drawn in round 1).
        first: what the user adds in round 0, if drawn.
        second: what it adds in round 1, by (drawn in round 0, row 0 is positive).
    """
    rows = GRID > 0
    P = np.zeros((GRID.size, GRID.size))
    for (a, c), weight in law.items():
        start = density(C[0, 0] * first * a)
        for positive in (False, True):
            mean = C[1, 0] * first * a + C[1, 1] * second[a, positive] * c
            P += weight * np.outer(np.where(rows == positive, start, 0.0), density(mean))
    return P


def rules() -> list[tuple[float, dict[tuple[int, bool], float]]]:
    keys = [(0, False), (0, True), (1, False), (1, True)]
    return [
        (first, dict(zip(keys, second, strict=True)))
        for first in CHOICES
        for second in itertools.product(CHOICES, repeat=4)
    ]


def worst_excess(
    C: NDArray[np.float64], dominating: NDArray[np.float64], law: dict[tuple[int, int], float]
) -> float:
    """By how much δ of any rule exceeds that of always being there, relative to the latter."""
    Q = np.outer(density(0.0), density(0.0))
    there = mixture(dominating, law, 1.0, ALWAYS)
    excess = -1.0
    for epsilon in (0.2, 1.0):
        allowed = deltas(there, Q, epsilon)
        for first, second in rules():
            found = deltas(mixture(C, law, first, second), Q, epsilon)
            excess = max(excess, *(one - most - SLACK for one, most in zip(found, allowed, strict=True)))
    return excess


POISSON = {(a, c): (0.4 if a else 0.6) * (0.4 if c else 0.6) for a in (0, 1) for c in (0, 1)}
BINS = {(1, 0): 0.5, (0, 1): 0.5}
REFUSED_TWICE = {(1, 0): 0.4, (0, 1): 0.6 * 0.4, (0, 0): 0.36}
LAWS = {"poisson": POISSON, "balls in bins": BINS, "b-min-sep": REFUSED_TWICE}
POSITIVE = np.array([[1.0, 0.0], [0.7, 1.0]])
SIGNED = np.array([[1.0, 0.0], [-0.7, 1.0]])


@pytest.mark.parametrize("law", LAWS)
def test_staying_away_is_dominated_by_always_being_there(law: str) -> None:
    """All 243 rules that know the own draws and what was released: staying away, either sign."""
    assert worst_excess(POSITIVE, POSITIVE, LAWS[law]) <= 0
    assert worst_excess(SIGNED, np.abs(SIGNED), LAWS[law]) <= 0


def test_a_strategy_with_negative_entries_is_not_covered() -> None:
    """Its own pair does not dominate: C ≥ 0, or the pair of |C|, is needed."""
    assert worst_excess(SIGNED, SIGNED, POISSON) > 1e-3


def test_a_device_that_draws_again_when_it_was_away_is_not_covered() -> None:
    """Away in round 0, it would take the other bin: then it is there for sure, and nothing is amplified."""
    Q = np.outer(density(0.0), density(0.0))
    C = np.eye(2)
    drawn, again = mixture(C, BINS, 1.0, ALWAYS), mixture(C, {(0, 1): 1.0}, 1.0, ALWAYS)
    assert deltas(again, Q, 1.0)[0] > 1.3 * deltas(drawn, Q, 1.0)[0]
