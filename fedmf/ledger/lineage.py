"""The commits of a ledger and their openings, which tell copies of a run or stream apart."""

from __future__ import annotations

from dataclasses import dataclass

from fedmf.ledger.lock import Progress


@dataclass(frozen=True, eq=False)
class Lineage:
    """The commits of a ledger, by which it is compared with copies that were continued.

    Args:
        origin: chain value of the header.
        chains: chain value of each commit. Two ledgers with one value have the same commits, and
            openings, up to there.
        salts: random bits of the opening under which the noise of each commit was drawn; empty for
            a commit without noise.
        seen: what this machine has seen of the run or stream and the ledger does not hold; None if
            there is no such commit.

    >>> run = Lineage(b"r", (b"0", b"1", b"2"), (b"x", b"x", b"y"))
    >>> copy = Lineage(b"r", (b"0", b"1", b"3", b"4"), (b"x", b"x", b"z", b"z"))
    >>> run.common_commits(copy), run.independent_after(2, copy), copy.released_after(3)
    (2, True, True)
    """

    origin: bytes
    chains: tuple[bytes, ...]
    salts: tuple[bytes, ...]
    seen: Progress | None = None

    def common_commits(self, other: Lineage) -> int:
        """T, how many commits both ledgers have in common."""
        common = 0
        for mine, its in zip(self.chains, other.chains, strict=False):
            if mine != its:
                break
            common += 1
        return common

    def released_after(self, commits: int) -> bool:
        """Whether any noise was drawn after so many commits."""
        return any(self.salts[commits:])

    def independent_after(self, commits: int, other: Lineage) -> bool:
        """Whether no opening of this ledger after so many commits is also one of the other."""
        mine = {salt for salt in self.salts[commits:] if salt}
        return mine.isdisjoint(other.salts[commits:])

    def unseen(self) -> str | None:
        """A sentence on releases that this machine has seen; None if the ledger holds them."""
        if self.seen is None:
            return None
        there = self.seen.commits
        here = len(self.chains)
        if there > here:
            return (
                f"this machine has seen {there} commits of this run or stream, and this copy has"
                f" {here}: its spent epsilon is that of the copy"
            )
        return (
            f"this machine has seen another branch with {there} commits, and this copy has {here}"
            " of its own: its spent epsilon is that of the copy; fedmf account adds up branches"
        )
