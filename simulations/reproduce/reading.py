"""Figures in the pages and curves that scripts write."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Figure", "figures"]

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
    """What a row has: pairs in a cell, else columns that begin with "fedmf", else all but simulated ones."""
    row = cells[0]
    place = f"{name}, {' '.join(heads)}, {row}"
    paper = _first(cells[heads.index("paper")]) if "paper" in heads and len(cells) == len(heads) else None
    beside = [(head, _BESIDE.match(cell)) for head, cell in zip(heads[1:], cells[1:], strict=False)]
    if any(match for _, match in beside):
        for head, match in beside:
            if match:
                theirs, ours, width = (None if part is None else _number(part) for part in match.groups())
                yield Figure(f"{place}, {head}", f"{row}, {head}", ours or 0.0, width or 0.0, theirs)
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
        yield Figure(f"{place} [{at}]", row, _number(found[1]), _number(found[2]) if found[2] else 0.0)


def _first(cell: str) -> float | None:
    found = _ALONE.search(cell)
    return _number(found[1]) if found else None


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))
