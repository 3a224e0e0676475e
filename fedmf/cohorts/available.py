"""Cohorts of whoever is connected when a round begins."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmf.cohorts.fixed import CohortSchedule


class AvailableSchedule(CohortSchedule):
    """For each round a random order of all users, from a public seed.

    The first m of the order take part who are connected and whom the contract admits: b rounds after the last
    participation, at most k times. Where fewer are left, all of them take part; the mean update is divided by
    m all the same. Who is connected, and who took part before, is known when the round begins.

    Guarantees: ``cohort(t)`` depends only on the constructor's arguments.

    >>> from fedmf.participation import Participation
    >>> schedule = AvailableSchedule(5, 2, Participation(4, 2, 2), seed=1)
    >>> sorted(schedule.cohort(3).tolist()), schedule.cohort(3).tolist() == schedule.cohort(3).tolist()
    ([0, 1, 2, 3, 4], True)
    """

    is_order: ClassVar[bool] = True

    def cohort(self, t: int) -> NDArray[np.int64]:
        """All users in the order of round t."""
        self._check_round(t)
        return np.random.default_rng([self.seed, t]).permutation(self.users)
