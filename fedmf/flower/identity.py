"""The ways in which a server recognizes the user of a node.

A user is a virtual node of a simulation (`NodeIdentity`), the holder of an enrolled key
(`EnrolledIdentity`), or named by the client app: by a mod in any app (`ClientReportedIdentity`), or
by fedmf's own app, which may serve several users (`Population`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedmf.data import canonical_id
from fedmf.data.cells import require_once
from fedmf.errors import ConfigError
from fedmf.flower.compat import arrived
from fedmf.flower.grid import InProcessGrid
from fedmf.flower.handshake import RejectedReply, question, served_users
from fedmf.flower.pulling import Pull, pull_of
from fedmf.flower.screen import say
from fedmf.flower.served_users import MOST_LINES, ClaimedUsers, ServedUsers
from fedmf.runs.directory import ENROLLED
from fedmf.values import check_whole

_ONLINE: Final = "online"
#: How often a node is asked.
_ATTEMPTS: Final = 6
#: Seconds before a node is asked again after an invalid answer, and after none; doubled each time.
#: The latter is longer, because the first question may have started a process on the node.
_AFTER_BAD = 1.0
_AFTER_NONE = 30.0
#: Most bytes of an answer: a few million user ids.
_MOST_BYTES: Final = 2**28
#: Most users outside the user list that a node may claim before all its claims are rejected.
_MOST_STRANGERS: Final = 1000


def read_node_keys(source: str | Path) -> dict[bytes, tuple[str, ...]]:
    """Return the users that the holder of each key may serve, by key as DER, in file order.

    A node is known by the public key under which the link lists it. Only the link checks that the
    node holds the private key, and only if it was started to authenticate nodes; a server app
    cannot find out whether it was. Only TLS protects messages from others.

    Args:
        source: a file with a line for each public key as ``ssh-keygen -C USER`` writes it:
            ``ecdsa-sha2-nistp384 AAAA… USER``. Blank lines, and those that begin with ``#``, are
            ignored. A key or a user may occur more than once.

    Raises:
        ConfigError: unreadable, no users, a line without a user, a key that SuperNodes cannot have,
            or a key twice for one user.
    """
    path = Path(source).expanduser()
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"node_keys must be a readable file; got {path}: {error}.") from None
    users_of: dict[bytes, tuple[str, ...]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number} of {path}"
        fields = line.split(None, 2)  # type and data of the key, and the comment with the user
        key = _der(load_ssh_public_key, " ".join(fields[:2]).encode())
        name = ""
        if len(fields) == 3:
            name = fields[2].strip()
        user = canonical_id(name)
        if key is None:
            raise ConfigError(
                f"{where} must hold public keys as ssh-keygen -t ecdsa writes them; got"
                f" {line.strip()!r:.60}."
            )
        users = users_of.get(key, ())
        if not name.isprintable() or not 0 < len(user) <= 256 or user in users:
            raise ConfigError(
                f"{where} must name a user (ssh-keygen -C ID) in 1 to 256 printable characters, and"
                f" each key of a user once; got {user[:60]!r}."
            )
        users_of[key] = (*users, user)
    if not users_of:
        raise ConfigError("node_keys must name at least one key; got none.")
    return users_of


def _enrolled_nodes(grid: Grid, by_key: Mapping[bytes, object]) -> dict[int, bytes]:
    """Return the keys of the nodes that are online and enrolled."""
    enrolled = dict[int, bytes]()
    for node in grid.get_nodes():
        if node.status == _ONLINE:
            key = _der(load_pem_public_key, node.public_key)
            if key is not None and key in by_key:
                enrolled[node.node_id] = key
    return enrolled


@lru_cache(maxsize=4096)
def _der(load: Callable[[bytes], object], data: bytes) -> bytes | None:
    """Return a key as DER, or None if a SuperNode cannot have such a key."""
    with suppress(ValueError, UnsupportedAlgorithm):
        key = load(data)
        if isinstance(key, EllipticCurvePublicKey):  # Flower requires such keys
            return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return None


class NodeIdentity(ServedUsers):
    """Every virtual node of a simulation is a user, numbered in the order of registration.

    In Flower's simulations, this is the order of partitions. Nodes of a deployment return with
    other ids or in another order, so do not use this class for deployments.

    Args:
        users: N.
    """

    words = "virtual nodes of a simulation in the order of their registration"
    resumable = False

    def __init__(self, users: int) -> None:
        check_whole("users (number of nodes)", users)
        width = len(str(users - 1))
        super().__init__([f"user-{u:0{width}d}" for u in range(users)], say)
        self._nodes: list[int] = []

    @property
    def missing(self) -> int:
        return self.users - len(self._nodes)

    def gather(
        self, grid: Grid, timeout: float, limit: float | None = None, least: int = 1
    ) -> None:
        # Virtual nodes register together, so no more of them come after the limit.
        super().gather(grid, min(timeout, limit or timeout), least=least)

    def _status(self, grid: Grid) -> str:
        return (
            f"users={self.users} needs as many nodes, and {len(list(grid.get_node_ids()))} are"
            " connected"
        )

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        if not self._nodes:
            return {}
        return {user: self._nodes[index] for index, user in users.items()}

    def listen(self, grid: Grid) -> None:
        """Assign the nodes to the users as soon as all are there; this is never changed."""
        if self._nodes:
            return
        registered = sorted(grid.get_nodes(), key=lambda node: node.registered_at)
        nodes = [node.node_id for node in registered]
        if len(nodes) > self.users or (len(nodes) < self.users and isinstance(grid, InProcessGrid)):
            raise ConfigError(f"{self._status(grid)}.")
        if len(nodes) == self.users:
            self._nodes = nodes


class EnrolledIdentity(ClaimedUsers):
    """The key of a node identifies its user; the client app stays unchanged.

    Use it with a SuperLink with ``--enable-supernode-auth`` over TLS. Without it, nodes also list
    keys, which prove nothing; a server app cannot see the difference, so the statement lists this
    condition.

    A node with a key that is not enrolled gets no messages. A key belongs to one user; a user may
    have several keys, for example to replace one. If two nodes have keys of one user, only a node
    that was online before is asked.

    Args:
        source: a file, see `read_node_keys`; users are ordered as in the file.
        report: called with one line about nodes without a user.

    Raises:
        ConfigError: node keys that cannot be read, or one key for several users.
    """

    words = ENROLLED

    def __init__(self, source: str | Path, report: Callable[[str], None] = say) -> None:
        self._node_keys = read_node_keys(source)
        distinct_users = dict.fromkeys(itertools.chain.from_iterable(self._node_keys.values()))
        super().__init__(list(distinct_users), report)
        for users in self._node_keys.values():
            if len(users) > 1:
                raise ConfigError(
                    f"a key must be enrolled for one user; got one for {users[0]!r} and"
                    f" {users[1]!r}. With an app other than fedmf's own, each node returns one"
                    " update."
                )
        self._strangers: set[int] = set()

    def listen(self, grid: Grid) -> None:
        """Read the list of connected nodes; a new node with an enrolled key claims its user."""
        keys = _enrolled_nodes(grid, self._node_keys)
        self._listed = set(keys)
        new_nodes = sorted(self._listed - self._alive)
        self._claims_since = []
        for node in new_nodes:
            self._claims_since.append((node, self._node_keys[keys[node]]))
        strangers = set(grid.get_node_ids()) - self._listed
        for node in sorted(strangers - self._strangers)[:MOST_LINES]:
            self.report(f"node {node} has a key that is not enrolled; it gets no messages")
        self._strangers = strangers


@dataclass
class _Handshake:
    """The progress of asking a node for its users.

    Attributes:
        attempts: number of questions; `_ATTEMPTS` once its answer is valid, so that no more follow.
        not_before: time of the next question, at the earliest.
        answered: whether any answer arrived.
        fault: why its last answer names no users; empty if it does.
    """

    attempts: int = 0
    not_before: float = 0.0
    answered: bool = False
    fault: str = ""


class ClientReportedIdentity(ClaimedUsers):
    """Nodes report their user with `user_id_mod` in their client app.

    Claims are accepted by the rule of `ClaimedUsers`: the first node that claimed a user serves it
    as long as it lives, and another node with the same claim is accepted only while the first is
    gone. Every node is asked until it gives a valid answer, a bounded number of times. Late answers
    are accepted, and a node that left and comes back is asked again.

    Args:
        user_list: ids of all users, given before any node is asked.
        report: called with one line about nodes without a user.
        node_keys: the users that each key may claim, see `read_node_keys`; nodes with another key
            are not even asked. None accepts the claims of every node.
    """

    words = "as nodes say (user_id_mod)"
    #: The question for the operator if no node names its users.
    remedy: ClassVar[str] = "does the ClientApp have mods=[user_id_mod()]?"
    #: Type of the question: mods see no query for which the app has no function.
    question_type: ClassVar[str] = MessageType.TRAIN

    def __init__(
        self,
        user_list: Sequence[str],
        report: Callable[[str], None] = say,
        node_keys: Mapping[bytes, Collection[str]] | None = None,
    ) -> None:
        super().__init__(require_once([canonical_id(user) for user in user_list]), report)
        self._node_keys = node_keys
        self._keys = dict[int, bytes]()
        self._most_claims = 1
        if self.several:
            self._most_claims = 2 * self.users + _MOST_STRANGERS
        self._known = frozenset(self.user_list)
        self._question = question()
        self._handshakes = dict[int, _Handshake]()
        self._sent = dict[str, int]()  # the node by the id of a question without an answer
        self._pull: tuple[Grid, Pull] | None = None

    def listen(self, grid: Grid) -> None:
        """Ask the nodes that may serve a user, and record the claims that have arrived."""
        if self._node_keys is None:
            self._listed = set(grid.get_node_ids())
        else:
            self._keys = _enrolled_nodes(grid, self._node_keys)
            self._listed = set(self._keys)
        before = self._handshakes
        self._handshakes = {node: before.get(node, _Handshake()) for node in sorted(self._listed)}
        for message_id, node in list(self._sent.items()):
            if node not in self._listed:
                del self._sent[message_id]
        self._ask(grid, time.monotonic())
        if not self._sent:
            return
        new_faults = list[str]()
        for reply in self._pull_from(grid)(list(self._sent)):
            node = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                new_faults += self._hear(node, reply)
        if isinstance(grid, InProcessGrid) and self._failed:  # it has no other nodes
            raise ConfigError(self._failed)
        for fault in new_faults:
            self.report(fault)

    def _pull_from(self, grid: Grid) -> Pull:
        """Return one pull for all looks at a grid: a link announces each answer only once."""
        if self._pull is None or self._pull[0] is not grid:
            self._pull = grid, pull_of(grid, lambda _: _MOST_BYTES)
        return self._pull[1]

    def _ask(self, grid: Grid, now: float) -> None:
        """Send the question to every node for which it is due."""
        due = list[int]()
        questions = list[Message]()
        for node, handshake in self._handshakes.items():
            if handshake.attempts < _ATTEMPTS and now >= handshake.not_before:
                due.append(node)
                questions.append(
                    Message(self._question, node, self.question_type, group_id="handshake")
                )
        if not due:
            return
        for message_id, node in zip(grid.push_messages(questions), due, strict=True):
            if message_id:
                self._sent[message_id] = node
            handshake = self._handshakes[node]
            handshake.not_before = now + _AFTER_NONE * 2**handshake.attempts
            handshake.attempts += 1

    def _hear(self, node: int, reply: Message) -> list[str]:
        """Record the claims in the reply of a node; returns a line about its first fault."""
        handshake = self._handshakes[node]
        handshake.not_before = time.monotonic() + _AFTER_BAD * 2 ** (handshake.attempts - 1)
        if not arrived(reply):
            return []
        handshake.answered = True
        is_first = not handshake.fault
        handshake.fault = ""
        try:
            users = served_users(reply)
            if users is None:
                handshake.fault = "its client app does not report its users"
            self._claims_since.append((node, self._claimed(node, users or ())))
            handshake.attempts = _ATTEMPTS
        except RejectedReply as error:
            handshake.fault = error.fault
        except Exception:  # the bytes are untrusted, and so is the error
            handshake.fault = "its answer cannot be read"
        if handshake.fault and is_first:
            return [f"node {node} failed the handshake: {handshake.fault}"]
        return []

    @property
    def _failed(self) -> str:
        """The likely cause if every node that answered failed the handshake; empty otherwise."""
        answered = [handshake for handshake in self._handshakes.values() if handshake.answered]
        if not answered or not all(handshake.fault for handshake in answered):
            return ""
        return (
            f"every node that answered ({len(answered)}) failed the handshake"
            f" ({answered[0].fault}): {self.remedy}"
        )

    def _status(self, grid: Grid) -> str:
        status = super()._status(grid)
        if self._failed:
            status += f"; {self._failed}"
        return status

    def _claimed(self, node: int, users: Sequence[str]) -> Collection[str]:
        """Return the users of an answer that the node may serve; possibly none.

        Raises:
            RejectedReply: it claims too many users, and the node is asked again.
        """
        if len(users) > self._most_claims:
            rule = f"reply must claim at most {self._most_claims} users"
            raise RejectedReply(f"{rule}; it claims {len(users)}", rule)
        enrolled: Collection[str] = self._known
        if self._node_keys is not None:
            enrolled = self._node_keys[self._keys[node]]
        accepted = set[str]()
        strangers = 0
        not_enrolled = 0
        for user in map(canonical_id, users):
            if user not in self._known:
                strangers += 1
            elif user not in enrolled:
                not_enrolled += 1
            else:
                accepted.add(user)
        if strangers:
            self.report(
                f"node {node} claims {strangers} users that are not on the user list; ignored"
            )
        if not_enrolled:
            self.report(
                f"node {node} claims {not_enrolled} users for whom its key is not enrolled; ignored"
            )
        return accepted

    @property
    def silent(self) -> int:
        return sum(not handshake.answered for handshake in self._handshakes.values())


class Population(ClientReportedIdentity):
    """Nodes report their users with fedmf's own client app; a node may serve several users."""

    remedy = "do the nodes run fedmf's own client app?"
    question_type = MessageType.QUERY
    several = True
