"""Users known by the keys of their nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedmf.errors import ConfigError
from fedmf.flower.boundary import Claims, Enrolment
from fedmf.flower.screen import say
from fedmf.flower.wrapper.identity import UserIdentity

_MOST_LINES: Final = 20


class EnrolledUsers(UserIdentity):
    """The key of a node says which user it is; nothing is asked, and the client app is not changed.

    For a SuperLink with ``--enable-supernode-auth`` over TLS. Without it nodes list keys as well, and they
    prove nothing; a server app cannot see the difference, so the statement names the condition.

    A node whose key is not enrolled is never asked. A key is one user. A user may have several keys, say
    while they are changed: the node of the first that is there serves it, and goes on as long as it lives.
    Of two nodes with one key, which a SuperLink does not allow, neither is asked unless one was there before.

    Args:
        source: a file, or keys with their users: see `Enrolment.of`. Users are in its order.
        report: called with one line about nodes that are no users.

    Raises:
        ConfigError: an enrolment that cannot be read, or one key for several users.
    """

    words = (
        "keys of SuperNodes, by an enrolment file; true if the SuperLink authenticates SuperNodes "
        "(--enable-supernode-auth) over TLS, which a server app cannot see"
    )
    lasting = True

    def __init__(self, source: str | Path | Mapping[str, str], report: Callable[[str], None] = say) -> None:
        self._enrolment = Enrolment.of(source)
        super().__init__(list(self._enrolment.users), report)
        for users in self._enrolment.by_key.values():
            if len(users) > 1:
                raise ConfigError(
                    f"a key must be enrolled for one user; got one for {users[0]!r} and {users[1]!r}. An app "
                    "that is not fedmf's own returns one update a node."
                )
        self._claims = Claims(self.users)
        self._listed: dict[int, bytes] = {}
        self._alive: dict[int, bytes] = {}
        self._strangers: set[int] = set()

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`; a look at the list of nodes."""
        self._listed = self._enrolment.nodes(grid)
        strangers = set(grid.get_node_ids()) - self._listed.keys()
        for node in sorted(strangers - self._strangers)[:_MOST_LINES]:
            self.tell(f"node {node} has a key that is not enrolled; it is not asked")
        self._strangers = strangers

    def settle(self) -> None:
        """See `ServedUsers.settle`."""
        if self._listed == self._alive:
            return
        new = defaultdict[bytes, list[int]](list)
        for node, key in sorted(self._listed.items()):
            if node not in self._alive:
                new[key].append(node)
        self._alive = self._listed
        self._claims.update(self._alive, [])
        places = {user: np.array([index]) for index, user in enumerate(self.roster)}
        for key, (user,) in self._enrolment.by_key.items():  # keys written first come first
            claims = [(node, places[user]) for node in new.get(key, ())]
            if claims and self._claims.update(self._alive, claims):
                self.tell(f"user {user!r} has several nodes; at most one of them is asked")

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`."""
        return self._claims.unclaimed

    @property
    def silent(self) -> int:
        """Nobody is asked."""
        return 0

    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """See `ServedUsers.nodes_of`."""
        return [self._claims.node_of(user) for user in users.tolist()]
