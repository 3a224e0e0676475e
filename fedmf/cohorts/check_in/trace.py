"""Who was there and when: a file of check-ins, or a day's rhythm that they are drawn from."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.cohorts.check_in.check_ins import CheckIns, uniform
from fedmf.errors import ConfigError

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


_DAY: Final = 86_400
_LONGEST: Final = 4000


def read_check_ins(path: Path, rounds_per_day: int) -> CheckIns:
    """Check-ins of a CSV file with the columns ``user`` and ``time``.

    Users are numbered in the order of their ids, rounds from midnight (UTC) of the first day on; the last day
    is a whole one too, so that a trace which begins again goes on at the right hour.

    Args:
        path: times are seconds since 1970, or ISO 8601 (UTC where they name no zone).
        rounds_per_day: how many rounds a day has.

    Raises:
        ConfigError: unreadable, other columns, no row, a time that is none, or more than 4000 days.
    """
    ids, times = [], []
    if path.exists() and not path.is_file():  # a device may never end
        raise ConfigError(f"check-ins {path} must be a file; got something else.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            columns = next(rows, [])
            if sorted(columns) != ["time", "user"]:
                given = ", ".join(columns)[:100] or "none"
                raise ConfigError(f"check-ins {path} must have the columns user, time; got {given}.")
            who, when = columns.index("user"), columns.index("time")
            for row in rows:
                if len(row) != 2 or not row[who]:
                    raise ConfigError(
                        f"check-ins {path} must name user and time; line {rows.line_num} has not."
                    )
                ids.append(row[who])
                times.append(_seconds(row[when], path, rows.line_num))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read check-ins {path}: {reason}.") from None
    if not ids:
        raise ConfigError(f"check-ins {path} must have at least one row; got none.")
    seconds = np.array(times)
    first = math.floor(seconds.min() / _DAY)
    days = math.floor(seconds.max() / _DAY) + 1 - first
    if days > _LONGEST:
        raise ConfigError(f"check-ins {path} must span at most {_LONGEST} days; they span {days}.")
    names, users = np.unique(np.array(ids), return_inverse=True)
    rounds = np.floor((seconds - first * _DAY) * rounds_per_day / _DAY).astype(np.int64)
    placed = np.unique(np.minimum(rounds, days * rounds_per_day - 1) * names.size + users)
    starts = np.searchsorted(placed, np.arange(days * rounds_per_day + 1) * names.size)
    return CheckIns(names.size, starts, (placed % names.size).astype(np.int32))


def _seconds(text: str, path: Path, line: int) -> float:
    """Seconds since 1970."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            seconds = math.nan
        else:
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ConfigError(
            f"time (of a check-in) must be seconds or ISO 8601; got {text[:40]!r} in line {line} of {path}."
        )
    return seconds
