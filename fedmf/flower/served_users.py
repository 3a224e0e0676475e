"""The node that serves each user, as nodes come and go before and during training.

`ServedUsers` waits for nodes before the first round and looks for changes during training;
`ClaimedUsers` decides which of several claims on a user is accepted. `fedmf.flower.identity` has
the ways in which a user is recognized.
"""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final

from flwr.serverapp import Grid

_log = logging.getLogger("fedmf")
#: Seconds between two looks for nodes.
_PAUSE = 0.2
#: Seconds before the first report that users are missing, and between two that differ.
_FIRST_REPORT = 2.0
_BETWEEN_REPORTS = 10.0
#: Most lines that one look for nodes reports.
MOST_LINES: Final = 20


def first_names(users: Sequence[str]) -> str:
    """Return the first users of a list in words.

    >>> first_names(["ann", "bob"])
    "'ann', 'bob'"
    """
    names = ", ".join(map(repr, users[:MOST_LINES]))
    if len(users) > MOST_LINES:
        return f"{names} and {len(users) - MOST_LINES:,} more"
    return names


class ServedUsers(ABC):
    """The node that serves each user.

    Only `gather` waits, and only before the first round. `refresh` reads the answers that have
    arrived, so that no round is held up by a node that does not answer.

    Args:
        user_list: the stable ids of all users.
        report: called with one line for the operator about anything odd.

    Attributes:
        users: N, the number of users.
        words: how users are recognized, in the words of a statement.
        resumable: whether a stopped run can be continued, because users are recognized when nodes
            come back.
        several: whether a node may serve several users, such as those with rows in its file.
    """

    words: ClassVar[str] = "as they are on the list"
    resumable: ClassVar[bool] = True
    several: ClassVar[bool] = False

    def __init__(
        self, user_list: Sequence[str], report: Callable[[str], None] = lambda _: None
    ) -> None:
        self.user_list = user_list
        self.users = len(user_list)
        self.report = report

    @abstractmethod
    def listen(self, grid: Grid) -> None:
        """Look for nodes, ask new ones and record the answers that have arrived; never wait."""

    def settle(self) -> None:
        """Decide by the answers recorded since the last call, as if they came at the same time."""
        return

    @abstractmethod
    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        """Return the node of each user that is served now.

        Args:
            users: ids by index.
        """

    @property
    def silent(self) -> int:
        """Number of living nodes that never answered."""
        return 0

    @property
    @abstractmethod
    def missing(self) -> int:
        """Number of users that no node has claimed."""

    def refresh(self, grid: Grid) -> None:
        """Read the answers that have arrived and decide by them, without waiting."""
        self.listen(grid)
        self.settle()

    def unserved(self) -> list[str]:
        """Return the users whom no node serves now."""
        served = self.nodes_of(dict(enumerate(self.user_list)))
        return [user for user in self.user_list if user not in served]

    def gather(
        self, grid: Grid, timeout: float, limit: float | None = None, least: int = 1
    ) -> None:
        """Wait until every node has answered and every user is served, at most ``limit`` seconds.

        All answers within that time count as simultaneous, so that no node gets a user because it
        is quicker than another. Flower may list only part of the nodes at first, so nodes that
        appear later are asked later. After ``limit``, training continues with the users that are
        served; only if they are fewer than ``least``, the wait lasts up to ``timeout``.

        Args:
            grid: the grid of the nodes.
            timeout: seconds after which it is an error if fewer users are served.
            limit: seconds to wait for all users; default: ``timeout``.
            least: the least number of users.

        Raises:
            RuntimeError: fewer users of the user list are served in time.
        """
        start = time.monotonic()
        next_report = _FIRST_REPORT
        reported = ""
        are_named = False
        if limit is None or limit > timeout:
            limit = timeout
        while True:
            self.listen(grid)
            waited = time.monotonic() - start
            if not self.silent or waited >= limit:
                self.settle()
                all_claimed = not self.silent and not self.missing
                if waited >= timeout:
                    break
                if (all_claimed or waited >= limit) and self._serve(least):
                    break
            if waited >= next_report:
                next_report = waited + _BETWEEN_REPORTS
                status = self._status(grid)
                if status != reported:
                    self.report(f"waiting for users: {status}")
                reported = status
            if waited >= limit and not are_named:
                are_named = True
                _log.warning(
                    "waiting for users whom no node serves: %s. At least %d users must be served"
                    " (execution.min-users).",
                    first_names(self.unserved()),
                    least,
                )
            deadline = timeout
            if waited < limit:
                deadline = limit
            time.sleep(min(_PAUSE, max(0.0, deadline - waited)))
        if not self._serve(least):
            remedy = "Start their nodes"
            if least > 1:
                remedy += ", or set min_users of Execution (key execution.min-users)"
            raise RuntimeError(
                f"served users must be at least {least} before training; after {timeout:g} s of"
                f" waiting, {self._status(grid)}. Not served:"
                f" {first_names(self.unserved())}. {remedy}."
            )

    def _serve(self, least: int) -> bool:
        return self.users - len(self.unserved()) >= least

    def _status(self, grid: Grid) -> str:
        """Count connected nodes and served users, for messages to the operator."""
        nodes = len(list(grid.get_node_ids()))
        served = self.users - self.missing
        return f"{nodes} nodes are connected, and they serve {served} of {self.users} users"


class ClaimedUsers(ServedUsers):
    """The node that serves each user, by claims: the first living node that claims it.

    A claim is accepted if no living node has an accepted claim on that user, and no other living
    node claims the user too. Otherwise it waits, and is accepted once both hold. So later claims
    neither replace nor lock out the node that serves a user. If that node leaves, it gets the user
    back when it returns under its own id; under another id, it gets the user once the old id is
    gone.

    A user is disputed if several living nodes claim it and none did so before the others: no node
    is asked for it until one claim is left. Only the newest claim of a node counts: a node that
    comes back for another user would otherwise take part as both.
    """

    def __init__(
        self, user_list: Sequence[str], report: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(user_list, report)
        self._listed = set[int]()  # nodes that are connected now
        self._alive = set[int]()  # nodes at the last decision
        self._newest = dict[int, Collection[str]]()  # the newest claims of each node
        self._claims_since = list[tuple[int, Collection[str]]]()  # claims since the last decision
        self._accepted = dict[str, tuple[int, ...]]()
        self._waiting = dict[str, tuple[int, ...]]()

    def settle(self) -> None:
        new_claims = {node: users for node, users in self._claims_since if node in self._listed}
        self._claims_since = []
        if not new_claims and self._listed == self._alive:
            return
        self._alive = self._listed
        self._newest = self._newest | new_claims
        for node, users in new_claims.items():
            for user in users:
                waiting = self._waiting.get(user, ())
                if node not in waiting and node not in self._accepted.get(user, ()):
                    self._waiting[user] = (*waiting, node)
        for user, nodes in list(self._waiting.items()):
            # Claims of nodes that left are dropped: a node that comes back claims again.
            living = tuple(node for node in nodes if self._claims(node, user))
            if len(living) == 1 and self._node_of(user) is None:
                self._accepted[user] = (*self._accepted.get(user, ()), *living)
                living = ()
            if living:
                self._waiting[user] = living
            else:
                del self._waiting[user]
        claimed = set(itertools.chain.from_iterable(new_claims.values()))
        self._report_disputes(claimed & self._waiting.keys())

    def _report_disputes(self, users: Collection[str]) -> None:
        """Name the nodes that claim one user, and not the user: several people may read this."""
        for user in sorted(users)[:MOST_LINES]:
            nodes = list(self._waiting[user])
            result = "none is asked"
            serving = self._node_of(user)
            if serving is not None:
                nodes.insert(0, serving)
                result = f"node {serving} continues serving it"
            self.report(f"nodes {', '.join(map(str, nodes))} claim the same user; {result}")

    def _node_of(self, user: str) -> int | None:
        """Return the living node that serves a user, or None."""
        for node in self._accepted.get(user, ()):
            if self._claims(node, user):
                return node
        return None

    def _claims(self, node: int, user: str) -> bool:
        return node in self._alive and user in self._newest[node]

    @property
    def missing(self) -> int:
        """Number of users that no node has claimed; disputed users are not missing."""
        return self.users - len(self._accepted.keys() | self._waiting.keys())

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        served = dict[str, int]()
        for user in users.values():
            node = self._node_of(user)
            if node is not None:
                served[user] = node
        return served
