"""Cohorts of devices that come when they can, as a value, and every kind of cohorts by its name."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Final, Self

from fedmf.cohorts.check_in import (
    CheckIns,
    CheckInSchedule,
    DeviceRule,
    DiurnalModel,
    Forecast,
    forecast,
    read_check_ins,
)
from fedmf.cohorts.fixed import CohortSchedule
from fedmf.cohorts.kinds import (
    BallsInBinsCohorts,
    Cohorts,
    CyclicCohorts,
    CyclicPoissonCohorts,
    MinSeparatedCohorts,
    RandomCohorts,
)
from fedmf.errors import ConfigError
from fedmf.participation import Participation
from fedmf.values import by_kind, check_whole


@dataclass(frozen=True)
class CheckInCohorts(Cohorts):
    """Whoever checks in takes part, if its own timer and coin allow; the server refuses what breaks (k, b).

    b, k and the coins' probability are forecast where they are not set. Nobody displaces anybody, so the
    guarantee covers when users are available, too: docs/theory/check-in.md.

    Args:
        trace: CSV file of check-ins with the columns user, time, taken as public; empty for the public model.
        live: ask all whose coin says so and let the nodes that are connected answer; otherwise trace or model
            also say who is there.
        rounds_per_day: of the public timetable of rounds.
        zones: model: hours east of UTC, 0 to 23; each device has one of them, so one named twice has twice as
            many.
        presence: model: probability that a device checks in during a night.
        away: model: share of its time that a device is away for several nights.
        late: model: share of users who join late.
        leaving: model: share of users who withdraw before the end.
        drop_out: share of participations that never arrive.
        impatient: share of devices that ignore their timer, whom the server must refuse.
        margin: share of participations that may be missing before fewer than m come; the forecast keeps it
            free.
        probability: q of each device's coin; forecast if unset.
        seed: public seed of model and coins.
        trace_digest: SHA-256 of the trace, noted when a run is made; another file of that name is refused.
    """

    kind: ClassVar[str] = "check-in"
    schedule_class: ClassVar[type[CohortSchedule]] = CheckInSchedule

    trace: str = ""
    live: bool = False
    rounds_per_day: int = 24
    zones: tuple[int, ...] = (0, 1, 8, 16, 19)
    presence: float = 0.8
    away: float = 0.1
    late: float = 0.0
    leaving: float = 0.0
    drop_out: float = 0.0
    impatient: float = 0.0
    margin: float = 0.2
    probability: float | None = None
    seed: int = 0
    trace_digest: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rounds_per_day", self.rounds_per_day, 1, 86_400)
        check_whole("seed (of the check-ins)", self.seed, 0, 2**63 - 1)
        if not self.zones or any(type(zone) is not int or not 0 <= zone < 24 for zone in self.zones):
            raise ValueError(f"zones must be hours east in 0..23, at least one; got {self.zones!r}.")
        for name in ("presence", "away", "late", "leaving", "drop_out", "impatient"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} (share) must lie in [0, 1]; got {getattr(self, name)!r}.")
        if not 0 <= self.margin < 0.5:
            raise ValueError(f"margin (share that may be missing) must lie in [0, 0.5); got {self.margin!r}.")
        if self.probability is not None and not 0 < self.probability <= 1:
            raise ValueError(f"probability (q) must lie in (0, 1]; got {self.probability!r}.")

    def participation(self, users: int, bands: int | None = None) -> Participation:
        """See `Cohorts.participation`; what is unset is forecast."""
        if self.min_separation and self.max_participations:
            return Participation(self.rounds, self.max_participations, self.min_separation)
        return self.forecast(users).contract

    def forecast(self, users: int) -> Forecast:
        """What the check-ins allow, by trace or model.

        Raises:
            ValueError: fewer than m users come to a round even without timers.
            ConfigError: the trace cannot be read.
        """
        return _forecast(self, users, self._read_digest())

    def settled(self, users: int) -> Self:
        """With b, k, q and the digest of the trace.

        Raises:
            ValueError, ConfigError: see `forecast`.
        """
        noted = self
        if self.trace and not self.trace_digest:
            noted = dataclasses.replace(self, trace_digest=self._read_digest())
        if self.min_separation and self.max_participations and self.probability:
            return noted
        found = noted.forecast(users)
        return dataclasses.replace(
            noted,
            min_separation=found.contract.min_separation,
            max_participations=found.contract.max_participations,
            probability=self.probability or found.probability,
        )

    def schedule(self, users: int, contract: Participation, secret_seed: int) -> CheckInSchedule:
        """See `Cohorts.schedule`."""
        del secret_seed
        q = self.probability or self.forecast(users).probability
        rule = DeviceRule(contract, q, self.drop_out, self.impatient, self.seed)
        check_ins = None if self.live else _check_ins(self, users, self._read_digest())
        return CheckInSchedule(users, self.size, rule, check_ins)

    def _read_digest(self) -> str:
        """SHA-256 of the trace as it is now, in hexadecimal digits; empty without one."""
        try:
            content = Path(self.trace).expanduser().read_bytes() if self.trace else None
        except OSError as error:
            raise ConfigError(f"cannot read check-ins {self.trace}: {error.strerror}.") from None
        digest = "" if content is None else hashlib.sha256(content).hexdigest()
        if self.trace_digest not in ("", digest):
            raise ConfigError(
                f"check-ins {self.trace} must be what the run began with, SHA-256 {self.trace_digest}; got "
                f"{digest}. Restore the file from a copy."
            )
        return digest

    @property
    def known_beforehand(self) -> bool:
        """See `Cohorts.known_beforehand`."""
        return not self.live and self.impatient == 0

    def public_inputs(self) -> tuple[tuple[str, str, str], ...]:
        """See `Cohorts.public_inputs`."""
        name = "check-ins planned with"
        if self.trace:
            return ((name, f"SHA-256 {self.trace_digest}", "the file trace, declared public"),)
        return ((name, "public model of day and night", "configuration"),)


@lru_cache(maxsize=4)
def _check_ins(cohorts: CheckInCohorts, users: int, digest: str) -> CheckIns:
    del digest  # another file of the same name is another entry
    if cohorts.trace:
        return read_check_ins(Path(cohorts.trace).expanduser(), cohorts.rounds_per_day).lent_to(users)
    return DiurnalModel(
        users,
        cohorts.rounds,
        cohorts.rounds_per_day,
        cohorts.zones,
        cohorts.presence,
        cohorts.away,
        cohorts.late,
        cohorts.leaving,
        cohorts.seed,
    ).check_ins()


@lru_cache(maxsize=16)
def _forecast(cohorts: CheckInCohorts, users: int, digest: str) -> Forecast:
    return forecast(
        _check_ins(cohorts, users, digest),
        cohorts.rounds,
        cohorts.size,
        cohorts.margin,
        cohorts.min_separation,
        cohorts.max_participations,
        cohorts.drop_out,
        cohorts.seed,
    )


COHORTS: Final = by_kind(
    CyclicCohorts,
    RandomCohorts,
    CyclicPoissonCohorts,
    BallsInBinsCohorts,
    MinSeparatedCohorts,
    CheckInCohorts,
)
