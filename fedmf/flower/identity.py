"""Who a user is: by claims of fedmf's clients, keys of nodes, a mod in an app's clients, virtual nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid

from fedmf.data import canonical_id
from fedmf.errors import ConfigError
from fedmf.flower.messages import RejectedReply, hosted_users, shown, users_question
from fedmf.flower.screen import say
from fedmf.flower.served_users import MOST_LINES, Claimants, ClaimedUsers, ServedUsers

_ONLINE: Final = "online"
#: How many users that are not on the user list one node may claim before all its claims are refused.
_MOST_STRANGERS: Final = 1000


@dataclass(frozen=True)
class Enrolment:
    """Which users the holder of a key may serve.

    A node is known by the public key under which the link lists it. That it holds the private one is the
    link's word: it checks signatures if it was started to authenticate nodes, and neither what it lists nor
    anything else tells a server app whether it was. What travels is safe from others by TLS alone.

    Args:
        pairs: (key, user) in the order in which they were written; keys as DER, a key or a user more than
            once if it stands so in the file.

    Raises:
        ConfigError: nobody, a user without a name, or a pair twice.
    """

    pairs: tuple[tuple[bytes, str], ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ConfigError("enrolment must name at least one key; got none.")
        pair, times = Counter(self.pairs).most_common(1)[0]
        if times > 1:
            raise ConfigError(f"enrolment must name each key of a user once; got one of {pair[1]!r} twice.")
        for user in self.users:
            if not user.isprintable() or not 0 < len(user) <= 256:
                raise ConfigError(
                    f"enrolment must name users in 1 to 256 printable characters; got {user[:60]!r}."
                )

    @classmethod
    def of(cls, source: str | Path | Mapping[str, str]) -> Self:
        """Read a file, or take public keys in OpenSSH's format with their users.

        Args:
            source: a mapping, or a file with a line for each key as ``ssh-keygen -C USER`` writes it:
                ``ecdsa-sha2-nistp384 AAAA… USER``. Blank lines, and those that begin with ``#``, are
                passed over.

        Raises:
            ConfigError: unreadable, a line without a user, or a key that SuperNodes cannot have.
        """
        if isinstance(source, Mapping):
            return cls(tuple((_of_openssh(key, "enrolment"), canonical_id(u)) for key, u in source.items()))
        path = Path(source).expanduser()
        try:
            lines = path.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise ConfigError(f"enrolment must be a readable file; got {path}: {reason}.") from None
        pairs = []
        for number, line in enumerate(map(str.strip, lines), start=1):
            if line and not line.startswith("#"):
                kind, key, user = (*line.split(None, 2), "", "", "")[:3]
                where = f"line {number} of {path}"
                pairs.append((_of_openssh(f"{kind} {key}", where), canonical_id(user)))
                if not user:
                    raise ConfigError(f"{where} must end with a user's id (ssh-keygen -C ID); got none.")
        return cls(tuple(pairs))

    @cached_property
    def users(self) -> tuple[str, ...]:
        """All users in the order in which they first occur."""
        return tuple(dict.fromkeys(user for _, user in self.pairs))

    @cached_property
    def by_key(self) -> Mapping[bytes, tuple[str, ...]]:
        """The users of each key, in the order of the file."""
        found: dict[bytes, tuple[str, ...]] = {}
        for key, user in self.pairs:
            found[key] = (*found.get(key, ()), user)
        return found

    def nodes(self, grid: Grid) -> dict[int, bytes]:
        """The keys of the nodes that are there and enrolled.

        Raises:
            ConfigError: a grid that does not tell keys.
        """
        try:
            listed = list(grid.get_nodes())
        except NotImplementedError:
            raise ConfigError(
                "enrolment needs a grid that lists nodes with their keys; this one does not."
            ) from None
        keys = {node.node_id: _of_pem(node.public_key) for node in listed if node.status == _ONLINE}
        return {node: key for node, key in keys.items() if key is not None and key in self.by_key}


def _der(key: object) -> bytes:
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("SuperNodes have keys of elliptic curves")  # as Flower demands
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _of_openssh(text: str, where: str) -> bytes:
    try:
        return _der(load_ssh_public_key(text.encode()))
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{where} must hold public keys as ssh-keygen -t ecdsa writes them; got {text!r:.60}."
        ) from None


@lru_cache(maxsize=4096)
def _of_pem(data: bytes) -> bytes | None:
    """The key that a link lists, None for what is no key that could be enrolled."""
    try:
        return _der(load_pem_public_key(data))
    except (ValueError, UnsupportedAlgorithm):
        return None


class Population(Claimants):
    """Which node of fedmf's own client app serves which user.

    Args:
        user_list: the stable ids of all users of the run.
        report: called with one line for the operator about anything odd.
        enrolment: whose claims on whom are believed: nodes whose key is not in it are not even asked. None
            believes every node.
    """

    def __init__(
        self,
        user_list: Sequence[str],
        report: Callable[[str], None] = lambda _: None,
        enrolment: Enrolment | None = None,
    ) -> None:
        content = users_question()
        super().__init__(
            user_list, lambda node: Message(content, node, MessageType.QUERY, group_id="handshake"), report
        )
        self._enrolment = enrolment
        self._keys: dict[int, bytes] = {}

    def asked(self, grid: Grid) -> set[int]:
        """See `Claimants.asked`."""
        if self._enrolment is None:
            return super().asked(grid)
        self._keys = self._enrolment.nodes(grid)
        return set(self._keys)

    def claimed(self, node: int, reply: Message) -> Collection[str]:
        """See `Claimants.claimed`."""
        users = hosted_users(reply)
        if len(users) > 2 * self.users + _MOST_STRANGERS:
            raise RejectedReply(f"reply must claim users of the user list; it claims {len(users)}")
        if self._enrolment is not None:
            enrolled = set(self._enrolment.by_key[self._keys[node]])
            if others := sum(user not in enrolled for user in users):
                self.tell(f"node {node} claims {others} users for whom its key is not enrolled; ignored")
            users = tuple(user for user in users if user in enrolled)
        if strangers := sum(user not in self.known for user in users):
            self.tell(f"node {node} claims {strangers} users that are not on the user list; ignored")
        return self.known.intersection(users)


class UserIdentity(ServedUsers):
    """Which node of an app is which user: one user a node."""

    #: What a statement says about it.
    words: str
    #: Whether a stopped run can go on: users are recognised when nodes come back.
    lasting: bool = True


class NodeIdentity(UserIdentity):
    """Every virtual node of a simulation is a user: the first that registered is user 0, and so on.

    In Flower's simulations that is the order of partitions. Nodes of a deployment come back with other ids or
    in another order, so this tells nothing there.

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

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        """See `ServedUsers.nodes_of`."""
        return {user: self._nodes[index] for index, user in users.items() if self._nodes}

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`; once all are there, the map stays."""
        if self._nodes:
            return
        try:
            nodes = [node.node_id for node in sorted(grid.get_nodes(), key=lambda node: node.registered_at)]
        except NotImplementedError:
            nodes = list(grid.get_node_ids())
        if len(nodes) > self.users:
            raise ConfigError(
                f"users must be the number of nodes where nodes are users; got {self.users}, and "
                f"there are {len(nodes)} nodes."
            )
        if len(nodes) == self.users:
            self._nodes = nodes


class EnrolledIdentity(ClaimedUsers, UserIdentity):
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

    def __init__(
        self,
        source: str | Path | Mapping[str, str],
        report: Callable[[str], None] = say,
    ) -> None:
        self._enrolment = Enrolment.of(source)
        super().__init__(list(self._enrolment.users), report)
        for users in self._enrolment.by_key.values():
            if len(users) > 1:
                raise ConfigError(
                    f"a key must be enrolled for one user; got one for {users[0]!r} and {users[1]!r}. An app "
                    "that is not fedmf's own returns one update a node."
                )
        self._listed: dict[int, bytes] = {}
        self._alive: dict[int, bytes] = {}
        self._strangers: set[int] = set()

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`; a look at the list of nodes."""
        self._listed = self._enrolment.nodes(grid)
        strangers = set(grid.get_node_ids()) - self._listed.keys()
        for node in sorted(strangers - self._strangers)[:MOST_LINES]:
            self.tell(f"node {node} has a key that is not enrolled; it is not asked")
        self._strangers = strangers

    def settle(self) -> None:
        """See `ServedUsers.settle`."""
        if self._listed == self._alive:
            return
        new = [(node, key) for node, key in sorted(self._listed.items()) if node not in self._alive]
        self._alive = self._listed
        self.claims.update(self._alive, [])
        for key, (user,) in self._enrolment.by_key.items():  # keys written first come first
            claims = [(node, (user,)) for node, held in new if held == key]
            if claims and self.claims.update(self._alive, claims):
                self.tell(f"user {user!r} has several nodes; at most one of them is asked")


#: Marks a train message that only asks who the user is: mods see no query that an app has not registered.
_QUESTION: Final = "fedmf.who"
_ANSWER: Final = "fedmf.user"
_USER_ID: Final = re.compile(r"[^\x00-\x1f]{1,256}")


class ClientReportedIdentity(Claimants, UserIdentity):
    """Nodes say which user they serve, by `user_id_mod` in their client app.

    Nodes are believed as `Claims` says: the first that claimed a user serves it as long as it lives, and
    another that says the same is taken for that user only while the first is gone.

    Args:
        user_list: ids of all users, given before any node is asked.
        report: called with one line about nodes that are no users.
    """

    words = "as nodes say (user_id_mod)"

    def __init__(
        self,
        user_list: Sequence[str],
        report: Callable[[str], None] = say,
    ) -> None:
        user_list = [canonical_id(user) for user in user_list]
        if len(set(user_list)) < len(user_list):
            raise ConfigError("user_list must name each user once.")
        content = RecordDict({"config": ConfigRecord({_QUESTION: True})})

        def question(node: int) -> Message:
            return Message(content, node, MessageType.TRAIN, group_id="who")

        super().__init__(user_list, question, report)

    def claimed(self, node: int, reply: Message) -> Collection[str]:
        """See `Claimants.claimed`; an answer that names no user is one: the node is not asked again."""
        if reply.has_error():
            raise RejectedReply(f"client error {shown(reply.error.code)}")
        user = _user_of(reply)
        if user is not None and user in self.known:
            return (user,)
        self.tell(
            f"node {node} does not say whom it serves: add user_id_mod to its client app"
            if user is None
            else f"node {node} serves a user that is not on the user list; it is not asked"
        )
        return ()


def _user_of(reply: Message) -> str | None:
    """The one user that an answer names."""
    said = [record[_ANSWER] for record in reply.content.config_records.values() if _ANSWER in record]
    user = said[0] if len(said) == 1 else None
    return canonical_id(user) if isinstance(user, str) and _USER_ID.fullmatch(user) else None


def user_id_mod(user_of: Callable[[Context], str] | None = None) -> Mod:
    """A mod that tells a server which user a node serves, and lets everything else through.

    Args:
        user_of: from the node's context to the user's stable id; by default the node config's ``user-id``,
            else its ``partition-id``.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[user_id_mod()])
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not any(_QUESTION in record for record in message.content.config_records.values()):
            return call_next(message, context)
        user = _configured(context) if user_of is None else user_of(context)
        return Message(RecordDict({"config": ConfigRecord({_ANSWER: str(user)})}), reply_to=message)

    return mod


def _configured(context: Context) -> str:
    for name in ("user-id", "partition-id"):
        if name in context.node_config:
            return str(context.node_config[name])
    raise ValueError("node config must hold user-id or partition-id; got neither.")
