"""Which node serves which user, as nodes claim: handshakes, checks of replies, and first come."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array, Message
from flwr.common.constant import SType
from flwr.serverapp import Grid
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedmf.flower.boundary.pulling import Pull
from fedmf.flower.compat import arrived

#: How often a node is asked.
_ATTEMPTS: Final = 6
#: Seconds before a node that answered badly, or not at all, is asked again, doubled each time. A question
#: that waits for its answer may have started a process on its node already: it has longer.
_PAUSE, _PATIENCE = 1.0, 30.0
#: Most bytes of an answer: a few million user ids.
_MOST_BYTES: Final = 2**28


@dataclass
class _Asked:
    """How often a node was asked, when it may be asked again, whether it ever answered and is known."""

    attempts: int = 0
    not_before: float = 0.0
    answered: bool = False
    known: bool = False


class Handshakes:
    """Asks every node a question until it gives a good answer, a bounded number of times.

    Nobody waits here: answers are taken in whenever it is looked for them, however late they come. A node
    that left and comes back is asked anew.

    Args:
        question: a message to a node.
        attempts: how often a node is asked.
        pause: seconds before a node that gave a bad answer is asked again, doubled each time.
        patience: seconds before a node that gave none is.
    """

    def __init__(
        self,
        question: Callable[[int], Message],
        attempts: int = _ATTEMPTS,
        pause: float = _PAUSE,
        patience: float = _PATIENCE,
    ) -> None:
        self._question, self._attempts, self._pause, self._patience = question, attempts, pause, patience
        self._asked: dict[int, _Asked] = {}
        self._sent: dict[str, int] = {}
        self._pull: tuple[Grid, Pull] | None = None

    def answers(self, grid: Grid, alive: Collection[int]) -> Iterator[tuple[int, Message]]:
        """Ask whom it is time to ask; (node, answer) of what is there. Who is not `known` is asked again.

        Args:
            grid: where.
            alive: all nodes that live.
        """
        self._asked = {node: self._asked.get(node, _Asked()) for node in sorted(alive)}
        self._sent = {message: node for message, node in self._sent.items() if node in self._asked}
        self._ask(grid, time.monotonic())
        if not self._sent:
            return
        if self._pull is None or self._pull[0] is not grid:
            # Kept from one look to the next: a link tells only once of an answer that is still on its way.
            self._pull = grid, Pull(grid, lambda _: _MOST_BYTES)
        for reply in self._pull[1](list(self._sent)):
            node = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            asked = self._asked[node]
            asked.not_before = time.monotonic() + self._pause * 2 ** (asked.attempts - 1)
            if arrived(reply):
                asked.answered = True
                yield node, reply

    def _ask(self, grid: Grid, now: float) -> None:
        due = [node for node, asked in self._asked.items() if self._is_due(asked, now)]
        if not due:
            return
        sent = grid.push_messages([self._question(node) for node in due])
        self._sent |= {message: node for message, node in zip(sent, due, strict=True) if message}
        for node in due:
            asked = self._asked[node]
            asked.not_before = now + max(self._pause, self._patience) * 2**asked.attempts
            asked.attempts += 1

    def known(self, node: int) -> None:
        """A node gave a good answer: it is not asked again while it lives."""
        self._asked[node].known = True

    @property
    def silent(self) -> int:
        """How many living nodes never answered, well or badly."""
        return sum(not asked.answered for asked in self._asked.values())

    def _is_due(self, asked: _Asked, now: float) -> bool:
        return not asked.known and asked.attempts < self._attempts and now >= asked.not_before


#: What NumPy's file format may take beside the numbers.
_OVERHEAD: Final = 4096
_MOST_CHARACTERS: Final = 80


def checked_array(array: Array, name: str, dtypes: Sequence[str], shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers of an array that came as bytes, without a copy: read-only.

    Type, shape and size are compared first as declared, then as the bytes' own header says; the declared
    ones are only the sender's word. Nothing is allocated before. One number may come as shape () or (1,).

    Args:
        array: as it came.
        name: for people.
        dtypes: NumPy's names of the types that are taken.
        shape: of it.

    Raises:
        ValueError: anything else.
    """
    declared = tuple(array.shape)
    one_number = {declared, shape} == {(), (1,)}
    if array.stype != SType.NUMPY or array.dtype not in dtypes or not (declared == shape or one_number):
        raise ValueError(
            f"array {shown(name)} must be {' or '.join(dtypes)} of shape {shape}; got {shown(array.dtype)} "
            f"of shape {shown(list(array.shape))}"
        )
    length = math.prod(shape) * np.dtype(array.dtype).itemsize
    if not length <= len(array.data) <= length + _OVERHEAD:
        raise ValueError(f"array {shown(name)} must take {length} bytes; got {len(array.data)}")
    dtype, held, fortran, start = _header(array.data)
    if dtype != np.dtype(array.dtype) or held != declared or len(array.data) - start != length:
        raise ValueError(f"array {shown(name)} must hold what it declares; it holds {shown(str(dtype))}")
    numbers = np.frombuffer(array.data, dtype=dtype, offset=start)
    return numbers.reshape(shape, order="F" if fortran else "C")


def _header(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Type, shape, order and offset of the numbers in NumPy's file format."""
    file = io.BytesIO(data[:_OVERHEAD])
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"array must be in NumPy's format 1.0 or 2.0; got {version}")
    shape, fortran, dtype = read(file)
    return dtype, shape, fortran, file.tell()


def shown(value: object) -> str:
    """What a stranger sent, for a log: short and escaped.

    >>> shown("two\\nlines")
    "'two\\\\nlines'"
    >>> len(shown("x" * 10**6)) <= 90
    True
    """
    if isinstance(value, str | bytes):
        return ascii(value[:_MOST_CHARACTERS])[: _MOST_CHARACTERS + 8]
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(item) for item in value[:4])}{', …' if len(value) > 4 else ''}]"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    return ascii(value)[:_MOST_CHARACTERS]


_NOBODY: Final = -1


class Claims:
    """Accepted claims of each user in their order: the first whose node lives serves the user.

    A claim is accepted if no node lives whose claim on that user was accepted, and no other living node
    claims the user too. Otherwise it waits, and is accepted once both hold. So who serves a user is neither
    replaced nor locked out by what others claim later, and gets the user back if it comes back under its
    own id; one that comes back under another id gets the user once the old id is gone. Users whom several
    living nodes claim, and none of them before the others, are disputed: nobody is asked for them until one
    claim is left.

    Args:
        users: N; users are 0..N−1.
    """

    def __init__(self, users: int) -> None:
        self._nodes: list[int] = []
        self._slots: dict[int, int] = {}
        self._first = np.full(users, _NOBODY, dtype=np.int32)  # into _nodes
        self._later: dict[int, list[int]] = {}
        self._waiting: dict[int, list[int]] = {}
        self._alive: Collection[int] = ()

    def update(self, alive: Collection[int], claims: Sequence[tuple[int, NDArray[np.int64]]]) -> list[int]:
        """Take in new claims of one handshake, which none of them came first in, and who lives.

        Args:
            alive: all nodes that live.
            claims: nodes and the indices of users whom each claims.

        Returns:
            The users of these claims that wait.
        """
        self._alive = alive
        users = np.concatenate([np.unique(claimed) for _, claimed in claims] or [np.empty(0, np.int64)])
        slots = np.repeat(
            np.array([self._slot(node) for node, _ in claims], dtype=np.int32),
            [np.unique(claimed).size for _, claimed in claims],
        )
        _, places, counts = np.unique(users, return_inverse=True, return_counts=True)
        waiting = np.fromiter(self._waiting, dtype=np.int64, count=len(self._waiting))
        alone = (counts[places] == 1) & (self._first[users] == _NOBODY) & ~np.isin(users, waiting)
        self._first[users[alone]] = slots[alone]
        for user, slot in zip(users[~alone].tolist(), slots[~alone].tolist(), strict=True):
            queue = self._waiting.setdefault(user, [])
            if slot not in (*self._accepted(user), *queue):
                queue.append(slot)
        self._settle()
        return sorted({user for user in users[~alone].tolist() if user in self._waiting})

    def node_of(self, user: int) -> int | None:
        """The living node that serves a user."""
        if self._first[user] == _NOBODY:
            return None
        accepted = (self._nodes[slot] for slot in self._accepted(user))
        return next((node for node in accepted if node in self._alive), None)

    @property
    def disputed(self) -> list[int]:
        """Users whom several living nodes claim and none of them serves."""
        return sorted(user for user in self._waiting if self.node_of(user) is None)

    @property
    def unclaimed(self) -> int:
        """How many users have no claim that was accepted or waits; those that wait leave with their node."""
        contested = sum(self._first[user] == _NOBODY for user in self._waiting)
        return int(np.count_nonzero(self._first == _NOBODY)) - int(contested)

    def _slot(self, node: int) -> int:
        if node not in self._slots:
            self._slots[node] = len(self._nodes)
            self._nodes.append(node)
        return self._slots[node]

    def _accepted(self, user: int) -> list[int]:
        return [int(self._first[user]), *self._later.get(user, ())]

    def _settle(self) -> None:
        """Accept claims that wait for nobody any more; forget those of nodes that left: they claim again."""
        for user in list(self._waiting):
            living = [slot for slot in self._waiting[user] if self._nodes[slot] in self._alive]
            if len(living) == 1 and self.node_of(user) is None:
                if self._first[user] == _NOBODY:
                    self._first[user] = living[0]
                else:
                    self._later.setdefault(user, []).append(living[0])
                living = []
            self._waiting[user] = living
            if not living:
                del self._waiting[user]
