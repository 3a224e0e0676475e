"""The wire format between the server strategy and the client app, and its validation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedmf.flower.arrays import array_record, checked_tensor, tensor_of
from fedmf.flower.boundary import shown
from fedmf.runs import Reply, Request, roster_digest
from fedmf.training import UserFailure, copied_vector

_ARRAYS, _CONFIG = "arrays", "config"
_PARAMETERS, _ROWS, _FAILURES = "parameters", "rows", "failures"
#: The two questions of a handshake: which users are yours; which roster were you built with?
USERS, ROSTER = "users", "roster"
_QUESTION = "handshake"
_CLIP_NORM = "clip-norm"


class RejectedReply(ValueError):
    """A reply that must not enter the sum; the message says why, for the operator only."""


def request_content(request: Request) -> RecordDict:
    """The content of a train message. One flat array: encoding cost is per tensor."""
    config = ConfigRecord({"round": request.t, "users": list(request.users), "slice": request.as_slice})
    if request.clip_norm is not None:
        config[_CLIP_NORM] = request.clip_norm
    return RecordDict({_ARRAYS: array_record({_PARAMETERS: request.parameters}), _CONFIG: config})


def read_request(message: Message) -> Request:
    """Decode a train message on the client.

    The parameters are the client's own: training in place cannot reach the model of a server that lives in
    the same process.
    """
    config = message.content.config_records[_CONFIG]
    norm = config.get(_CLIP_NORM)
    return Request(
        parameters=copied_vector(_tensor(message, _PARAMETERS)),
        t=_integer(config, "round"),
        users=_names(config, "users"),
        as_slice=bool(config["slice"]),
        clip_norm=None if norm is None else float(str(norm)),
    )


def answer_reply(message: Message, t: int, reply: Reply) -> Message:
    """A node's answer: one row a user, in the order of the request, or exact sums by name, int64; who is in
    them and who failed."""
    assert not isinstance(reply.held, str)
    held = {_ROWS: reply.held} if isinstance(reply.held, Tensor) else reply.held
    failures = [json.dumps(failure.to_dict()) for failure in reply.failures]
    config = ConfigRecord({"round": t, "users": list(reply.users), _FAILURES: failures})
    return Message(RecordDict({_ARRAYS: array_record(held), _CONFIG: config}), reply_to=message)


def read_failures(reply: Message, asked: Collection[str]) -> list[UserFailure]:
    """What a reply says about failures of the users asked, at most one for each; what is no such report is
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


def read_rows_reply(reply: Message, *, t: int, asked: Sequence[str], dimension: int) -> Tensor:
    """The rows of the r users asked, shape (r, d), in their order. They may hold NaN or infinity.

    Rows of float64 are taken for float32; a number beyond its range becomes infinite.

    Raises:
        RejectedReply: an error, another round, other users or another order, a wrong shape or type.
    """
    check_header(reply, t, asked)
    return _array(reply, _ROWS, (len(asked), dimension), "float32", "float64").to(torch.float32)


def read_slice_reply(
    reply: Message, *, t: int, asked: Sequence[str], lengths: Mapping[str, int]
) -> dict[str, Tensor]:
    """The fixed-point sums over the users asked by name, int64 of these lengths.

    Raises:
        RejectedReply: an error, another round, other users than those asked, or a wrong length or type.
    """
    check_header(reply, t, asked)
    return {name: _array(reply, name, (length,), "int64") for name, length in lengths.items()}


def question(about: str) -> RecordDict:
    """The content of a handshake that asks for `USERS` or `ROSTER`."""
    return RecordDict({_CONFIG: ConfigRecord({_QUESTION: about})})


def asks_for_roster(request: Message) -> bool:
    """Whether a handshake asks for the roster's digest; otherwise it asks for the node's own users."""
    config = request.content.config_records.get(_CONFIG)
    return config is not None and config.get(_QUESTION) == ROSTER


def roster_reply(request: Message, roster: Sequence[str]) -> Message:
    """A worker's answer to the handshake of a simulation: for which roster it was built."""
    config = ConfigRecord({ROSTER: roster_digest(roster)})
    return Message(RecordDict({_CONFIG: config}), reply_to=request)


def served_roster(reply: Message) -> str:
    """Decode a worker's answer.

    Raises:
        RejectedReply: an error reply or a malformed one.
    """
    digest = _config(reply).get(ROSTER)
    if not isinstance(digest, str):
        raise RejectedReply(f"reply must hold the digest of a roster {ROSTER!r}")
    return digest


def hosted_users_reply(request: Message, users: Sequence[str]) -> Message:
    """The answer to the handshake: the stable ids of the users that this node serves."""
    return Message(RecordDict({_CONFIG: ConfigRecord({"users": list(users)})}), reply_to=request)


def hosted_users(reply: Message) -> tuple[str, ...]:
    """Decode the answer to the handshake.

    Raises:
        RejectedReply: an error reply or a malformed one.
    """
    return _names(_config(reply), "users")


def check_header(reply: Message, t: int, asked: Sequence[str]) -> None:
    """Refuse a reply that is not to the round and the users asked, in their order.

    Raises:
        RejectedReply: an error, another round, other users or another order.
    """
    config = _config(reply)
    replied = _integer(config, "round")
    if replied != t:
        raise RejectedReply(f"reply must be for round {t + 1}; got round {shown(replied + 1)}")
    users = _names(config, "users")
    if list(users) != list(asked):
        strangers = sorted(set(users) - set(asked))
        other = shown(strangers[0]) if strangers else f"{len(users)}, not in their order"
        raise RejectedReply(f"reply must be for the {len(asked)} users asked; got {other}")


def _config(reply: Message) -> ConfigRecord:
    if reply.has_error():
        raise RejectedReply(f"client error {reply.error.code}: {shown(reply.error.reason)}")
    if _CONFIG not in reply.content.config_records:
        raise RejectedReply("reply has no config record")
    return reply.content.config_records[_CONFIG]


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


def _tensor(message: Message, name: str) -> Tensor:
    records = message.content.array_records
    if _ARRAYS not in records or name not in records[_ARRAYS]:
        raise RejectedReply(f"request has no array {name!r}")
    return tensor_of(records[_ARRAYS][name])


def _array(reply: Message, name: str, shape: tuple[int, ...], *dtypes: str) -> Tensor:
    records = reply.content.array_records
    if _ARRAYS not in records or name not in records[_ARRAYS]:
        raise RejectedReply(f"reply has no array {name!r}")
    try:
        return checked_tensor(records[_ARRAYS][name], name, dtypes, shape)
    except Exception as error:  # whatever a stranger's bytes may cause
        raise RejectedReply(str(error) if type(error) is ValueError else type(error).__name__) from None
