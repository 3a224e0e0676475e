"""User ids that are formatted on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, overload


class NumberedUsers(Sequence[str]):
    """The ids ``user-000`` … of U users, in O(1) memory; they sort like their numbers.

    >>> ids = NumberedUsers(1_000_000)
    >>> ids[7], ids.index_of("user-999999"), list(ids[2:9:3])
    ('user-000007', 999999, ['user-000002', 'user-000005', 'user-000008'])
    """

    def __init__(self, users: int) -> None:
        if users < 1:
            raise ValueError(f"users must be at least 1; got {users}.")
        self._numbers, self._width = range(users), len(str(users - 1))

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> str | Self:
        if isinstance(index, slice):
            part = object.__new__(type(self))
            part._numbers, part._width = self._numbers[index], self._width
            return part
        return f"user-{self._numbers[index]:0{self._width}d}"

    def index_of(self, user_id: str) -> int:
        """The place of an id; KeyError for one that is not here."""
        digits = user_id.removeprefix("user-")
        known = digits.isascii() and digits.isdigit() and len(digits) == self._width
        if not known or len(user_id) != self._width + 5 or int(digits) not in self._numbers:
            raise KeyError(user_id)
        return self._numbers.index(int(digits))

    def __contains__(self, user_id: object) -> bool:
        try:
            return isinstance(user_id, str) and self.index_of(user_id) >= 0
        except KeyError:
            return False
