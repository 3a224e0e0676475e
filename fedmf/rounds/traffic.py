"""What leaves a server: seen by whoever watches, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torch import Tensor


@dataclass(frozen=True, eq=False)
class SentMessage:
    """A message of the server.

    Args:
        kind: "train", "evaluate" or "query".
        group: the number of the round.
        users: whom it names.
        size: bytes of its arrays, and of the rest as text.
        parameters: the model it carries, None without one.
    """

    kind: str
    group: str
    users: tuple[str, ...]
    size: tuple[int, int]
    parameters: Tensor | None


Watcher = Callable[[SentMessage], None]
#: Who watches.
WATCHERS: Final[list[Watcher]] = []


@contextmanager
def watched_messages(note: Watcher) -> Iterator[None]:
    """While open, ``note`` is called with every message that a run of this process sends."""
    WATCHERS.append(note)
    try:
        yield
    finally:
        WATCHERS.remove(note)
