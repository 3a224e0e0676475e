"""Whom the server may ask: the contract, enforced on every user, and those who withdrew."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from fedmf.errors import ConfigError, rebuilding
from fedmf.records.durable import write_durably
from fedmf.records.ledger import Ledger

#: The users who withdrew, a JSON string a line; as secret as the ledger.
WITHDRAWN: Final = "withdrawn-users"


class Admission:
    """Leaves out users whose turn would break (k, b), and those who withdrew.

    A device keeps its own timer, and may be wrong or lie. What is promised does not rest on it: a user who
    took part less than b rounds ago, or k times, is not asked and not taken. The decision about a user
    depends on that user's own recorded rounds and wish and on nothing else.

    Args:
        ledger: the record of participation.
        directory: of the run; who withdrew is kept there.

    Raises:
        ConfigError: the file of those who withdrew is damaged.

    Guarantees:
        What `admit` returns can be committed. Who withdrew is never returned again, by any later process
        either.
    """

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        self._ledger, self._path = ledger, directory / WITHDRAWN
        self._withdrawn: dict[str, None] = {}
        if self._path.exists():
            with rebuilding(f"file {self._path}", ConfigError):
                lines = self._path.read_text(encoding="utf-8").splitlines()
                self._withdrawn = dict.fromkeys(str(json.loads(line)) for line in lines)

    @property
    def withdrawn(self) -> list[str]:
        """Who withdrew, in order."""
        return list(self._withdrawn)

    def admit(self, t: int, users: Iterable[str]) -> list[str]:
        """Those of ``users`` who may take part in round t, in the same order."""
        return self._ledger.admissible(t, self.remaining(users))

    def remaining(self, users: Iterable[str]) -> list[str]:
        """Those of ``users`` who did not withdraw, in the same order."""
        return [user for user in users if user not in self._withdrawn]

    def withdraw(self, user: str, user_list: Sequence[str]) -> None:
        """Never ask a user again; durable when this returns. What was promised to the user stays true.

        Args:
            user: id of the user.
            user_list: the ids of all users of the run.

        Raises:
            ConfigError: nobody has this id: whoever was meant would be asked again.
        """
        if user not in set(user_list):
            raise ConfigError(f"user (who withdraws) must be one of the run; got {user[:100]!r}.")
        withdrawn = {**self._withdrawn, user: None}
        content = "".join(json.dumps(name) + "\n" for name in withdrawn)
        write_durably(self._path, content.encode(), mode=0o600)
        self._withdrawn = withdrawn
