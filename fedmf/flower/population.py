"""Users, not nodes: the handshake that learns which node serves which user."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.flower.boundary import Claims, Enrolment, Handshakes, ServedUsers
from fedmf.flower.messages import USERS, RejectedReply, hosted_users, question

#: How many users that are not on the roster one node may claim before all its claims are refused.
_MOST_STRANGERS: Final = 1000
#: How many lines one handshake may make.
_MOST_LINES: Final = 20


class Claimants(ServedUsers):
    """Nodes are asked whom they serve, and believed as `Claims` says.

    A user is served by the first node that claimed it, for as long as that node lives, and nothing that
    others claim changes it. It is kept up to date as nodes come and go.

    Args:
        roster: the stable ids of all users of the run.
        questions: to nodes.
        report: called with one line for the operator about anything odd.
    """

    def __init__(
        self, roster: Sequence[str], questions: Handshakes, report: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(roster, report)
        self._claims, self._handshakes = Claims(len(roster)), questions
        self._listed, self._alive = set[int](), set[int]()
        self._heard: list[tuple[int, NDArray[np.int64]]] = []

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of each user."""
        return {user: index for index, user in enumerate(self.roster)}

    @abstractmethod
    def claimed(self, node: int, reply: Message) -> NDArray[np.int64]:
        """The users of the roster that an answer claims, by index.

        Raises:
            RejectedReply: it is not one, and the node is asked again.
        """

    def asked(self, grid: Grid) -> set[int]:
        """The nodes that may serve somebody."""
        return set(grid.get_node_ids())

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`."""
        self._listed = self.asked(grid)
        for node, reply in self._handshakes.answers(grid, self._listed):
            try:
                self._heard.append((node, self.claimed(node, reply)))
            except Exception as reason:  # whatever a stranger's bytes may cause
                what = str(reason) if isinstance(reason, RejectedReply) else type(reason).__name__
                self.tell(f"node {node} failed the handshake: {what}")
                continue
            self._handshakes.known(node)

    def settle(self) -> None:
        """See `ServedUsers.settle`."""
        heard, self._heard = [claim for claim in self._heard if claim[0] in self._listed], []
        if heard or self._listed != self._alive:
            self._alive = self._listed
            for user in self._claims.update(self._alive, heard)[:_MOST_LINES]:
                self.tell(f"user {self.roster[user]!r} is claimed by several nodes; {self._who(user)}")

    @property
    def silent(self) -> int:
        """See `ServedUsers.silent`."""
        return self._handshakes.silent

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`; disputed users are not missing."""
        return self._claims.unclaimed

    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """See `ServedUsers.nodes_of`."""
        return [self._claims.node_of(user) for user in users.tolist()]

    def disputed(self) -> list[str]:
        """The users whom several nodes claim, and none of them before the others."""
        return [self.roster[user] for user in self._claims.disputed]

    def _who(self, user: int) -> str:
        node = self._claims.node_of(user)
        return "none is asked" if node is None else f"node {node} goes on serving it"


class Population(Claimants):
    """Which node of fedmf's own client app serves which user.

    Args:
        roster: the stable ids of all users of the run.
        report: called with one line for the operator about anything odd.
        enrolment: whose claims on whom are believed: nodes whose key is not in it are not even asked. None
            believes every node.
    """

    def __init__(
        self,
        roster: Sequence[str],
        report: Callable[[str], None] = lambda _: None,
        enrolment: Enrolment | None = None,
    ) -> None:
        super().__init__(roster, handshakes(USERS), report)
        self._enrolment = enrolment
        self._keys: dict[int, bytes] = {}

    def asked(self, grid: Grid) -> set[int]:
        """See `Claimants.asked`."""
        if self._enrolment is None:
            return super().asked(grid)
        self._keys = self._enrolment.nodes(grid)
        return set(self._keys)

    def claimed(self, node: int, reply: Message) -> NDArray[np.int64]:
        """See `Claimants.claimed`."""
        users = hosted_users(reply)
        if len(users) > 2 * self.users + _MOST_STRANGERS:
            raise RejectedReply(f"reply must claim users of the roster; it claims {len(users)}")
        if self._enrolment is not None:
            enrolled = set(self._enrolment.by_key[self._keys[node]])
            if others := sum(user not in enrolled for user in users):
                self.tell(f"node {node} claims {others} users for whom its key is not enrolled; ignored")
            users = [user for user in users if user in enrolled]
        places = np.fromiter((self.places.get(user, -1) for user in users), dtype=np.int64, count=len(users))
        if strangers := np.count_nonzero(places < 0):
            self.tell(f"node {node} claims {strangers} users that are not on the roster; ignored")
        return np.unique(places[places >= 0])


def handshakes(about: str) -> Handshakes:
    """Questions to nodes: `USERS` or `ROSTER`."""
    content = question(about)
    return Handshakes(lambda node: Message(content, node, MessageType.QUERY, group_id="handshake"))
