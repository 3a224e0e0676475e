"""Ours against the paper's, and computed anew against committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from items import Item
from reading import Figure, figures

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """What came of an item.

    Args:
        name: of the item.
        text: one line.
        good: whether nothing is stale and every difference is understood.
        word: for what was done if it is good: "ok" only if the figures were computed anew.
    """

    name: str
    text: str
    good: bool
    word: str = "ok"

    def __str__(self) -> str:
        return f"{self.word if self.good else 'FAIL'} {self.name}: {self.text}"


def judge(item: Item, fresh: Path, committed: Path, full: bool = False) -> Verdict:
    """The verdict on results in a folder, beside the committed ones.

    Args:
        item: whose.
        fresh: folder with what was written now.
        committed: docs/results.
        full: whether the full form was run.
    """
    found = [figure for name in item.results if (fresh / name).exists() for figure in figures(fresh / name)]
    missing = [name for name in item.results if not (fresh / name).exists()]
    if missing:
        return Verdict(item.name, f"{missing[0]} was not written.", False)
    agreement, understood = _agreement(item, found)
    current, stale = _currency(item, found, committed)
    left_out = f"left out: {item.unrun}" if item.unrun and not full else ""
    parts = [part for part in (item.grade, agreement, current, left_out) if part]
    word = "redrawn" if "--tables" in item.command(full) else "ok"
    return Verdict(item.name, "; ".join(parts) + ".", understood and not stale, word)


def _agreement(item: Item, found: Sequence[Figure]) -> tuple[str, bool]:
    """With the paper's figures."""
    compared = [(figure, figure.paper) for figure in found if figure.paper]
    if not compared:
        return "no number of the paper at this setting" if item.paper != "fedmf" else "", True
    off = [
        (figure, figure.value / paper - 1.0)
        for figure, paper in compared
        if abs(figure.value - paper) > item.within * abs(paper) + figure.half_width + 1e-12
    ]
    agreeing = len(compared) - len(off)
    text = f"agrees within {100 * item.within:g} % in {agreeing} of {len(compared)}"
    understood = True
    reasons: dict[str, list[str]] = {}
    for figure, difference in off:
        because = next((known.because for known in item.known if known.row in figure.row), "")
        understood &= bool(because)
        reasons.setdefault(because or "?", []).append(f"{figure.row} {100 * difference:+.2f} %")
    for because, rows in reasons.items():
        shown = ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
        text += f"; differs ({shown}) " + ("unexplained" if because == "?" else f"because {because}")
    return text, understood


def _currency(item: Item, found: Sequence[Figure], committed: Path) -> tuple[str, bool]:
    """With what is committed."""
    before = {
        figure.place: figure
        for name in item.results
        if (committed / name).exists()
        for figure in figures(committed / name)
    }
    both = [(figure, before[figure.place]) for figure in found if figure.place in before]
    if not both:
        textual = not found and all((committed / name).exists() for name in item.results)
        return (
            ("picture made anew", False) if textual else ("STALE: no committed result has its figures", True)
        )
    for new, old in both:
        allowed = (
            item.repeats * abs(old.value) + 2.0 * (new.half_width + old.half_width) + _rounding(old.value)
        )
        if abs(new.value - old.value) > allowed:
            return f"STALE: {old.place} is {old.value:g} in docs/results and {new.value:g} now", True
    return f"{len(both)} figures as committed", False


def _rounding(value: float) -> float:
    """Of figures that are printed with few digits."""
    return 1e-12 if abs(value) < 1e-9 else 0.0006 * abs(value)
