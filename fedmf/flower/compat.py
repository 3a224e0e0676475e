"""Every touch of a private corner of Flower; a version of Flower without one of them is rejected
here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedmf.errors import ConfigError

try:
    from flwr.app import Array, Context, Error, Message, Metadata, RecordDict
    from flwr.app.message import make_message
    from flwr.app.user_config import UserConfig, UserConfigValue
    from flwr.common.config import flatten_dict
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.serverapp import Grid
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
        found = (
            f"flwr {version('flwr')} is installed and has no {error.name}: pip install"
            " 'flwr>=1.38,<1.43'"
        )
    except PackageNotFoundError:
        found = "it is not installed: pip install 'fedmf[flower]'"
    raise ImportError(f"fedmf.flower needs flwr, tried with 1.38 to 1.42; {found}.") from None

__all__ = ["NodeInfo", "UserConfigValue", "inflate_object_from_contents"]

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
    """Let ``Message(...)`` be constructed outside a Flower process; a real identity is left
    alone.
    """
    if TaskIdentity._task_id is None:
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = _RUN_ID
        TaskIdentity.node_id = SUPERLINK_NODE_ID


def empty_run() -> Run:
    """The run that an in-process grid belongs to."""
    return Run.create_empty(_RUN_ID)


def server_context(run_config: UserConfig) -> Context:
    """The context that a server app starts with."""
    return Context(_RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), run_config)


def flat_config(config: Mapping[str, Any]) -> UserConfig:
    """A run config with the names of nested tables joined by dots.

    Raises:
        ConfigError: a value is none of Flower's types.
    """
    try:
        return flatten_dict(dict(config))
    except ValueError as error:
        raise ConfigError(f"run_config: {error}") from None


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


def client_error(error: BaseException, request: Message) -> Message:
    """What Flower sends back when a client app raises."""
    reason = f"{type(error)}:<'{error}'>"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=request)


def arrived(reply: Message) -> bool:
    """Whether a reply comes from the node that was asked, whatever it holds."""
    return not (reply.has_error() and reply.error.code in _FROM_THE_LINK)


def unusable_reply(message_id: str, reason: str, code: int = _CRASHED) -> Message:
    """The error reply that stands for a reply that could not be had, as Flower's own grid makes
    it.
    """
    ends = {"src_node_id": SUPERLINK_NODE_ID, "dst_node_id": SUPERLINK_NODE_ID, "group_id": ""}
    answers = {"message_id": "", "reply_to_message_id": message_id, "message_type": "system"}
    metadata = Metadata(run_id=_RUN_ID, created_at=0.0, ttl=0.0, **ends, **answers)  # type: ignore[arg-type]
    return make_message(metadata=metadata, error=Error(code, reason))


def is_over_http(grid: Grid) -> bool:
    """Whether a grid is Flower's own over HTTP; importing its module takes most of a second."""
    from flwr.superlink.grid import HttpGrid

    return isinstance(grid, HttpGrid)


class MissingObjectError(Exception):
    """The link does not have an object: its sender never uploaded it."""


class HttpLink:
    """What Flower's grid over HTTP asks its link to pull replies. A link that is away is waited for
    there.

    Args:
        grid: of a server app.
    """

    def __init__(self, grid: Any) -> None:
        self._client = grid._runtime_client
        self._node = grid.node
        self._run_id = grid.run.run_id

    def announced(self, message_ids: Iterable[str]) -> Iterable[tuple[str, str, int, list[str]]]:
        """Of the replies that are there: the message that each answers, its id, its node, its
        objects.

        All that is the word of the link, which hands each out only once.
        """
        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            said = proto.metadata
            parts = (part.object_id for part in objects.iterate_object_tree(tree))
            yield (
                said.reply_to_message_id,
                said.message_id,
                said.src_node_id,
                list(dict.fromkeys(parts)),
            )

    def object(self, object_id: str) -> bytes | None:
        """One object, not checked; None as long as it is not uploaded.

        Raises:
            MissingObjectError: the link does not have it.
        """
        answer = self._client.PullObject(
            PullObjectRequest(node=self._node, run_id=self._run_id, object_id=object_id)
        )
        if not answer.object_found:
            raise MissingObjectError(object_id)
        return answer.object_content if answer.object_available else None

    def forget(self, message_id: str) -> None:
        """Let the link forget the objects of a reply."""
        asked = {"node": self._node, "run_id": self._run_id, "message_object_id": message_id}
        with suppress(Exception):
            self._client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(**asked))


def checked_size(content: bytes, contents: Mapping[str, bytes]) -> int:
    """How many bytes of chunks an object of a reply names, as often as it names them.

    Raises:
        ValueError: no object of Flower's.
        KeyError: a chunk that is not there.
    """
    validate_object_content(content)
    kind, children, _ = objects.get_object_head_values_from_object_content(content)
    if kind != "Array":
        return 0
    described: Any = json.loads(objects.get_object_body(content, Array))
    return sum(len(contents[children[int(place)]]) for place in described["arraychunk_ids"])
