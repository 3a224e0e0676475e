"""Whose key is whose: the enrolment file of a deployment that authenticates its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.serverapp import Grid

from fedmf.data import canonical_id
from fedmf.errors import ConfigError
from fedmf.flower.compat import NodeInfo

_ONLINE = "online"


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
            pairs = [(_of_openssh(key, "enrolment"), canonical_id(user)) for key, user in source.items()]
            return cls(tuple(pairs))
        path = Path(source).expanduser()
        try:
            lines = path.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise ConfigError(f"enrolment must be a readable file; got {path}: {reason}.") from None
        pairs = []
        for number, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            kind, key, user = (*line.split(None, 2), "", "", "")[:3]
            pairs.append((_of_openssh(f"{kind} {key}", f"line {number} of {path}"), canonical_id(user)))
            if not user:
                raise ConfigError(
                    f"line {number} of {path} must end with a user's id (ssh-keygen -C ID); got none."
                )
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
            listed: list[NodeInfo] = list(grid.get_nodes())
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
