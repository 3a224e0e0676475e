"""What a sweep found: each cell's values by seed, its interval, and its comparison with the baseline."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedmf.accounting import UserLevel, at_least, gaussian_epsilon, gaussian_sigma
from fedmf.records.durable import write_durably
from fedmf.sweeps.sweep import Cell, Sweep, described

#: Okabe and Ito (2008): told apart with any kind of colour vision.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")


class Interval(NamedTuple):
    """An estimate from so many independent values, and an interval that covers what it estimates."""

    estimate: float
    low: float
    high: float
    size: int


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """x̄ ± t_{m−1}·s/√m of x_1 … x_m; infinite for one value, NaN for none.

    >>> mean_interval([1.0, 2.0, 3.0], 0.95)
    Interval(estimate=2.0, low=-0.48..., high=4.48..., size=3)
    """
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean()) if x.size else math.nan
    if x.size < 2 or not np.isfinite(x).all():
        reach = math.inf if math.isfinite(mean) else math.nan
    else:
        reach = float(stats.t.ppf((1 + confidence) / 2, x.size - 1) * stats.sem(x))
    return Interval(mean, mean - reach, mean + reach, x.size)


def paired_interval(
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    compare: Literal["difference", "ratio"],
    confidence: float,
) -> Interval:
    """The mean difference by seed, or the geometric mean of the ratios with the interval of their logarithms.

    >>> round(paired_interval({0: 2.0, 1: 8.0}, {0: 1.0, 1: 4.0, 2: 9.0}, "ratio", 0.95).estimate, 9)
    2.0
    """
    pairs = [(values[seed], baseline[seed]) for seed in values if seed in baseline]
    if compare == "difference":
        return mean_interval([x - y for x, y in pairs], confidence)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        logs = mean_interval([float(np.log(x) - np.log(y)) for x, y in pairs], confidence)
        ends = [float(np.exp(end)) for end in logs[:3]]
    return Interval(ends[0], ends[1], ends[2], logs.size)


@dataclass(frozen=True)
class MetricColumn:
    """The metric that a sweep compares: its name and column, and how people read it."""

    name: str
    column: str
    higher_is_better: bool = False
    is_share: bool = False

    @property
    def scale(self) -> float:
        """From the column to what people read: shares in percent."""
        return 100.0 if self.is_share else 1.0

    @property
    def label(self) -> str:
        """With its unit."""
        return self.name.replace("_", " ") + (" (%)" if self.is_share else "")

    def shown(self, value: float, sign: str = "") -> str:
        """A value for people."""
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return f"{self.scale * value:{sign}{'.1f' if self.is_share else '.4g'}}"


@dataclass(frozen=True, eq=False)
class SweepResult:
    """A finished sweep.

    Attributes:
        path: its directory.
        sweep: what was asked for.
        metric: that is compared.
        runs: a row for each run of each cell: variant, keys, part ("tuning" or "reported"), seed, digest, and
            its metric as ``value``, NaN where it failed.
        failures: a line for each run that failed.
    """

    path: Path
    sweep: Sweep
    metric: MetricColumn
    runs: pd.DataFrame
    failures: tuple[str, ...]

    def _reported(self, cell: Cell) -> pd.DataFrame:
        return self.runs.loc[(self.runs["cell"] == str(cell)) & (self.runs["part"] == "reported")]

    def values(self, cell: Cell) -> dict[int, float]:
        """The metric of a cell by reported seed, of the runs that did not fail."""
        rows = self._reported(cell).dropna(subset="value")
        return dict(zip(rows.seed.tolist(), rows.value.tolist(), strict=True))

    def tuned(self, cell: Cell) -> dict[str, Any]:
        """What was chosen for a cell."""
        return self._reported(cell).iloc[0].reindex([*self.sweep.tuned]).dropna().to_dict()

    def interval(self, cell: Cell) -> Interval:
        """The mean over the reported seeds."""
        return mean_interval([*self.values(cell).values()], self.sweep.confidence)

    def against_baseline(self, cell: Cell) -> Interval | None:
        """Compared with the baseline at the same point, paired by seed; None for the baseline itself."""
        if cell.variant == self.sweep.baseline:
            return None
        baseline = self.values(Cell(self.sweep.baseline, cell.point))
        return paired_interval(self.values(cell), baseline, self.sweep.compare, self.sweep.confidence)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each cell as people read it: point, variant, tuned values, metric, comparison, seeds."""
        rows, show, ratio = [], self.metric.shown, self.sweep.compare == "ratio"
        for cell in self.sweep.cells:
            values, tuned, against = (
                [*self.values(cell).values()],
                self.tuned(cell),
                self.against_baseline(cell),
            )
            row = {
                **dict(cell.point),
                "variant": cell.variant,
                **dict.fromkeys(self.sweep.tuned, ""),
                **tuned,
            }
            mean = f"{show(fmean(values))} ({show(min(values))}–{show(max(values))})" if values else "failed"
            row[self.metric.label] = mean
            if len(self.sweep.variants) > 1:
                ends = [f"{end:.4g}" if ratio else show(end, "+") for end in against[:3]] if against else []
                word, percent = "÷" if ratio else "−", f"{100 * self.sweep.confidence:g} %"
                name = f"{word} {self.sweep.baseline}, paired, {percent}"
                row[name] = f"{ends[0]} [{ends[1]}, {ends[2]}]" if against and against.size else ""
            rows.append({name: f"{v:g}" if type(v) is float else str(v) for name, v in row.items()})
            rows[-1]["seeds"] = str(len(values))
        return pd.DataFrame(rows)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Chosen values at the edge of their lists, and cells with missing seeds, in a line each."""
        lines = []
        for cell in self.sweep.cells:
            for name, value in self.tuned(cell).items():
                numbers = [x for x in self.sweep.tuned[name] if isinstance(x, int | float)]
                if len(numbers) > 1 and value in (min(numbers), max(numbers)):
                    lines.append(f"{cell}: {name} = {value:g} ends its list; a better one may lie beyond")
            if missing := [seed for seed in self.sweep.seeds if seed not in self.values(cell)]:
                lines.append(f"{cell}: without seeds {missing}, whose runs failed")
        return tuple(lines)

    def markdown(self) -> str:
        """The table as GitHub reads it."""
        lines = [[*self.table.columns], ["---"] * len(self.table.columns), *self.table.to_numpy().tolist()]
        cells = [[str(entry).replace("|", "\\|") for entry in line] for line in lines]
        return "".join(f"| {' | '.join(line)} |\n" for line in cells)

    def write(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Write tables, results, evaluations and the picture into the sweep's directory.

        Args:
            kept: of each run, by digest.
        """
        results = {
            "cells": {
                str(cell): {
                    "tuned": self.tuned(cell),
                    "values": self.values(cell),
                    "mean": self.interval(cell)._asdict(),
                    "against_baseline": (one := self.against_baseline(cell)) and one._asdict(),
                }
                for cell in self.sweep.cells
            },
            **{"warnings": self.warnings, "failures": self.failures, "privacy": privacy_together(self.sweep)},
        }
        evaluations = pd.DataFrame(
            [{"run": digest, **row} for digest, one in kept.items() for row in one["metrics"]]
        )
        rows, picture = io.BytesIO(), self.picture()
        if kept:
            self.runs.drop(columns="value").merge(evaluations, on="run").to_parquet(rows, index=False)
        for name, content in {
            "table.md": self.markdown().encode(),
            "table.tex": b"% needs \\usepackage{booktabs}\n"
            + self.table.to_latex(index=False, escape=True).encode(),
            "results.json": (json.dumps(results, indent=1) + "\n").encode(),
            "runs.parquet": rows.getvalue(),
            "comparison.png": picture,
        }.items():
            if content:
                write_durably(self.path / name, content)

    def picture(self) -> bytes:
        """Means and intervals of all cells along the first key of the grid, or of the variants, as PNG.

        Empty where matplotlib (the extra ``report``) is not installed.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            return b""
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes, lines = figure.subplots(), dict[str, list[Cell]]()
        for cell in self.sweep.cells:
            lines.setdefault(
                ", ".join(filter(None, (cell.variant, described(dict(cell.point[1:]))))), []
            ).append(cell)
        for at, (name, cells) in enumerate(lines.items()):
            means, scale = [self.interval(cell) for cell in cells], self.metric.scale
            xs = [(at if len(cells) == 1 else i) + 0.03 * at for i in range(len(cells))]
            reach = [scale * (one.high - one.estimate) if one.size > 1 else 0.0 for one in means]
            style = {"color": _COLOURS[at % 7], "marker": "osD^vPX*"[at % 8], "capsize": 3, "label": name}
            axes.errorbar(xs, [scale * one.estimate for one in means], yerr=reach, **style)
        ticks = next(iter(self.sweep.grid.values()), lines)
        axes.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
        axes.set_xlabel(next(iter(self.sweep.grid), "variant"))
        axes.set_ylabel(f"{self.metric.label}, {100 * self.sweep.confidence:g} % intervals")
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
        figure.savefig(buffer := io.BytesIO(), format="png", dpi=130)
        return buffer.getvalue()


def privacy_together(sweep: Sweep) -> str:
    """What all runs cost one user, by Gaussian composition of the most that each may promise."""
    runs = [[one for one in run if isinstance(one, UserLevel)] for run in sweep.promises]
    noised = [run for run, asked in zip(runs, sweep.promises, strict=True) if len(run) == len(asked)]
    if len(noised) < len(runs):
        return f"none: {len(runs) - len(noised)} of {len(runs)} runs add no noise."
    if any(one.amplified for run in noised for one in run):
        return f"the epsilons and deltas of the {len(runs)} runs add up, as some are amplified."
    delta = min(one.delta for run in noised for one in run)
    mu = math.hypot(*(1 / min(gaussian_sigma(one.epsilon, one.delta) for one in run) for run in noised))
    epsilon = gaussian_epsilon((1 - 1e-9) / mu, delta)
    text = f"({at_least(epsilon)}, {at_least(delta)}) for all {len(runs)} runs"
    if any(one.noise_seed is not None for run in noised for one in run):
        text += " with secret keys; their noise comes from public seeds, which protects nobody"
    return f"{text}."
