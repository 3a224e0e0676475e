"""When rounds may begin."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from fedmf.cohorts import CheckInCohorts, Cohorts
from fedmf.errors import ConfigError
from fedmf.runs import Execution

_DAY: Final = 86_400.0


@dataclass(frozen=True)
class Timetable:
    """Rounds begin at whole multiples of a period since 1970, however long the last one took.

    If a round began when the one before it had ended, a device that is slow would put others, who check in
    later, into another round. What one user does must not decide in which round another takes part
    (docs/theory/check-in.md, condition S).

    Args:
        seconds: the period; 0 for a run that waits for nothing.
    """

    seconds: float = 0.0

    @classmethod
    def of(cls, cohorts: Cohorts, execution: Execution) -> Self:
        """That of a run on nodes that come and go.

        Raises:
            ConfigError: a round may last longer than the time until the next.
        """
        if not (isinstance(cohorts, CheckInCohorts) and cohorts.live):
            return cls()
        period = _DAY / cohorts.rounds_per_day
        longest = math.inf if execution.messages == "slice" else execution.round_timeout
        if not longest < period:
            raise ConfigError(
                f"round_timeout must be below {period:g} s, the period of live rounds, with messages "
                f"'per-user'; got {longest:g} s with messages {execution.messages!r}. Longer waits would "
                "move the rounds of others."
            )
        return cls(period)

    def wait(
        self, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Until the next round may begin.

        A sleep is as long as it should be by another clock than this one. Where it ends too soon it goes on,
        else there would be two rounds at one multiple; a clock that is set back is waited for one period.

        >>> now = [7 * 3600 + 60.0]
        >>> Timetable(3600).wait(clock=lambda: now[-1], sleep=lambda seconds: now.append(now[-1] + seconds))
        >>> now[-1] / 3600
        8.0
        """
        if not self.seconds:
            return
        begin = (clock() // self.seconds + 1) * self.seconds
        while 0 < (left := begin - clock()) <= self.seconds:
            sleep(left)
