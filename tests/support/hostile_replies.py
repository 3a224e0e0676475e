"""Replies of a client that is broken or hostile: what becomes of the one that it would have
sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message

Change = Callable[[Message], Any]
_FORMAT = "numpy.ndarray"


def replacing(name: str, array: Array) -> Change:
    """One array of the reply is another."""

    def change(reply: Message) -> Message:
        reply.content["arrays"][name] = array  # type: ignore[index]
        return reply

    return change


def _raising(error: BaseException) -> Change:
    def change(reply: Message) -> Message:
        raise error

    return change


def _without(reply: Message) -> Message:
    del reply.content["arrays"]["head"]  # type: ignore[attr-defined]
    return reply


def _renamed(reply: Message) -> Message:
    arrays = reply.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    reply.content["arrays"] = ArrayRecord(
        {"x" * 10**5 + name: array for name, array in arrays.items()}
    )
    return reply


def _second(reply: Message) -> Message:
    reply.content["more"] = ArrayRecord({"x": Array(np.zeros(1, np.float32))})
    return reply


def _bytes(reply: Message) -> bytes:
    return reply.content["arrays"]["head"].data  # type: ignore[index,union-attr]


def _cut(reply: Message) -> Message:
    return replacing("head", Array("float32", (5,), _FORMAT, _bytes(reply)[:-3]))(reply)


#: Of which nothing can be used: the user's contribution is the zero vector.
USELESS: dict[str, Change] = {
    "raises": _raising(OSError("no disk")),
    "exits": _raising(SystemExit(3)),
    "misses an array": _without,
    "other names": _renamed,
    "two records": _second,
    "returns nothing": lambda _: None,
    "NaN": replacing("head", Array(np.full(5, np.nan, np.float32))),
    "whole numbers": replacing("head", Array(np.zeros(5, np.int32))),
    "cut off": _cut,
    "huge shape": replacing("head", Array("float32", (2**40,), _FORMAT, b"x" * 148)),
    "objects": replacing("head", Array("float32", (5,), _FORMAT, b"\x80\x04K\x01.")),
    "another type inside": replacing(
        "head", Array("float32", (5,), _FORMAT, Array(np.zeros(5, np.int32)).data)
    ),
    "beyond float32": replacing("head", Array(np.full(5, 1e300))),
    "another shape inside": replacing(
        "head", Array("float32", (5,), _FORMAT, Array(np.zeros((5, 1), np.float32)).data)
    ),
    "another format": replacing("head", Array("float32", (5,), "torch.Tensor", b"x" * 148)),
}
