"""Who a user is in an app whose clients are not ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.data import canonical_id
from fedmf.errors import ConfigError
from fedmf.flower.boundary import Handshakes, ServedUsers, shown
from fedmf.flower.messages import RejectedReply
from fedmf.flower.population import Claimants
from fedmf.flower.screen import say

#: Marks a train message that only asks who the user is: mods see no query that an app has not registered.
_QUESTION: Final = "fedmf.who"
_ANSWER: Final = "fedmf.user"
_USER_ID: Final = re.compile(r"[^\x00-\x1f]{1,256}")


class UserIdentity(ServedUsers):
    """Which node is which user: one user a node."""

    #: What a statement says about it.
    words: str
    #: Whether a stopped run can go on: users are recognised when nodes come back.
    lasting: bool


class NodesAreUsers(UserIdentity):
    """Every virtual node of a simulation is a user: the first that registered is user 0, and so on.

    In Flower's simulations that is the order of partitions. Nodes of a deployment come back with other ids or
    in another order, so this tells nothing there.
    """

    words = "virtual nodes of a simulation in the order of their registration"
    lasting = False

    def __init__(self, users: int) -> None:
        width = len(str(users - 1))
        super().__init__([f"user-{u:0{width}d}" for u in range(users)], say)
        self._nodes: list[int] = []

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`."""
        return self.users - len(self._nodes)

    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """See `ServedUsers.nodes_of`."""
        return [self._nodes[user] if self._nodes else None for user in users.tolist()]

    @property
    def silent(self) -> int:
        """Nobody is asked."""
        return 0

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`; once all are there, the map stays."""
        if self._nodes:
            return
        nodes = _in_order(grid)
        if len(nodes) > self.users:
            raise ConfigError(
                f"num_users must be the number of nodes where nodes are users; got {self.users}, and "
                f"there are {len(nodes)} nodes."
            )
        if len(nodes) == self.users:
            self._nodes = nodes

    def settle(self) -> None:
        """Nothing to decide: all nodes are there, or none counts."""


def _in_order(grid: Grid) -> list[int]:
    try:
        return [node.node_id for node in sorted(grid.get_nodes(), key=lambda node: node.registered_at)]
    except NotImplementedError:
        return list(grid.get_node_ids())


class UsersSayWho(Claimants, UserIdentity):
    """Nodes say which user they serve, by `user_id_mod` in their client app.

    Nodes are believed as `Claims` says: the first that claimed a user serves it as long as it lives, and
    another that says the same is taken for that user only while the first is gone.

    Args:
        roster: ids of all users, given before any node is asked.
        report: called with one line about nodes that are no users.
    """

    words = "as nodes say (user_id_mod)"
    lasting = True

    def __init__(self, roster: Sequence[str], report: Callable[[str], None] = say) -> None:
        roster = [canonical_id(user) for user in roster]
        if len(set(roster)) < len(roster):
            raise ConfigError("roster must name each user once.")
        content = RecordDict({"config": ConfigRecord({_QUESTION: True})})
        questions = Handshakes(lambda node: Message(content, node, MessageType.TRAIN, group_id="who"))
        super().__init__(roster, questions, report)

    def claimed(self, node: int, reply: Message) -> NDArray[np.int64]:
        """See `Claimants.claimed`; an answer that names no user is one: the node is not asked again."""
        if reply.has_error():
            raise RejectedReply(f"client error {shown(reply.error.code)}")
        user = _user_of(reply)
        if user in self.places:
            return np.array([self.places[user]])
        self.tell(
            f"node {node} does not say whom it serves: add user_id_mod to its client app"
            if user is None
            else f"node {node} serves a user that is not on the roster; it is not asked"
        )
        return np.empty(0, np.int64)


def _user_of(reply: Message) -> str | None:
    """The one user that an answer names."""
    said = [record[_ANSWER] for record in reply.content.config_records.values() if _ANSWER in record]
    user = said[0] if len(said) == 1 else None
    return canonical_id(user) if isinstance(user, str) and _USER_ID.fullmatch(user) else None


def user_id_mod(user_of: Callable[[Context], str] | None = None) -> Mod:
    """A mod that tells a server which user a node serves, and lets everything else through.

    Args:
        user_of: from the node's context to the user's stable id; by default the node config's ``user-id``,
            else its ``partition-id``.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[user_id_mod()])
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not _asks_who(message):
            return call_next(message, context)
        user = _configured(context) if user_of is None else user_of(context)
        return Message(RecordDict({"config": ConfigRecord({_ANSWER: str(user)})}), reply_to=message)

    return mod


def _asks_who(message: Message) -> bool:
    return any(_QUESTION in record for record in message.content.config_records.values())


def _configured(context: Context) -> str:
    for name in ("user-id", "partition-id"):
        if name in context.node_config:
            return str(context.node_config[name])
    raise ValueError("node config must hold user-id or partition-id; got neither.")
