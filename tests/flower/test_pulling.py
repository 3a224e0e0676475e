"""Pulling: what is wrong with a reply stays with it; Flower's link is pulled as the pinned version
does.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid import HttpGrid

from fedmf.flower.compat import arrived, claim_task_identity, empty_run, set_message_id
from fedmf.flower.pulling import pull_until

pytestmark = pytest.mark.usefixtures("own_time")

claim_task_identity()
NODES = 4


def asked() -> list[Message]:
    messages = [Message(RecordDict(), 10 + node, "train") for node in range(NODES)]
    for place, message in enumerate(messages):
        set_message_id(message, f"m{place}")
    return messages


def answer(message: Message) -> Message:
    numbers = Array(np.arange(5, dtype=np.float32) + message.metadata.dst_node_id)
    content = RecordDict(
        {"arrays": ArrayRecord({"update": numbers}), "config": ConfigRecord({"round": 1})}
    )
    return Message(content, reply_to=message)


class Link(HttpGrid):
    """Flower's own grid over a link in this process, as objects lie on it."""

    def __init__(self, spoil=lambda place, objects: None, edit=lambda place, reply: None) -> None:
        super().__init__(token="none")
        self.set_run(empty_run())
        self.objects: dict[str, bytes] = {}
        self.laid = {}
        self.confirmed = []
        for place, message in enumerate(asked()):
            reply = answer(message)
            proto = message_to_proto(Message(RecordDict(), reply_to=message))
            edit(place, reply)
            proto.metadata.message_id = reply.object_id
            objects = {name: item.deflate() for name, item in get_all_nested_objects(reply).items()}
            spoil(place, objects)
            self.objects |= objects
            self.laid[f"m{place}"] = (proto, get_object_tree(reply))

    @property
    def _runtime_client(self):
        return SimpleNamespace(
            PullMessages=self.pull,
            PullObject=self.pull_object,
            ConfirmMessageReceived=self.confirmed.append,
        )

    def pull(self, request) -> PullAppMessagesResponse:
        there = [self.laid.pop(name) for name in request.message_ids if name in self.laid]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in there],
            message_object_trees=[tree for _, tree in there],
        )

    def pull_object(self, request) -> SimpleNamespace:
        content = self.objects.get(request.object_id)
        return SimpleNamespace(
            object_found=content is not None,
            object_available=content != b"",
            object_content=content,
        )


def pulled(link: Link, seconds: float = 20.0, most_bytes=lambda _: 2**32) -> dict[str, Message]:
    names = [f"m{place}" for place in range(NODES)]
    replies = pull_until(link, names, seconds, most_bytes)
    return {reply.metadata.reply_to_message_id: reply for reply in replies}


def test_our_pull_gives_what_flowers_gives() -> None:
    one = Link()
    other = Link()
    other.objects = dict(one.objects)
    other.laid = dict(one.laid)
    ours = pulled(one)
    flowers = list(other.pull_messages([f"m{place}" for place in range(NODES)]))
    assert len(ours) == len(flowers) == NODES
    for theirs in flowers:
        mine = ours[theirs.metadata.reply_to_message_id]
        assert mine.metadata.message_id == theirs.metadata.message_id
        assert mine.metadata.src_node_id == theirs.metadata.src_node_id
        assert mine.content == theirs.content


def broken(objects: dict[str, bytes]) -> None:
    for name, content in objects.items():
        if content.startswith(b"Array "):
            objects[name] = b"Array nonsense"


def test_flowers_own_pull_loses_all_replies_for_one_broken_object_and_ours_does_not() -> None:
    """If this fails because Flower's does not raise any more, our own pull may be too much."""

    def spoil(place, objects) -> None:
        if place == 1:
            broken(objects)

    theirs = Link(spoil)
    with pytest.raises(ValueError, match="unpack"):
        theirs.pull_messages([f"m{place}" for place in range(NODES)])
    assert not theirs.pull_messages([f"m{place}" for place in range(NODES)])
    link = Link(spoil)
    replies = pulled(link)
    assert {name for name, reply in replies.items() if reply.has_error()} == {"m1"}
    assert len(replies) == len(link.confirmed) == NODES


def test_a_reply_cannot_say_whose_message_it_answers_or_who_sent_it() -> None:
    def edit(place, reply) -> None:
        if place == 1:
            reply.metadata.__dict__["_reply_to_message_id"] = "m0"
        if place == 2:
            reply.metadata.__dict__["_src_node_id"] = 10

    replies = pulled(Link(edit=edit))
    assert {name for name, reply in replies.items() if reply.has_error()} == {"m1", "m2"}
    assert replies["m0"].metadata.src_node_id == 10


def test_replies_that_are_too_large_packed_or_unpacked_are_refused_before_they_are_unpacked() -> (
    None
):
    def edit(place, reply) -> None:
        if place == 1:
            reply.content["arrays"]["update"] = Array(np.zeros(10**6, np.float32))

    def spoil(place, objects) -> None:
        if place == 2:
            for name, content in objects.items():
                if content.startswith(b"Array "):
                    head, body = content.split(b"\0", 1)
                    body = body.replace(b"[0]", b"[" + b"0," * 9999 + b"0]")
                    kind, children, _ = head.split(b" ")
                    objects[name] = (
                        b" ".join([kind, children, str(len(body)).encode()]) + b"\0" + body
                    )

    replies = pulled(Link(spoil, edit), most_bytes=lambda _: 10**5)
    errors = {name: reply.error.reason for name, reply in replies.items() if reply.has_error()}
    assert errors.keys() == {"m1", "m2"}
    assert "more than 100000 bytes" in str(errors["m1"])
    assert "arrays would take more than 100000 bytes" in str(errors["m2"])
    replies = pulled(Link(spoil, edit), most_bytes=lambda name: 10**5 + 5 * 10**6 * (name == "m1"))
    assert [name for name, reply in replies.items() if reply.has_error()] == ["m2"]


def test_a_reply_that_is_never_uploaded_holds_up_nobody(own_time) -> None:
    def spoil(place, objects) -> None:
        if place == 0:
            objects[next(iter(objects))] = b""

    assert pulled(Link(spoil), 0.5).keys() == {"m1", "m2", "m3"}
    assert own_time.now == pytest.approx(0.5)


def test_a_reply_whose_objects_are_gone_did_not_arrive() -> None:
    link = Link()
    gone = next(name for name, content in link.objects.items() if content.startswith(b"Message"))
    del link.objects[gone]
    replies = pulled(link)
    assert len(replies) == NODES
    assert [arrived(reply) for reply in replies.values()].count(False) == 1


def test_a_reply_is_seen_within_a_twentieth_of_the_time_it_took(own_time) -> None:
    message = asked()[0]
    for seconds in np.geomspace(0.05, 90.0, 40).tolist():
        begun = own_time.now
        looks = []

        def pull_messages(_, arrives=begun + seconds, looks=looks) -> list[Message]:
            looks.append(own_time.now)
            if own_time.now < arrives:
                return []
            return [answer(message)]

        grid = SimpleNamespace(pull_messages=pull_messages)
        assert len(list(pull_until(grid, ["m0"], 100.0))) == 1
        late = own_time.now - begun - seconds
        assert late <= min(max(0.02, seconds / 20), 1.0) + 1e-9
        assert len(looks) < 200
