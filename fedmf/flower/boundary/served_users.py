"""Which node serves whom, learnt from nodes that come and go, before training and beside it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

_PAUSE: Final = 0.2


class ServedUsers(ABC):
    """Which node serves whom.

    Only `gather` waits, and only before the first round; `refresh` takes in what is there, so that no round
    is held up by a node that does not answer.

    Args:
        roster: the stable ids of all users.
        report: called with one line for the operator about anything odd.

    Attributes:
        users: N, how many users there are.
        tell_every: seconds between lines of `gather` about who is waited for.
    """

    tell_every: ClassVar[float] = 10.0

    def __init__(self, roster: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
        self.roster, self.users, self.tell = roster, len(roster), report

    @abstractmethod
    def listen(self, grid: Grid) -> None:
        """Look for nodes, ask those not known yet, keep the answers that are there; never wait."""

    @abstractmethod
    def settle(self) -> None:
        """Decide by the answers kept since the last time: none of them came before the others."""

    @abstractmethod
    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """The id of the node to ask for each user, by index; None where there is none.

        Node ids take all of 64 bits, so they are no int64.
        """

    @property
    @abstractmethod
    def silent(self) -> int:
        """How many living nodes never answered."""

    @property
    @abstractmethod
    def missing(self) -> int:
        """How many users no node has claimed."""

    def refresh(self, grid: Grid) -> None:
        """Take in answers that are there, without waiting."""
        self.listen(grid)
        self.settle()

    def gather(self, grid: Grid, timeout: float, limit: float | None = None) -> None:
        """Wait until every node answered and every user has one, or ``limit`` seconds; then go on with those
        who are there.

        All answers of that time count as given at once: a node that is quicker than another gets no user by
        that. Flower may name only part of the nodes at first, so nodes that appear later are asked later.

        Args:
            grid: where the nodes are.
            timeout: seconds after which nobody at all is an error.
            limit: see above; default: ``timeout``.

        Raises:
            RuntimeError: no user of the roster was found in time.
        """
        begun, told = time.monotonic(), 0
        limit = timeout if limit is None else min(limit, timeout)
        while True:
            self.listen(grid)
            spent = time.monotonic() - begun
            if not self.silent or spent >= limit:
                self.settle()
                last = limit if self.missing < self.users else timeout
                if not (self.silent or self.missing) or spent >= last:
                    break
            if spent // self.tell_every > told:
                told = spent // self.tell_every
                self.tell(f"waiting for users: {self._there(grid)}")
            time.sleep(min(_PAUSE, max(0.0, (limit if spent < limit else timeout) - spent)))
        if self.missing:
            self.tell(f"{self.missing} of {self.users} users are served by no node that answered in time")
        if self.missing == self.users:
            raise RuntimeError(
                f"no node that serves a known user answered within {timeout:g} s: {self._there(grid)}."
            )

    def _there(self, grid: Grid) -> str:
        """Both numbers, for whoever waits."""
        nodes, served = len(list(grid.get_node_ids())), self.users - self.missing
        return f"{nodes} nodes are there, and {served} of {self.users} users are served"
