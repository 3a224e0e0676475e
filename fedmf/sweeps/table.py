"""The table of a sweep, as Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedmf.sweeps.results import CellResult, Interval, MetricColumn, SweepResult

_GREEK = {
    "α": r"\alpha",
    "β": r"\beta",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\varepsilon",
    "ζ": r"\zeta",
    "λ": r"\lambda",
    "μ": r"\mu",
    "ν": r"\nu",
    "σ": r"\sigma",
}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "÷": r"$\div$",
    "≤": r"$\le$",
    **{letter: f"${name}$" for letter, name in _GREEK.items()},
    "∞": r"$\infty$",
}


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Args:
        header: names of columns.
        rows: as long as the header.
        numbers: how many columns at the end hold numbers.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int

    def markdown(self) -> str:
        """As GitHub reads it."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        cells = [[entry.replace("|", "\\|") for entry in line] for line in lines]
        return "".join(f"| {' | '.join(line)} |\n" for line in cells)

    def latex(self) -> str:
        """A tabular with the rules of booktabs."""
        columns = "l" * (len(self.header) - self.numbers) + "r" * self.numbers
        lines = [" & ".join(map(_escaped, line)) + r" \\" for line in (self.header, *self.rows)]
        body = "\n".join([lines[0], r"\midrule", *lines[1:]])
        return (
            "% needs \\usepackage{booktabs}\n"
            f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        )


def _escaped(text: str) -> str:
    return re.sub("|".join(map(re.escape, _SPECIAL)), lambda match: _SPECIAL[match[0]], text)


def result_table(result: SweepResult) -> Table:
    """A row for each cell: point, variant, tuned values, metric and comparison with their intervals."""
    sweep, metric = result.sweep, result.metric
    header = [*sweep.grid, "variant", *sweep.tuned, metric.label]
    compares = len(sweep.variants) > 1
    percent = f"{100 * sweep.confidence:g} %"
    if compares:
        word = "− " if sweep.compare == "difference" else "÷ "
        header.append(f"{word}{sweep.baseline}, paired, {percent}")
    header.append("seeds")
    rows = []
    for found in result.cells:
        row = [*(_text(value) for _, value in found.cell.point), found.cell.variant]
        row += [_text((found.tuned or {}).get(name, "")) for name in sweep.tuned]
        row.append(_values(found, metric))
        if compares:
            against = result.against_baseline(found)
            row.append("" if against is None else _interval(against, metric, sweep.compare))
        rows.append((*row, str(len(found.values))))
    return Table(tuple(header), tuple(rows), 3 if compares else 2)


def _values(found: CellResult, metric: MetricColumn) -> str:
    """Mean, and the range over seeds."""
    values: Sequence[float] = [*found.values.values()]
    if not values:
        return "failed"
    mean = metric.shown(math.fsum(values) / len(values))
    return f"{mean} ({metric.shown(min(values))}–{metric.shown(max(values))})"


def _interval(against: Interval, metric: MetricColumn, compare: str) -> str:
    if against.count == 0:
        return ""
    ends = (against.estimate, against.low, against.high)
    if compare == "difference":
        middle, low, high = (_infinite(end) or metric.shown(end, "+") for end in ends)
    else:
        middle, low, high = (_infinite(end) or f"{end:.4g}" for end in ends)
    return f"{middle} [{low}, {high}]"


def _infinite(value: float) -> str:
    return "" if math.isfinite(value) else {math.inf: "∞", -math.inf: "−∞"}.get(value, "?")


def _text(value: object) -> str:
    return f"{value:g}" if type(value) is float else str(value)
