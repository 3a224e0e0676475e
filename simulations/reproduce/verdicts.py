"""Ours against the paper's, and computed anew against committed: figures in pages and curves of
pictures.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from items import Item

__all__ = ["Verdict", "judge"]

_NUMBER = r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_BESIDE = re.compile(rf"^({_NUMBER}) / ({_NUMBER})(?: ± ({_NUMBER}))?")
_ALONE = re.compile(rf"({_NUMBER})(?: ± ({_NUMBER}))?")


@dataclass(frozen=True)
class Figure:
    """A number of a result.

    Args:
        place: page, table, row and column.
        row: the row's label alone.
        value: ours.
        half_width: of its interval; 0 where it is exact.
        paper: the paper's.
    """

    place: str
    row: str
    value: float
    half_width: float = 0.0
    paper: float | None = None


def figures(path: Path) -> list[Figure]:
    """All of a page (.md) or of a picture's curves (.json); of other files none."""
    if path.suffix == ".json":
        return list(_curves(path.name, json.loads(path.read_text(encoding="utf-8"))))
    if path.suffix != ".md":
        return []
    # Rows of one label are told apart by their order.
    seen: Counter[str] = Counter()
    found: list[Figure] = []
    for figure in _page(path.name, path.read_text(encoding="utf-8")):
        seen[figure.place] += 1
        found.append(replace(figure, place=f"{figure.place} ({seen[figure.place]})"))
    return found


def _curves(name: str, found: object, row: str = "") -> Iterator[Figure]:
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _curves(f"{name}, {key}", value, str(key))
    elif isinstance(found, list):
        for at, value in enumerate(found):
            yield from _curves(f"{name} [{at}]", value, row)
    elif isinstance(found, (int, float)):
        yield Figure(name, row, float(found))


def _page(name: str, text: str) -> Iterator[Figure]:
    heads: list[str] = []
    for line in text.splitlines():
        if line.startswith("* "):
            yield from _several(f"{name}: {_ALONE.sub('#', line[2:])}", line[2:], line[2:])
        if not line.startswith("|"):
            heads = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not heads:
            heads = cells
        elif not set(line) <= set("|-: "):
            yield from _row(name, heads, cells)


def _row(name: str, heads: list[str], cells: list[str]) -> Iterator[Figure]:
    """What a row has: pairs in a cell, else columns that begin with "fedmf", else all but simulated
    ones.
    """
    row = cells[0]
    place = f"{name}, {' '.join(heads)}, {row}"
    paper = (
        _first(cells[heads.index("paper")])
        if "paper" in heads and len(cells) == len(heads)
        else None
    )
    beside = [(head, _BESIDE.match(cell)) for head, cell in zip(heads[1:], cells[1:], strict=False)]
    if any(match for _, match in beside):
        for head, match in beside:
            if match:
                theirs, ours, width = (
                    None if part is None else _number(part) for part in match.groups()
                )
                yield Figure(
                    f"{place}, {head}", f"{row}, {head}", ours or 0.0, width or 0.0, theirs
                )
        return
    ours = any(head.startswith("fedmf") for head in heads)
    for head, cell in zip(heads[1:], cells[1:], strict=False):
        if head == "fedmf":
            found = _ALONE.search(cell)
            if found:
                width = _number(found[2]) if found[2] else 0.0
                yield Figure(f"{place}, {head}", row, _number(found[1]), width, paper)
        elif head.startswith("fedmf") or not (ours or head.startswith("simulated")):
            yield from _several(f"{place}, {head}", row, cell)


def _several(place: str, row: str, text: str) -> Iterator[Figure]:
    for at, found in enumerate(_ALONE.finditer(text)):
        yield Figure(
            f"{place} [{at}]", row, _number(found[1]), _number(found[2]) if found[2] else 0.0
        )


def _first(cell: str) -> float | None:
    found = _ALONE.search(cell)
    return _number(found[1]) if found else None


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


@dataclass(frozen=True)
class Verdict:
    """What came of an item.

    Args:
        name: of the item.
        text: one line.
        good: whether nothing is stale and every difference is understood.
        word: for what was done if it is good.
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
    found = [
        figure
        for name in item.results
        if (fresh / name).exists()
        for figure in figures(fresh / name)
    ]
    missing = [name for name in item.results if not (fresh / name).exists()]
    if missing:
        return Verdict(item.name, f"{missing[0]} was not written.", False)
    agreement, understood = _agreement(item, found)
    current, stale = _currency(item, found, committed)
    left_out = f"left out: {item.unrun}" if item.unrun and not full else ""
    parts = [part for part in (item.grade, agreement, current, left_out) if part]
    return Verdict(item.name, "; ".join(parts) + ".", understood and not stale)


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
        text += f"; differs ({shown}) " + (
            "unexplained" if because == "?" else f"because {because}"
        )
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
            ("picture made anew", False)
            if textual
            else ("STALE: no committed result has its figures", True)
        )
    for new, old in both:
        allowed = (
            item.repeats * abs(old.value)
            + 2.0 * (new.half_width + old.half_width)
            + _rounding(old.value)
        )
        if abs(new.value - old.value) > allowed:
            return (
                f"STALE: {old.place} is {old.value:g} in docs/results and {new.value:g} now",
                True,
            )
    return f"{len(both)} figures as committed", False


def _rounding(value: float) -> float:
    """Of figures that are printed with few digits."""
    return 1e-12 if abs(value) < 1e-9 else 0.0006 * abs(value)
