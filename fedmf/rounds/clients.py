"""The clients of a run as its loop sees them: what they are asked, what answers add, who is left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmf.training import FixedPointSum, UserFailure

#: A node, and the users whom one message asks there.
Part = tuple[int, tuple[str, ...]]
#: Users, given as ids, by the node to ask for them.
ByNode = Mapping[int, Sequence[str]]


class Exchange(ABC):
    """Messages of one attempt, whose reply is whose, and what a reply adds to a sum.

    Args:
        messages: to be sent, of the kind that the link to the clients carries.
    """

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages

    @abstractmethod
    def part_of(self, reply: Any) -> Part | None:
        """Whom the message asked that is answered; None for a second answer, or one to nothing."""

    @abstractmethod
    def sender(self, reply: Any) -> int:
        """The node that says it sent a reply."""

    @abstractmethod
    def arrived(self, reply: Any) -> bool:
        """Whether a reply comes from the node that was asked, whatever it holds."""

    def bytes_of(self, message_id: str) -> int:
        """What the arrays of the reply to a message may take beyond what every reply may."""
        del message_id
        return 0

    @abstractmethod
    def add(self, reply: Any, users: tuple[str, ...], total: FixedPointSum) -> dict[str, str]:
        """Add the reply to the message that asked ``users`` to a sum, in which each of them is counted.

        Returns:
            Those of them whose contribution is the zero vector, and why.
        """

    def told(self, reply: Any, users: tuple[str, ...]) -> list[UserFailure]:
        """What a reply that was of use says itself of failures."""
        del reply, users
        return []

    def fold(self, replies: Iterable[Any], total: FixedPointSum) -> tuple[list[str], list[UserFailure]]:
        """Add replies to a sum as they come: who is present, and what failed.

        Whose reply arrives is present, whatever it holds. One that cannot be used is the zero vector of its
        users, so that nothing but a user's own contribution depends on what that user sent.

        Args:
            replies: to the messages.
            total: their contributions are added to it.
        """
        present, failures = list[str](), list[UserFailure]()
        for reply in replies:
            part = self.part_of(reply)
            if part is None:
                node = self.sender(reply)
                failures.append(UserFailure("", "reply", f"node {node}: nobody is asked for this reply"))
            elif self.arrived(reply):
                node, users = part
                present += users
                zeros = self.add(reply, users, total)
                failures += [UserFailure(user, "reply", f"node {node}: {why}") for user, why in zeros.items()]
                failures += self.told(reply, users) if len(zeros) < len(users) else []
        return sorted(present), failures


@dataclass(frozen=True, eq=False)
class Question:
    """What all clients are asked at once.

    Args:
        what: for people.
        ask: makes the messages of an attempt.
        wanted: whether silence of everybody is a reason to ask again: a random cohort may be empty.
        patient: whether every reply is waited for, however long that takes.
        bytes_of: see `Exchange.bytes_of`.
    """

    what: str
    ask: Callable[[], list[Any]]
    wanted: Callable[[], bool]
    patient: bool
    bytes_of: Callable[[str], int]


class Link(ABC):
    """The way to the clients."""

    @abstractmethod
    def gather(self) -> None:
        """Wait for those who are to be asked, before the first round.

        Raises:
            RuntimeError: nobody came.
        """

    @abstractmethod
    def replies(self, question: Question) -> Iterator[Any]:
        """The replies as they arrive; none if everybody is silent, however often was asked."""


class Served(Protocol):
    """Which node serves whom."""

    def nodes_of(self, users: NDArray[np.int64]) -> Sequence[int | None]:
        """The id of the node to ask for each user, by index; None where there is none."""
        ...


class Dialogue(ABC):
    """With the clients of a run: by which messages they are asked, and what a reply adds.

    Whom to ask, when to ask again, what is released, kept and told is the loop's: `Rounds`.

    Args:
        served: which node serves whom.
    """

    #: Whether training waits for every reply, however long that takes.
    patient: ClassVar[bool] | bool = False

    def __init__(self, served: Served) -> None:
        self.served = served

    @abstractmethod
    def training(self, number: int, by_node: ByNode, link: Any) -> Exchange:
        """The messages of round ``number`` to its cohort, by what the server sums of it.

        Args:
            number: of the round, from 1.
            by_node: the cohort.
            link: to these clients.
        """
