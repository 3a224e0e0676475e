"""The points of the figures as they are committed: what was chosen for each, its runs, and
verdicts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogue import FIGURES
from figures import BEST, LEAST, Cell, Claim, Figure

__all__ = ["Finding", "Points", "Spot", "interval", "read_points", "write_points"]

#: Panel, line and place of a point.
Spot = tuple[str, str, str]


@dataclass(frozen=True)
class Point:
    """One point of a figure.

    Args:
        panel, line, place: which.
        params: of its mechanism that a search found.
        noise_std: of the noise, per unit clip norm.
        errors: RMSE and MaxSE of prefix sums, per unit clip norm.
        rate: learning rate that was chosen.
        tried: mean (y, loss) on the tuning seeds by rate, smaller being better; None for what is
            not finite.
        accuracy: in percent, by reported seed.
        loss: by reported seed.
    """

    panel: str
    line: str
    place: str
    params: Mapping[str, float]
    noise_std: float
    errors: Sequence[float]
    rate: float
    tried: Mapping[str, Sequence[float | None]]
    accuracy: Sequence[float]
    loss: Sequence[float | None]

    @property
    def spot(self) -> Spot:
        """Which point."""
        return self.panel, self.line, self.place

    @property
    def grid(self) -> list[float]:
        """The rates that were tried."""
        return sorted(map(float, self.tried))


@dataclass(frozen=True)
class Finding:
    """A claim of a paper beside the reported runs.

    Args:
        sentence: of the paper, which is tested.
        says: who is ahead of whom, where.
        estimate: mean difference paired by seed, in the better direction: percentage points, or
            nats.
        low, high: 95 % Student interval.
        within: of a claim that both are equal, see `Claim`.
    """

    sentence: str
    says: str
    estimate: float
    low: float
    high: float
    within: float = 0.0

    @property
    def outcome(self) -> str:
        """What the interval says: "agrees", "against", or "tie" where it decides nothing."""
        if self.within:
            apart = self.low > self.within or self.high < -self.within
            return (
                "against"
                if apart
                else "agrees"
                if max(-self.low, self.high) <= self.within
                else "tie"
            )
        return "agrees" if self.low > 0 else "against" if self.high < 0 else "tie"


class Points:
    """The points of a figure.

    Args:
        figure: which.
        found: see `Point`.
        runs: how many there were, tuning included.
        seconds: of a processor, of all of them.
    """

    def __init__(self, figure: Figure, found: Sequence[Point], runs: int, seconds: float) -> None:
        self.figure = figure
        self.runs = runs
        self.seconds = seconds
        self.found = {point.spot: point for point in found}

    def values(self, spot: Spot) -> list[float]:
        """y by reported seed; an infinite loss where it is not finite."""
        point = self.found[spot]
        if self.figure.y == "accuracy":
            return list(point.accuracy)
        return [math.inf if loss is None else loss for loss in point.loss]

    def gain(self, spot: Spot, over: Spot) -> tuple[float, float, float]:
        """By how much a point is better: mean and 95 % Student interval of the paired
        differences.
        """
        sign = 1.0 if self.figure.y == "accuracy" else -1.0
        mine = self.values(spot)
        theirs = self.values(over)
        return interval([sign * (a - b) for a, b in zip(mine, theirs, strict=True)])

    def findings(self) -> list[Finding]:
        """What became of the figure's claims."""
        return [finding for claim in self.figure.claims for finding in self._of_claim(claim)]

    def _of_claim(self, claim: Claim) -> Iterator[Finding]:
        figure = self.figure
        pairs: dict[tuple[str, str], list[Spot]] = {}
        for panel, line, place in self.found:
            if (
                panel.startswith(claim.panel)
                and claim.ahead in ("", line)
                and claim.place in ("", BEST, place)
            ):
                pairs.setdefault((panel, line), []).append((panel, line, place))
        for (panel, line), spots in pairs.items():
            if claim.place == BEST:
                others = [spot for spot in spots if spot[2] != figure.baseline]
                best = min(others, key=lambda spot: self._tuned(spot))
                if claim.over == LEAST:
                    yield self._order(
                        claim, best, min(spots, key=lambda spot: self.found[spot].errors[0])
                    )
                    continue
                says = f"{panel}, {line}: best {figure.x} = {best[2]} over {figure.baseline}"
                yield Finding(
                    claim.sentence, says, *self.gain(best, (panel, line, figure.baseline))
                )
                continue
            over = claim.over or figure.baseline
            for spot in spots:
                says = f"{panel}, {figure.x} = {spot[2]}: {line} over {over}"
                gain = self.gain(spot, (panel, over, spot[2]))
                yield Finding(claim.sentence, says, *gain, claim.within)

    def _order(self, claim: Claim, best: Spot, least: Spot) -> Finding:
        """How much better the best place is than that of least RMSE; counted negative if it is the
        larger.
        """
        says = (
            f"{best[0]}, {best[1]}: best {self.figure.x} = {best[2]} over {least[2]}, of least RMSE"
        )
        gain, low, high = self.gain(best, least)
        if float(best[2]) > float(least[2]):
            return Finding(claim.sentence, says, -gain, -high, -low)
        return Finding(claim.sentence, says, gain, low, high)

    def _tuned(self, spot: Spot) -> tuple[float, float]:
        """Mean (y, loss) on the tuning seeds at the chosen rate, smaller being better."""
        point = self.found[spot]
        y, loss = (math.inf if value is None else value for value in point.tried[f"{point.rate:g}"])
        return y, loss


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % Student interval."""
    from scipy import stats

    mean = statistics.fmean(differences)
    if len(differences) < 2 or not math.isfinite(mean):
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * statistics.stdev(differences)
    half /= len(differences) ** 0.5
    return mean, mean - half, mean + half


def read_points(path: Path) -> dict[str, Points]:
    """The figures of a file, by name."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, Points] = {}
    for name, figure in FIGURES.items():
        entry = kept.get(name)
        if entry is not None:
            made = [Point(**point) for point in entry["points"]]
            found[name] = Points(figure, made, entry["runs"], entry["seconds"])
    return found


def write_points(path: Path, figure: Figure, form_name: str, cells: Any) -> None:
    """Put a figure's points into the file, from finished runs; other figures stay."""
    from cells import errors_of
    from comparison import best_rate, tried

    form = figure.form(form_name)
    made = []
    for spot in form.spots():
        scores = tried(figure, form_name, cells, spot)
        rate = best_rate(figure, form_name, cells, spot) if scores else form.rates[0]
        runs = [
            cells.found[Cell(figure.name, form_name, *spot, rate, seed)]
            for seed in range(form.seeds)
        ]
        params, noise_std, errors = errors_of(cells, Cell(figure.name, form_name, *spot, rate, 0))
        made.append(
            Point(
                *spot,
                params,
                noise_std,
                errors,
                rate,
                {f"{r:g}": [_finite(y), _finite(loss)] for r, (y, loss) in scores.items()},
                [run["accuracy"] for run in runs],
                [run["loss"] for run in runs],
            )
        )
    mine = [
        value
        for cell, value in cells.found.items()
        if (cell.figure, cell.form) == (figure.name, form_name)
    ]
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept[figure.name] = {
        "runs": len(mine),
        "seconds": round(sum(value["seconds"] for value in mine), 1),
        "points": [dataclasses.asdict(point) for point in made],
    }
    ordered = {name: kept[name] for name in FIGURES if name in kept}
    lines = [
        f' {json.dumps(name)}: {{"runs": {entry["runs"]}, "seconds": {entry["seconds"]},'
        ' "points": [\n'
        + ",\n".join(f"  {json.dumps(point, ensure_ascii=False)}" for point in entry["points"])
        + "\n ]}"
        for name, entry in ordered.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _finite(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None
