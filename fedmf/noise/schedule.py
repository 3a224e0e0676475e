"""The key of each row of noise: every opening of a run has a sub-key of its own.

So copies of a run directory that are continued separately add independent noise. `NoiseStream` asks
the schedule for keys; the ledger records the openings.
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
    """The record of the openings of a run or stream: its ledger.

    An opening has a ``first_round``, the next round when it was recorded, and a ``salt`` of 32
    random bytes.
    """

    def openings(self) -> Sequence[Any]:
        """Return all openings in the order in which they were recorded."""
        ...

    def opening(self) -> Any:
        """Return the opening of this process, which is recorded first if it was not; durable."""
        ...


@final
class KeySchedule:
    """The key of every row of noise: that of the opening under which the row is released first.

    Opening i begins with row f_i, f_0 = 0 ≤ f_1 ≤ …, and has the key
    K_i = `NoiseKey.opening(r_i)` with r_i its own random bytes. Row t has the key of the last i
    with f_i ≤ t; of two openings with one f the later counts, since nothing was released under the
    earlier. A public key makes all rows itself, whatever the openings.

    Args:
        root: the run's key.
        openings: (f_i, r_i) in order, as recorded.
        released: T, number of rows released; row T and later ones have no key until `open`.

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
        """Return the schedule of one key for all rows, for noise that no record continues."""
        schedule = cls(key, [], 0)
        schedule._first = [0]
        schedule._salt = [b""]
        schedule._sealed = None
        schedule._keys[0] = key
        return schedule

    @classmethod
    def of(cls, keys: NoiseKey | KeySchedule) -> KeySchedule:
        """Return a schedule as it is, and a key as the schedule of this key for all rows."""
        if isinstance(keys, KeySchedule):
            return keys
        return cls.constant(keys)

    @classmethod
    def of_record(cls, root: NoiseKey, record: OpeningRecord, released: int) -> Self:
        """Return the schedule of recorded openings after so many released rounds."""
        openings = [(opening.first_round, opening.salt) for opening in record.openings()]
        return cls(root, openings, released)

    def _append(self, first: int, salt: bytes) -> None:
        if not self._first and first != 0:
            raise ValueError(f"first_round (of an opening) must be 0 for the first; got {first!r}.")
        if self._first and first < self._first[-1]:
            raise ValueError(
                f"first_round (of an opening) must be at least {self._first[-1]}; got {first!r}."
            )
        if len(salt) != SALT_BYTES:
            raise ValueError(
                f"salt (bytes of an opening) must be {SALT_BYTES} bytes; got {len(salt)}."
            )
        self._first.append(first)
        self._salt.append(salt)

    @property
    def opened(self) -> bool:
        """True if rows that were not released have a key."""
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
            expected = "opened once"
            if self._sealed is not None:
                expected = f"opened at {self._sealed}"
            raise ValueError(f"key schedule must be {expected}; got an opening at {first}.")
        self._append(first, salt)
        self._sealed = None

    def ensure_opened(self, record: OpeningRecord) -> None:
        """Begin the opening of this process unless it has begun; it is durable before.

        Call this just before the first row of noise is drawn for a release.
        """
        if self._sealed is not None:
            opening = record.opening()
            self.open(opening.first_round, opening.salt)

    def opening_indices(self, rounds: Sequence[int]) -> list[int]:
        """Return the index of each row's opening.

        Raises:
            RuntimeError: a row was not released, and no opening has begun for it.
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
        """Return the key of an opening, by an index from `opening_indices`."""
        if opening_index not in self._keys:
            self._keys[opening_index] = self.root.opening(self._salt[opening_index])
        return self._keys[opening_index]

    def key_of(self, t: int) -> NoiseKey:
        """Return the key of row t."""
        return self.key(self.opening_indices([t])[0])

    def digest(self, t: int) -> str:
        """Return a SHA-256 of the openings of rows 0 … t − 1, which is safe to publish.

        With the root it determines the keys of these rows.
        """
        state = hashlib.sha256(_DIGEST_LABEL)
        if self.root.public:
            return state.hexdigest()
        last_salts = dict(zip(self._first, self._salt, strict=True))
        for first, salt in last_salts.items():
            if first < t:
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
