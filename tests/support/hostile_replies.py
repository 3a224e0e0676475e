"""Replies of a client that is broken or hostile: what becomes of the one that it would have sent."""

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


def _scaled(factor: float) -> Change:
    def change(reply: Message) -> Message:
        arrays = reply.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        with np.errstate(all="ignore"):
            scaled = {name: Array(np.float32(factor) * array.numpy()) for name, array in arrays.items()}
        reply.content["arrays"] = ArrayRecord(scaled)
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
    reply.content["arrays"] = ArrayRecord({"x" * 10**5 + name: array for name, array in arrays.items()})
    return reply


def _second(reply: Message) -> Message:
    reply.content["more"] = ArrayRecord({"x": Array(np.zeros(1, np.float32))})
    return reply


def _bytes(reply: Message) -> bytes:
    return reply.content["arrays"]["head"].data  # type: ignore[index,union-attr]


def _cut(reply: Message) -> Message:
    return replacing("head", Array("float32", (5,), _FORMAT, _bytes(reply)[:-3]))(reply)


def _emptied(reply: Message) -> Message:
    for name in list(reply.content):
        del reply.content[name]
    return reply


#: Of which nothing can be used: the user's contribution is the zero vector.
USELESS: dict[str, Change] = {
    "raises": _raising(OSError("no disk")),
    "exits": _raising(SystemExit(3)),
    "has no memory": _raising(MemoryError()),
    "misses an array": _without,
    "other names": _renamed,
    "two records": _second,
    "says nothing": _emptied,
    "returns nothing": lambda _: None,
    "returns text": lambda _: "a reply",
    "NaN": replacing("head", Array(np.full(5, np.nan, np.float32))),
    "infinity": replacing("head", Array(np.full(5, np.inf, np.float32))),
    "halves": replacing("head", Array(np.zeros(5, np.float16))),
    "whole numbers": replacing("head", Array(np.zeros(5, np.int32))),
    "long": replacing("head", Array(np.zeros(6, np.float32))),
    "no bytes": replacing("head", Array("float32", (5,), _FORMAT, b"")),
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
    "much data": replacing("head", Array("float32", (5,), _FORMAT, b"x" * 10**6)),
    "another format": replacing("head", Array("float32", (5,), "torch.Tensor", b"x" * 148)),
    "overflow": _scaled(3e38),
}
