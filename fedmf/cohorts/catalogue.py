"""Cohort schedules by name."""

from __future__ import annotations

from typing import Final

from fedmf.cohorts.cohort import CohortSchedule
from fedmf.cohorts.fixed import CyclicSchedule, RandomSchedule, cyclic_participation
from fedmf.cohorts.sampled import BallsInBins, CyclicPoisson, MinSeparationSampling
from fedmf.participation import Participation

__all__ = ["SCHEDULES", "cohort_schedule", "contract_of"]

SCHEDULES: Final[dict[str, type[CohortSchedule]]] = {
    schedule.name: schedule
    for schedule in (CyclicSchedule, RandomSchedule, CyclicPoisson, BallsInBins, MinSeparationSampling)
}


def cohort_schedule(
    name: str, users: int, cohort_size: int, participation: Participation, seed: int
) -> CohortSchedule:
    """Build the schedule called ``name``."""
    return _kind(name)(users, cohort_size, participation, seed)


def contract_of(name: str, users: int, cohort_size: int, rounds: int, bands: int = 0) -> Participation:
    """The (n, k, b) that suits a schedule best where none is given.

    Cyclic and random cohorts: the tightest that a cyclic order keeps. Balls-in-Bins: b = ⌊U/m⌋. Cyclic
    Poisson and b-min-sep, which need room for chance: b = ``bands``, the least for which a banded C is
    amplified, or half of ⌊U/m⌋ where ``bands`` is 0. In all but the first k = ⌈n/b⌉.

    >>> contract_of("b-min-sep", users=360, cohort_size=36, rounds=240)
    Participation(rounds=240, max_participations=48, min_separation=5)
    """
    derived = cyclic_participation(users, cohort_size, rounds)
    kind = _kind(name)
    if kind is CyclicSchedule:
        return derived
    if kind is RandomSchedule:
        return Participation.as_many_as_fit(rounds, derived.min_separation)
    separation = users // cohort_size
    if kind is not BallsInBins:
        separation = bands or max(1, separation // 2)
    return Participation.as_many_as_fit(rounds, separation)


def _kind(name: str) -> type[CohortSchedule]:
    if name not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}; got {name!r}.")
    return SCHEDULES[name]
