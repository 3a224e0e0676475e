"""Replies as they arrive, one by one: what is wrong with one of them stays with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.errors import UnsoundSumError
from fedmf.flower.compat import (
    MISSING,
    Announced,
    HttpLink,
    MissingObjectError,
    chunks_of,
    is_of_the_link,
    set_message_id,
    unpacked,
    unusable_reply,
)

#: How often pulling one reply may raise before it counts as one that holds nothing.
_ATTEMPTS: Final = 3
#: How often in a row the link may fail to answer before that ends the run.
_LINK_FAILURES: Final = 10
_SHORTEST_PAUSE: Final = 0.05
#: Most objects of a reply; each is a call to the link. Flower cuts arrays into objects of 5 MiB.
_MOST_OBJECTS: Final = 20_000


@dataclass(frozen=True)
class Wait:
    """How long replies are waited for, fixed before anybody is asked.

    Args:
        seconds: at most so long; infinite: until all are in.
        most_bytes: of the reply to a message, by its id, where the grid lets that be known before the reply
            is unpacked.
    """

    seconds: float
    most_bytes: Callable[[str], int] = lambda _: 2**32


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
    pull = Pull(grid, wait.most_bytes)
    deadline, pause = time.monotonic() + wait.seconds, _SHORTEST_PAUSE
    while pending:
        before = len(pending)
        for reply in pull(list(pending)):
            if reply.metadata.reply_to_message_id in pending:
                del pending[reply.metadata.reply_to_message_id]
                yield reply
        if not pending or time.monotonic() >= deadline:
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
        self._pull: Callable[[Sequence[str]], Iterable[Message]] = (
            LinkPull(HttpLink(grid), limit) if HttpLink.serves(grid) else grid.pull_messages  # type: ignore[arg-type]
        )
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


class _TooLargeError(ValueError):
    """A reply that is or would become larger than it may be."""


class LinkPull:
    """What Flower's ``HttpGrid.pull_messages`` does, reply by reply.

    Flower's own loses all replies of a pull if one of them cannot be unpacked: the link hands out a reply
    only once. It waits up to two hours for a node that announces a reply and does not upload it, and unpacks
    whatever size there is. It also lets a node write into its reply whose message it answers; here that is
    the link's word, which has checked it.

    Args:
        link: of the grid.
        limit: most bytes of the reply to a message, by its id; packed, and unpacked.
    """

    def __init__(self, link: HttpLink, limit: Callable[[str], int]) -> None:
        self._link, self._limit = link, limit
        self._announced: dict[str, Announced] = {}

    def __call__(self, message_ids: Sequence[str]) -> Iterator[Message]:
        """Those replies that are there. One that cannot be unpacked is an error reply."""
        asked = [message_id for message_id in message_ids if message_id not in self._announced]
        if asked:  # all of them are kept before any is looked at: the link has deleted them
            self._announced |= self._link.announced(asked)
        for answered, announced in list(self._announced.items()):
            reply = self._reply(answered, announced)
            if reply is not None:
                del self._announced[answered]
                self._link.forget(announced.message_id)
                yield reply

    def _reply(self, answered: str, announced: Announced) -> Message | None:
        """The reply, an error reply, or None as long as it is not complete."""
        try:
            most = self._limit(answered)
            if not self._complete(announced, most):
                return None
            check_unpacked_size(announced.contents, most)
            reply = unpacked(announced.message_id, announced.contents)
        except MissingObjectError:
            return unusable_reply(answered, "reply was not uploaded whole", MISSING)
        except Exception as error:  # whatever a stranger's bytes may cause
            if is_of_the_link(error):
                return None
            reason = str(error) if isinstance(error, _TooLargeError) else type(error).__name__
            return unusable_reply(answered, f"reply cannot be unpacked: {reason}")
        said = reply.metadata if isinstance(reply, Message) else None
        if said is None or (said.reply_to_message_id, said.src_node_id) != (answered, announced.node):
            return unusable_reply(answered, "reply must say whose it is and what it answers")
        assert isinstance(reply, Message)  # as `said` says
        set_message_id(reply, announced.message_id)
        return reply

    def _complete(self, announced: Announced, most: int) -> bool:
        """Pull what is not there yet; never more than may be."""
        if len(announced.object_ids) > _MOST_OBJECTS:
            raise _TooLargeError(f"it has more than {_MOST_OBJECTS} objects")
        size = sum(map(len, announced.contents.values()))
        for object_id in announced.object_ids:
            if object_id in announced.contents:
                continue
            content = self._link.object(object_id)
            if content is None:
                return False
            announced.contents[object_id] = content
            size += len(content)
            if size > most:
                raise _TooLargeError(f"it takes more than {most} bytes")
        return True


def check_unpacked_size(contents: Mapping[str, bytes], most: int) -> None:
    """Refuse a reply whose arrays name their chunks so often that they would not fit.

    Raises:
        ValueError: more than ``most`` bytes, or no objects of Flower's.
        KeyError: a chunk that is not there.
    """
    size = 0
    for content in contents.values():
        size += sum(len(contents[chunk]) for chunk in chunks_of(content))
        if size > most:
            raise _TooLargeError(f"its arrays would take more than {most} bytes")
