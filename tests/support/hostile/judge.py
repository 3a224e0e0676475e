"""What became of the replies: refused, taken although they are wrong, or lost although they are right."""

from __future__ import annotations

from collections import Counter

import torch

from fedmf.runs import PrivateServer
from fedmf.training import FixedPointSum
from support.hostile.link import Contributions

#: Mutations that may leave a reply as good as it was: then it must count as what it was.
HARMLESS = frozenset({"none", "bits of an object", "another child", "sent twice"})
#: Mutations of one number.
OF_ONE_ROW = frozenset({"NaN", "infinity"})


class Judge:
    """Counts what became of the replies of a mode.

    Args:
        mode: which.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong_sums = 0
        self._released: tuple[torch.Tensor, set[str]] | None = None

    def watch(self, server: PrivateServer) -> None:
        """See every sum before it is released."""
        release = server.release

        def seen(total: FixedPointSum, present: list[str]) -> None:
            self._released = (total.fixed_point.clone(), set(present))
            release(total, present)

        server.release = seen  # type: ignore[method-assign]

    def judge(self, done: list[tuple[str, Contributions]], failed: set[str]) -> None:
        """Compare the sum of a round with what should be in it."""
        assert self._released is not None
        total, present = self._released
        expected = torch.zeros_like(total)
        for mutation, contributions in done:
            used = [user for user in contributions if user in present and user not in failed]
            for user in used:
                expected += contributions[user]
            zeros = len(contributions) - len(used)
            # Of rows, one that is not finite is one user's alone.
            may_fail = 1 if mutation in OF_ONE_ROW and self.mode == "per-user" else len(contributions)
            self.counts[mutation, "replies"] += 1
            self.counts[mutation, "refused"] += zeros > 0
            self.counts[mutation, "taken"] += zeros == 0 and mutation not in HARMLESS
            self.counts[mutation, "lost"] += zeros > (0 if mutation == "none" else may_fail)
        self.wrong_sums += not torch.equal(total, expected)

    @property
    def hostile(self) -> int:
        """How many replies were mutated."""
        return sum(
            n for (mutation, what), n in self.counts.items() if what == "replies" and mutation != "none"
        )

    def total(self, what: str) -> int:
        """Over all mutations."""
        return sum(n for (_, key), n in self.counts.items() if key == what)

    def kinds(self) -> dict[str, dict[str, int]]:
        """Counts by mutation."""
        names = dict.fromkeys(name for name, _ in self.counts)
        whats = ("replies", "refused", "taken", "lost")
        return {name: {what: self.counts[name, what] for what in whats} for name in names}
