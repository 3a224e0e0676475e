"""Every touch of a private corner of Flower, tested on each version that serves (see `version`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.app.user_config import UserConfig as RunConfig
from flwr.app.user_config import UserConfigValue
from flwr.common.config import flatten_dict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    validate_object_content,
)
from flwr.supercore.object_ref import load_app
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedmf.errors import ConfigError

__all__ = [
    "LinkPull",
    "NodeInfo",
    "RunConfig",
    "UserConfigValue",
    "arrived",
    "claim_task_identity",
    "client_error",
    "empty_run",
    "error_reason",
    "flat_config",
    "is_of_the_link",
    "load_object",
    "server_context",
    "set_message_id",
    "unusable_reply",
]

_RUN_ID = 1
#: Most objects of a reply; each is a call to the link. Flower cuts arrays into objects of 5 MiB.
_MOST_OBJECTS = 20_000
#: Errors that Flower's link sends in place of a reply that never came.
_FROM_THE_LINK = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def claim_task_identity() -> None:
    """Let ``Message(...)`` be constructed outside a Flower process; a real identity is left alone."""
    if TaskIdentity._task_id is None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN_ID, SUPERLINK_NODE_ID


def empty_run() -> Run:
    """The run that an in-process grid belongs to."""
    return Run.create_empty(_RUN_ID)


def server_context(run_id: int, run_config: RunConfig) -> Context:
    """The context that a server app starts with."""
    return Context(run_id, SUPERLINK_NODE_ID, {}, RecordDict(), run_config)


def flat_config(config: dict[str, Any]) -> RunConfig:
    """A run config with the names of nested tables joined by dots.

    Raises:
        ValueError: a value is none of Flower's types.
    """
    return flatten_dict(config)


def load_object(name: str, folder: Path) -> Any:
    """What ``package.module:attribute`` names, looked for in the folder of an app first.

    Raises:
        ConfigError: there is no such module or attribute.
    """
    try:
        return load_app(name, ConfigError, folder)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {name!r} of the app in {folder}: {error}.") from None


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message the id by which its reply is asked for; Flower's grids do the same."""
    message.metadata.__dict__["_message_id"] = message_id


def error_reason(error: BaseException) -> str:
    """How Flower writes the exception of a client app."""
    return f"{type(error)}:<'{error}'>"


def client_error(error: BaseException | str, request: Message) -> Message:
    """What Flower sends back when a client app raises: the exception, or the reason written from it."""
    reason = error if isinstance(error, str) else error_reason(error)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=request)


def arrived(reply: Message) -> bool:
    """Whether a reply comes from the node that was asked, whatever it holds."""
    return not (reply.has_error() and reply.error.code in _FROM_THE_LINK)


def unusable_reply(message_id: str, reason: str, code: int = ErrorCode.CLIENT_APP_CRASHED) -> Message:
    """The error reply that stands for a reply that could not be had, as Flower's own grid makes it."""
    metadata = Metadata(
        run_id=_RUN_ID,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=message_id,
        group_id="",
        created_at=0.0,
        ttl=0.0,
        message_type="system",
    )
    return make_message(metadata=metadata, error=Error(code, reason))


def is_of_the_link(error: Exception) -> bool:
    """Whether an exception says that the link did not answer, whatever the replies are."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code != httpx.codes.REQUEST_ENTITY_TOO_LARGE
    return isinstance(error, httpx.TransportError)


class _TooLargeError(ValueError):
    """A reply that is or would become larger than it may be."""


@dataclass
class _Announced:
    """A reply that the link has told of, and what was pulled of it."""

    message_id: str
    node: int
    object_ids: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class LinkPull:
    """What ``HttpGrid.pull_messages`` does, reply by reply.

    Flower's own loses all replies of a pull if one of them cannot be unpacked: the link hands out a reply
    only once. It waits up to two hours for a node that announces a reply and does not upload it, and unpacks
    whatever size there is. It also lets a node write into its reply whose message it answers; here that is
    the link's word, which has checked it.

    Args:
        grid: the grid of a server app.
        limit: most bytes of the reply to a message, by its id; packed, and unpacked.
    """

    def __init__(self, grid: HttpGrid, limit: Callable[[str], int]) -> None:
        self._client, self._node, self._run_id = grid._runtime_client, grid.node, grid.run.run_id
        self._limit = limit
        self._announced: dict[str, _Announced] = {}

    @classmethod
    def of(cls, grid: Grid, limit: Callable[[str], int]) -> Self | None:
        """For a grid, or None where it is not of this kind."""
        return cls(grid, limit) if isinstance(grid, HttpGrid) else None

    def __call__(self, message_ids: Sequence[str]) -> Iterator[Message]:
        """Those replies that are there. One that cannot be unpacked is an error reply."""
        asked = [message_id for message_id in message_ids if message_id not in self._announced]
        if asked:
            answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                # All of them are kept before any is looked at: the link has deleted them.
                known = proto.metadata
                self._announced[known.reply_to_message_id] = _Announced(
                    known.message_id, known.src_node_id, _object_ids(tree)
                )
        for answered, announced in list(self._announced.items()):
            reply = self._reply(answered, announced)
            if reply is not None:
                del self._announced[answered]
                with suppress(Exception):  # it only lets the link forget the objects
                    self._client.ConfirmMessageReceived(
                        ConfirmMessageReceivedRequest(
                            node=self._node, run_id=self._run_id, message_object_id=announced.message_id
                        )
                    )
                yield reply

    def _reply(self, answered: str, announced: _Announced) -> Message | None:
        """The reply, an error reply, or None as long as it is not complete."""
        try:
            most = self._limit(answered)
            if not self._complete(announced, most):
                return None
            check_unpacked_size(announced.contents, most)
            reply = inflate_object_from_contents(announced.message_id, announced.contents)
            said = reply.metadata if isinstance(reply, Message) else None
            if said is None or (said.reply_to_message_id, said.src_node_id) != (answered, announced.node):
                return unusable_reply(answered, "reply must say whose it is and what it answers")
            assert isinstance(reply, Message)  # as `said` says
            set_message_id(reply, announced.message_id)
            return reply
        except LookupError as error:
            missing = isinstance(error, _MissingError)
            code = ErrorCode.MESSAGE_UNAVAILABLE if missing else ErrorCode.CLIENT_APP_CRASHED
            return unusable_reply(answered, f"reply cannot be unpacked: {type(error).__name__}", code)
        except Exception as error:  # whatever a stranger's bytes may cause
            if is_of_the_link(error):
                return None
            reason = str(error) if isinstance(error, _TooLargeError) else type(error).__name__
            return unusable_reply(answered, f"reply cannot be unpacked: {reason}")

    def _complete(self, announced: _Announced, most: int) -> bool:
        """Pull what is not there yet; never more than may be."""
        if len(announced.object_ids) > _MOST_OBJECTS:
            raise _TooLargeError(f"it has more than {_MOST_OBJECTS} objects")
        for object_id in announced.object_ids:
            if object_id in announced.contents:
                continue
            answer = self._client.PullObject(
                PullObjectRequest(node=self._node, run_id=self._run_id, object_id=object_id)
            )
            if not answer.object_found:
                raise _MissingError(object_id)
            if not answer.object_available:
                return False
            validate_object_content(answer.object_content)
            announced.contents[object_id] = answer.object_content
            announced.size += len(answer.object_content)
            if announced.size > most:
                raise _TooLargeError(f"it takes more than {most} bytes")
        return True


class _MissingError(LookupError):
    """The link does not have an object: its sender never uploaded it."""


def _object_ids(tree: ObjectTree) -> list[str]:
    return list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))


def check_unpacked_size(contents: Mapping[str, bytes], most: int) -> None:
    """Refuse a reply whose arrays name their chunks so often that they would not fit.

    Raises:
        ValueError: more than ``most`` bytes, or no objects of Flower's.
    """
    size = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == "Array":
            described: Any = json.loads(_body(content))
            size += sum(len(contents[children[int(place)]]) for place in described["arraychunk_ids"])
        if size > most:
            raise _TooLargeError(f"its arrays would take more than {most} bytes")


def _body(content: bytes) -> bytes:
    from flwr.app import Array

    return get_object_body(content, Array)
