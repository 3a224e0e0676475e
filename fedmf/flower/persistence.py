"""Asking again until somebody answers."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.flower.boundary import Wait, pull_until
from fedmf.flower.compat import arrived

__all__ = ["Persistence"]

_log = logging.getLogger("fedmf")

#: Longest pause before nodes are looked for again, in seconds.
_LONGEST_PAUSE: Final = 30.0


class Refreshed(Protocol):
    """Which node serves whom."""

    def refresh(self, grid: Grid, timeout: float) -> None:
        """Shake hands with nodes not seen before."""
        ...


@dataclass(frozen=True)
class Persistence:
    """How long replies are waited for, and how often silence of everybody is asked again.

    Nothing was released yet, so asking again costs nothing. That is no stop on what users' data are: only
    silence of everybody who was asked counts, and how often is fixed in advance.

    Args:
        wait: for replies, and for handshakes where that is shorter.
        retries: how often is asked again if no reply arrives at all.
    """

    wait: Wait
    retries: int

    def replies(
        self,
        what: str,
        grid: Grid,
        assignment: Refreshed,
        configure: Callable[[], list[Message]],
        wanted: Callable[[], bool],
    ) -> Iterator[Message] | None:
        """The replies to messages as they arrive; None if none ever does.

        Args:
            what: is asked for, for people.
            grid: where.
            assignment: is brought up to date before each attempt.
            configure: makes the messages of an attempt.
            wanted: whether silence is a reason to ask again: a random cohort may be empty, and users who are
                asked no more would answer nothing.
        """
        for attempt in range(self.retries + 1):
            assignment.refresh(grid, self.wait.seconds)
            messages = configure()
            replies = filter(arrived, pull_until(grid, list(grid.push_messages(messages)), self.wait))
            first = next(replies, None)
            if first is not None:
                return itertools.chain([first], replies)
            if not wanted():
                return iter(())
            if attempt < self.retries:
                _log.warning("%s: no reply arrived; asking again (%d)", what, attempt + 1)
                time.sleep(min(self.wait.seconds, _LONGEST_PAUSE, 0.1 * 2**attempt))
        return None
