"""Questions to nodes not known yet, asked beside everything else until they are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.flower.boundary.pulling import Wait, pull_until
from fedmf.flower.compat import arrived

__all__ = ["Handshakes"]

#: How often a node is asked, and how long it is waited for the first time, in seconds.
_ATTEMPTS: Final = 6
_LONGEST: Final = 60.0
#: Most bytes of an answer: a few million user ids.
_MOST_BYTES: Final = 2**28


@dataclass
class _Asked:
    """How often a node was asked, when it may be asked again, and whether it is known."""

    attempts: int = 0
    not_before: float = 0.0
    known: bool = False


class Handshakes:
    """Asks every node a question until it gives a good answer, a bounded number of times.

    Nobody waits for a node longer than once, and then at most a minute: answers that come later are taken in
    later, and between attempts lie 1, 2, 4, … seconds. A node that left and comes back is asked anew.

    Args:
        question: a message to a node.
        attempts: how often a node is asked.
        longest: seconds to wait for nodes asked for the first time.
        pause: seconds before a node is asked again, doubled each time.
    """

    def __init__(
        self,
        question: Callable[[int], Message],
        attempts: int = _ATTEMPTS,
        longest: float = _LONGEST,
        pause: float = 1.0,
    ) -> None:
        self._question, self._attempts, self._longest, self._pause = question, attempts, longest, pause
        self._asked: dict[int, _Asked] = {}
        self._sent: dict[str, int] = {}

    def answers(self, grid: Grid, alive: Collection[int], timeout: float) -> Iterator[tuple[int, Message]]:
        """Ask whom it is time to ask; (node, answer) as they come. Who is not `known` then is asked again.

        Args:
            grid: where.
            alive: all nodes that live.
            timeout: seconds to wait, if that is shorter than ``longest``.
        """
        self._asked = {node: self._asked.get(node, _Asked()) for node in sorted(alive)}
        self._sent = {message: node for message, node in self._sent.items() if node in self._asked}
        now = time.monotonic()
        due = [node for node, asked in self._asked.items() if self._is_due(asked, now)]
        newcomers = any(self._asked[node].attempts == 0 for node in due)
        if due:
            sent = grid.push_messages([self._question(node) for node in due])
            self._sent |= {message: node for message, node in zip(sent, due, strict=True) if message}
        if self._sent:
            wait = Wait(min(timeout, self._longest) if newcomers else 0.0, most_bytes=_MOST_BYTES)
            for reply in pull_until(grid, list(self._sent), wait):
                node = self._sent.pop(reply.metadata.reply_to_message_id)
                if arrived(reply):
                    yield node, reply
        for node in due:
            asked = self._asked[node]
            asked.not_before = time.monotonic() + self._pause * 2**asked.attempts
            asked.attempts += 1

    def known(self, node: int) -> None:
        """A node gave a good answer: it is not asked again while it lives."""
        self._asked[node].known = True

    def _is_due(self, asked: _Asked, now: float) -> bool:
        return not asked.known and asked.attempts < self._attempts and now >= asked.not_before
