"""Pages and pictures of the figures whose runs are there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from catalogue import FIGURES
from cells import Cells, errors_of
from comparison import Spot, rates
from figures import Cell, Figure
from scipy import stats

__all__ = ["write_pages"]


class Points:
    """The final runs of one figure at one size."""

    def __init__(self, figure: Figure, form: str, cells: Cells) -> None:
        self.figure, self.form = figure, form
        self.source = FIGURES[figure.runs_of or figure.name]
        self.rates = rates(self.source, form, cells)
        self.values: dict[Spot, dict[int, float]] = {}
        for spot in self.rates:
            found = {seed: cells.found.get(self.cell(spot, seed)) for seed in range(50)}
            values = {
                s: value[figure.y] for s, value in found.items() if value is not None and figure.y in value
            }
            if values:
                self.values[spot] = values
        self.refused = sorted(
            {
                value["refused"]
                for cell, value in cells.found.items()
                if (cell.figure, cell.form) == (self.source.name, form) and "refused" in value
            }
        )
        self.seconds = sum(
            value["seconds"]
            for cell, value in cells.found.items()
            if (cell.figure, cell.form) == (self.source.name, form)
        )

    def cell(self, spot: Spot, seed: int) -> Cell:
        """A final run."""
        return Cell(self.source.name, self.form, *spot, self.rates[spot], seed)

    def gain(self, spot: Spot) -> str:
        """Mean paired difference to the baseline by seed with its 95 % Student interval."""
        base = self.figure.base_of(spot)
        if spot == base or base not in self.values:
            return ""
        mine, theirs = self.values[spot], self.values[base]
        return interval([mine[seed] - theirs[seed] for seed in mine.keys() & theirs.keys()])


def interval(differences: Sequence[float]) -> str:
    """Mean and 95 % Student interval."""
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return f"{mean:+.2f}"
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * statistics.stdev(differences)
    half /= len(differences) ** 0.5
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def write_pages(cells: Cells, output: Path, names: Sequence[str]) -> None:
    """A page and a picture of each of these figures, at each size of which there are runs."""
    output.mkdir(parents=True, exist_ok=True)
    for name in names:
        for form in ("reduced", "full"):
            points = Points(FIGURES[name], form, cells)
            if points.values:
                stem = name if form == "reduced" else f"{name}-full"
                (output / f"{stem}.md").write_text(page(points, stem), encoding="utf-8")
                draw(points, output / f"{stem}.png")
                print(output / f"{stem}.md")


def page(points: Points, stem: str) -> str:
    """The table of a figure."""
    figure = points.figure
    seeds = max(len(values) for values in points.values.values())
    unit = "%" if figure.y == "accuracy" else "nats"
    lines = [
        f"# {figure.paper}, {figure.item}: {figure.shows}",
        "",
        f"`python simulations/papers/run.py {figure.name} --{points.form}`",
        "",
        f"The {figure.y} ({unit}) after the last round, mean of {seeds} seeds (lowest to highest), and its",
        f"gain over {figure.x + ' = ' if figure.by_place else ''}{figure.baseline},",
        "paired by seed, with its 95 % Student interval; η was chosen on other seeds.",
        f"{points.seconds:,.0f} s of processes of one thread, choosing η included.",
        "",
        f"![{figure.shows}]({stem}.png)",
    ]
    for panel in dict.fromkeys(spot[0] for spot in points.values):
        lines += [
            "",
            f"## {panel}",
            "",
            f"| line | {figure.x} | {figure.y} | gain | η |",
            "|---|---|---|---|---|",
        ]
        for spot, values in points.values.items():
            if spot[0] == panel:
                low, high = min(values.values()), max(values.values())
                mean = statistics.mean(values.values())
                lines.append(
                    f"| {spot[1]} | {spot[2]} | {mean:.2f} ({low:.2f} to {high:.2f}) | {points.gain(spot)} | "
                    f"{points.rates[spot]:g} |"
                )
    if points.refused:
        lines += ["", "Refused:", *(f"* {reason}" for reason in points.refused)]
    return "\n".join(lines) + "\n"


def place(points: Points, spot: Spot, error: int | None) -> float:
    """Where a point stands on the x axis: at its place, or at an error of its mechanism."""
    return float(spot[2]) if error is None else errors_of(points.cell(spot, 0))[error]


def draw(points: Points, path: Path) -> None:
    """One panel a setting, one line a method, bars from lowest to highest seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    figure = points.figure
    panels = list(dict.fromkeys(spot[0] for spot in points.values))
    picture = Picture(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    FigureCanvasAgg(picture)
    error = {"bandmf-fig3": 0, "bandmf-fig9": 1}.get(figure.name)
    single = error is None and len({spot[2] for spot in points.values}) == 1
    for axes, panel in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        names = list(dict.fromkeys(spot[1] for spot in points.values if spot[0] == panel))
        for at, line in enumerate(names):
            spots = [spot for spot in points.values if spot[:2] == (panel, line)]
            xs = [float(at)] if single else [place(points, spot, error) for spot in spots]
            values = [points.values[spot].values() for spot in spots]
            means = [statistics.mean(value) for value in values]
            bars = [
                [mean - min(value) for mean, value in zip(means, values, strict=True)],
                [max(value) - mean for mean, value in zip(means, values, strict=True)],
            ]
            axes.errorbar(
                xs,
                means,
                bars,
                marker="os^Dv*P<>X"[at % 10],
                markersize=4,
                capsize=2,
                label=line,
                color=f"C{at}",
            )
        if single:
            axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
        elif figure.x == "ε" or error is not None:
            axes.set_xscale("log")
        labels = {None: figure.x, 0: "RMSE of prefix sums, per ζ", 1: "MaxSE of prefix sums, per ζ"}
        axes.set(title=panel, xlabel="" if single else labels[error])
        axes.grid(alpha=0.3)
        if not single:
            axes.legend(fontsize=7)
    picture.axes[0].set_ylabel("test accuracy (%)" if figure.y == "accuracy" else "test loss (nats)")
    picture.savefig(path, dpi=110)
