"""What a server sends, seen by a test: messages over an in-process grid, and requests within the
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from flwr.app import Message
from torch import Tensor

from fedmf.flower import InProcessGrid
from fedmf.runs.loop import Reply
from fedmf.runs.simulation import InProcessClients, Request


@dataclass(frozen=True, eq=False)
class SentMessage:
    """A message of the server.

    Args:
        kind: "train" or "query".
        group: the number of the round.
        users: whom it names.
        size: bytes of its arrays, and of the rest as text.
        parameters: the model it carries, None without one.
    """

    kind: str
    group: str
    users: tuple[str, ...]
    size: tuple[int, int]
    parameters: Tensor | None


@contextmanager
def watched_messages(note: Callable[[SentMessage], object]) -> Iterator[None]:
    """While open, ``note`` is called with every message that a run of this process sends."""
    given = InProcessClients._reply
    push = InProcessGrid.push_messages

    def asked(self: InProcessClients, request: Request) -> Reply:
        note(_of_request(request))
        return given(self, request)

    def pushed(self: InProcessGrid, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        for message in sent:
            note(_of_message(message))
        return push(self, sent)

    with (
        patch.object(InProcessClients, "_reply", asked),
        patch.object(InProcessGrid, "push_messages", pushed),
    ):
        yield


def _of_request(request: Request) -> SentMessage:
    text = repr((request.t, request.users, request.as_slice, request.clip_norm))
    size = (request.parameters.nbytes, len(text))
    parameters = request.parameters.detach().cpu().clone()
    return SentMessage("train", str(request.t + 1), request.users, size, parameters)


def _of_message(message: Message) -> SentMessage:
    content = message.content
    arrays = [array for record in content.array_records.values() for array in record.values()]
    config = {name: dict(record) for name, record in content.config_records.items()}
    named = [users for record in config.values() if isinstance(users := record.get("users"), list)]
    return SentMessage(
        message.metadata.message_type,
        message.metadata.group_id,
        tuple(str(user) for users in named for user in users),
        (sum(len(array.data) for array in arrays), len(repr(config))),
        torch.from_numpy(arrays[0].numpy()) if len(arrays) == 1 else None,
    )
