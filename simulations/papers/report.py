"""Pages and pictures of the figures from the committed points."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from points import Points

__all__ = ["page", "write_pages"]

_WORDS = {"agrees": "agrees", "tie": "undecided", "against": "against the paper"}


def write_pages(found: Mapping[str, Points], output: Path, names: Sequence[str]) -> None:
    """A page and a picture of each of these figures of which there are points."""
    output.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in found:
            (output / f"{name}.md").write_text(page(found[name], name), encoding="utf-8")
            draw(found[name], output / f"{name}.png")
            print(output / f"{name}.md")


def page(points: Points, stem: str) -> str:
    """Verdict and tables of a figure."""
    figure, unit = points.figure, "%" if points.figure.y == "accuracy" else "nats"
    first, tuning = next(iter(points.found.values())), len(figure.reduced.tuning_seeds)
    digits = 2 if unit == "%" else 3
    base = f"{figure.x + ' = ' if figure.by_place else ''}{figure.baseline}"
    lines = [
        f"# {figure.paper}, {figure.item}: {figure.shows}",
        "",
        f"`python simulations/papers/run.py {figure.name} --reduced`",
        "",
        f"{figure.y.capitalize()} ({unit}) after the last round: mean of {len(first.accuracy)} seeds",
        f"(range), and gain over {base}, paired by seed, with 95 % Student interval, from which",
        f"verdicts follow. η was tuned on {tuning} other seeds, in a grid that was extended until the best",
        "lies inside.",
        f"{points.runs:,} runs in {points.seconds:,.0f} s of a processor, choosing η included.",
        "",
        f"![{figure.shows}]({stem}.png)",
        "",
        "## Sentences of the paper that are tested",
        "",
        f"| sentence | here | difference ({'points' if unit == '%' else unit}) | verdict |",
        "|---|---|---|---|",
    ]
    before = ""
    for finding in points.findings():
        told = f"{finding.estimate:+.{digits}f} [{finding.low:+.{digits}f}, {finding.high:+.{digits}f}]"
        sentence, before = "" if finding.sentence == before else finding.sentence, finding.sentence
        lines.append(f"| {sentence} | {finding.says} | {told} | {_WORDS[finding.outcome]} |")
    for panel in dict.fromkeys(spot[0] for spot in points.found):
        lines += [
            "",
            f"## {panel}",
            "",
            f"| line | {figure.x} | {figure.y} | gain | η | tried | noise, RMSE |",
            "|---|---|---|---|---|---|---|",
        ]
        for spot, point in points.found.items():
            if spot[0] != panel:
                continue
            values, reference = points.values(spot), figure.base_of(spot)
            gain = ""
            if spot != reference and reference in points.found:
                mean, low, high = points.gain(spot, reference)
                gain = f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
            grid = point.grid or [point.rate]
            more = "".join(f", {name} {value:g}" for name, value in point.params.items())
            lines.append(
                f"| {spot[1]}{more} | {spot[2]} | {statistics.fmean(values):.{digits}f} "
                f"({min(values):.{digits}f} to {max(values):.{digits}f}) | {gain} | {point.rate:g} | "
                f"{grid[0]:g} to {grid[-1]:g} | {point.noise_std:.2f}, {point.errors[0]:.2f} |"
            )
    return "\n".join(lines) + "\n"


def draw(points: Points, path: Path) -> None:
    """One panel a setting, one line a method, bars of the interval of the mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture
    from points import interval

    figure = points.figure
    panels = list(dict.fromkeys(spot[0] for spot in points.found))
    picture = Picture(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    FigureCanvasAgg(picture)
    single = len({spot[2] for spot in points.found}) == 1
    for axes, panel in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        names = list(dict.fromkeys(spot[1] for spot in points.found if spot[0] == panel))
        for at, line in enumerate(names):
            spots = [spot for spot in points.found if spot[:2] == (panel, line)]
            xs = [float(at)] if single else [float(spot[2]) for spot in spots]
            ends = [interval(points.values(spot)) for spot in spots]
            means = [mean for mean, _, _ in ends]
            bars = [[mean - low for mean, low, _ in ends], [high - mean for mean, _, high in ends]]
            style = {"marker": "os^Dv*P<>X"[at % 10], "color": f"C{at}", "label": line}
            axes.errorbar(xs, means, bars, markersize=4, capsize=2, **style)
        if single:
            axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
        elif figure.x in ("ε", "RMSE"):
            axes.set_xscale("log")
        axes.set(title=panel, xlabel="" if single else figure.x)
        axes.grid(alpha=0.3)
        if not single:
            axes.legend(fontsize=7)
    picture.axes[0].set_ylabel("test accuracy (%)" if figure.y == "accuracy" else "test loss (nats)")
    picture.savefig(path, dpi=110)
