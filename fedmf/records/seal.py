"""What binds the rows of a record to all before them and to the key of the run or stream."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Self

from fedmf.noise import NoiseKey

#: (chain value, authentication code)
Sealed = tuple[bytes, bytes]


@dataclass(frozen=True)
class Seal:
    """Chain values and authentication codes of one ledger.

    A row that follows the value c has the chain value c' = SHA-256(kind of row ‖ c ‖ content), each part
    preceded by its type and length, and the code HMAC-SHA256(records key, c'). The records key is a sub-key
    of the noise key, so only someone with that key can write rows that fit.

    Args:
        key: 32 bytes, None where the key is not at hand: then chain values are compared and codes are not.
    """

    key: bytes | None = field(repr=False)

    @classmethod
    def of(cls, key: NoiseKey | None) -> Self:
        """The seal of a ledger under the key of its run or stream."""
        return cls(None if key is None else key.subkey("records"))

    def chained(self, row: bytes, *parts: int | str | bytes | None) -> bytes:
        """The chain value of a row of a kind: no two lists of parts read alike."""
        pieces = [b"fedmf ledger 1 ", row]
        for part in parts:
            content = part if isinstance(part, bytes) else str(part).encode()
            pieces += type(part).__name__.encode(), len(content).to_bytes(8, "little"), content
        return hashlib.sha256(b"".join(pieces)).digest()

    def sealed(self, row: bytes, *parts: int | str | bytes | None) -> Sealed:
        """Chain value and code of a row that is to be written.

        Raises:
            ValueError: there is no key.
        """
        chain = self.chained(row, *parts)
        return chain, self.code(chain)

    def code(self, chain: bytes) -> bytes:
        """The authentication code of a chain value.

        Raises:
            ValueError: there is no key.
        """
        if self.key is None:
            raise ValueError("key (of the record) must be at hand to write; got none.")
        return hmac.digest(self.key, chain, "sha256")

    def fault(self, sealed: Sealed, row: bytes, *parts: int | str | bytes | None) -> str | None:
        """The fault of a row as it was read, None if it has none."""
        chain, code = sealed
        if not (isinstance(chain, bytes) and isinstance(code, bytes)):
            return "its chain value or code is damaged"
        if chain != self.chained(row, *parts):
            return "its chain value differs"
        if self.key is not None and not hmac.compare_digest(self.code(chain), code):
            return "its authentication code is not that of the run's key"
        return None
