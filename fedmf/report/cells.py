"""Maps of cells, each a shade of blue or orange: who took part when, and C⁻¹."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.report.spent import Histories
from fedmf.statements import Plan

#: Light to dark; told apart with any kind of colour vision and in grey.
_BLUES: Final = ("#d6e6f4", "#abcfe6", "#6aaed6", "#3787c0", "#105ba4")
_ORANGES: Final = ("#fee3c8", "#fdc692", "#fb9e4f", "#e66c0f", "#a63603")
_WIDTH, _LEFT, _RIGHT, _TOP = 400, 44, 392, 6
#: More users or rounds are counted together.
_MOST_ROWS, _MOST_COLUMNS = 48, 80


@dataclass(frozen=True, eq=False)
class CellMap:
    """A picture with a caption.

    Args:
        title: of the picture.
        across: what columns are.
        down: what rows are.
        values: one number a cell, shape (rows, columns); 0 is left white.
        last_row: number of the last row, counted from 1; ``last_column`` likewise.
        note: a sentence below.
        power: the shade is that of (size/largest)^power; below 1 small cells can be told from none.
        private: False for what is the operator's alone.
    """

    title: str
    across: str
    down: str
    values: NDArray[np.float64]
    last_row: int
    last_column: int
    note: str
    power: float = 1.0
    private: bool = True

    @property
    def shades(self) -> list[tuple[str, str]]:
        """(colour, largest size of a number that has it): the legend."""
        top, signed = float(np.abs(self.values).max(initial=0.0)), bool((self.values < 0).any())
        edges = [((level + 1) / len(_BLUES)) ** (1 / self.power) * top for level in range(len(_BLUES))]
        rows = [(colour, f"{edge:.3g}") for colour, edge in zip(_BLUES, edges, strict=True)]
        negative = [(colour, f"−{edge:.3g}") for colour, edge in zip(_ORANGES, edges, strict=True)]
        return [*reversed(negative), *rows] if signed else rows

    @property
    def picture(self) -> dict[str, Any]:
        """Numbers and paths for the template: one path for each shade."""
        rows, columns = self.values.shape
        across = (_RIGHT - _LEFT) / columns
        high = min(across, 220 / rows) if rows == columns else min(max(220 / rows, 4.0), 22.0)
        wide = high if rows == columns else across
        top = float(np.abs(self.values).max(initial=0.0)) or 1.0
        paths: dict[str, list[str]] = defaultdict(list)
        for i, j in np.argwhere(self.values != 0).tolist():
            value = float(self.values[i, j])
            level = min(int((abs(value) / top) ** self.power * len(_BLUES) - 1e-9), len(_BLUES) - 1)
            colour = (_BLUES if value > 0 else _ORANGES)[level]
            corner = f"{_LEFT + j * wide:.5g} {_TOP + i * high:.5g}"
            paths[colour].append(f"M{corner}h{wide:.4g}v{high:.4g}h-{wide:.4g}z")
        return {
            "width": _WIDTH,
            "left": _LEFT,
            "top": _TOP,
            "right": round(_LEFT + columns * wide, 2),
            "floor": round(_TOP + rows * high, 2),
            "paths": [(colour, "".join(cells)) for colour, cells in sorted(paths.items())],
        }


def participation_map(name: str, histories: Histories, released: int, many: str) -> CellMap:
    """Who took part when: users in the order of their first round, counted together where they are many."""
    rows, columns = min(histories.users, _MOST_ROWS), min(released, _MOST_COLUMNS)
    row_of = _bins(histories.users, rows)
    column_of = _bins(released, columns)
    cells = row_of[histories.keys] * columns + column_of[histories.rounds]
    counts = np.bincount(cells, minlength=rows * columns).reshape(rows, columns)
    sizes = np.bincount(row_of, minlength=rows)[:, None] * np.bincount(column_of, minlength=columns)
    return CellMap(
        f"{name}: who took part when",
        "round",
        many,
        counts / sizes,
        histories.users,
        released,
        f"{histories.users:,} {many} that took part, in the order of their first round. Shades: which share "
        f"of a cell's {many} took part in one of its rounds, up to the number beside the shade.",
        private=False,
    )


def _bins(count: int, bins: int) -> NDArray[np.int64]:
    """Which of the bins of about equal size each of ``count`` things is in."""
    return np.arange(count) * bins // count


def correlation_map(name: str, plan: Plan, correlation: NDArray[np.float64]) -> CellMap:
    """The leading block of C⁻¹: row t says which z enter the noise of round t."""
    shown, rounds = len(correlation), plan.participation.rounds
    part = "" if shown == rounds else f" The first {shown} of {rounds} rounds."
    return CellMap(
        f"{name}: C⁻¹ of {plan.mechanism.name}",
        "drawn for round",
        "round",
        correlation,
        shown,
        shown,
        "Row t says with which weights the independent noise of earlier rounds enters round t: orange is "
        f"taken away again, blue is added.{part}",
        power=0.5,
    )
