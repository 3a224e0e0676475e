"""Which key makes which row: a sub-key for every opening of a run, so that copies of it add other
noise.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, Self, final

from fedmf.noise.key import NoiseKey

#: Random bits of an opening.
SALT_BYTES: Final = 32
_DIGEST_LABEL: Final = b"fedmf key schedule, version 1\x00"


class OpeningRecord(Protocol):
    """What keeps the openings of a run or stream: its ledger.

    An opening has a ``first_round``, which came next when it was made, and 32 random bytes,
    ``salt``.
    """

    def openings(self) -> Sequence[Any]:
        """All of them, in the order in which they were made."""
        ...

    def opening(self) -> Any:
        """That of this process, durable when this returns; recorded now if it was not yet."""
        ...


@final
class KeySchedule:
    """The key of every row z(t, ·): from the opening under which row t is released first.

    Opening i begins with row f_i, f_0 = 0 ≤ f_1 ≤ …, and has the key
    K_i = `NoiseKey.opening(r_i)` with r_i its own random bytes. Row t has the key of the last i
    with f_i ≤ t; of two openings with one f the later counts, since nothing was released under the
    earlier. A public key has no openings: all its rows are made with the key itself.

    Args:
        root: the run's key.
        openings: (f_i, r_i) in order, as recorded.
        released: T, how many rows were released; row T and later have no key until `open`.

    Raises:
        ValueError: the openings do not begin at 0 or go back, one begins past T, rows were released
            and no opening is recorded, or r_i is not 32 bytes.

    Guarantees:
        `open` changes the key of no row that was released, so that past noise is drawn again as it
        was. Neither root nor sub-keys are in `repr`; `digest` tells nothing about them.

    >>> schedule = KeySchedule(NoiseKey(bytes(32)), [(0, bytes(32))], released=5)
    >>> schedule.open(5, bytes([1] * 32))
    >>> schedule.opening_indices([5, 4, 3]), schedule.key_of(4) == schedule.key_of(5)
    ([1, 0, 0], False)
    """

    def __init__(
        self, root: NoiseKey, openings: Iterable[tuple[int, bytes]], released: int
    ) -> None:
        self.root = root
        self._first: list[int] = []
        self._salt: list[bytes] = []
        self._keys: dict[int, NoiseKey] = {}
        self._sealed: int | None = released
        for first, salt in openings:
            self._append(first, salt)
        if self._first and self._first[-1] > released:
            raise ValueError(
                f"first_round (of an opening) must be at most {released}, the rounds released; "
                f"got {self._first[-1]}. Restore all records from the same copy."
            )
        if released and not self._first:
            raise ValueError(
                f"openings must be recorded where {released} rounds were released; got none."
            )

    @classmethod
    def constant(cls, key: NoiseKey) -> Self:
        """One key for all rows: for noise that no record continues, or that keeps its key on
        purpose.
        """
        schedule = cls(key, [], 0)
        schedule._first = [0]
        schedule._salt = [b""]
        schedule._sealed = None
        schedule._keys[0] = key
        return schedule

    @classmethod
    def of(cls, keys: NoiseKey | KeySchedule) -> KeySchedule:
        """The schedule itself, or one key for all rows."""
        return keys if isinstance(keys, KeySchedule) else cls.constant(keys)

    @classmethod
    def of_record(cls, root: NoiseKey, record: OpeningRecord, released: int) -> Self:
        """The schedule that a record holds, after so many rounds."""
        return cls(
            root, [(opening.first_round, opening.salt) for opening in record.openings()], released
        )

    def _append(self, first: int, salt: bytes) -> None:
        least = self._first[-1] if self._first else 0
        if first < least or (first > 0 and not self._first):
            wanted = f"at least {least}" if self._first else "0 for the first"
            raise ValueError(f"first_round (of an opening) must be {wanted}; got {first!r}.")
        if len(salt) != SALT_BYTES:
            raise ValueError(
                f"salt (bytes of an opening) must be {SALT_BYTES} bytes; got {len(salt)}."
            )
        self._first.append(first)
        self._salt.append(salt)

    @property
    def opened(self) -> bool:
        """Whether rows that were not released have a key."""
        return self._sealed is None

    def open(self, first: int, salt: bytes) -> None:
        """Give row T and all later ones the key of a new opening, which must be durable.

        Args:
            first: T, the number of rows released.
            salt: its 32 random bytes.

        Raises:
            ValueError: it was opened already, or begins elsewhere.
        """
        if first != self._sealed:
            expected = "opened once" if self._sealed is None else f"opened at {self._sealed}"
            raise ValueError(f"key schedule must be {expected}; got an opening at {first}.")
        self._append(first, salt)
        self._sealed = None

    def ensure_opened(self, record: OpeningRecord) -> None:
        """Begin the opening of this process, unless this was done; it is durable first.

        To be called just before the first row of noise is drawn for a release.
        """
        if self._sealed is not None:
            opening = record.opening()
            self.open(opening.first_round, opening.salt)

    def opening_indices(self, rounds: Sequence[int]) -> list[int]:
        """The place of each row's opening among all.

        Raises:
            RuntimeError: a row that was not released, and nothing is open.
        """
        if self._sealed is not None and max(rounds) >= self._sealed:
            raise RuntimeError(
                f"t (round) must be below {self._sealed}, the rounds released, until it is opened; "
                f"got {max(rounds)}. No noise was drawn."
            )
        if len(self._first) == 1 or self.root.public:
            return [0] * len(rounds)
        return [bisect_right(self._first, t) - 1 for t in rounds]

    def key(self, opening_index: int) -> NoiseKey:
        """The key of the opening at a place that `opening_indices` gave."""
        key = self._keys.get(opening_index)
        if key is None:
            key = self._keys[opening_index] = self.root.opening(self._salt[opening_index])
        return key

    def key_of(self, t: int) -> NoiseKey:
        """The key of row t."""
        return self.key(self.opening_indices([t])[0])

    def digest(self, t: int) -> str:
        """SHA-256 of all that determines the keys of rows 0 … t − 1, but for the root: safe to
        publish.
        """
        state = hashlib.sha256(_DIGEST_LABEL)
        if not self.root.public:
            for opening_index, (first, salt) in enumerate(
                zip(self._first, self._salt, strict=True)
            ):
                followed = (
                    opening_index + 1 < len(self._first) and self._first[opening_index + 1] == first
                )
                if first < t and not followed:
                    state.update(first.to_bytes(8, "little") + salt)
        return state.hexdigest()

    def __repr__(self) -> str:
        return f"KeySchedule({self.root!r}, openings={len(self._first)}, opened={self.opened})"

    def __getstate__(self) -> Any:
        raise TypeError("KeySchedule cannot be pickled: keys stay in their process and key file.")

    def __deepcopy__(self, memo: dict[int, object]) -> KeySchedule:
        copied = KeySchedule.constant(self.root)
        copied._first = list(self._first)
        copied._salt = list(self._salt)
        copied._keys = dict(self._keys)
        copied._sealed = self._sealed
        memo[id(self)] = copied
        return copied
