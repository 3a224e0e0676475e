"""The way to clients on a grid, and asking again those that a lost connection kept from answering."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedmf.flower.boundary import ServedUsers, Wait, pull_until
from fedmf.flower.compat import arrived, is_of_the_link
from fedmf.rounds import Link, Question
from fedmf.runs import Waiting

_log = logging.getLogger("fedmf")

#: How often a round is asked for again if no reply to it arrives at all.
RETRIES = 10
#: Longest pause before nodes are looked for again, in seconds.
_LONGEST_PAUSE: Final = 30.0
#: Seconds between two looks for nodes while replies are awaited.
_BETWEEN_LOOKS: Final = 1.0


@dataclass(frozen=True)
class Persistence:
    """How long replies are waited for, and how often silence of everybody is asked again.

    Nothing was released yet, so asking again costs nothing; how often is fixed in advance, and then the run
    goes on without replies: who is there ends nothing.

    Args:
        wait: for replies.
    """

    wait: Wait

    def replies(
        self,
        what: str,
        grid: Grid,
        assignment: ServedUsers,
        configure: Callable[[], list[Message]],
        wanted: Callable[[], bool],
    ) -> Iterator[Message]:
        """The replies to messages as they arrive; none if everybody is silent in every attempt.

        Args:
            what: is asked for, for people.
            grid: where.
            assignment: is brought up to date before each attempt and while replies are awaited, for the next.
            configure: makes the messages of an attempt.
            wanted: whether silence is a reason to ask again: a random cohort may be empty.
        """
        for attempt in range(RETRIES + 1):
            assignment.refresh(grid)
            sent = list(grid.push_messages(configure()))
            replies = filter(arrived, pull_until(grid, sent, self.wait, _looks_for_nodes(grid, assignment)))
            first = next(replies, None)
            if first is not None:
                return itertools.chain([first], replies)
            if not wanted():
                return iter(())
            if attempt < RETRIES:
                _log.warning("%s: no reply arrived; asking again (%d)", what, attempt + 1)
                time.sleep(min(self.wait.seconds, _LONGEST_PAUSE, 0.1 * 2**attempt))
        _log.warning(
            "%s: no reply arrived in %d attempts; it goes on without any, and a release is noise alone. "
            "Are the nodes gone? Stop the run, and go on with it when they are back.",
            what,
            RETRIES + 1,
        )
        return iter(())


def _looks_for_nodes(grid: Grid, assignment: ServedUsers) -> Callable[[], None]:
    """Handshakes beside training: at most one look a second. A link that fails there fails no round."""
    last = time.monotonic()

    def look() -> None:
        nonlocal last
        if time.monotonic() - last < _BETWEEN_LOOKS:
            return
        last = time.monotonic()
        try:
            assignment.refresh(grid)
        except Exception as error:
            if not is_of_the_link(error):
                raise

    return look


@dataclass(frozen=True, eq=False)
class GridLink(Link):
    """A grid, and what goes with its messages.

    Args:
        grid: where the nodes are.
        nodes: which of them serves whom.
        waiting: for whom is waited.
        most_bytes: of a reply, beside what its exchange allows.
        timeout: seconds to wait for the replies of a round; None for that of ``waiting``.
        train_config: for clients, where their messages have one.
    """

    grid: Grid
    nodes: ServedUsers
    waiting: Waiting
    most_bytes: int
    timeout: float | None = None
    train_config: ConfigRecord = field(default_factory=ConfigRecord)

    @property
    def _wait(self) -> Wait:
        seconds = self.waiting.round_timeout if self.timeout is None else self.timeout
        return Wait(seconds, self.waiting.min_replies, self.most_bytes)

    def gather(self) -> None:
        """See `Link.gather`."""
        self.nodes.gather(self.grid, self._wait.seconds, self.waiting.handshake_timeout)

    def replies(self, question: Question) -> Iterator[Message]:
        """See `Link.replies`."""
        wait = replace(self._wait, more_bytes=question.bytes_of)
        if question.patient:
            wait = replace(wait, seconds=math.inf, min_replies=0)
        persistence = Persistence(wait)
        return persistence.replies(question.what, self.grid, self.nodes, question.ask, question.wanted)
