"""Changes of what a reply says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Error, Message

Draw = random.Random


def with_array(reply: Message, array: Array, name: str | None = None) -> Message:
    """The reply with another array in place of its first."""
    record = next(iter(reply.content.array_records.values()))
    first = next(iter(record))
    if name is not None:
        del record[first]
    record[name or first] = array
    return reply


def with_config(reply: Message, **values: Any) -> Message:
    """The reply with other values in its config."""
    reply.content["config"] = ConfigRecord({**reply.content.config_records["config"], **values})
    return reply


def held(reply: Message) -> np.ndarray:
    """The numbers of its first array."""
    return next(iter(next(iter(reply.content.array_records.values())).values())).numpy().copy()


def named(reply: Message) -> Sequence[Any]:
    """Whom it says it is for."""
    return list(reply.content.config_records["config"]["users"])  # type: ignore[arg-type]


def spoiled(value: float) -> Callable[[Message, Draw], Message]:
    """One number of the array replaced."""

    def change(reply: Message, draw: Draw) -> Message:
        numbers = held(reply)
        if numbers.dtype.kind != "f":
            numbers = numbers.astype(np.float64)
        numbers.reshape(-1)[draw.randrange(numbers.size)] = value
        return with_array(reply, Array(numbers))

    return change


def _lying(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    inside = draw.choice([numbers.astype(np.complex64), numbers.reshape(-1, 1, 1, 1), numbers.view(np.uint8)])
    return with_array(reply, Array(str(numbers.dtype), numbers.shape, "numpy.ndarray", Array(inside).data))


def _bytes(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    data = Array(numbers).data
    size = draw.choice([0, 1, 100, len(data) - 1, len(data) + 1, 2 * len(data) + 5000])
    other = (data + draw.randbytes(size))[-size:] if size else b""
    return with_array(reply, Array(str(numbers.dtype), numbers.shape, "numpy.ndarray", other))


def _shape(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    flat = numbers.reshape(-1)
    other = draw.choice([flat[:-1], np.append(flat, flat[:1]), numbers[None], flat[:0], np.tile(flat, 3)])
    return with_array(reply, Array(np.ascontiguousarray(other)))


def _type(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    kinds = ["complex64", "bool", "uint8", "S4", ">f4", ">i8", "datetime64[s]"]
    return with_array(reply, Array(numbers.real.astype("int64").astype(draw.choice(kinds))))


def _declared(reply: Message, draw: Draw) -> Message:
    array = Array(held(reply))
    dtype, shape, stype = array.dtype, array.shape, array.stype
    which = draw.randrange(3)
    dtype = draw.choice(["", "object", "float33", "x" * 10**5]) if which == 0 else dtype
    shape = draw.choice([(), (-1,), (10**18,), (0,), (2**70,)]) if which == 1 else shape
    stype = draw.choice(["", "pickle", "torch.Tensor"]) if which == 2 else stype
    return with_array(reply, Array(dtype, shape, stype, array.data))


def _pickled(reply: Message, draw: Draw) -> Message:
    numbers = held(reply)
    return with_array(
        reply, Array(str(numbers.dtype), numbers.shape, "numpy.ndarray", b"\x80\x04cos\nsystem\n.")
    )


def _error(reply: Message, draw: Draw) -> Message:
    answer = Message(
        Error(draw.choice([-1, 0, 1, 2, 3, 4, 5, 8, 2**31 - 1]), "\x1b[2J" * 999), reply_to=_ask(reply)
    )
    return answer


def _round(reply: Message, draw: Draw) -> Message:
    t = int(str(reply.content.config_records["config"]["round"]))
    return with_config(
        reply, round=draw.choice([t + 1, t - 1, -(2**62), 2**62, float(t), str(t), [t], b"", True])
    )


def _users(reply: Message, draw: Draw) -> Message:
    users = list(named(reply))
    others: list[Any] = [
        [],
        [*users, "stranger"],
        users * 2,
        [1] * len(users),
        "\n".join(users),
        3,
        ["x" * 10**5],
    ]
    return with_config(reply, users=draw.choice([*others, users[1:], ["u999999"] * len(users)]))


def _dropped(reply: Message, draw: Draw) -> Message:
    del reply.content["config" if draw.random() < 0.5 else "arrays"]
    return reply


def _no_arrays(reply: Message, draw: Draw) -> Message:
    for name in list(reply.content.array_records):
        del reply.content[name]
    return reply


def _ask(reply: Message) -> Message:
    """The message that a reply answers, as far as answering it again needs."""
    return reply.__dict__["_asked"]


#: Changes of what a reply says. Each makes it wrong whatever was drawn.
OF_ARRAYS: dict[str, Callable[[Message, Draw], Message]] = {
    "NaN": spoiled(float("nan")),
    "infinity": spoiled(float("inf")),
    "another shape": _shape,
    "another type": _type,
    "declared otherwise": _declared,
    "another array inside": _lying,
    "bytes missing or more": _bytes,
    "pickle": _pickled,
    "another name": lambda reply, draw: with_array(reply, Array(held(reply)), f"name{draw.random()}"),
    "no arrays": _no_arrays,
    "error": _error,
}
OF_CONFIG: dict[str, Callable[[Message, Draw], Message]] = {
    "another round": _round,
    "other users": _users,
    "a record missing": _dropped,
}


def _rows(change: Callable[[np.ndarray, Draw], np.ndarray]) -> Callable[[Message, Draw], Message]:
    """Another block of rows."""
    return lambda reply, draw: with_array(reply, Array(np.ascontiguousarray(change(held(reply), draw))))


def _named(change: Callable[[list[Any]], list[Any]]) -> Callable[[Message, Draw], Message]:
    """Other names over the same rows."""
    return lambda reply, _: with_config(reply, users=change(list(named(reply))))


def _a_row_less(reply: Message, draw: Draw) -> Message:
    """A row and its user gone, both of them."""
    place = draw.randrange(len(named(reply)))
    rows, users = np.delete(held(reply), place, axis=0), list(named(reply))
    del users[place]
    return with_config(with_array(reply, Array(rows)), users=users)


#: Changes of a reply with a row for each of several users.
OF_ROWS: dict[str, Callable[[Message, Draw], Message]] = {
    "rows missing": _rows(lambda rows, draw: rows[draw.randrange(1, len(rows) + 1) :]),
    "a row more": _rows(lambda rows, _: np.concatenate([rows, rows[:1]])),
    "rows too short": _rows(lambda rows, draw: rows[:, : draw.randrange(rows.shape[1])]),
    "one flat row": _rows(lambda rows, _: rows.reshape(-1)),
    "columns for rows": _rows(lambda rows, _: rows.T),
    "other floats": _rows(lambda rows, draw: rows.astype(draw.choice(["float16", ">f8", ">f4"]))),
    "users swapped": _named(lambda users: [*users[1:], users[0]] if len(users) > 1 else users * 2),
    "a user twice": _named(lambda users: [users[0], *users[:-1]] if len(users) > 1 else users * 2),
    "a user and its row missing": _a_row_less,
}
