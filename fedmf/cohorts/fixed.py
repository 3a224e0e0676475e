"""Schedules from a public seed: users in turn, drawn from those eligible, or from those connected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmf.participation import Participation


class CohortSchedule(ABC):
    """Who is asked in which round, under a participation contract.

    Guarantees: ``cohort(t)`` depends only on the constructor's arguments; no user appears twice in a
    round, within b rounds of itself, or more than k times.
    """

    #: Whether `cohort` is an order of all users, of whom the first m join that are connected and admitted.
    is_order: ClassVar[bool] = False

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
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027, nothing is shared unless a schedule says so
        """Check the contract and draw what rounds share.

        Raises:
            ValueError: cohorts of that size cannot keep the contract.
        """

    def cohort(self, t: int) -> NDArray[np.int64]:
        """Sorted indices of the users asked in round t (0-based).

        Raises:
            IndexError: t lies outside the horizon.
        """
        if not 0 <= t < self.participation.rounds:
            raise IndexError(f"t (round) must lie in 0..{self.participation.rounds - 1}; got {t}.")
        return self._cohort(t)

    @abstractmethod
    def _cohort(self, t: int) -> NDArray[np.int64]:
        """See `cohort`."""


class FixedSizeSchedule(CohortSchedule):
    """Exactly m users in every round. The seed is public: it protects nothing."""

    def _prepare(self) -> None:
        """See `CohortSchedule`: m·min(b, n) ≤ U, so that no round has fewer than m eligible users, and
        n·m ≤ U·k."""
        users, cohort_size, contract = self.users, self.cohort_size, self.participation
        n, k, b = contract.rounds, contract.max_participations, contract.min_separation
        window = min(b, n)  # a separation beyond the horizon asks no more than b = n
        if cohort_size * window > users:
            raise ValueError(
                f"m (cohort size) must be at most the number of eligible users; got m={cohort_size}, but "
                f"with {users} users and b={b} only {users // window} are sure to be eligible in every round."
            )
        if n * cohort_size > users * k:
            raise ValueError(
                f"k (max_participations) must allow n*m = {n * cohort_size} participations; got k={k} for "
                f"{users} users. Use k of at least {-(-n * cohort_size // users)}, fewer rounds or smaller "
                "cohorts."
            )


class CyclicSchedule(FixedSizeSchedule):
    """Walk round and round through one random order of the users, m at a time.

    Consecutive participations of a user are ⌊U/m⌋ or ⌈U/m⌉ rounds apart, and nobody takes part more
    than ⌈n·m/U⌉ times.

    >>> contract = Participation(rounds=9, max_participations=3, min_separation=3)
    >>> schedule = CyclicSchedule(6, 2, contract, seed=1)
    >>> bool((schedule.cohort(0) == schedule.cohort(3)).all())
    True
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._order = np.random.default_rng(self.seed).permutation(self.users)

    def _cohort(self, t: int) -> NDArray[np.int64]:
        positions = (t * self.cohort_size + np.arange(self.cohort_size)) % self.users
        return np.sort(self._order[positions])


class RandomSchedule(FixedSizeSchedule):
    """Every round draws m users uniformly from those that are eligible under (k, b).

    The whole schedule is drawn at construction, so that a cap k too tight for a random order is
    rejected before any training. No amplification is claimed for it.
    """

    def _prepare(self) -> None:
        """Partial Fisher–Yates on the pool of eligible users: O(m) a round however many users there are."""
        super()._prepare()
        users, cohort_size, participation = self.users, self.cohort_size, self.participation
        rng = np.random.default_rng(self.seed)
        pool = np.arange(users, dtype=np.int32)
        eligible = users
        used = np.zeros(users, dtype=np.int64)
        resting: deque[NDArray[np.int32]] = deque()
        cohorts = np.empty((participation.rounds, cohort_size), dtype=np.int32)
        for t in range(participation.rounds):
            if len(resting) == participation.min_separation:
                returning = resting.popleft()
                returning = returning[used[returning] < participation.max_participations]
                pool[eligible : eligible + returning.size] = returning
                eligible += returning.size
            if eligible < cohort_size:
                raise ValueError(
                    f"k (max_participations) must leave {cohort_size} eligible users in every round; got k="
                    f"{participation.max_participations}: a random order runs out in round {t + 1} of "
                    f"{participation.rounds}. Raise k or use the cyclic schedule."
                )
            draws = rng.integers(0, eligible - np.arange(cohort_size))
            for i, position in enumerate(draws):
                last = eligible - 1 - i
                pool[position], pool[last] = pool[last], pool[position]
            chosen = pool[eligible - cohort_size : eligible].copy()
            eligible -= cohort_size
            used[chosen] += 1
            resting.append(chosen)
            cohorts[t] = np.sort(chosen)
        self._cohorts = cohorts

    def _cohort(self, t: int) -> NDArray[np.int64]:
        return self._cohorts[t].astype(np.int64)


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

    def _cohort(self, t: int) -> NDArray[np.int64]:
        """All users in the order of round t."""
        return np.random.default_rng([self.seed, t]).permutation(self.users)


def cyclic_participation(users: int, cohort_size: int, rounds: int) -> Participation:
    """The tightest (k, b) that CyclicSchedule keeps: b = ⌊U/m⌋ and k = ⌈n·m/U⌉, within the horizon.

    >>> cyclic_participation(users=360, cohort_size=36, rounds=240)
    Participation(rounds=240, max_participations=24, min_separation=10)
    """
    if not 1 <= cohort_size <= users:
        raise ValueError(
            f"m (cohort size) must lie in 1..{users}, the number of users; got {cohort_size}. "
            "More users a round than exist are never eligible."
        )
    return Participation(rounds, -(-rounds * cohort_size // users), min(users // cohort_size, rounds))
