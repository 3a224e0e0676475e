"""Questions to nodes not known yet, asked beside everything else until they are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.flower.boundary.pulling import Pull
from fedmf.flower.compat import arrived

#: How often a node is asked.
_ATTEMPTS: Final = 6
#: Seconds before a node that answered badly, or not at all, is asked again, doubled each time. A question
#: that waits for its answer may have started a process on its node already: it has longer.
_PAUSE, _PATIENCE = 1.0, 30.0
#: Most bytes of an answer: a few million user ids.
_MOST_BYTES: Final = 2**28


@dataclass
class _Asked:
    """How often a node was asked, when it may be asked again, whether it ever answered and is known."""

    attempts: int = 0
    not_before: float = 0.0
    answered: bool = False
    known: bool = False


class Handshakes:
    """Asks every node a question until it gives a good answer, a bounded number of times.

    Nobody waits here: answers are taken in whenever it is looked for them, however late they come. A node
    that left and comes back is asked anew.

    Args:
        question: a message to a node.
        attempts: how often a node is asked.
        pause: seconds before a node that gave a bad answer is asked again, doubled each time.
        patience: seconds before a node that gave none is.
    """

    def __init__(
        self,
        question: Callable[[int], Message],
        attempts: int = _ATTEMPTS,
        pause: float = _PAUSE,
        patience: float = _PATIENCE,
    ) -> None:
        self._question, self._attempts, self._pause, self._patience = question, attempts, pause, patience
        self._asked: dict[int, _Asked] = {}
        self._sent: dict[str, int] = {}
        self._pull: tuple[Grid, Pull] | None = None

    def answers(self, grid: Grid, alive: Collection[int]) -> Iterator[tuple[int, Message]]:
        """Ask whom it is time to ask; (node, answer) of what is there. Who is not `known` is asked again.

        Args:
            grid: where.
            alive: all nodes that live.
        """
        self._asked = {node: self._asked.get(node, _Asked()) for node in sorted(alive)}
        self._sent = {message: node for message, node in self._sent.items() if node in self._asked}
        self._ask(grid, time.monotonic())
        if not self._sent:
            return
        if self._pull is None or self._pull[0] is not grid:
            # Kept from one look to the next: a link tells only once of an answer that is still on its way.
            self._pull = grid, Pull(grid, lambda _: _MOST_BYTES)
        for reply in self._pull[1](list(self._sent)):
            node = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            asked = self._asked[node]
            asked.not_before = time.monotonic() + self._pause * 2 ** (asked.attempts - 1)
            if arrived(reply):
                asked.answered = True
                yield node, reply

    def _ask(self, grid: Grid, now: float) -> None:
        due = [node for node, asked in self._asked.items() if self._is_due(asked, now)]
        if not due:
            return
        sent = grid.push_messages([self._question(node) for node in due])
        self._sent |= {message: node for message, node in zip(sent, due, strict=True) if message}
        for node in due:
            asked = self._asked[node]
            asked.not_before = now + max(self._pause, self._patience) * 2**asked.attempts
            asked.attempts += 1

    def known(self, node: int) -> None:
        """A node gave a good answer: it is not asked again while it lives."""
        self._asked[node].known = True

    @property
    def silent(self) -> int:
        """How many living nodes never answered, well or badly."""
        return sum(not asked.answered for asked in self._asked.values())

    def _is_due(self, asked: _Asked, now: float) -> bool:
        return not asked.known and asked.attempts < self._attempts and now >= asked.not_before
