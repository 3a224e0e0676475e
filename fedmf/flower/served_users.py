"""Which node serves which user, as nodes come and go before and during training."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.flower.compat import arrived
from fedmf.flower.messages import RejectedReply
from fedmf.flower.pulling import Pull, pull_of

_PAUSE: Final = 0.2
#: How many lines one look may make.
MOST_LINES: Final = 20


class ServedUsers(ABC):
    """Which node serves whom.

    Only `gather` waits, and only before the first round; `refresh` takes in the answers so far, so that no
    round is held up by a node that does not answer.

    Args:
        user_list: the stable ids of all users.
        report: called with one line for the operator about anything odd.

    Attributes:
        users: N, how many users there are.
        tell_every: seconds between lines of `gather` about who is waited for.
        words: what a statement says about it.
        lasting: whether a stopped run can be continued: users are recognised when nodes come back.
    """

    tell_every: ClassVar[float] = 10.0
    words: ClassVar[str] = "as they are on the list"
    lasting: ClassVar[bool] = True

    def __init__(self, user_list: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
        self.user_list, self.users, self.tell = user_list, len(user_list), report

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
        """Wait until every node answered and every user has one, or ``limit`` seconds; then continue with
        those who are there.

        All answers of that time count as given at once: a node that is quicker than another gets no user by
        that. Flower may name only part of the nodes at first, so nodes that appear later are asked later.

        Args:
            grid: where the nodes are.
            timeout: seconds after which nobody at all is an error.
            limit: see above; default: ``timeout``.

        Raises:
            RuntimeError: no user of the user list was found in time.
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
        """Both numbers, for messages to the operator."""
        nodes, served = len(list(grid.get_node_ids())), self.users - self.missing
        return f"{nodes} nodes are there, and {served} of {self.users} users are served"


class Claims:
    """Accepted claims of each user in their order: the first with a living node serves the user.

    A claim is accepted if no living node has an accepted claim on that user, and no other living node
    claims the user too. Otherwise it waits, and is accepted once both hold. So who serves a user is neither
    replaced nor locked out by what others claim later, and gets the user back if it comes back under its
    own id; one that comes back under another id gets the user once the old id is gone. Users whom several
    living nodes claim, and none of them before the others, are disputed: nobody is asked for them until one
    claim is left.
    """

    def __init__(self) -> None:
        self._accepted: dict[str, tuple[int, ...]] = {}
        self._waiting: dict[str, tuple[int, ...]] = {}
        self._alive: Collection[int] = ()

    def update(self, alive: Collection[int], claims: Sequence[tuple[int, Collection[str]]]) -> list[str]:
        """Take in new claims, none of which came before the others, and who lives.

        Args:
            alive: all nodes that live.
            claims: nodes, and the users whom each claims.

        Returns:
            The users of these claims that wait.
        """
        self._alive, claimed = alive, set[str]()
        for node, users in claims:
            for user in users:
                waiting = self._waiting.get(user, ())
                if node not in (*self._accepted.get(user, ()), *waiting):
                    self._waiting[user] = (*waiting, node)
            claimed.update(users)
        for user, nodes in list(self._waiting.items()):  # those of nodes that left claim again
            living = tuple(node for node in nodes if node in alive)
            if len(living) == 1 and self.node_of(user) is None:
                self._accepted[user] = (*self._accepted.get(user, ()), *living)
                living = ()
            if living:
                self._waiting[user] = living
            else:
                del self._waiting[user]
        return sorted(claimed & self._waiting.keys())

    def node_of(self, user: str) -> int | None:
        """The living node that serves a user."""
        return next((node for node in self._accepted.get(user, ()) if node in self._alive), None)

    @property
    def claimed(self) -> int:
        """How many users have a claim that was accepted or waits."""
        return len(self._accepted.keys() | self._waiting.keys())


class ClaimedUsers(ServedUsers):
    """Which node serves whom, as `Claims` says: of the nodes that are there, and what was heard of them since
    the last decision."""

    def __init__(self, user_list: Sequence[str], report: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(user_list, report)
        self.claims = Claims()
        self._listed, self._alive = set[int](), set[int]()
        self._heard = list[tuple[int, Collection[str]]]()

    def settle(self) -> None:
        """See `ServedUsers.settle`."""
        heard, self._heard = [claim for claim in self._heard if claim[0] in self._listed], []
        if heard or self._listed != self._alive:
            self._alive = self._listed
            for user in self.claims.update(self._alive, heard)[:MOST_LINES]:
                node = self.claims.node_of(user)
                who = "none is asked" if node is None else f"node {node} continues serving it"
                self.tell(f"user {user!r} is claimed by several nodes; {who}")

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`; disputed users are not missing."""
        return self.users - self.claims.claimed

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        """See `ServedUsers.nodes_of`."""
        found = {user: self.claims.node_of(user) for user in users.values()}
        return {user: node for user, node in found.items() if node is not None}


#: How often a node is asked.
_ATTEMPTS: Final = 6
#: Seconds before a node that answered badly, or not at all, is asked again, doubled each time. A question
#: that waits for its answer may have started a process on its node already: it has longer.
_AFTER_BAD, _AFTER_NONE = 1.0, 30.0
#: Most bytes of an answer: a few million user ids.
_MOST_BYTES: Final = 2**28


@dataclass
class _Asked:
    """How often a node was asked, when it may be asked again, whether it ever answered and is known."""

    attempts: int = 0
    not_before: float = 0.0
    answered: bool = False
    known: bool = False


class Claimants(ClaimedUsers):
    """Nodes are asked whom they serve, and believed as `Claims` says.

    A user is served by the first node that claimed it, for as long as that node lives, and nothing that
    others claim changes it. Every node is asked until it gives a good answer, a bounded number of times.
    Answers are taken in whenever it is looked for them, however late they come, and a node that left and
    comes back is asked anew.

    Args:
        user_list: the stable ids of all users of the run.
        question: a message to a node.
        report: called with one line for the operator about anything odd.
    """

    def __init__(
        self,
        user_list: Sequence[str],
        question: Callable[[int], Message],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(user_list, report)
        self.known, self._question = frozenset(user_list), question
        self._asked = dict[int, _Asked]()
        self._sent = dict[str, int]()
        self._pull: tuple[Grid, Pull] | None = None

    @abstractmethod
    def claimed(self, node: int, reply: Message) -> Collection[str]:
        """The users of the user list that an answer claims.

        Raises:
            RejectedReply: it is not one, and the node is asked again.
        """

    def asked(self, grid: Grid) -> set[int]:
        """The nodes that may serve somebody."""
        return set(grid.get_node_ids())

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`."""
        self._listed = self.asked(grid)
        self._asked = {node: self._asked.get(node, _Asked()) for node in sorted(self._listed)}
        self._sent = {message: node for message, node in self._sent.items() if node in self._asked}
        self._ask(grid, time.monotonic())
        if self._pull is None or self._pull[0] is not grid:
            # Kept from one look to the next: a link tells only once of an answer that is still on its way.
            self._pull = grid, pull_of(grid, lambda _: _MOST_BYTES)
        for reply in self._pull[1](list(self._sent)) if self._sent else ():
            node = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                self._hear(node, self._asked[node], reply)

    def _ask(self, grid: Grid, now: float) -> None:
        """Ask whom it is time to ask."""
        due = {
            node: asked
            for node, asked in self._asked.items()
            if not asked.known and asked.attempts < _ATTEMPTS and now >= asked.not_before
        }
        if due:
            sent = grid.push_messages([self._question(node) for node in due])
            self._sent |= {message: node for message, node in zip(sent, due, strict=True) if message}
        for asked in due.values():
            asked.not_before = now + _AFTER_NONE * 2**asked.attempts
            asked.attempts += 1

    def _hear(self, node: int, asked: _Asked, reply: Message) -> None:
        asked.not_before = time.monotonic() + _AFTER_BAD * 2 ** (asked.attempts - 1)
        if not arrived(reply):
            return
        asked.answered = True
        try:
            self._heard.append((node, self.claimed(node, reply)))
            asked.known = True
        except Exception as reason:  # whatever a stranger's bytes may cause
            what = str(reason) if isinstance(reason, RejectedReply) else type(reason).__name__
            self.tell(f"node {node} failed the handshake: {what}")

    @property
    def silent(self) -> int:
        """See `ServedUsers.silent`."""
        return sum(not asked.answered for asked in self._asked.values())
