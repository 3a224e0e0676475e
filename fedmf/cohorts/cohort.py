"""What every cohort schedule is: a contract, a planned cohort size, and a cohort for each round."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fedmf.participation import Participation


class CohortSchedule(ABC):
    """Who is asked in which round, under a participation contract.

    Guarantees: ``cohort(t)`` depends only on the constructor's arguments; no user appears twice in a
    round, within b rounds of itself, or more than k times.
    """

    #: Whether silence of all who are asked is a fault, so that the round is asked for again.
    expects_replies: bool = True

    def __init__(self, users: int, cohort_size: int, participation: Participation, seed: int) -> None:
        """Check that the cohorts can exist at all.

        Args:
            users: number of users U.
            cohort_size: m, planned users per round: the fixed denominator of the mean update.
            participation: the (n, k, b) contract.
            seed: of the order or of the draws; see ``secret``.

        Raises:
            ValueError: cohorts of that size cannot keep the contract.
        """
        if cohort_size < 1:
            raise ValueError(f"m (cohort size) must be at least 1; got {cohort_size}.")
        self.users, self.cohort_size, self.participation, self.seed = users, cohort_size, participation, seed

    @abstractmethod
    def cohort(self, t: int) -> NDArray[np.int64]:
        """Sorted indices of the users asked in round t (0-based).

        Raises:
            IndexError: t lies outside the horizon.
        """

    def _check_round(self, t: int) -> None:
        if not 0 <= t < self.participation.rounds:
            raise IndexError(f"t (round) must lie in 0..{self.participation.rounds - 1}; got {t}.")
