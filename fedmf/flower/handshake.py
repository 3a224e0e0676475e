"""The question which users a node serves: the mod that answers it, and the answer's check.

A client app imports this module alone, in each of its processes, so it needs Flower and nothing of
the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

CONFIG: Final = "config"
_QUESTION: Final = "fedmf.who"
_ANSWER: Final = "fedmf.users"
#: Most characters of a value in a reason.
_MOST_CHARACTERS: Final = 80
#: Most characters of a client's error in a reason.
_MOST_ERROR_CHARACTERS: Final = 400


class RejectedReply(ValueError):
    """A reply that must not enter the sum.

    Args:
        reason: for the operator's file of failures only: it may hold text that the sender chose.
        fault: the reason without such text, which logs may show.
    """

    def __init__(self, reason: str, fault: str = "replies do not have the requested form") -> None:
        super().__init__(reason)
        self.fault = fault


def _configured_user(context: Context) -> object:
    config = context.node_config
    return config.get("user-id", config.get("partition-id"))


def user_id_mod(user_of: Callable[[Context], str] | None = None) -> Mod:
    """Return a mod that reports the node's user to the server and passes on all other messages.

    Args:
        user_of: from the node's context to the user's stable id; by default the node config's
            ``user-id``, else its ``partition-id``.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[user_id_mod()])
    """
    find_user: Callable[[Context], object] = user_of or _configured_user

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not is_question(message):
            return call_next(message, context)
        user = find_user(context)
        if user is None:
            raise ValueError("node config must hold user-id or partition-id; got neither.")
        return served_reply(message, [str(user)])

    return mod


def question() -> RecordDict:
    """Return the content of a message that only asks which users a node serves."""
    return RecordDict({CONFIG: ConfigRecord({_QUESTION: True})})


def is_question(message: Message) -> bool:
    """Return whether a message only asks which users a node serves."""
    return any(_QUESTION in record for record in message.content.config_records.values())


def served_reply(request: Message, users: Sequence[str]) -> Message:
    """Return the answer to the question: the stable ids of the users that this node serves."""
    return Message(RecordDict({CONFIG: ConfigRecord({_ANSWER: list(users)})}), reply_to=request)


def served_users(reply: Message) -> tuple[str, ...] | None:
    """Decode the answer to the question; None if an app does not know the question.

    Raises:
        RejectedReply: an error reply, or an answer that is no list of ids.
    """
    require_no_error(reply)
    for record in reply.content.config_records.values():
        if _ANSWER in record:
            return names_in(record, _ANSWER)
    return None


def shown(value: object) -> str:
    """Return an untrusted value for the operator's file of failures, short and escaped.

    >>> shown("two\\nlines")
    "'two\\\\nlines'"
    >>> len(shown("x" * 10**6)) <= 90
    True
    """
    if isinstance(value, str | bytes):
        return ascii(value[:_MOST_CHARACTERS])[: _MOST_CHARACTERS + 8]
    if isinstance(value, list | tuple):
        items = [shown(item) for item in value[:4]]
        if len(value) > 4:
            items.append("…")
        return f"[{', '.join(items)}]"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    return ascii(value)[:_MOST_CHARACTERS]


def require_no_error(reply: Message) -> None:
    """Reject the reply of a client that raised an error.

    Raises:
        RejectedReply: with the text of the error, which only the operator may see.
    """
    if reply.has_error():
        reason = ascii(" ".join(str(reply.error.reason)[-5000:].split()))
        if len(reason) > _MOST_ERROR_CHARACTERS:  # a traceback has its error at the end
            reason = f"{reason[:100]} … {reason[100 - _MOST_ERROR_CHARACTERS :]}"
        raise RejectedReply(f"client error {reply.error.code}: {reason}", "client apps failed")


def names_in(config: ConfigRecord, key: str) -> tuple[str, ...]:
    """Return a list of user ids of a record from outside.

    Raises:
        RejectedReply: it is no list of texts.
    """
    value = config.get(key)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        rule = f"reply must hold a list of user ids {key!r}"
        raise RejectedReply(rule, rule)
    return tuple(cast("list[str]", value))
