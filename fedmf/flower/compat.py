"""Every touch of a private corner of Flower, pinned to 1.41 and tested on it."""

from __future__ import annotations

import os

import flwr
from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["CLIENT_RAISED", "claim_task_identity", "quiet_flower", "set_message_id"]

#: flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION, which is not exported.
CLIENT_RAISED = 2

_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def quiet_flower() -> None:
    """No telemetry or update checks unless the user asked for them in the environment."""
    for name, value in _OFFLINE.items():
        os.environ.setdefault(name, value)


def claim_task_identity(run_id: int, node_id: int) -> None:
    """Let ``Message(...)`` be constructed outside a Flower process; a real identity is left alone."""
    if TaskIdentity._task_id is None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node_id


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message the id by which its reply is asked for; Flower's grids do the same."""
    message.metadata.__dict__["_message_id"] = message_id


def client_error(error: Exception, request: Message) -> Message:
    """What Flower sends back when a client app raises."""
    return Message(Error(CLIENT_RAISED, f"{type(error).__name__}: {error}"), reply_to=request)


def flower_version() -> str:
    """The installed version of Flower."""
    return flwr.__version__
