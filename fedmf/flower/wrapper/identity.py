"""Who a user is in an app whose clients are not ours."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.errors import ConfigError
from fedmf.flower.boundary import Claims, Handshakes, ServedUsers, shown

#: Marks a train message that only asks who the user is: mods see no query that an app has not registered.
_QUESTION: Final = "fedmf.who"
_ANSWER: Final = "fedmf.user"
_USER_ID: Final = re.compile(r"[^\x00-\x1f]{1,256}")


class UserIdentity(ServedUsers):
    """Which node is which user.

    Args:
        users: N, how many users there are.
        report: called with one line about nodes that are no users.
    """

    #: What a statement says about it.
    words: str
    #: Whether a stopped run can go on: users are recognised when nodes come back.
    lasting: bool

    def __init__(self, users: int, report: Callable[[str], None] = lambda _: None) -> None:
        self.users, self.tell = users, report

    @property
    @abstractmethod
    def roster(self) -> list[str]:
        """User ids by index."""

    @abstractmethod
    def node_of(self, user: str) -> int | None:
        """The node to ask for a user."""

    def nodes(self) -> list[int]:
        """The nodes of all users that have one."""
        return sorted({node for user in self.roster if (node := self.node_of(user)) is not None})

    @property
    def silent(self) -> int:
        """See `ServedUsers.silent`; nobody is asked by default."""
        return 0

    def settle(self) -> None:
        """See `ServedUsers.settle`; what nodes are known by is decided as it is seen by default."""


class NodesAreUsers(UserIdentity):
    """Every virtual node of a simulation is a user: the first that registered is user 0, and so on.

    In Flower's simulations that is the order of partitions. Nodes of a deployment come back with other ids or
    in another order, so this tells nothing there.
    """

    words = "virtual nodes of a simulation in the order of their registration"
    lasting = False

    def __init__(self, users: int) -> None:
        super().__init__(users)
        self._nodes: dict[str, int] = {}

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`."""
        return self.users - len(self._nodes)

    def node_of(self, user: str) -> int | None:
        """See `UserIdentity.node_of`."""
        return self._nodes.get(user)

    @property
    def roster(self) -> list[str]:
        """``user-000``, …"""
        width = len(str(self.users - 1))
        return [f"user-{u:0{width}d}" for u in range(self.users)]

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
            self._nodes = dict(zip(self.roster, nodes, strict=True))


def _in_order(grid: Grid) -> list[int]:
    try:
        return [node.node_id for node in sorted(grid.get_nodes(), key=lambda node: node.registered_at)]
    except NotImplementedError:
        return list(grid.get_node_ids())


class UsersSayWho(UserIdentity):
    """Nodes say which user they serve, by `user_id_mod` in their client app.

    Nodes are believed as `Claims` says: the first that claimed a user serves it as long as it lives, and
    another that says the same is taken for that user only while the first is gone.

    Args:
        roster: ids of all users, given before any node is asked.
        report: called with one line about nodes that are no users.
    """

    words = "as nodes say (user_id_mod)"
    lasting = True

    def __init__(self, roster: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(len(roster), report)
        if len(set(roster)) < len(roster):
            raise ConfigError("roster must name each user once.")
        self._roster = list(roster)
        self._place = {user: index for index, user in enumerate(roster)}
        self._claims, self._listed, self._alive = Claims(len(roster)), set[int](), set[int]()
        self._heard: list[tuple[int, NDArray[np.int64]]] = []
        content = RecordDict({"config": ConfigRecord({_QUESTION: True})})
        self._handshakes = Handshakes(lambda node: Message(content, node, MessageType.TRAIN, group_id="who"))

    @property
    def roster(self) -> list[str]:
        """As given."""
        return self._roster

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`."""
        self._listed = set(grid.get_node_ids())
        for node, reply in self._handshakes.answers(grid, self._listed):
            if reply.has_error():
                self.tell(f"node {node} failed the handshake: client error {shown(reply.error.code)}")
                continue
            self._handshakes.known(node)
            user = _user_of(reply)
            if user is None:
                self.tell(f"node {node} does not say whom it serves: add user_id_mod to its client app")
            elif user not in self._place:
                self.tell(f"node {node} serves a user that is not on the roster; it is not asked")
            else:
                self._heard.append((node, np.array([self._place[user]])))

    def settle(self) -> None:
        """See `ServedUsers.settle`."""
        heard, self._heard = [claim for claim in self._heard if claim[0] in self._listed], []
        if heard or self._listed != self._alive:
            self._alive = self._listed
            for user in self._claims.update(self._alive, heard):
                self.tell(f"user {self._roster[user]!r} is claimed by several nodes; the first stays")

    @property
    def silent(self) -> int:
        """See `ServedUsers.silent`."""
        return self._handshakes.silent

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`; disputed users are not missing."""
        return self._claims.unclaimed

    def node_of(self, user: str) -> int | None:
        """See `UserIdentity.node_of`."""
        return self._claims.node_of(self._place[user])


def _user_of(reply: Message) -> str | None:
    """The one user that an answer names."""
    said = [record[_ANSWER] for record in reply.content.config_records.values() if _ANSWER in record]
    user = said[0] if len(said) == 1 else None
    return user if isinstance(user, str) and _USER_ID.fullmatch(user) else None


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
