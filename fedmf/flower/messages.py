"""Messages between the server and fedmf's own clients, and the checks of arrays from outside.

The request of a round and its reply have an encoder and a decoder here. Whatever a node sends is
checked before it is decoded.
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

from fedmf.flower.handshake import CONFIG, RejectedReply, names_in, require_no_error, shown
from fedmf.runs.loop import Reply
from fedmf.runs.simulation import Request
from fedmf.training import UserFailure
from fedmf.training.workers import copied_vector

_ARRAYS = "arrays"
_PARAMETERS = "parameters"
ROWS = "rows"
_FAILURES = "failures"
_CLIP_NORM = "clip-norm"
_BITS: Final = "bits"
_FEATURE_BITS: Final = "feature-bits"
#: Most bytes of the header in NumPy's file format.
_OVERHEAD: Final = 4096


def array_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors as a record of encoded arrays."""
    return encoded({name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()})


def encoded(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return arrays as a record, in NumPy's file format."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def decoded(record: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record that is trusted."""
    return {name: array.numpy() for name, array in record.items()}


def checked_array(
    array: Array, name: str, dtypes: Sequence[str], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return the numbers of an untrusted array, read-only and without a copy.

    Type, shape and size are checked twice before anything is allocated: as the sender declares
    them, and as they are in the header of the bytes. A single number may have shape () or (1,).

    Args:
        array: the received array.
        name: its name, for error messages.
        dtypes: NumPy's names of the accepted types.
        shape: the required shape.

    Raises:
        RejectedReply: type, shape, size or format differ.
        ValueError: the bytes are not NumPy's.
    """
    required = f"array {shown(name)} must be {' or '.join(dict.fromkeys(dtypes))} of shape {shape}"
    declared = tuple(array.shape)
    accepted_shapes = [shape]
    if shape in ((), (1,)):
        accepted_shapes = [(), (1,)]
    if array.stype != SType.NUMPY or array.dtype not in dtypes or declared not in accepted_shapes:
        raise RejectedReply(
            f"{required}; got {shown(array.dtype)} of shape {shown(list(array.shape))}", required
        )
    length = math.prod(shape) * np.dtype(array.dtype).itemsize
    if not length <= len(array.data) <= length + _OVERHEAD:
        raise RejectedReply(
            f"array {shown(name)} must take {length} bytes; got {len(array.data)}", required
        )
    file = io.BytesIO(array.data[:_OVERHEAD])
    version = npy.read_magic(file)
    if version == (1, 0):
        shape_in_header, fortran, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape_in_header, fortran, dtype = npy.read_array_header_2_0(file)
    else:
        raise RejectedReply(f"array {shown(name)} must be in NumPy's format 1.0 or 2.0", required)
    if (
        dtype != np.dtype(array.dtype)
        or shape_in_header != declared
        or len(array.data) - file.tell() != length
    ):
        raise RejectedReply(
            f"array {shown(name)} must be of the declared type; it is {shown(str(dtype))}", required
        )
    numbers = np.frombuffer(array.data, dtype=dtype, offset=file.tell())
    return numbers.reshape(shape, order="F" if fortran else "C")


def request_content(model: ArrayRecord, request: Request) -> RecordDict:
    """Return the content of a train message.

    Args:
        model: the parameters as one flat array named ``parameters``; messages of a round share it.
        request: all other fields.
    """
    config = ConfigRecord(
        {"round": request.t, "users": list(request.users), "slice": request.as_slice}
    )
    config[_BITS], config[_FEATURE_BITS] = request.bits
    if request.clip_norm is not None:
        config[_CLIP_NORM] = request.clip_norm
    return RecordDict({_ARRAYS: model, CONFIG: config})


def read_request(message: Message) -> Request:
    """Decode a train message on the client, which then owns the parameters."""
    config = message.content.config_records[CONFIG]
    model = message.content.array_records[_ARRAYS][_PARAMETERS].numpy()
    clip_norm = None
    if _CLIP_NORM in config:
        clip_norm = float(str(config[_CLIP_NORM]))
    return Request(
        parameters=copied_vector(torch.from_numpy(model)),
        t=_integer(config, "round"),
        users=names_in(config, "users"),
        as_slice=bool(config["slice"]),
        clip_norm=clip_norm,
        bits=(_integer(config, _BITS), _integer(config, _FEATURE_BITS)),
    )


def answer_reply(message: Message, t: int, reply: Reply) -> Message:
    """Return a node's reply to a train message, with the users in it and their failures.

    The payload is one row per user in the order of the request, with the numbers that they report,
    or exact int64 sums by name.
    """
    payload = reply.payload
    if isinstance(payload, str):
        raise ValueError(f"reply must hold rows or sums; got the error {payload!r}.")
    if isinstance(payload, Tensor):
        payload = {ROWS: payload}
        for name, numbers in reply.reported.items():
            payload[name] = torch.from_numpy(numbers)
    failures = [json.dumps(failure.to_dict()) for failure in reply.failures]
    config = ConfigRecord({"round": t, "users": list(reply.users), _FAILURES: failures})
    return Message(RecordDict({_ARRAYS: array_record(payload), CONFIG: config}), reply_to=message)


def read_failures(reply: Message, users: Collection[str]) -> list[UserFailure]:
    """Return the failures in a reply, at most one per user; invalid entries are ignored."""
    records = reply.content.config_records
    if CONFIG not in records:
        return []
    entries = records[CONFIG].get(_FAILURES)
    if not isinstance(entries, list):
        return []
    failures: dict[str, UserFailure] = {}
    for text in entries[: len(users)]:
        try:
            failure = UserFailure.from_dict(dict(json.loads(str(text)[:8192])))
        except (ValueError, TypeError, RecursionError):
            continue
        if failure.user in users:
            failures.setdefault(failure.user, failure)
    return list(failures.values())


def read_number(reply: Message, key: str) -> float:
    """Return the number of a key in the metric records of a reply; NaN for anything else."""
    try:
        for record in reply.content.metric_records.values():
            value = record.get(key)
            if isinstance(value, int | float):
                return float(value)
    except Exception:  # the content is untrusted: no content, an integer beyond float64
        return math.nan
    return math.nan


def read_reply(
    reply: Message,
    t: int,
    users: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    *dtypes: str,
) -> dict[str, Tensor]:
    """Return the arrays of a reply by name: one row per user, or exact sums over the users.

    Rows may hold NaN or infinity.

    Args:
        reply: the message from the node.
        t: the round, from 0.
        users: the users of the request, in its order.
        shapes: the required shape of each array.
        dtypes: NumPy's names of the accepted types.

    Raises:
        RejectedReply: an error, another round, other users or another order, a wrong shape or type.
    """
    require_no_error(reply)
    if CONFIG not in reply.content.config_records:
        raise RejectedReply("reply has no config record")
    config = reply.content.config_records[CONFIG]
    round_index = _integer(config, "round")
    if round_index != t:
        raise RejectedReply(f"reply must be for round {t + 1}; got round {shown(round_index + 1)}")
    replied = names_in(config, "users")
    if list(replied) != list(users):
        difference = f"{len(replied)}, not in their order"
        strangers = sorted(set(replied) - set(users))
        if strangers:
            difference = shown(strangers[0])
        raise RejectedReply(
            f"reply must be for the {len(users)} users of the request; got {difference}"
        )
    arrays = dict[str, Tensor]()
    for name, shape in shapes.items():
        arrays[name] = _array(reply, name, shape, dtypes)
    return arrays


def _integer(config: ConfigRecord, key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedReply(f"reply must hold an integer {key!r}; got {shown(value)}")
    return value


def _array(reply: Message, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> Tensor:
    records = reply.content.array_records
    if _ARRAYS not in records or name not in records[_ARRAYS]:
        raise RejectedReply(f"reply has no array {name!r}")
    try:
        numbers = checked_array(records[_ARRAYS][name], name, dtypes, shape)
        return torch.from_numpy(numbers.copy())  # the numbers are a read-only view of the message
    except RejectedReply:
        raise
    except Exception as error:  # the bytes are untrusted
        raise RejectedReply(type(error).__name__) from None
