"""What a training figure of a paper is: the runs behind it, at the paper's size and reduced to
minutes.

A run is a configuration: the keys of a form, of a place on the x axis, of a panel, the learning
rate, the keys of a line and the seeds together; later ones override earlier ones. SGD has no
momentum unless one says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from fedmf import Run

__all__ = ["BEST", "LEAST", "Cell", "Claim", "Figure", "Form", "Keys", "Line"]

#: Dotted configuration keys.
Keys = Mapping[str, object]


@dataclass(frozen=True)
class Line:
    """A line of a figure.

    Args:
        keys: of all its runs.
        at: of those at one place on the x axis, by its label, where they differ.
        trained: final loss and metrics of a run where not fedmf's own loop trains it.
    """

    keys: Keys = field(default_factory=dict)
    at: Mapping[str, Keys] = field(default_factory=dict)
    trained: Callable[[Run], Mapping[str, float]] | None = None


#: As a place: the one that is best on the tuning seeds, the baseline's left out.
BEST: Final = "best"
#: As what a claim is over: the place of least RMSE; the best place is claimed to be a smaller one.
LEAST: Final = "least RMSE"


@dataclass(frozen=True)
class Claim:
    """Who is ahead according to a sentence of a paper: what a verdict is about.

    Args:
        sentence: of the paper, which it tests.
        ahead: a line; empty for every line.
        over: the line that is behind; empty for the figure's baseline, or for the same line at the
            place of the baseline if places are compared, or `LEAST`.
        panel: how the panels begin that it is about.
        place: one place, or `BEST` for the best one; empty for every place.
        within: if two lines are claimed to be equal, the largest difference that counts as none;
            else 0.
    """

    sentence: str
    ahead: str = ""
    over: str = ""
    panel: str = ""
    place: str = ""
    within: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One run: figure and form by name, then what it is in the figure."""

    figure: str
    form: str
    panel: str
    line: str
    place: str
    rate: float
    seed: int


@dataclass(frozen=True)
class Form:
    """A figure at one size.

    Args:
        keys: of all runs.
        panels: pictures side by side.
        lines: what is compared in each of them.
        places: of the x axis.
        rates: server learning rates to choose from, and beyond them by factors of 2; one is not
            chosen.
        seeds: of the final runs: 0 up to this.
        tuning_seeds: on which rates are chosen; no final seeds.
        tuning: keys of the runs that choose rates, where those have other data.
    """

    keys: Keys
    panels: Mapping[str, Keys]
    lines: Mapping[str, Line]
    places: Mapping[str, Keys]
    rates: tuple[float, ...]
    seeds: int = 20
    tuning_seeds: tuple[int, ...] = (1000, 1001, 1002, 1003)
    tuning: Keys = field(default_factory=dict)

    def spots(self) -> Iterator[tuple[str, str, str]]:
        """(panel, line, place) of every point of the figure."""
        for panel in self.panels:
            for line in self.lines:
                for place in self.places:
                    yield panel, line, place

    def configuration(self, cell: Cell) -> dict[str, object]:
        """The dotted keys of one run."""
        line = self.lines[cell.line]
        keys: dict[str, object] = {
            **self.keys,
            **self.places[cell.place],
            **self.panels[cell.panel],
            "server.learning-rate": cell.rate,
            **line.keys,
            **line.at.get(cell.place, {}),
            **(self.tuning if cell.seed in self.tuning_seeds else {}),
            "privacy.noise-seed": cell.seed,
        }
        keys["task.seed" if "task.function" in keys else "data.seed"] = cell.seed
        if keys.setdefault("server.kind", "sgd") == "sgd":
            keys.setdefault("server.momentum", 0.0)
        return keys


@dataclass(frozen=True)
class Figure:
    """A training figure of a paper.

    Args:
        name: for the command line.
        paper: which one.
        item: which figure or table of it.
        shows: what is compared.
        full: at the paper's size, as far as its text gives it.
        reduced: on data that every machine has, in minutes.
        x: what the places are.
        y: what is measured: "accuracy" (larger is better) or "loss" (smaller is better).
        baseline: the line that the others are compared with, or the place if ``by_place``.
        by_place: whether places are compared with one another, as λ with 0, rather than lines.
        claims: of the paper, which the reduced form is compared with.
        published: the paper's values by beginning of a panel and by line, and a sentence on their
            setting.
    """

    name: str
    paper: str
    item: str
    shows: str
    full: Form
    reduced: Form
    x: str
    baseline: str
    by_place: bool = False
    y: Literal["accuracy", "loss"] = "accuracy"
    claims: tuple[Claim, ...] = ()
    published: tuple[Mapping[str, Mapping[str, str]], str] = field(default=({}, ""))

    def form(self, name: str) -> Form:
        """By name: "full" or "reduced"."""
        return {"full": self.full, "reduced": self.reduced}[name]

    def base_of(self, spot: tuple[str, str, str]) -> tuple[str, str, str]:
        """The point that one is compared with."""
        panel, line, place = spot
        return (panel, line, self.baseline) if self.by_place else (panel, self.baseline, place)
