"""Who takes part of those that check in: a timer and a coin on each device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedmf.cohorts.check_in.check_ins import CheckIns, uniform
from fedmf.cohorts.fixed import CohortSchedule
from fedmf.participation import Participation

_COIN, _DROP, _IMPATIENT, _PHASE = range(4)


@dataclass(frozen=True)
class DeviceRule:
    """What every device does by itself when it checks in.

    It takes part if its last turn is at least b rounds ago, it had fewer than k turns, and its coin says so;
    before its first turn it waits for a random number of rounds below b, so that not all come at once.
    Nothing is decided between devices, so that nobody takes the place of another: docs/theory/check-in.md.

    Args:
        contract: (n, k, b).
        probability: q in (0, 1], of the coin.
        drop_out: probability that a device that takes part is never heard of again in that round.
        impatient: share of devices that ignore timer and cap; the server has to refuse them.
        seed: public, of the coins.

    Raises:
        ValueError: a probability outside its range.
    """

    contract: Participation
    probability: float = 1.0
    drop_out: float = 0.0
    impatient: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"q (probability) must lie in (0, 1]; got {self.probability!r}.")

    def participations(self, check_ins: CheckIns) -> Participations:
        """What comes of it over n rounds."""
        n, k, b = (
            self.contract.rounds,
            self.contract.max_participations,
            self.contract.min_separation,
        )
        everyone = np.arange(check_ins.users)
        impatient = self._coin(_IMPATIENT, 0, everyone) < self.impatient  # of its own, for all rounds
        last = self.first_turns(check_ins.users) - b
        turns = np.zeros(check_ins.users, dtype=np.int64)
        arrived: list[NDArray[np.int32]] = []
        for t in range(n):
            here = check_ins.at(t)
            may = (t - last[here] >= b) & (turns[here] < k) | impatient[here]
            here = here[may]
            here = self.coin(t, here)
            last[here] = t
            turns[here] += 1
            arrived.append(here[self._coin(_DROP, t, here) >= self.drop_out] if self.drop_out else here)
        return Participations(check_ins.users, tuple(arrived))

    def first_turns(self, users: int) -> NDArray[np.int64]:
        """The round before which each device waits for its first turn."""
        b = self.contract.min_separation
        return (self._coin(_PHASE, 0, np.arange(users)) * b).astype(np.int64)

    def coin(self, t: int, users: NDArray[np.int32]) -> NDArray[np.int32]:
        """Those of the users whose coin says yes in round t."""
        if self.probability == 1:
            return users
        return users[self._coin(_COIN, t, users) < self.probability]

    def _coin(self, purpose: int, t: int, users: NDArray[np.integer]) -> NDArray[np.float64]:
        return uniform(self.seed, purpose, t, users)


@dataclass(frozen=True, eq=False)
class Participations:
    """Who took part in each round.

    Args:
        users: U.
        cohorts: user indices of each round, sorted.
    """

    users: int
    cohorts: tuple[NDArray[np.int32], ...]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Users in each round."""
        return np.array([cohort.size for cohort in self.cohorts])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rounds of each user."""
        return np.bincount(np.concatenate(self.cohorts), minlength=self.users)

    @property
    def max_participations(self) -> int:
        """k that was realised."""
        return int(self.counts.max(initial=0))

    @cached_property
    def min_separation(self) -> int | None:
        """b that was realised; None if nobody took part twice."""
        rounds, users = self.by_user()
        gaps = np.diff(rounds)[np.diff(users) == 0]
        return int(gaps.min()) if gaps.size else None

    def by_user(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rounds, users) of all participations, sorted by user, then by round."""
        rounds = np.repeat(np.arange(len(self.cohorts)), self.sizes)
        users = np.concatenate(self.cohorts).astype(np.int64)
        order = np.argsort(users, kind="stable")
        return rounds[order], users[order]


class CheckInSchedule(CohortSchedule):
    """Cohorts of those who come.

    Each is a function of its members' own check-ins, earlier turns and public coins. Devices that ignore
    their timers are in it all the same, as in reality; the server takes those that the contract allows
    (`fedmf.records.Admission`).

    Args:
        users: U.
        cohort_size: m, the fixed denominator; what really comes may be more or less.
        rule: of the devices, with the contract.
        check_ins: who is there when; None where that is not known before, and all are asked whose coin says
            so and whom the server admits.

    Raises:
        ValueError: check-ins of another number of users.
    """

    def __init__(self, users: int, cohort_size: int, rule: DeviceRule, check_ins: CheckIns | None) -> None:
        super().__init__(users, cohort_size, rule.contract, rule.seed)
        if check_ins is not None and check_ins.users != users:
            raise ValueError(f"check-ins must be those of U={users} users; got {check_ins.users}.")
        self._rule, self._check_ins = rule, check_ins
        self.expects_replies = check_ins is not None

    @cached_property
    def _simulated(self) -> tuple[NDArray[np.int32], ...]:
        assert self._check_ins is not None
        return self._rule.participations(self._check_ins).cohorts

    def cohort(self, t: int) -> NDArray[np.int64]:
        """See CohortSchedule.cohort."""
        self._check_round(t)
        if self._check_ins is None:
            begun = np.flatnonzero(self._rule.first_turns(self.users) <= t).astype(np.int32)
            return self._rule.coin(t, begun).astype(np.int64)
        return self._simulated[t].astype(np.int64)
