"""Cohorts as values: the contract that each kind derives, its seed, and what it refuses."""

from __future__ import annotations

import pytest

from fedmf.cohorts import COHORTS, Cohorts, SampledCohorts
from fedmf.participation import Participation
from fedmf.values import value_of

#: By kind: (users, size, rounds, bands), (b, k) as given, (n, k, b) as runs of header format 3
#: derived it.
CONTRACTS = {
    "cyclic": [
        ((24, 3, 9, None), (None, None), (9, 2, 8)),
        ((360, 1, 1, None), (None, None), (1, 1, 1)),
        ((360, 36, 12, 4), (1, None), (12, 2, 1)),
    ],
    "available": [
        ((1000, 1, 9, None), (None, None), (9, 1, 500)),
        ((360, 36, 240, None), (None, None), (240, 48, 5)),
        ((1000, 6, 1, 1), (3, None), (1, 1, 3)),
    ],
    "cyclic-poisson": [
        ((360, 36, 1, None), (None, None), (1, 1, 5)),
        ((1000, 6, 12, None), (None, None), (12, 1, 83)),
        ((360, 6, 12, None), (1, None), (12, 12, 1)),
    ],
    "balls-in-bins": [
        ((1000, 36, 240, None), (None, None), (240, 9, 27)),
        ((1000, 3, 1, None), (None, None), (1, 1, 333)),
        ((1000, 3, 1, 1), (1, None), (1, 1, 1)),
    ],
    "b-min-sep": [
        ((360, 3, 12, None), (None, None), (12, 1, 60)),
        ((1000, 6, 9, None), (None, None), (9, 1, 83)),
        ((360, 36, 240, 9), (1, None), (240, 240, 1)),
    ],
}


@pytest.mark.parametrize(
    ("kind", "sizes", "given", "contract"),
    [(kind, *case) for kind, cases in CONTRACTS.items() for case in cases],
)
def test_contracts_are_those_that_recorded_runs_have(
    kind: str,
    sizes: tuple[int, int, int, int | None],
    given: tuple[int | None, int | None],
    contract: tuple[int, int, int],
) -> None:
    """What a kind leaves unset is derived as before, so that a run of the same keys has the same
    noise.
    """
    users, size, rounds, bands = sizes
    b, k = given
    cohorts = COHORTS[kind](
        rounds=rounds, users_per_round=size, min_separation=b, max_participations=k
    )
    assert cohorts.participation(users, bands) == Participation(*contract)
    assert value_of(COHORTS, cohorts.to_dict()) == cohorts


@pytest.mark.parametrize("kind", COHORTS.values())
def test_sampled_cohorts_follow_the_secret_seed_and_the_others_their_own(
    kind: type[Cohorts],
) -> None:
    def drawn(seed: int, secret_seed: int) -> list[list[int]]:
        cohorts = kind(rounds=12, users_per_round=6)
        schedule = cohorts.schedule(48, cohorts.participation(48), seed, secret_seed)
        return [schedule.cohort(t).tolist() for t in range(12)]

    sampled = issubclass(kind, SampledCohorts)
    assert (drawn(0, 1) == drawn(0, 2)) is not sampled
    assert (drawn(1, 0) == drawn(2, 0)) is sampled
