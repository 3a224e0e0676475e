"""Who is not asked any more, since what came from there was of no use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedmf.training import UserFailure


class Quarantine:
    """Counts refused replies, for each user of a node apart.

    A user's replies decide about that user alone: one whose replies are useless takes neither another node
    nor another user of its own node with it. A node of one user is out as a whole. Refusing a reply of many
    users is a refusal for each of them; they are then asked one by one until a reply is used, so that whose
    fault it was shows.

    Guarantees:
        The last refusal before a user is out, and with limit r ≥ 2 the last r − 1, are of that user's own
        rows, or of replies of that user alone.

    Args:
        limit: r ≥ 1, how many refusals in a row are the last; 0 asks for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._refused: Counter[tuple[int | None, str]] = Counter()
        self._suspects: set[tuple[int | None, str]] = set()

    def refused(self, node: int, users: Iterable[str]) -> list[UserFailure]:
        """Note the refusal of a reply for some users; those for whom it was the last."""
        last, users = list[UserFailure](), list(users)
        for user in users:
            self._suspects.add((node, user))
            if self._limit == 1 and len(users) > 1:  # whose fault it was shows when they are asked alone
                continue
            self._refused[node, user] += 1
            if self._refused[node, user] == self._limit:
                last.append(
                    UserFailure(user, "quarantine", f"node {node} is not asked for this user any more")
                )
        return last

    def accepted(self, node: int, users: Iterable[str]) -> None:
        """Note a reply that was used: refusals are counted anew."""
        for user in users:
            self._refused.pop((node, user), None)
            self._suspects.discard((node, user))

    def is_suspect(self, node: int, user: str) -> bool:
        """Whether the node's last reply about a user was refused: it is to be asked for that user alone."""
        return (node, user) in self._suspects

    def __contains__(self, node_and_user: tuple[int | None, str]) -> bool:
        """Whether a node is not asked for a user any more."""
        return 0 < self._limit <= self._refused[node_and_user]
