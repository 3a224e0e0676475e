"""Pull replies one by one as they arrive, so that a faulty reply does not affect the others.

`pull_until` is what the clients of a run use; over Flower's HTTP link, `LinkPull` unpacks replies
in place of Flower's own grid.
"""

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

#: Seconds between two looks for replies, at least and at most, and as a share of the time waited.
_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_SHARE_OF_WAIT: Final = 0.05
#: Most objects of a reply; each is a call to the link. Flower cuts arrays into objects of 5 MiB.
_MOST_OBJECTS: Final = 20_000

#: A function from the ids of messages to the replies that have arrived.
Pull = Callable[[Sequence[str]], Iterable[Message]]


def pull_until(
    grid: Grid,
    message_ids: Iterable[str],
    seconds: float,
    most_bytes: Callable[[str], int] = lambda _: 2**32,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    """Yield the first reply to each message as it arrives, until all are in or the time is up.

    Over a link, a reply that cannot be unpacked becomes an error reply of its node. Whatever a node
    sends, the replies of the other nodes are yielded. A reply that arrives s seconds after the call
    is seen at most max(0.02, s/20) seconds later, never more than a second.

    Args:
        grid: the grid to which the messages were pushed.
        message_ids: ids of the messages.
        seconds: longest time to wait; infinite: until all replies are in.
        most_bytes: from the id of a message to the largest size of its reply. It is checked where
            the grid tells the size before the reply is unpacked.
        meanwhile: called between two looks for replies; it must not wait.
    """
    pending = dict.fromkeys(message_ids)
    pull = pull_of(grid, most_bytes)
    begun = time.monotonic()
    while pending:
        for reply in pull(list(pending)):
            if reply.metadata.reply_to_message_id in pending:
                del pending[reply.metadata.reply_to_message_id]
                yield reply
        if not pending or time.monotonic() >= begun + seconds:
            return
        meanwhile()
        waited = time.monotonic() - begun
        pause = min(max(_SHORTEST_PAUSE, _SHARE_OF_WAIT * waited), _LONGEST_PAUSE)
        time.sleep(min(pause, max(0.0, seconds - waited)))


def pull_of(grid: Grid, most_bytes: Callable[[str], int]) -> Pull:
    """Return the function that pulls replies from a grid: a `LinkPull` over Flower's link."""
    if isinstance(grid, InProcessGrid) or not is_over_http(grid):
        return grid.pull_messages
    return LinkPull(HttpLink(grid), most_bytes)


@dataclass
class Announced:
    """A reply that the link has announced, and the contents of its objects pulled so far."""

    message_id: str
    node: int
    object_ids: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


class LinkPull:
    """Pull replies over Flower's link one by one, in place of ``HttpGrid.pull_messages``.

    Flower's own method loses all replies of a pull if one of them cannot be unpacked, because the
    link announces a reply only once. It waits up to two hours for a node that announces a reply and
    does not upload it, and it unpacks replies of any size. It also trusts the node for which
    message a reply answers; here this is taken from the link, which has checked it.

    Args:
        link: the link of the grid.
        most_bytes: from the id of a message to the largest size of its reply, packed and unpacked.
    """

    def __init__(self, link: HttpLink, most_bytes: Callable[[str], int]) -> None:
        self._link = link
        self._most_bytes = most_bytes
        self._announced: dict[str, Announced] = {}

    def __call__(self, message_ids: Sequence[str]) -> Iterator[Message]:
        """Yield the replies that are complete, those that cannot be unpacked as error replies."""
        waiting = [message_id for message_id in message_ids if message_id not in self._announced]
        if waiting:
            # All are recorded before any is pulled, because the link announces each only once.
            for request_id, reply_id, node, object_ids in self._link.announced(waiting):
                self._announced[request_id] = Announced(reply_id, node, object_ids)
        for request_id, announced in list(self._announced.items()):
            most = self._most_bytes(request_id)
            try:
                fault = self._pull_objects(announced, most)
            except MissingObjectError:
                reply = unusable_reply(request_id, "reply was not uploaded whole", MISSING)
            else:
                if fault is None:
                    continue
                reply = reply_of(request_id, announced, fault, most)
            del self._announced[request_id]
            self._link.forget(announced.message_id)
            yield reply

    def _pull_objects(self, announced: Announced, most: int) -> str | None:
        """Pull the missing objects of a reply, never more than ``most`` bytes.

        Returns:
            The fault of the reply, "" if it is complete without one, None while objects are
            missing.
        """
        if len(announced.object_ids) > _MOST_OBJECTS:
            return f"it has more than {_MOST_OBJECTS} objects"
        size = sum(map(len, announced.contents.values()))
        for object_id in announced.object_ids:
            if object_id not in announced.contents:
                content = self._link.object(object_id)
                if content is None:
                    return None
                announced.contents[object_id] = content
                size += len(content)
                if size > most:
                    return f"it takes more than {most} bytes"
        return ""


def reply_of(request_id: str, announced: Announced, fault: str, most: int) -> Message:
    """Return the reply that was pulled, or an error reply with its fault."""
    contents = announced.contents
    reply = None
    if not fault:
        try:
            size = sum(checked_size(content, contents) for content in contents.values())
            if size > most:
                fault = f"its arrays would take more than {most} bytes"
            else:
                reply = inflate_object_from_contents(announced.message_id, contents)
        except Exception as error:  # the bytes are untrusted
            fault = type(error).__name__
    if fault:
        return unusable_reply(request_id, f"reply cannot be unpacked: {fault}")
    if isinstance(reply, Message):
        metadata = reply.metadata
        if metadata.reply_to_message_id == request_id and metadata.src_node_id == announced.node:
            set_message_id(reply, announced.message_id)
            return reply
    return unusable_reply(request_id, "reply must name its sender and the message it answers")
