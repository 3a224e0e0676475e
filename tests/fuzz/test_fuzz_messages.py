"""Replies of any content, and replies whose packed objects are damaged: refused, or what was asked
for.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import damaged, fuzzed, judged

from fedmf.flower.compat import claim_task_identity, set_message_id
from fedmf.flower.handshake import RejectedReply, served_users
from fedmf.flower.messages import answer_reply, read_failures, read_reply
from fedmf.flower.pulling import Announced, reply_of
from fedmf.runs.loop import Reply
from fedmf.training import UserFailure

ASKED = ("ann", "bob")
D = 3
T = 4
VALUES = st.one_of(
    st.booleans(),
    st.sampled_from([T, T + 1, -1, 2**63 - 1, 0]),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=6),
    st.just(list(ASKED)),
    st.lists(st.sampled_from([*ASKED, "eve", "\x00", "x" * 200]), max_size=4),
    st.lists(
        st.sampled_from(["{}", "[" * 3000, '{"user": "ann", "stage": 1}', "null", '{"user": []}']),
        max_size=3,
    ),
    st.lists(st.floats(), max_size=2),
)
KEYS = st.sampled_from(["round", "users", "failures", "fedmf.users", "slice", "other"])
claim_task_identity()
RIGHT: dict[str, Any] = {"round": T, "users": list(ASKED)}


def packed(values: Any) -> bytes:
    buffer = BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    dtype = draw(
        st.sampled_from(["float32", "float64", "float16", "int64", "object", "complex64", "no"])
    )
    held = draw(st.sampled_from(["float32", "float64", "float16", "int64", "complex64"]))
    numbers = np.array(
        draw(st.lists(st.sampled_from([0, 1, -7, 3e4]), min_size=D, max_size=D)), held
    )
    data = draw(
        st.one_of(st.just(packed(numbers)), damaged(packed(numbers)), st.binary(max_size=200))
    )
    shape = draw(st.sampled_from([(D,), (D, 1), (), (2**62,), (-1,), (0,)]))
    return Array(
        dtype=dtype, shape=shape, stype=draw(st.sampled_from(["numpy.ndarray", "x"])), data=data
    )


@st.composite
def replies(draw: st.DrawFn) -> Message:
    config = {**RIGHT, **draw(st.dictionaries(KEYS, VALUES, max_size=2))}
    for key in draw(st.lists(st.sampled_from(["round", "users"]), max_size=1)):
        del config[key]
    record = ArrayRecord()
    for name in draw(
        st.lists(st.sampled_from(["rows", "first", "other"]), max_size=2, unique=True)
    ):
        record[name] = draw(arrays())
    content: dict[str, Any] = {"arrays": record, "config": ConfigRecord(config)}
    if draw(st.integers(0, 9)) == 0:
        del content[draw(st.sampled_from(sorted(content)))]
    request = Message(RecordDict(), 7, MessageType.TRAIN)
    return Message(RecordDict(content), reply_to=request)


def read_rows(reply: Message, asked: tuple[str, ...]) -> torch.Tensor:
    return read_reply(reply, T, asked, {"rows": (len(asked), D)}, "float32", "float64")["rows"]


def read(reply: Message) -> None:
    """Through every reader; what is taken is what was asked for."""
    rows = judged(lambda: read_rows(reply, ASKED), RejectedReply)
    assert rows is None or (rows.shape == (len(ASKED), D) and rows.is_floating_point())
    parts = judged(lambda: read_reply(reply, T, ASKED, {"first": (D,)}, "int64"), RejectedReply)
    assert parts is None or (parts["first"].dtype == torch.int64 and parts["first"].shape == (D,))
    users = judged(lambda: served_users(reply), RejectedReply)
    assert users is None or all(isinstance(user, str) for user in users)
    if not reply.has_error():
        failures = judged(lambda: read_failures(reply, ASKED))
        assert failures is not None
        assert all(
            isinstance(failure, UserFailure) and failure.user in ASKED for failure in failures
        )


@fuzzed(200)
@given(replies())
def test_replies_of_any_content(reply: Message) -> None:
    read(reply)


def honest() -> tuple[Message, dict[str, bytes]]:
    """A reply and the objects that it is sent as."""
    request = Message(RecordDict(), 7, MessageType.TRAIN)
    set_message_id(request, "asked")
    failure = UserFailure("ann", "training", "no reason")
    reply = answer_reply(request, T, Reply(("ann",), torch.tensor([[1.0, 2.0, 3.0]]), [failure]))
    return reply, {name: item.deflate() for name, item in get_all_nested_objects(reply).items()}


REPLY, CONTENTS = honest()
OBJECTS = sorted(CONTENTS, key=lambda name: CONTENTS[name])


def test_an_honest_reply_is_taken() -> None:
    assert judge(CONTENTS) is not None


@fuzzed(200)
@given(
    st.sampled_from(OBJECTS).flatmap(lambda name: st.tuples(st.just(name), damaged(CONTENTS[name])))
)
def test_replies_that_are_damaged_on_their_way(damage: tuple[str, bytes]) -> None:
    judge({**CONTENTS, damage[0]: damage[1]})


def judge(contents: dict[str, bytes]) -> torch.Tensor | None:
    announced = Announced(
        REPLY.object_id, REPLY.metadata.src_node_id, list(contents), dict(contents)
    )
    got = judged(lambda: reply_of("asked", announced, "", 1 << 20))
    assert got is not None
    if got.has_error():
        assert len(got.error.reason.splitlines()) <= 1
    read(got)
    return judged(lambda: read_rows(got, ("ann",)), RejectedReply)
