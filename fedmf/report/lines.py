"""Cells and charts of lines in the coordinates of their pictures; the template turns them into SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
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


#: Okabe and Ito (2008): told apart with any kind of colour vision; those that print well on white.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
#: What a line means where a chart has several for each run.
DASHES: Final = ("", "7 4", "2 3", "10 3 2 3")
#: Small enough to be read on a phone without a change of scale.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FLOOR = 400, 230, 56, 392, 10, 194
_DOTS: Final = 40


@dataclass(frozen=True)
class Series:
    """One line.

    Args:
        run: which run of the report it belongs to; decides the colour.
        points: (x, y), both finite, x ascending.
        spread: half the length of an error bar of each point; empty for none.
        kind: which of the chart's kinds of lines it is; decides the dashes.
    """

    run: int
    points: Sequence[tuple[float, float]]
    spread: Sequence[float] = ()
    kind: int = 0


@dataclass(frozen=True)
class LineChart:
    """A picture with a caption.

    Args:
        title: of the picture; any text.
        across: what the horizontal axis counts.
        series: the lines; those without points are not drawn.
        kinds: what each kind of line is called; empty where there is one.
        note: a sentence below.
        private: whether nothing in it needs protection beyond the run's ε; False for what is the operator's.
    """

    title: str
    across: str
    series: Sequence[Series]
    kinds: Sequence[str] = ()
    note: str = ""
    private: bool = True

    @property
    def runs(self) -> list[int]:
        """Whose lines are in it."""
        return sorted({series.run for series in self.series if series.points})

    @property
    def picture(self) -> dict[str, Any]:
        """Numbers and paths for the template."""
        shown = [series for series in self.series if series.points]
        xs = [x for series in shown for x, _ in series.points]
        ends = [
            end
            for series in shown
            for at, (_, y) in enumerate(series.points)
            for end in _ends(y, series.spread[at] if series.spread else 0.0)
        ]
        x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(*_from_zero(min(ends), max(ends)))
        x_of = _Scale(min(xs[0], x_ticks[0]), max(max(xs), x_ticks[-1]), _LEFT, _RIGHT)
        y_of = _Scale(y_ticks[0], y_ticks[-1], _FLOOR, _TOP)
        return {
            "width": _WIDTH,
            "height": _HEIGHT,
            "left": _LEFT,
            "right": _RIGHT,
            "floor": _FLOOR,
            "x_ticks": [(x_of(x), label, _anchor(x_of(x))) for x, label in _labelled(x_ticks)],
            "y_ticks": [(y_of(y), label) for y, label in _labelled(y_ticks)],
            "lines": [_line(series, x_of, y_of) for series in shown],
        }


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + (self.end - self.start) * share, 2)


def _line(series: Series, x_of: _Scale, y_of: _Scale) -> dict[str, Any]:
    places = [(x_of(x), y_of(y)) for x, y in series.points]
    bars = [
        (x_of(x), *(y_of(end) for end in _ends(y, spread)))
        for (x, y), spread in zip(series.points, series.spread, strict=bool(series.spread))
    ]
    return {
        "colour": COLOURS[series.run % len(COLOURS)],
        "dash": DASHES[series.kind % len(DASHES)],
        "path": "M" + "L".join(f"{x:g} {y:g}" for x, y in places),
        "dots": places if len(places) <= _DOTS and not series.kind else [],
        "bars": bars,
        "square": bool(series.run % 2),
    }


def _ends(y: float, spread: float) -> tuple[float, float]:
    return y - spread, y + spread


def _from_zero(low: float, high: float) -> tuple[float, float]:
    """The range of an axis: with 0 where that costs little room."""
    return (0.0, high) if 0 < low < 0.6 * high else (low, high)


def _ticks(low: float, high: float) -> list[float]:
    """Three to eight round numbers from at most ``low`` to at least ``high``.

    >>> _ticks(0.0, 7.3)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    >>> _ticks(5.0, 5.0)
    [4.0, 5.0, 6.0]
    """
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        step = 10.0 ** math.floor(math.log10(abs(low))) if low else 1.0
        return [low - step, low, low + step]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough * 0.8)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * at for at in range(first, last + 1)]


def _labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    return [(value, number(value, ticks[1] - ticks[0])) for value in ticks]


def number(value: float, step: float = 0.0) -> str:
    """A short label, long enough to be told from those a step away.

    >>> number(0.30000000000000004), number(1200.0), number(1.00002, step=1e-5)
    ('0.3', '1200', '1.00002')
    """
    digits = 4
    if value and step:
        digits = max(digits, 1 + math.floor(math.log10(abs(value))) - math.floor(math.log10(step)))
    return f"{value:.{digits}g}"


def _anchor(x: float) -> str:
    """Which way a label grows so that it stays inside the picture."""
    return "end" if x > _RIGHT - 12 else "middle"
