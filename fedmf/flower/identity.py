"""Who a user is: by claims of fedmf's clients, keys of nodes, a mod in an app's clients, virtual
nodes.
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
from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid

from fedmf.data import canonical_id
from fedmf.errors import ConfigError
from fedmf.flower.compat import arrived
from fedmf.flower.grid import InProcessGrid
from fedmf.flower.messages import RejectedReply, is_question, question, served_reply, served_users
from fedmf.flower.pulling import Pull, pull_of
from fedmf.flower.screen import say
from fedmf.flower.served_users import MOST_LINES, ClaimedUsers, ServedUsers
from fedmf.runs.directory import ENROLLED

_ONLINE: Final = "online"
#: How often a node is asked.
_ATTEMPTS: Final = 6
#: Seconds before a node that answered badly, or not at all, is asked again, doubled each time. A
#: question that waits for its answer may have started a process on its node already: it has longer.
_AFTER_BAD = 1.0
_AFTER_NONE = 30.0
#: Most bytes of an answer: a few million user ids.
_MOST_BYTES: Final = 2**28
#: How many users that are not on the user list one node may claim before all its claims are
#: refused.
_MOST_STRANGERS: Final = 1000


def read_node_keys(source: str | Path) -> dict[bytes, tuple[str, ...]]:
    """Which users the holder of a key may serve: by key as DER, in the order of the source.

    A node is known by the public key under which the link lists it. That it holds the private one
    is the link's word: it checks signatures if it was started to authenticate nodes, and neither
    what it lists nor anything else tells a server app whether it was. What travels is safe from
    others by TLS alone.

    Args:
        source: a file with a line for each public key as ``ssh-keygen -C USER`` writes it:
            ``ecdsa-sha2-nistp384 AAAA… USER``. Blank lines, and those that begin with ``#``, are
            passed over. A key or a user may occur more than once.

    Raises:
        ConfigError: unreadable, no users, a line without a user, a key that SuperNodes cannot have,
            or a key twice for one user.
    """
    path = Path(source).expanduser()
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"node_keys must be a readable file; got {path}: {error}.") from None
    found: dict[bytes, tuple[str, ...]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number} of {path}"
        kind, text, named = (*line.split(None, 2), "", "")[:3]
        key = _der(load_ssh_public_key, f"{kind} {text}".encode())
        user = canonical_id(named.strip())
        if key is None:
            raise ConfigError(
                f"{where} must hold public keys as ssh-keygen -t ecdsa writes them; got"
                f" {line.strip()!r:.60}."
            )
        others = found.get(key, ())
        if not user.isprintable() or not 0 < len(user) <= 256 or user in others:
            raise ConfigError(
                f"{where} must name a user (ssh-keygen -C ID) in 1 to 256 printable characters, and"
                f" each key of a user once; got {user[:60]!r}."
            )
        found[key] = (*others, user)
    if not found:
        raise ConfigError("node_keys must name at least one key; got none.")
    return found


def _enrolled_nodes(grid: Grid, by_key: Mapping[bytes, object]) -> dict[int, bytes]:
    """The keys of the nodes that are there and enrolled."""
    there = [node for node in grid.get_nodes() if node.status == _ONLINE]
    keys = {node.node_id: _der(load_pem_public_key, node.public_key) for node in there}
    return {node: key for node, key in keys.items() if key is not None and key in by_key}


@lru_cache(maxsize=4096)
def _der(load: Callable[[bytes], object], data: bytes) -> bytes | None:
    """A key as DER, None for what is no key that a SuperNode can have."""
    with suppress(ValueError, UnsupportedAlgorithm):
        if isinstance(key := load(data), EllipticCurvePublicKey):  # as Flower demands
            return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return None


class NodeIdentity(ServedUsers):
    """Every virtual node of a simulation is a user; users are numbered in the order of
    registration.

    In Flower's simulations, this is the order of partitions. Nodes of a deployment return with
    other ids or in another order, so do not use this class for deployments.

    Args:
        users: N.
    """

    words = "virtual nodes of a simulation in the order of their registration"
    lasting = False

    def __init__(self, users: int) -> None:
        width = len(str(users - 1))
        super().__init__([f"user-{u:0{width}d}" for u in range(users)], say)
        self._nodes: list[int] = []

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`."""
        return self.users - len(self._nodes)

    def gather(self, grid: Grid, timeout: float, limit: float | None = None) -> None:
        """See `ServedUsers.gather`. Virtual nodes register together: after ``limit`` no more will
        come.
        """
        super().gather(grid, min(timeout, limit or timeout))

    def _there(self, grid: Grid) -> str:
        return (
            f"users={self.users} needs as many nodes, and {len(list(grid.get_node_ids()))} are"
            " connected"
        )

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        """See `ServedUsers.nodes_of`."""
        return {user: self._nodes[index] for index, user in users.items() if self._nodes}

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`; once all are there, the map stays."""
        if self._nodes:
            return
        nodes = [
            node.node_id for node in sorted(grid.get_nodes(), key=lambda node: node.registered_at)
        ]
        if len(nodes) > self.users or (len(nodes) < self.users and isinstance(grid, InProcessGrid)):
            raise ConfigError(f"{self._there(grid)}.")
        if len(nodes) == self.users:
            self._nodes = nodes


class EnrolledIdentity(ClaimedUsers):
    """The key of a node identifies its user; the client app stays unchanged.

    Use it with a SuperLink with ``--enable-supernode-auth`` over TLS. Without it, nodes also list
    keys, which prove nothing; a server app cannot see the difference, so the statement lists this
    condition.

    A node with a key that is not enrolled gets no messages. A key belongs to one user; a user may
    have several keys, for example to replace one. Of two nodes for one user, only a node that was
    online before is asked.

    Args:
        source: a file, see `read_node_keys`; users are ordered as in the file.
        report: called with one line about nodes without a user.

    Raises:
        ConfigError: node keys that cannot be read, or one key for several users.
    """

    words = ENROLLED

    def __init__(self, source: str | Path, report: Callable[[str], None] = say) -> None:
        self._node_keys = read_node_keys(source)
        super().__init__(list(dict.fromkeys(itertools.chain(*self._node_keys.values()))), report)
        for users in self._node_keys.values():
            if len(users) > 1:
                raise ConfigError(
                    f"a key must be enrolled for one user; got one for {users[0]!r} and"
                    f" {users[1]!r}. With an app other than fedmf's own, each node returns one"
                    " update."
                )
        self._strangers: set[int] = set()

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`; a look at the list of nodes."""
        keys = _enrolled_nodes(grid, self._node_keys)
        self._listed = set(keys)
        new = sorted(self._listed - self._alive)
        self._heard = [(node, self._node_keys[keys[node]]) for node in new]
        strangers = set(grid.get_node_ids()) - self._listed
        for node in sorted(strangers - self._strangers)[:MOST_LINES]:
            self.tell(f"node {node} has a key that is not enrolled; it gets no messages")
        self._strangers = strangers


@dataclass
class _Asked:
    """How often a node was asked (once known: as often as can be), when it may be again, if it
    answered.
    """

    attempts: int = 0
    not_before: float = 0.0
    answered: bool = False


class ClientReportedIdentity(ClaimedUsers):
    """Nodes report their user with `user_id_mod` in their client app.

    Nodes are believed as `ClaimedUsers` says: the first that claimed a user serves it as long as it
    lives, and another node with the same claim is accepted only while the first is gone. Every node
    is asked until it gives a valid answer, a bounded number of times. Late answers are accepted,
    and a node that left and comes back is asked again.

    Args:
        user_list: ids of all users, given before any node is asked.
        report: called with one line about nodes without a user.
        node_keys: which claims are accepted, see `read_node_keys`: nodes with a key that is not in
            it are not even asked. None believes every node.
    """

    words = "as nodes say (user_id_mod)"
    #: Mods see no query that an app has not registered.
    asked_by: ClassVar[str] = MessageType.TRAIN
    #: Whether a node may claim several users: an app that is not fedmf's own returns one update a
    #: node.
    several: ClassVar[bool] = False

    def __init__(
        self,
        user_list: Sequence[str],
        report: Callable[[str], None] = say,
        node_keys: Mapping[bytes, Collection[str]] | None = None,
    ) -> None:
        super().__init__([canonical_id(user) for user in user_list], report)
        self._node_keys = node_keys
        self._keys = dict[int, bytes]()
        self._most = 2 * self.users + _MOST_STRANGERS if self.several else 1
        self._known, self._question = frozenset(self.user_list), question()
        if len(self._known) < self.users:
            raise ConfigError("user_list must name each user once.")
        self._asked = dict[int, _Asked]()
        self._sent = dict[str, int]()
        self._pull: tuple[Grid, Pull] | None = None

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`; only nodes that may serve somebody are asked."""
        if self._node_keys is not None:
            self._keys = _enrolled_nodes(grid, self._node_keys)
        self._listed = set(grid.get_node_ids() if self._node_keys is None else self._keys)
        self._asked = {node: self._asked.get(node, _Asked()) for node in sorted(self._listed)}
        self._sent = {message: node for message, node in self._sent.items() if node in self._asked}
        self._ask(grid, time.monotonic())
        if self._pull is None or self._pull[0] is not grid:
            # Kept from one look to the next: a link tells only once of an answer that is still on
            # its way.
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
            if asked.attempts < _ATTEMPTS and now >= asked.not_before
        }
        if due:
            kind = self.asked_by
            content = self._question
            sent = grid.push_messages(
                [Message(content, node, kind, group_id="handshake") for node in due]
            )
            self._sent |= {
                message: node for message, node in zip(sent, due, strict=True) if message
            }
        for asked in due.values():
            asked.not_before = now + _AFTER_NONE * 2**asked.attempts
            asked.attempts += 1

    def _hear(self, node: int, asked: _Asked, reply: Message) -> None:
        asked.not_before = time.monotonic() + _AFTER_BAD * 2 ** (asked.attempts - 1)
        if not arrived(reply):
            return
        asked.answered = True
        try:
            self._heard.append((node, self._claimed(node, reply)))
            asked.attempts = _ATTEMPTS
        except Exception as reason:  # whatever a stranger's bytes may cause
            what = str(reason) if isinstance(reason, RejectedReply) else type(reason).__name__
            self.tell(f"node {node} failed the handshake: {what}")

    def _claimed(self, node: int, reply: Message) -> Collection[str]:
        """The users of the user list that an answer claims; an answer without users is an answer,
        too.

        Raises:
            RejectedReply: it is not one, and the node is asked again.
        """
        users = served_users(reply)
        if users is None:
            self.tell(f"node {node} does not report its users: add user_id_mod to its client app")
            return ()
        if len(users) > self._most:
            raise RejectedReply(
                f"reply must claim at most {self._most} users; it claims {len(users)}"
            )
        users = [canonical_id(user) for user in users]
        if strangers := sum(user not in self._known for user in users):
            self.tell(
                f"node {node} claims {strangers} users that are not on the user list; ignored"
            )
        users = [user for user in users if user in self._known]
        enrolled = self._known if self._node_keys is None else self._node_keys[self._keys[node]]
        if others := sum(user not in enrolled for user in users):
            self.tell(
                f"node {node} claims {others} users for whom its key is not enrolled; ignored"
            )
        return {user for user in users if user in enrolled}

    @property
    def silent(self) -> int:
        """See `ServedUsers.silent`."""
        return sum(not asked.answered for asked in self._asked.values())


class Population(ClientReportedIdentity):
    """Which node of fedmf's own client app serves which user: several users a node."""

    asked_by = MessageType.QUERY
    several = True


def user_id_mod(user_of: Callable[[Context], str] | None = None) -> Mod:
    """A mod that reports the node's user to the server, and passes all other messages through.

    Args:
        user_of: from the node's context to the user's stable id; by default the node config's
            ``user-id``, else its ``partition-id``.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[user_id_mod()])
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not is_question(message):
            return call_next(message, context)
        config = context.node_config
        user = (
            config.get("user-id", config.get("partition-id"))
            if user_of is None
            else user_of(context)
        )
        if user is None:
            raise ValueError("node config must hold user-id or partition-id; got neither.")
        return served_reply(message, [str(user)])

    return mod
