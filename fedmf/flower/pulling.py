"""Replies as they arrive, one by one: a fault of one does not affect the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.flower.compat import (
    MISSING,
    HttpLink,
    MissingObjectError,
    checked_size,
    inflate_object_from_contents,
    is_over_http,
    set_message_id,
    unusable_reply,
)
from fedmf.flower.grid import InProcessGrid

_SHORTEST_PAUSE: Final = 0.05
#: Most objects of a reply; each is a call to the link. Flower cuts arrays into objects of 5 MiB.
_MOST_OBJECTS: Final = 20_000

#: From the ids of messages to those of the replies to them that are there.
Pull = Callable[[Sequence[str]], Iterable[Message]]


def pull_until(
    grid: Grid,
    message_ids: Iterable[str],
    seconds: float,
    most_bytes: Callable[[str], int] = lambda _: 2**32,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    """Yield the first reply to each message as it arrives, until all are in or the time is up.

    Over a link, a reply that cannot be unpacked comes as an error reply of its node: it arrived and
    holds nothing. Whatever a node sends, the replies of the others come.

    Args:
        grid: where.
        message_ids: of the messages.
        seconds: at most so long; infinite: until all are in.
        most_bytes: of the reply to a message, by its id, where the grid lets that be known before
            the reply is unpacked.
        meanwhile: called between one look for replies and the next; it must not wait.
    """
    pending = dict.fromkeys(message_ids)
    pull = pull_of(grid, most_bytes)
    deadline = time.monotonic() + seconds
    pause = _SHORTEST_PAUSE
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


def pull_of(grid: Grid, most_bytes: Callable[[str], int]) -> Pull:
    """How replies of a grid are pulled: our own way over a link, as `LinkPull` says."""
    if isinstance(grid, InProcessGrid) or not is_over_http(grid):
        return grid.pull_messages
    return LinkPull(HttpLink(grid), most_bytes)


@dataclass
class Announced:
    """A reply that the link has told of: its id, its node, its objects, and what was pulled of
    them.
    """

    message_id: str
    node: int
    object_ids: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


class LinkPull:
    """What Flower's ``HttpGrid.pull_messages`` does, reply by reply.

    Flower's own loses all replies of a pull if one of them cannot be unpacked: the link hands out a
    reply only once. It waits up to two hours for a node that announces a reply and does not upload
    it, and unpacks whatever size there is. It also lets a node write into its reply whose message
    it answers; here that is the link's word, which has checked it.

    Args:
        link: of the grid.
        most_bytes: of the reply to a message, by its id; packed, and unpacked.
    """

    def __init__(self, link: HttpLink, most_bytes: Callable[[str], int]) -> None:
        self._link = link
        self._most_bytes = most_bytes
        self._announced: dict[str, Announced] = {}

    def __call__(self, message_ids: Sequence[str]) -> Iterator[Message]:
        """Those replies that are there. One that cannot be unpacked is an error reply."""
        asked = [message_id for message_id in message_ids if message_id not in self._announced]
        if asked:  # all of them are kept before any is looked at: the link has deleted them
            told = self._link.announced(asked)
            self._announced |= {
                answered: Announced(name, node, parts) for answered, name, node, parts in told
            }
        for answered, announced in list(self._announced.items()):
            most = self._most_bytes(answered)
            try:
                trouble = self._pulled(announced, most)
            except MissingObjectError:
                reply = unusable_reply(answered, "reply was not uploaded whole", MISSING)
            else:
                if trouble is None:
                    continue
                reply = reply_of(answered, announced, trouble, most)
            del self._announced[answered]
            self._link.forget(announced.message_id)
            yield reply

    def _pulled(self, announced: Announced, most: int) -> str | None:
        """Pull the missing part, never more than allowed: returns the fault, None while some is
        missing."""
        if len(announced.object_ids) > _MOST_OBJECTS:
            return f"it has more than {_MOST_OBJECTS} objects"
        size = sum(map(len, announced.contents.values()))
        for object_id in announced.object_ids:
            if object_id not in announced.contents:
                content = self._link.object(object_id)
                if content is None:
                    return None
                announced.contents[object_id] = content
                size = size + len(content)
                if size > most:
                    return f"it takes more than {most} bytes"
        return ""


def reply_of(answered: str, announced: Announced, trouble: str, most: int) -> Message:
    """The reply that was pulled, or an error reply."""
    contents = announced.contents
    reply = None
    try:
        if (
            not trouble
            and sum(checked_size(content, contents) for content in contents.values()) > most
        ):
            trouble = f"its arrays would take more than {most} bytes"
        if not trouble:
            reply = inflate_object_from_contents(announced.message_id, contents)
    except Exception as error:  # whatever a stranger's bytes may cause
        trouble = type(error).__name__
    if trouble:
        return unusable_reply(answered, f"reply cannot be unpacked: {trouble}")
    said = reply.metadata if isinstance(reply, Message) else None
    if said is None or (said.reply_to_message_id, said.src_node_id) != (answered, announced.node):
        return unusable_reply(answered, "reply must name its sender and the message it answers")
    assert isinstance(reply, Message)  # as `said` says
    set_message_id(reply, announced.message_id)
    return reply
