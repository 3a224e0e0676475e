"""Cohorts as values of a configuration: rounds, planned size, contract and public orders.

`sampled` has the cohorts that a secret seed draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmf.participation import LARGEST_HORIZON, Participation
from fedmf.values import Field, Value

#: Sorted indices of the users of a round, or an order of all users.
Draw = Callable[[int], NDArray[np.int64]]


@dataclass(frozen=True)
class CohortSchedule:
    """The users of every round, under a participation contract.

    Args:
        rounds: n.
        draw: gives the users of a round.
        is_order: whether that is an order of all users, of whom the first m join that are connected
            and admitted.

    Guarantees:
        ``cohort(t)`` depends only on these arguments; no user appears twice in a round, within b
        rounds of itself, or more than k times.
    """

    rounds: int
    draw: Draw
    is_order: bool = False

    def cohort(self, t: int) -> NDArray[np.int64]:
        """Sorted indices of the users of round t (0-based).

        Raises:
            IndexError: t lies outside the horizon.
        """
        if not 0 <= t < self.rounds:
            raise IndexError(f"t (round) must lie in 0..{self.rounds - 1}; got {t}.")
        return self.draw(t)


@dataclass(frozen=True)
class Cohorts(Value):
    """The plan of participation; abstract.

    Raises:
        ValueError: a value is not a positive integer.
    """

    rounds: Annotated[
        int,
        Field("number of rounds, for which the noise is calibrated", "n", ge=1, le=LARGEST_HORIZON),
    ] = 240
    users_per_round: Annotated[
        int, Field("planned users per round; sums are divided by this number", "m", ge=1)
    ] = 36
    min_separation: Annotated[
        int | None,
        Field("smallest distance between two rounds of a user; derived if not set", "b", ge=1),
    ] = None
    max_participations: Annotated[
        int | None, Field("largest number of rounds of a user; derived if not set", "k", ge=1)
    ] = None

    #: Whether a secret seed draws the cohorts, whether users take turns, so that none joins more
    #: often than others, and whether each round is an order of all users.
    secret: ClassVar[bool] = False
    in_turns: ClassVar[bool] = False
    is_order: ClassVar[bool] = False

    def participation(self, users: int, bands: int | None = None) -> Participation:
        """The (n, k, b) participation, with unset values derived.

        Args:
            users: N.
            bands: p of the mechanism, if it was fixed: the least b for which a banded C is
                amplified.

        Raises:
            ValueError: m > N, or (n, k, b) that do not fit together.
        """
        cyclic = cyclic_participation(users, self.users_per_round, self.rounds)
        b = self.min_separation or self._separation(users // self.users_per_round, bands)
        k = Participation.as_many_as_fit(self.rounds, b).max_participations
        if self.in_turns:
            k = min(k, cyclic.max_participations)
        return Participation(self.rounds, self.max_participations or k, b)

    def _separation(self, turns: int, bands: int | None) -> int:
        """b where none is given: by default the tightest that a cyclic order keeps."""
        return min(turns, self.rounds)

    def schedule(
        self, users: int, contract: Participation, seed: int = 0, secret_seed: int = 0
    ) -> CohortSchedule:
        """The schedule of the cohorts of a run.

        Args:
            users: N.
            contract: (n, k, b), as `participation` gives it.
            seed: public; it protects nothing, and sampled cohorts do not use it.
            secret_seed: of the run's key; only sampled cohorts use it.

        Raises:
            ValueError: cohorts of that size cannot keep the contract.
        """
        self._check(users, contract)
        if self.secret:
            seed = secret_seed
        draw = self._draw(users, contract, seed)
        return CohortSchedule(contract.rounds, draw, self.is_order)

    def _check(self, users: int, contract: Participation) -> None:
        """m·min(b, n) ≤ U, so that no round has fewer than m eligible users, and n·m ≤ U·k.

        Raises:
            ValueError: cohorts of that size cannot keep the contract.
        """
        m = self.users_per_round
        n = contract.rounds
        k = contract.max_participations
        # A separation beyond the horizon demands no more than b = n.
        window = min(contract.min_separation, n)
        if m * window > users:
            raise ValueError(
                f"m (cohort size) must be at most the number of eligible users; got m={m}, but with"
                f" {users} users and b={contract.min_separation} only {users // window} are sure to"
                " be eligible in every round."
            )
        if n * m > users * k:
            raise ValueError(
                f"k (max_participations) must allow n*m = {n * m} participations; got k={k} for"
                f" {users} users. Use k of at least {-(-n * m // users)}, fewer rounds or smaller"
                " cohorts."
            )

    @abstractmethod
    def _draw(self, users: int, contract: Participation, seed: int) -> Draw:
        """Draw what all rounds share, and return the draw of a round."""


@dataclass(frozen=True)
class CyclicCohorts(Cohorts):
    """The users take turns in one random order, m at a time.

    Consecutive participations of a user are ⌊U/m⌋ or ⌈U/m⌉ rounds apart, and no user takes part
    more than ⌈n·m/U⌉ times.

    >>> schedule = CyclicCohorts(9, 2).schedule(6, Participation(9, 3, 3), seed=1)
    >>> bool((schedule.cohort(0) == schedule.cohort(3)).all())
    True
    """

    kind: ClassVar[str] = "cyclic"
    in_turns: ClassVar[bool] = True

    def _draw(self, users: int, contract: Participation, seed: int) -> Draw:
        order = np.random.default_rng(seed).permutation(users)
        m = self.users_per_round
        return lambda t: np.sort(order[(t * m + np.arange(m)) % users])


@dataclass(frozen=True)
class AvailableCohorts(Cohorts):
    """Every round samples m users that are connected and eligible under (n, k, b).

    The schedule has for each round a random order of all users, from a public seed. The first m of
    it take part who are connected and whom the contract admits: b rounds after the last
    participation, at most k times. Where fewer are left, all of them take part; the mean update is
    divided by m all the same. Who is connected, and who took part before, is known when the round
    begins. A simulation takes every user for connected, so that each round samples m eligible users
    uniformly; this cannot be amplified. If b is unset it is half of what a cyclic order keeps, so
    that half of the users may be away.

    >>> schedule = AvailableCohorts(4, 2).schedule(5, Participation(4, 2, 2), seed=1)
    >>> sorted(schedule.cohort(3).tolist())
    [0, 1, 2, 3, 4]
    >>> bool((schedule.cohort(3) == schedule.cohort(3)).all())
    True
    """

    kind: ClassVar[str] = "available"
    is_order: ClassVar[bool] = True

    def _separation(self, turns: int, bands: int | None) -> int:
        return max(1, turns // 2)

    def _check(self, users: int, contract: Participation) -> None:
        """Fewer users may come than are planned."""

    def _draw(self, users: int, contract: Participation, seed: int) -> Draw:
        return lambda t: np.random.default_rng([seed, t]).permutation(users)


def cyclic_participation(users: int, cohort_size: int, rounds: int) -> Participation:
    """The tightest (k, b) that `CyclicCohorts` keep: b = ⌊U/m⌋ and k = ⌈n·m/U⌉, within the horizon.

    >>> cyclic_participation(users=360, cohort_size=36, rounds=240)
    Participation(rounds=240, max_participations=24, min_separation=10)
    """
    if not 1 <= cohort_size <= users:
        raise ValueError(
            f"m (cohort size) must lie in 1..{users}, the number of users; got {cohort_size}. "
            "A round cannot have more users than exist."
        )
    return Participation(
        rounds, -(-rounds * cohort_size // users), min(users // cohort_size, rounds)
    )
