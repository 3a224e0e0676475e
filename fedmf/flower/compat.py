"""Every touch of a private corner of Flower, pinned to 1.41 and tested on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig as RunConfig
from flwr.app.user_config import UserConfigValue
from flwr.common.config import flatten_dict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.object_ref import load_app
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedmf.errors import ConfigError

__all__ = [
    "NodeInfo",
    "RunConfig",
    "UserConfigValue",
    "arrived",
    "claim_task_identity",
    "client_error",
    "empty_run",
    "error_reason",
    "flat_config",
    "load_object",
    "server_context",
    "set_message_id",
]

_RUN_ID = 1
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
