"""What is asked of a run by keywords instead of tables."""

from __future__ import annotations

from typing import Any

from fedmf.accounting import UserLevel
from fedmf.cohorts import CheckInCohorts, Cohorts, CyclicCohorts
from fedmf.errors import ConfigError


def asked_privacy(**named: Any) -> UserLevel:
    """`UserLevel` of these fields.

    Raises:
        ConfigError: one is out of its range.
    """
    try:
        return UserLevel(**named)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def asked_cohorts(cohorts: Cohorts | None, rounds: int, size: int) -> Cohorts:
    """Those that are given, or n cohorts of m users in turn.

    Raises:
        ConfigError: they do not fit the numbers beside them, or begin by the clock.
    """
    try:
        found = cohorts or CyclicCohorts(rounds=rounds, size=size)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if (found.rounds, found.size) != (rounds, size):
        raise ConfigError("cohorts must have the rounds and users_per_round that are given beside them.")
    if isinstance(found, CheckInCohorts) and found.live:
        raise ConfigError(
            "cohorts must not be live around another strategy or program; got live = true. Rounds by the "
            "clock are those of fedmf's own server app."
        )
    return found
