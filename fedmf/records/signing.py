"""The operator's key, with which statements are signed: Ed25519, one file to keep and one for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmf.errors import ConfigError
from fedmf.records.key_file import read_secret
from fedmf.records.new_places import new_file, require_free

#: Signed with everything, so that no signature of another kind of document is one of a statement.
_LABEL: Final = b"fedmf privacy statement, version 1\x00"
_MAX_BYTES: Final = 16384
_RAW: Final = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)


@final
class SigningKey:
    """An Ed25519 key that signs statements and shows itself to nobody.

    It says who states something; it has no part in the noise. Whoever has it can state anything in the
    operator's name.

    >>> key = SigningKey(Ed25519PrivateKey.generate())
    >>> signature = key.sign(b"text")
    >>> signed_by(key.public_key, signature, b"text"), signed_by(key.public_key, signature, b"other")
    (True, False)
    """

    __slots__ = ("__key",)

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self.__key = key

    @classmethod
    def create(cls, path: Path) -> SigningKey:
        """Draw a key and write it to a new file of mode 0600, its public half to ``path`` with .pub added.

        Both are PEM (PKCS #8 and SubjectPublicKeyInfo), without a password.

        Raises:
            ConfigError: something is at one of the places, or it cannot be written; nothing is left.
        """
        public = cls.public_file(path)
        require_free(path)
        require_free(public)
        key = Ed25519PrivateKey.generate()
        with new_file(path) as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
        try:
            with new_file(public, mode=0o644) as file:
                file.write(
                    key.public_key().public_bytes(
                        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                    )
                )
        except BaseException:
            path.unlink()
            raise
        return cls(key)

    @staticmethod
    def public_file(path: Path) -> Path:
        """Where the public half of the key in a file is."""
        return Path(f"{path}.pub")

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Read a key that `create`, or openssl, wrote.

        Raises:
            ConfigError: the file cannot be read, others can read or write it, or it holds no such key.
        """
        content = read_secret(path, "signing key", "make a new one with fedmf keygen")
        try:
            key = serialization.load_pem_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        del content
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(
                f"file (signing key) must hold an Ed25519 key as PEM without a password; {path} does not. "
                "Make one with fedmf keygen."
            )
        return cls(key)

    @property
    def public_key(self) -> str:
        """64 hexadecimal digits, which everybody may know."""
        return self.__key.public_key().public_bytes(*_RAW).hex()

    def sign(self, document: bytes) -> str:
        """128 hexadecimal digits."""
        return self.__key.sign(_LABEL + document).hex()

    def __repr__(self) -> str:
        return f"SigningKey(public_key={self.public_key!r})"

    def __reduce__(self) -> str:
        raise TypeError("SigningKey cannot be pickled: a key stays in its process and its key file.")


def signed_by(public_key: str, signature: str, document: bytes) -> bool:
    """Whether a signature of the document is that of whoever has the other half of a public key.

    Args:
        public_key: hexadecimal digits.
        signature: hexadecimal digits.
        document: what was signed.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), _LABEL + document)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_public_key(path: Path) -> str:
    """64 hexadecimal digits of the public key in a PEM file.

    Raises:
        ConfigError: the file cannot be read or holds no such key.
    """
    try:
        with open(path, "rb") as file:
            key = serialization.load_pem_public_key(file.read(_MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read public key {path}: {error.strerror or error}.") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(
            f"file (public key) must hold an Ed25519 public key as PEM; {path} does not. "
            "fedmf keygen writes it beside the signing key, with .pub added."
        )
    return key.public_bytes(*_RAW).hex()
