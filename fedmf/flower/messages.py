"""What travels between the server and fedmf's own clients, and how a stranger's arrays are
checked.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SType
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from fedmf.runs.loop import Reply
from fedmf.runs.simulation import Request
from fedmf.training import UserFailure
from fedmf.training.workers import copied_vector

_ARRAYS = "arrays"
_CONFIG = "config"
_PARAMETERS = "parameters"
ROWS = "rows"
_FAILURES = "failures"
_CLIP_NORM = "clip-norm"
_BITS: Final = "bits"
_FEATURE_BITS: Final = "feature-bits"
#: What NumPy's file format may take beside the numbers.
_OVERHEAD: Final = 4096
_MOST_CHARACTERS: Final = 80
#: Of a message that asks whom a node serves, and of its answer.
_QUESTION = "fedmf.who"
_ANSWER = "fedmf.users"


class RejectedReply(ValueError):
    """A reply that must not enter the sum; the message says why, for the operator only."""


def array_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """A record of tensors, as bytes."""
    return ArrayRecord(
        {name: Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
    )


def shown(value: object) -> str:
    """What a stranger sent, for a log: short and escaped.

    >>> shown("two\\nlines")
    "'two\\\\nlines'"
    >>> len(shown("x" * 10**6)) <= 90
    True
    """
    if isinstance(value, str | bytes):
        return ascii(value[:_MOST_CHARACTERS])[: _MOST_CHARACTERS + 8]
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(item) for item in value[:4])}{', …' if len(value) > 4 else ''}]"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    return ascii(value)[:_MOST_CHARACTERS]


def checked_array(
    array: Array, name: str, dtypes: Sequence[str], shape: tuple[int, ...]
) -> NDArray[Any]:
    """The numbers of a stranger's array that came as bytes, without a copy: read-only.

    Type, shape and size are compared first as declared, then as the bytes' own header says; the
    declared ones are only the sender's word. Nothing is allocated before. One number may come as
    shape () or (1,).

    Args:
        array: as it came.
        name: for people.
        dtypes: NumPy's names of the types that are taken.
        shape: of it.

    Raises:
        ValueError: anything else.
    """
    declared = tuple(array.shape)
    one_number = {declared, shape} == {(), (1,)}
    if (
        array.stype != SType.NUMPY
        or array.dtype not in dtypes
        or not (declared == shape or one_number)
    ):
        raise ValueError(
            f"array {shown(name)} must be {' or '.join(dict.fromkeys(dtypes))} of shape {shape};"
            f" got {shown(array.dtype)} of shape {shown(list(array.shape))}"
        )
    length = math.prod(shape) * np.dtype(array.dtype).itemsize
    if not length <= len(array.data) <= length + _OVERHEAD:
        raise ValueError(f"array {shown(name)} must take {length} bytes; got {len(array.data)}")
    file = io.BytesIO(array.data[:_OVERHEAD])
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(
        npy.read_magic(file)
    )
    if read is None:
        raise ValueError(f"array {shown(name)} must be in NumPy's format 1.0 or 2.0")
    held, fortran, dtype = read(file)
    if (
        dtype != np.dtype(array.dtype)
        or held != declared
        or len(array.data) - file.tell() != length
    ):
        raise ValueError(
            f"array {shown(name)} must be of the declared type; it is {shown(str(dtype))}"
        )
    numbers = np.frombuffer(array.data, dtype=dtype, offset=file.tell())
    return numbers.reshape(shape, order="F" if fortran else "C")


def request_content(model: ArrayRecord, request: Request) -> RecordDict:
    """The content of a train message.

    Args:
        model: the parameters as one flat array named ``parameters``; messages of a round share it.
        request: the rest.
    """
    config = ConfigRecord(
        {"round": request.t, "users": list(request.users), "slice": request.as_slice}
    )
    config[_BITS], config[_FEATURE_BITS] = request.bits
    if request.clip_norm is not None:
        config[_CLIP_NORM] = request.clip_norm
    return RecordDict({_ARRAYS: model, _CONFIG: config})


def read_request(message: Message) -> Request:
    """Decode a train message on the client, which then owns the parameters."""
    config = message.content.config_records[_CONFIG]
    model = message.content.array_records[_ARRAYS][_PARAMETERS].numpy()
    norm = config.get(_CLIP_NORM)
    return Request(
        parameters=copied_vector(torch.from_numpy(model)),
        t=_integer(config, "round"),
        users=_names(config, "users"),
        as_slice=bool(config["slice"]),
        clip_norm=None if norm is None else float(str(norm)),
        bits=(_integer(config, _BITS), _integer(config, _FEATURE_BITS)),
    )


def answer_reply(message: Message, t: int, reply: Reply) -> Message:
    """A node's answer: one row a user, in the order of the request, or exact sums by name, int64;
    who is in them and who failed.
    """
    assert not isinstance(reply.payload, str)
    payload = {ROWS: reply.payload} if isinstance(reply.payload, Tensor) else reply.payload
    failures = [json.dumps(failure.to_dict()) for failure in reply.failures]
    config = ConfigRecord({"round": t, "users": list(reply.users), _FAILURES: failures})
    return Message(RecordDict({_ARRAYS: array_record(payload), _CONFIG: config}), reply_to=message)


def read_failures(reply: Message, asked: Collection[str]) -> list[UserFailure]:
    """What a reply says about failures of the users asked, at most one for each; anything else is
    passed over."""
    records = reply.content.config_records
    packed = records[_CONFIG].get(_FAILURES) if _CONFIG in records else None
    if not isinstance(packed, list):
        return []
    failures: dict[str, UserFailure] = {}
    for text in packed[: len(asked)]:
        try:
            failure = UserFailure.from_dict(dict(json.loads(str(text)[:8192])))
        except (ValueError, TypeError, RecursionError):
            continue
        if failure.user in asked:
            failures.setdefault(failure.user, failure)
    return list(failures.values())


def read_reply(
    reply: Message,
    t: int,
    asked: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    *dtypes: str,
) -> dict[str, Tensor]:
    """The arrays of a reply by name: a row for each user asked, in their order, or exact sums over
    them.

    Rows may hold NaN or infinity.

    Raises:
        RejectedReply: an error, another round, other users or another order, a wrong shape or type.
    """
    if reply.has_error():
        raise RejectedReply(f"client error {reply.error.code}: {shown(reply.error.reason)}")
    if _CONFIG not in reply.content.config_records:
        raise RejectedReply("reply has no config record")
    config = reply.content.config_records[_CONFIG]
    if (replied := _integer(config, "round")) != t:
        raise RejectedReply(f"reply must be for round {t + 1}; got round {shown(replied + 1)}")
    users = _names(config, "users")
    if list(users) != list(asked):
        strangers = sorted(set(users) - set(asked))
        other = shown(strangers[0]) if strangers else f"{len(users)}, not in their order"
        raise RejectedReply(f"reply must be for the {len(asked)} users asked; got {other}")
    return {name: _array(reply, name, shape, dtypes) for name, shape in shapes.items()}


def question() -> RecordDict:
    """The content of a message that only asks whom a node serves."""
    return RecordDict({_CONFIG: ConfigRecord({_QUESTION: True})})


def is_question(message: Message) -> bool:
    """Whether a message is one."""
    return any(_QUESTION in record for record in message.content.config_records.values())


def served_reply(request: Message, users: Sequence[str]) -> Message:
    """The answer: the stable ids of the users that this node serves."""
    return Message(RecordDict({_CONFIG: ConfigRecord({_ANSWER: list(users)})}), reply_to=request)


def served_users(reply: Message) -> tuple[str, ...] | None:
    """Decode the answer; None if it is invalid, as from an app that does not know the question.

    Raises:
        RejectedReply: an error reply, or an answer that is no list of ids.
    """
    if reply.has_error():
        raise RejectedReply(f"client error {shown(reply.error.code)}")
    for record in reply.content.config_records.values():
        if _ANSWER in record:
            return _names(record, _ANSWER)
    return None


def _integer(config: ConfigRecord, key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedReply(f"reply must hold an integer {key!r}; got {shown(value)}")
    return value


def _names(config: ConfigRecord, key: str) -> tuple[str, ...]:
    value = config.get(key)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise RejectedReply(f"reply must hold a list of user ids {key!r}")
    return tuple(str(name) for name in value)


def _array(reply: Message, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> Tensor:
    records = reply.content.array_records
    if _ARRAYS not in records or name not in records[_ARRAYS]:
        raise RejectedReply(f"reply has no array {name!r}")
    try:
        # A copy: what was decoded lies, read-only, in the message's own bytes.
        return torch.from_numpy(checked_array(records[_ARRAYS][name], name, dtypes, shape).copy())
    except Exception as error:  # whatever a stranger's bytes may cause
        raise RejectedReply(
            str(error) if type(error) is ValueError else type(error).__name__
        ) from None
