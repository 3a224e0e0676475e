"""Replies as they arrive, one by one: what is wrong with one of them stays with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.errors import UnsoundSumError
from fedmf.flower.compat import LinkPull, arrived, is_of_the_link, unusable_reply

#: How often pulling one reply may raise before it counts as one that holds nothing.
_ATTEMPTS: Final = 3
#: How often in a row the link may fail to answer before that ends the run.
_LINK_FAILURES: Final = 10
_SHORTEST_PAUSE: Final = 0.05


@dataclass(frozen=True)
class Wait:
    """How long replies are waited for, fixed before anybody is asked.

    Args:
        seconds: at most so long; infinite: until all are in.
        min_replies: after so many arrived the others are not waited for; 0: all are.
        most_bytes: of one reply, where the grid lets that be known before the reply is unpacked.
        more_bytes: further ones of the reply to a message, by its id.
    """

    seconds: float
    min_replies: int = 0
    most_bytes: int = 2**32
    more_bytes: Callable[[str], int] = lambda _: 0

    def limit(self, message_id: str) -> int:
        """Most bytes of the reply to a message."""
        return self.most_bytes + self.more_bytes(message_id)


def pull_until(
    grid: Grid,
    message_ids: Iterable[str | None],
    wait: Wait,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    """Yield the first reply to each message as it arrives, until all are in or the time is up.

    A reply that cannot be pulled or unpacked comes as an error reply of its node: it arrived and holds
    nothing. Whatever a node sends, the replies of the others come.

    Args:
        grid: where.
        message_ids: of the messages; None for one that could not be sent.
        wait: how long.
        meanwhile: called between one look for replies and the next; it must not wait.
    """
    pending = dict.fromkeys(message_id for message_id in message_ids if message_id)
    pull = Pull(grid, wait.limit)
    came = 0
    deadline, pause = time.monotonic() + wait.seconds, _SHORTEST_PAUSE
    while pending:
        before = len(pending)
        for reply in pull(list(pending)):
            if reply.metadata.reply_to_message_id in pending:
                del pending[reply.metadata.reply_to_message_id]
                came += arrived(reply)
                yield reply
        if not pending or 0 < wait.min_replies <= came or time.monotonic() >= deadline:
            return
        meanwhile()
        pause = _SHORTEST_PAUSE if len(pending) < before else min(pause * 1.5, 1.0)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))


class Pull:
    """All replies that are there; one by one after one of several made the grid raise.

    Args:
        grid: where.
        limit: most bytes of the reply to a message, by its id.
    """

    def __init__(self, grid: Grid, limit: Callable[[str], int]) -> None:
        link = LinkPull.of(grid, limit)
        self._pull: Callable[[Sequence[str]], Iterable[Message]] = link or grid.pull_messages
        self._one_by_one, self._link_failures = False, 0
        self._raised: Counter[str] = Counter()

    def __call__(self, message_ids: Sequence[str]) -> Iterator[Message]:
        """Those of the replies to these messages that are there."""
        if not self._one_by_one:
            try:
                yield from self._pull(message_ids)
            except UnsoundSumError:  # only a client of this machine raises it, and it ends the run
                raise
            except Exception as error:  # one of them may be anything
                self._one_by_one = not self._is_the_link(error)
            else:
                self._link_failures = 0
        if self._one_by_one:
            for message_id in message_ids:
                yield from self._one(message_id)

    def _one(self, message_id: str) -> Iterator[Message]:
        try:
            replies = list(self._pull([message_id]))
        except UnsoundSumError:
            raise
        except Exception as error:
            self._raised[message_id] += not self._is_the_link(error)
            if self._raised[message_id] >= _ATTEMPTS:
                yield unusable_reply(message_id, f"reply cannot be pulled: {type(error).__name__}")
            return
        self._link_failures = 0
        yield from replies

    def _is_the_link(self, error: Exception) -> bool:
        """Whether no reply is to blame; a link that fails again and again ends the run."""
        if not is_of_the_link(error):
            return False
        self._link_failures += 1
        if self._link_failures >= _LINK_FAILURES:
            raise error
        return True
