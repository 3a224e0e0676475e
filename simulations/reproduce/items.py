"""What can be reproduced: a table or figure as a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Command", "Item", "Known"]

#: A script below simulations/ and its arguments.
Command = tuple[str, ...]


@dataclass(frozen=True)
class Known:
    """A difference that is understood.

    Args:
        row: part of the labels it concerns.
        because: why.
    """

    row: str
    because: str


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper, or of ours.

    The paper's figures stand in its page beside ours; here is how near they have to be.

    Args:
        name: for the command line.
        paper: which one; "fedmf" for our own.
        item: which table or figure of it.
        setting: what it is computed for.
        results: what is written below docs/results, pages with figures and pictures.
        quick: what is run in minutes; nothing if only the full form can be.
        full: what is run for all of it.
        within: how far ours may be from the paper's, relatively; 0 where its text has no numbers.
        repeats: how far figures computed anew may be from the committed ones, relatively, beyond intervals.
        known: differences that are understood.
        kept: files below docs/results that the script reads or goes on from.
        unrun: what the quick form leaves out and why; empty if nothing.
        grade: "reduced" where data, model or range are smaller than the paper's, "fitted" where a slope or
            constant was fitted, "restored" where lost formulas or settings were inferred, else empty.
    """

    name: str
    paper: str
    item: str
    setting: str
    results: tuple[str, ...]
    quick: Command = ()
    full: Command = ()
    within: float = 0.0
    repeats: float = 2e-3
    known: tuple[Known, ...] = ()
    kept: tuple[str, ...] = ()
    unrun: str = ""
    grade: str = ""

    def __post_init__(self) -> None:
        if not self.full:
            raise ValueError(f"full (command) must be given; got none for {self.name!r}.")
        if not self.quick and not self.unrun:
            raise ValueError(f"unrun (why it is not run) must be said without a quick form; {self.name!r}.")

    def command(self, full: bool) -> Command:
        """Of one form."""
        return self.full if full else self.quick
