"""The way to clients on a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedmf.flower.asking.persistence import Persistence
from fedmf.flower.boundary import ServedUsers, Wait
from fedmf.rounds import Link, Question
from fedmf.runs import Waiting


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
        evaluate_config: likewise.
    """

    grid: Grid
    nodes: ServedUsers
    waiting: Waiting
    most_bytes: int
    timeout: float | None = None
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)

    @property
    def _wait(self) -> Wait:
        seconds = self.waiting.round_timeout if self.timeout is None else self.timeout
        return Wait(seconds, self.waiting.min_replies, self.waiting.grace, self.most_bytes)

    def gather(self) -> None:
        """See `Link.gather`."""
        self.nodes.gather(self.grid, self._wait.seconds, self.waiting.handshake_timeout)

    def replies(self, question: Question) -> Iterator[Message]:
        """See `Link.replies`."""
        wait = replace(self._wait, more_bytes=question.bytes_of)
        if question.patient:
            wait = replace(wait, seconds=math.inf, min_replies=0)
        persistence = Persistence(wait, question.retries)
        return persistence.replies(question.what, self.grid, self.nodes, question.ask, question.wanted)
