"""A public model of when devices check in: by night, in their own time zone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.cohorts.check_in.check_ins import CheckIns, uniform

_ZONE, _START, _NIGHT, _AWAY, _PHASE, _LATE, _JOINS, _LEAVING, _LEAVES = range(16, 25)
#: A device that is away stays away for so many nights.
_SPELL: Final = 10
_HOURS: Final = 7.0
_EARLIEST: Final = 20.0
_SPREAD: Final = 6.0


@dataclass(frozen=True)
class DiurnalModel:
    """Devices that check in while they are charged at night.

    Each has a time zone and a night of 7 hours that begins at its own hour between 20:00 and 2:00. Of its
    nights it is there for a random share; now and then it stays away for 10 nights and returns. Some users
    join late, some withdraw and are never seen again. A device's life is a function of its own index and the
    public seed.

    Args:
        users: U.
        rounds: n, over which joining and leaving are spread.
        rounds_per_day: how many rounds a day has.
        zones: hours east of UTC; each device has one of them, drawn uniformly.
        presence: probability of a check-in in a night.
        away: share of its time that a device is away.
        late: share of users who join later than round 0.
        leaving: share of users who withdraw before the end.
        seed: public.

    >>> model = DiurnalModel(1000, 48, 24, zones=(0,))
    >>> night, noon = model.check_ins().at(24), model.check_ins().at(12)
    >>> night.size > 300, noon.size
    (True, 0)
    """

    users: int
    rounds: int
    rounds_per_day: int
    zones: tuple[int, ...]
    presence: float = 0.8
    away: float = 0.1
    late: float = 0.0
    leaving: float = 0.0
    seed: int = 0

    def check_ins(self) -> CheckIns:
        """Who checks in during each of the n rounds; a device that is there checks in at every round."""
        users = np.arange(self.users, dtype=np.int64)
        zones = np.array(self.zones, dtype=np.float64)
        shift = zones[(self._coin(_ZONE, users) * zones.size).astype(np.int64)]
        shift -= _EARLIEST + _SPREAD * self._coin(_START, users)
        phase = (self._coin(_PHASE, users) * _SPELL).astype(np.int64)
        joins = self._moment(_LATE, _JOINS, users, self.late, 0)
        leaves = self._moment(_LEAVING, _LEAVES, users, self.leaving, self.rounds)
        present = []
        for t in range(self.rounds):
            hour = 24.0 * t / self.rounds_per_day + shift
            night = np.floor(hour / 24.0).astype(np.int64)
            here = np.flatnonzero((hour - 24.0 * night < _HOURS) & (joins <= t) & (t < leaves))
            spell = (night[here] + phase[here]) // _SPELL
            there = self._coin(_NIGHT, here, night[here]) < self.presence
            there &= self._coin(_AWAY, here, spell) >= self.away
            present.append(here[there])
        return CheckIns.of_rounds(self.users, present)

    def _coin(
        self, purpose: int, users: NDArray[np.int64], time: int | NDArray[np.int64] = 0
    ) -> NDArray[np.float64]:
        return uniform(self.seed, purpose, time, users)

    def _moment(
        self, whether: int, when: int, users: NDArray[np.int64], share: float, otherwise: int
    ) -> NDArray[np.int64]:
        """The round in which a share of the users joins or leaves."""
        rounds = (self._coin(when, users) * self.rounds).astype(np.int64)
        return np.where(self._coin(whether, users) < share, rounds, otherwise)
