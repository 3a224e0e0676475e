"""The round whose commit is under way while the next one is trained."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedmf.records import Underway
from fedmf.runs.directory import RunDirectory
from fedmf.runs.recorded import PhaseTimes


@dataclass(frozen=True, eq=False)
class Made:
    """Round t as it was computed: what it leaves, and how it is made final."""

    t: int
    parameters: Tensor
    state: Mapping[str, Tensor]
    parts: Mapping[str, Mapping[str, Any]]
    commit: Callable[[], None]


class RoundUnderWay:
    """At most one round that is not final yet.

    Args:
        directory: whose records its commit writes.
        adopt: called once its commit has ended well; again, if that was interrupted.
        times: where what is waited for commits goes.
    """

    def __init__(self, directory: RunDirectory, adopt: Callable[[Made], None], times: PhaseTimes) -> None:
        self._directory, self._adopt, self._times = directory, adopt, times
        self._coming: tuple[Made, Underway] | None = None
        self._failed: BaseException | None = None
        self._waiting = threading.Lock()

    @property
    def coming(self) -> Made | None:
        """The round, while there is one."""
        return None if self._coming is None else self._coming[0]

    def take(self, made: Made) -> None:
        """Take a round over: from here on, whatever interrupts, `wait` and `settle` see to its commit."""
        self._coming = made, Underway(made.commit)

    def begin(self) -> None:
        """Let the commit of the round that was taken be under way."""
        assert self._coming is not None
        self._directory.begin(self._coming[1])

    def wait(self) -> None:
        """Wait until no commit is under way; from any thread. What one raised is left to `settle`."""
        with self._waiting:
            if self._coming is None:
                return
            made, underway = self._coming
            with self._times.measure(made.t + 1, "commit"):
                self._failed = underway.end()
            if self._failed is None:
                self._adopt(made)
            self._coming = None

    def settle(self) -> None:
        """Wait until the round is final.

        Raises:
            ParticipationViolation, LedgerError: nothing of it was released.
        """
        self.wait()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
