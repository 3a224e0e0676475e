"""Flower's private names that fedmf uses, all in one place.

A version of Flower without one of them is rejected when this module is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedmf.errors import ConfigError, pass_interrupt

try:
    from flwr.app import Array, Context, Error, Message, Metadata, RecordDict
    from flwr.app.message import make_message
    from flwr.app.user_config import UserConfig, UserConfigValue
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
    from flwr.supercore.inflatable import inflatable_object as objects
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        validate_object_content,
    )
    from flwr.supercore.object_ref import load_app
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    try:
        remedy = (
            f"flwr {version('flwr')} is installed and has no {error.name}: pip install"
            " 'flwr>=1.38,<1.43'"
        )
    except PackageNotFoundError:
        remedy = "it is not installed: pip install 'fedmf[flower]'"
    raise ImportError(f"fedmf.flower needs flwr, tried with 1.38 to 1.42; {remedy}.") from None

__all__ = [
    "NodeInfo",
    "UserConfigValue",
    "aggregate_metricrecords",
    "inflate_object_from_contents",
]

_RUN_ID = 1
#: Errors that Flower's link sends in place of a reply that never came.
_FROM_THE_LINK = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
MISSING = ErrorCode.MESSAGE_UNAVAILABLE
_CRASHED = ErrorCode.CLIENT_APP_CRASHED


def claim_task_identity() -> None:
    """Let ``Message(...)`` be constructed outside a Flower process; keep a real identity."""
    if TaskIdentity._task_id is None:
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = _RUN_ID
        TaskIdentity.node_id = SUPERLINK_NODE_ID


def empty_run() -> Run:
    """Return the run of an in-process grid."""
    return Run.create_empty(_RUN_ID)


def server_context(run_config: UserConfig) -> Context:
    """Return the context with which a server app starts."""
    return Context(_RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), run_config)


def flat_config(config: Mapping[str, Any]) -> UserConfig:
    """Return a run config with the names of nested tables joined by dots.

    Raises:
        ConfigError: a value is none of Flower's types.
    """
    from flwr.common.config import flatten_dict  # which imports requests

    try:
        return flatten_dict(dict(config))
    except ValueError as error:
        raise ConfigError(f"run_config: {error}") from None


def load_object(name: str, folder: Path) -> Any:
    """Return the object ``package.module:attribute``, looked for in the folder of an app first.

    Raises:
        ConfigError: there is no such module or attribute.
    """
    try:
        return load_app(name, ConfigError, folder)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {name!r} of the app in {folder}: {error}.") from None


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message the id by which its reply is pulled; Flower's grids do the same."""
    message.metadata.__dict__["_message_id"] = message_id


def client_error(error: BaseException, request: Message) -> Message:
    """Return the error reply that Flower sends when a client app raises."""
    try:
        reason = f"{type(error)}:<'{error}'>"
    except BaseException as another:  # an exception of a client may fail at anything
        pass_interrupt(another)
        reason = "an exception without a message"
    return error_reply(reason, request)


def error_reply(
    reason: str, request: Message, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
) -> Message:
    """Return the error reply of a client app, or of Flower's link by its code, for a reason."""
    return Message(Error(code, reason), reply_to=request)


def node_gone(request: Message) -> Message:
    """Return the error reply that Flower's link gives for a node that is not connected any more."""
    reason = "the node is not connected"
    return error_reply(reason, request, ErrorCode.NODE_UNAVAILABLE)


def arrived(reply: Message) -> bool:
    """Return whether a reply comes from the node itself and not from Flower's link."""
    return not (reply.has_error() and reply.error.code in _FROM_THE_LINK)


def unusable_reply(message_id: str, reason: str, code: int = _CRASHED) -> Message:
    """Return the error reply that Flower's own grid gives in place of an unusable reply."""
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


def is_over_http(grid: Grid) -> bool:
    """Return whether a grid is Flower's own over HTTP; importing its module takes a second."""
    from flwr.superlink.grid import HttpGrid

    return isinstance(grid, HttpGrid)


class MissingObjectError(Exception):
    """The link does not have an object: its sender never uploaded it."""


class HttpLink:
    """The calls to the link by which Flower's grid over HTTP pulls replies.

    The calls wait for a link that is temporarily unavailable.

    Args:
        grid: the HTTP grid of a server app.
    """

    def __init__(self, grid: Any) -> None:
        self._client = grid._runtime_client
        self._node = grid.node
        self._run_id = grid.run.run_id

    def announced(self, message_ids: Iterable[str]) -> Iterable[tuple[str, str, int, list[str]]]:
        """Yield the replies that have arrived, each of which the link announces only once.

        Each is (id of the request, id of the reply, node id, ids of its objects without repeats),
        as checked by the link.
        """
        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            metadata = proto.metadata
            object_ids = dict.fromkeys(part.object_id for part in objects.iterate_object_tree(tree))
            yield (
                metadata.reply_to_message_id,
                metadata.message_id,
                metadata.src_node_id,
                list(object_ids),
            )

    def object(self, object_id: str) -> bytes | None:
        """Return one object without checking it, or None as long as it is not uploaded.

        Raises:
            MissingObjectError: the link does not have it.
        """
        answer = self._client.PullObject(
            PullObjectRequest(node=self._node, run_id=self._run_id, object_id=object_id)
        )
        if not answer.object_found:
            raise MissingObjectError(object_id)
        if not answer.object_available:
            return None
        return answer.object_content

    def forget(self, message_id: str) -> None:
        """Let the link delete the objects of a reply."""
        with suppress(Exception):
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self._node, run_id=self._run_id, message_object_id=message_id
                )
            )


def checked_size(content: bytes, contents: Mapping[str, bytes]) -> int:
    """Return the total bytes of the chunks that an object names, repeated chunks included.

    Args:
        content: the object.
        contents: all objects of the reply by id.

    Raises:
        ValueError: it is no object of Flower.
        KeyError: a chunk is missing.
    """
    validate_object_content(content)
    kind, children, _ = objects.get_object_head_values_from_object_content(content)
    if kind != "Array":
        return 0
    header: Any = json.loads(objects.get_object_body(content, Array))
    size = 0
    for index in header["arraychunk_ids"]:
        size += len(contents[children[int(index)]])
    return size
