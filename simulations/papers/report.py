"""Pages and pictures of the figures from the committed points."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from points import Points, Spot, interval

from fedmf.figures import new_figure, style

# After this folder: it has modules of the same names.
sys.path.append(str(Path(__file__).resolve().parents[1] / "design"))
from style import look

__all__ = ["page", "write_pages"]

_AXES = {
    "ε": "privacy loss ε",
    "λ": "correlation λ",
    "γ": "exponent γ",
    "RMSE": "RMSE of prefix sums",
}
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
    figure = points.figure
    unit = "%" if points.figure.y == "accuracy" else "nats"
    seeds = len(next(iter(points.found.values())).accuracy)
    form = figure.reduced
    tuning = "other data" if form.tuning else f"{len(form.tuning_seeds)} other seeds"
    digits = 2 if unit == "%" else 3
    base = f"{figure.x + ' = ' if figure.by_place else ''}{figure.baseline}"
    lines = [
        f"# {figure.paper}, {figure.item}: {figure.shows}",
        "",
        f"`python simulations/papers/run.py {figure.name} --reduced`",
        "",
        f"{figure.y.capitalize()} ({unit}) after the last round: mean of {seeds} seeds, and gain",
        f"over {base}, paired, with 95 % intervals. Tuning of η: {tuning}, best inside the grid.",
        f"{points.runs:,} runs in {points.seconds:,.0f} s of a processor.",
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
        told = (
            f"{finding.estimate:+.{digits}f} [{finding.low:+.{digits}f},"
            f" {finding.high:+.{digits}f}]"
        )
        sentence = "" if finding.sentence == before else finding.sentence
        before = finding.sentence
        lines.append(f"| {sentence} | {finding.says} | {told} | {_WORDS[finding.outcome]} |")
    published, setting = figure.published
    lines += ["", setting] if setting else []
    places = list(dict.fromkeys(spot[2] for spot in points.found))
    heads = ["setting", "line", *(f"{figure.x} = {place}" for place in places), "η", "RMSE"]
    heads += ["paper"] * bool(published)
    lines += ["", f"## {figure.y.capitalize()} and gain", ""]
    if any(point.params for point in points.found.values()):
        lines += ["In parentheses: the parameter of least RMSE for each column.", ""]
    lines.append(f"| {' | '.join(heads)} |")
    lines.append("|---" * len(heads) + "|")
    before = ""
    for panel, line in dict.fromkeys(spot[:2] for spot in points.found):
        spots = {
            place: (panel, line, place) for place in places if (panel, line, place) in points.found
        }
        found = [points.found[spot] for spot in spots.values()]
        told = {place: _cell(points, spot, digits) for place, spot in spots.items()}
        params = ", ".join(f"{value:.3g}" for point in found for value in point.params.values())
        entries = ["" if panel == before else panel, line + f" ({params})" * bool(params)]
        entries += [told.get(place, "") for place in places]
        entries.append(", ".join(f"{point.rate:g}" for point in found))
        entries.append(", ".join(f"{point.errors[0]:.2f}" for point in found))
        if published:
            theirs = next((published[start] for start in published if panel.startswith(start)), {})
            entries.append(theirs.get(line, ""))
        lines.append(f"| {' | '.join(entries)} |")
        before = panel
    return "\n".join(lines) + "\n"


def _cell(points: Points, spot: Spot, digits: int) -> str:
    """The mean of a point and its gain over the point that it is compared with."""
    mean = f"{statistics.fmean(points.values(spot)):.{digits}f}"
    reference = points.figure.base_of(spot)
    if spot == reference or reference not in points.found:
        return mean
    gain, low, high = points.gain(spot, reference)
    return f"{mean}, {gain:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def draw(points: Points, path: Path) -> None:
    """One panel a setting, one line a method, bars of the interval of the mean; places evenly
    spaced.
    """
    figure = points.figure
    panels = list(dict.fromkeys(spot[0] for spot in points.found))
    names, places = (list(dict.fromkeys(spot[at] for spot in points.found)) for at in (1, 2))
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    picture = new_figure(3.5 * columns + 1.5 * (columns == 1), 3 * rows + 0.6)
    for axes, panel in zip(
        picture.subplots(rows, columns, squeeze=False).flat, panels, strict=True
    ):
        for at, line in enumerate(names):
            spots = [spot for spot in points.found if spot[:2] == (panel, line)]
            aside = 0.05 * (at - (len(names) - 1) / 2)
            seen = look(line, at)
            xs = [places.index(spot[2]) + aside for spot in spots]
            ends = [interval(points.values(spot)) for spot in spots]
            means = [mean for mean, _, _ in ends]
            bars = [[mean - low for mean, low, _ in ends], [high - mean for mean, _, high in ends]]
            plain = {"marker": seen.marker, "markersize": 5, "capsize": 2, "label": line}
            axes.errorbar(xs, means, bars, color=seen.color, **plain)
        style(axes, xlabel=_AXES.get(figure.x, figure.x))
        axes.set_title(panel if len(names) > 1 else f"{panel}, {names[0]}", fontsize=11)
        axes.set_xticks(range(len(places)), places)
    for axes in picture.axes[::columns]:
        axes.set_ylabel("test accuracy (%)" if figure.y == "accuracy" else "test loss (nats)")
    if len(names) > 1:
        known = picture.axes[0].get_legend_handles_labels()
        picture.legend(*known, loc="outside lower center", ncols=3, frameon=False)
    picture.savefig(path, dpi=150)
