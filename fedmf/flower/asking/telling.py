"""What is told of a round, once and after its commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedmf.runs import PrivateServer
from fedmf.training import UserFailure


@dataclass(frozen=True)
class RoundReport:
    """What the operator may know about a round. It tells who took part and failed: do not publish.

    Args:
        t: 0-based round, now released.
        asked: users in the cohort.
        present: users whose reply arrived, whatever it held.
        failures: those of them whose contribution is the zero vector, and replies that nobody was asked for.
        seconds: wall time of the round, without what callbacks take.
        federated: what a federated evaluation found; empty without one.
    """

    t: int
    asked: int
    present: int
    failures: tuple[UserFailure, ...]
    seconds: float
    federated: Mapping[str, float] = field(default_factory=dict)


class Telling:
    """The report of the newest round, until it may be told.

    Args:
        server: whose rounds they are.
        on_round: called with each report.

    Guarantees:
        A report is told once, after the commit of its round, or never if that failed; one that was held when
        the wait for the commit was interrupted is told by the next `tell`.
    """

    def __init__(self, server: PrivateServer, on_round: Callable[[RoundReport], None]) -> None:
        self._server, self._on_round = server, on_round
        self._untold: RoundReport | None = None
        self._seconds = 0.0

    def clock(self) -> float:
        """Seconds that pass, but for those of the callback."""
        return time.perf_counter() - self._seconds

    def hold(self, report: RoundReport) -> None:
        """Keep the report of a round until `tell`."""
        self._untold = report

    def tell(self) -> None:
        """Wait until the last round is final and report it, if that was not done yet.

        Raises:
            Exception: as `PrivateServer.settle`, or of the callback.
        """
        self._server.settle()
        report, self._untold = self._untold, None
        if report is not None and report.t < self._server.t:
            begun = time.perf_counter()
            try:
                self._on_round(report)
            finally:
                self._seconds += time.perf_counter() - begun
