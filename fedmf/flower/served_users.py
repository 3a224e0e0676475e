"""Which node serves which user, as nodes come and go before and during training."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final

from flwr.serverapp import Grid

#: Seconds between two looks for nodes, before the first line about who is waited for, and between
#: two.
_PAUSE = 0.2
_FIRST = 2.0
_TELL = 10.0
#: How many lines one look may make.
MOST_LINES: Final = 20


class ServedUsers(ABC):
    """Which node serves whom.

    Only `gather` waits, and only before the first round; `refresh` takes in the answers so far, so
    that no round is held up by a node that does not answer.

    Args:
        user_list: the stable ids of all users.
        report: called with one line for the operator about anything odd.

    Attributes:
        users: N, how many users there are.
        words: what a statement says about it.
        lasting: whether a stopped run can be continued: users are recognised when nodes come back.
    """

    words: ClassVar[str] = "as they are on the list"
    lasting: ClassVar[bool] = True

    def __init__(
        self, user_list: Sequence[str], report: Callable[[str], None] = lambda _: None
    ) -> None:
        self.user_list = user_list
        self.users = len(user_list)
        self.tell = report

    @abstractmethod
    def listen(self, grid: Grid) -> None:
        """Look for nodes, ask those not known yet, keep the answers that are there; never wait."""

    def settle(self) -> None:
        """Decide by the answers kept since the last time: none of them came before the others."""
        return

    @abstractmethod
    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        """The node to ask for each of these users, ids by index; without those whom none serves."""

    @property
    def silent(self) -> int:
        """How many living nodes never answered."""
        return 0

    @property
    @abstractmethod
    def missing(self) -> int:
        """How many users no node has claimed."""

    def refresh(self, grid: Grid) -> None:
        """Take in answers that are there, without waiting."""
        self.listen(grid)
        self.settle()

    def gather(self, grid: Grid, timeout: float, limit: float | None = None) -> None:
        """Wait until every node answered and every user has one, or ``limit`` seconds; then
        continue with those who are there.

        All answers of that time count as given at once: a node that is quicker than another gets no
        user by that. Flower may name only part of the nodes at first, so nodes that appear later
        are asked later.

        Args:
            grid: where the nodes are.
            timeout: seconds after which it is an error if no user is served.
            limit: see above; default: ``timeout``.

        Raises:
            RuntimeError: no user of the user list was found in time.
        """
        begun = time.monotonic()
        next_line = _FIRST
        limit = timeout if limit is None else min(limit, timeout)
        while True:
            self.listen(grid)
            spent = time.monotonic() - begun
            if not self.silent or spent >= limit:
                self.settle()
                last = limit if self.missing < self.users else timeout
                if not (self.silent or self.missing) or spent >= last:
                    break
            if spent >= next_line:
                next_line = spent + _TELL
                self.tell(f"waiting for users: {self._there(grid)}")
            time.sleep(min(_PAUSE, max(0.0, (limit if spent < limit else timeout) - spent)))
        if self.missing == self.users:
            raise RuntimeError(
                f"no user can be asked after {timeout:g} s of waiting: {self._there(grid)}."
            )
        if self.missing:
            self.tell(
                f"{self.missing} of {self.users} users are not served by any node that answered in"
                " time"
            )

    def _there(self, grid: Grid) -> str:
        """Who is there and who is missing, for messages to the operator."""
        nodes = len(list(grid.get_node_ids()))
        served = self.users - self.missing
        return f"{nodes} nodes are connected, and they serve {served} of {self.users} users"


class ClaimedUsers(ServedUsers):
    """Which node serves whom, by claims: the first with a living node serves the user.

    A claim is accepted if no living node has an accepted claim on that user, and no other living
    node claims the user too. Otherwise it waits, and is accepted once both hold. So who serves a
    user is neither replaced nor locked out by what others claim later, and gets the user back if it
    comes back under its own id; one that comes back under another id gets the user once the old id
    is gone. Users whom several living nodes claim, and none of them before the others, are
    disputed: no node is asked for them until one claim is left. Of each node its newest claim
    counts: one that comes back for another user would otherwise take part as both.
    """

    def __init__(
        self, user_list: Sequence[str], report: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(user_list, report)
        #: Nodes that are there, those of the last decision, and what was heard of nodes since then.
        self._listed = set[int]()
        self._alive = set[int]()
        self._newest = dict[int, Collection[str]]()  # claims of each node
        self._heard = list[tuple[int, Collection[str]]]()
        self._accepted = dict[str, tuple[int, ...]]()
        self._waiting = dict[str, tuple[int, ...]]()

    def settle(self) -> None:
        """See `ServedUsers.settle`."""
        heard = {node: users for node, users in self._heard if node in self._listed}
        self._heard = []
        if not heard and self._listed == self._alive:
            return
        self._alive = self._listed
        self._newest = self._newest | heard
        for node, users in heard.items():
            for user in users:
                waiting = self._waiting.get(user, ())
                if node not in (*self._accepted.get(user, ()), *waiting):
                    self._waiting[user] = (*waiting, node)
        for user, nodes in list(self._waiting.items()):  # those of nodes that left claim again
            living = tuple(node for node in nodes if self._claims(node, user))
            if len(living) == 1 and self._node_of(user) is None:
                self._accepted[user] = (*self._accepted.get(user, ()), *living)
                living = ()
            if living:
                self._waiting[user] = living
            else:
                del self._waiting[user]
        for user in sorted({*itertools.chain(*heard.values())} & self._waiting.keys())[:MOST_LINES]:
            node = self._node_of(user)
            who = "none is asked" if node is None else f"node {node} continues serving it"
            self.tell(f"user {user!r} is claimed by several nodes; {who}")

    def _node_of(self, user: str) -> int | None:
        """The living node that serves a user."""
        return next(
            (node for node in self._accepted.get(user, ()) if self._claims(node, user)), None
        )

    def _claims(self, node: int, user: str) -> bool:
        return node in self._alive and user in self._newest[node]

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`; disputed users are not missing."""
        return self.users - len(self._accepted.keys() | self._waiting.keys())

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        """See `ServedUsers.nodes_of`."""
        found = {user: self._node_of(user) for user in users.values()}
        return {user: node for user, node in found.items() if node is not None}
