"""A link of Flower's in this process, every other node of which changes what it sends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.superlink.grid import HttpGrid

from fedmf.flower.compat import claim_task_identity, empty_run, set_message_id
from support.hostile.objects import OF_OBJECTS
from support.hostile.replies import OF_ARRAYS, OF_CONFIG, OF_ROWS, Draw

NODES, FIRST = 100, 2**63 + 7
#: Changes of what only the link should say, and one of how often it says it.
OF_THE_LINK = ("answers another's message", "says another node", "sent twice")
OF_REPLIES = OF_ARRAYS | OF_CONFIG | OF_ROWS
#: What users add to a sum, by their ids.
Contributions = dict[str, torch.Tensor]


class HostileLink(HttpGrid):
    """A link whose nodes answer at once; every other one changes what it sends.

    Args:
        answer: (message, place of the node) → its honest reply.
        contributions: (message, honest reply) → what each user adds to the sum, in units of fixed point.
        mutations: what may be done to a reply.
        draw: decides.
    """

    def __init__(
        self,
        answer: Callable[[Message, int], Message],
        contributions: Callable[[Message, Message], Contributions],
        mutations: list[str],
        draw: Draw,
    ) -> None:
        claim_task_identity()
        super().__init__(token="none")
        self.set_run(empty_run())
        self._answer, self._contributions, self._draw = answer, contributions, draw
        self._turn, self._ids = itertools.cycle(mutations), itertools.count(1)
        self._laid: dict[str, list[tuple[Any, Any]]] = {}
        self._objects: dict[str, bytes | None] = {}
        #: What was done in the last round of training: the mutation, and what was honest.
        self.done: list[tuple[str, Contributions]] = []

    @property
    def _runtime_client(self) -> Any:
        return SimpleNamespace(
            PullMessages=self._pull, PullObject=self._pull_object, ConfirmMessageReceived=lambda _: None
        )

    def get_node_ids(self) -> list[int]:
        """A hundred nodes."""
        return [FIRST + place for place in range(NODES)]

    def push_messages(self, messages: Any) -> list[str]:
        """Every node answers."""
        asked = list(messages)
        for message in asked:
            set_message_id(message, f"message-{next(self._ids)}")
        training = any(message.metadata.group_id not in ("who", "handshake") for message in asked)
        if training:
            self.done, self._objects = [], {}
        for message in asked:
            place = message.metadata.dst_node_id - FIRST
            reply = self._answer(message, place)
            if not training:
                self._lay(message, reply, "none", asked)
                continue
            mutation = next(self._turn) if place % 2 else "none"
            self.done.append((mutation, self._contributions(message, reply)))
            self._lay(message, reply, mutation, asked)
        return [message.metadata.message_id for message in asked]

    def _lay(self, message: Message, reply: Message, mutation: str, asked: list[Message]) -> None:
        draw = self._draw
        proto = message_to_proto(Message(RecordDict(), reply_to=message))
        if mutation in OF_REPLIES:
            reply.__dict__["_asked"] = message
            reply = OF_REPLIES[mutation](reply, draw)
        if mutation == "answers another's message":
            other = draw.choice([m for m in asked if m is not message])
            reply.metadata.__dict__["_reply_to_message_id"] = other.metadata.message_id
        if mutation == "says another node":
            reply.metadata.__dict__["_src_node_id"] = FIRST + draw.randrange(0, NODES, 2)
        contents = {name: item.deflate() for name, item in get_all_nested_objects(reply).items()}
        tree, root = get_object_tree(reply), reply.object_id
        if mutation in OF_OBJECTS:
            root = OF_OBJECTS[mutation](contents, root, draw)
        names = self._store(contents)
        for item in iterate_object_tree(tree):
            item.object_id = names[item.object_id]
        proto.metadata.message_id = names[root]
        self._laid[message.metadata.message_id] = [(proto, tree)] * (2 if mutation == "sent twice" else 1)

    def _store(self, contents: dict[str, bytes]) -> dict[str, str]:
        """Objects go by their digests, as on a link, also after they were changed: old name to new."""
        names: dict[str, str] = {}
        for name, content in contents.items():  # children come before those that name them
            for old, new in names.items():
                content = content.replace(old.encode(), new.encode())
            names[name] = get_object_id(content) if content else f"missing-{next(self._ids)}"
            self._objects[names[name]] = content or None
        return names

    def _pull(self, request: Any) -> PullAppMessagesResponse:
        laid = [pair for name in request.message_ids for pair in self._laid.pop(name, [])]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in laid], message_object_trees=[tree for _, tree in laid]
        )

    def _pull_object(self, request: Any) -> Any:
        content = self._objects.get(request.object_id)
        return SimpleNamespace(
            object_found=content is not None, object_available=True, object_content=content
        )
