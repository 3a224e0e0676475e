"""Every touch of a private corner of Flower, pinned to 1.41 and tested on it."""

from __future__ import annotations

from flwr.app import Error, Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["arrived", "claim_task_identity", "client_error", "empty_run", "set_message_id"]

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


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message the id by which its reply is asked for; Flower's grids do the same."""
    message.metadata.__dict__["_message_id"] = message_id


def client_error(error: Exception, request: Message) -> Message:
    """What Flower sends back when a client app raises."""
    reason = f"{type(error)}:<'{error}'>"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=request)


def arrived(reply: Message) -> bool:
    """Whether a reply comes from the node that was asked, whatever it holds."""
    return not (reply.has_error() and reply.error.code in _FROM_THE_LINK)
