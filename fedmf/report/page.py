"""Reports on one or several runs as a page that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from fedmf.accounting import Fault, Verdict, at_most
from fedmf.errors import ConfigError
from fedmf.report.lines import COLOURS, DASHES, CellMap, LineChart, Series, correlation_map, participation_map
from fedmf.report.reading import RunFigures
from fedmf.report.template import TEMPLATE
from fedmf.runs import PHASES
from fedmf.statements import Document, run_document, up
from fedmf.version import SOFTWARE

_MOST_CHARACTERS: Final = 80
#: Where a run is kept and how fast it is carried out tells nothing about what it computes.
_PLACE: Final = ("execution.output_dir", "execution.resume")


@dataclass(frozen=True)
class Row:
    """One figure of every run.

    Attributes:
        name: what it is.
        values: as text, in the order of the runs.
        private: False for what is the operator's alone.
    """

    name: str
    values: tuple[str, ...]
    private: bool = True


def is_private(column: str) -> bool:
    """Whether a column of a metrics table is covered by a run's ε, or about data of nobody in the run."""
    return "_not_private" not in column


def drawn_columns(runs: Sequence[RunFigures]) -> list[str]:
    """All columns of their metrics, but for the standard deviations of private estimates beside these."""
    columns = dict.fromkeys(column for run in runs for column in run.metrics)
    return [
        column
        for column in columns
        if not (column.endswith("_private_std") and column.removesuffix("_std") in columns)
    ]


def figures_of(runs: Sequence[RunFigures], statements: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Privacy, noise and last metrics, as `fedmf account` prints them.

    Args:
        runs: what was read.
        statements: of the same runs, those of the operator or those that may be public.
    """

    def row(name: str, value: Any, private: bool = True) -> Row:
        return Row(name, tuple(map(value, statements)), private)

    rows = [
        row("epsilon planned", lambda s: up(s["epsilon_planned"])),
        row("delta", lambda s: up(s["delta"])),
        row("unit, adjacency", lambda s: f"{s['unit']}, {s['adjacency']}"),
        row("mechanism", lambda s: s["mechanism"]),
        row("rounds released", lambda s: f"{s['rounds_released']} of {s['rounds']}"),
        row("participations, separation", lambda s: f"{s['max_participations']}, {s['min_separation']}"),
        row("cohort", lambda s: f"{s['cohort_size']} of {s['users']}"),
        row("clip norm", lambda s: up(s["clip_norm"])),
        row("noise multiplier", lambda s: at_most(s["noise_multiplier"])),
        row("sensitivity", lambda s: f"{up(s['sensitivity'])} ({s['sensitivity_kind'].replace('_', ' ')})"),
    ]
    if all("epsilon_realised" in s for s in statements):
        rows.insert(1, row("epsilon realised, worst", lambda s: up(s["epsilon_realised"]), False))
        half = "epsilon realised, half at most"
        rows.insert(2, row(half, lambda s: up(s["epsilon_realised_quantiles"]["0.5"]), False))
    return rows + [
        Row(f"last {column}", tuple(_last(run.metrics.get(column)) for run in runs), is_private(column))
        for column in drawn_columns(runs)
    ]


def different_settings(runs: Sequence[RunFigures]) -> list[Row]:
    """The settings that are not the same in all runs."""
    names = sorted({name for run in runs for name in run.settings if name not in _PLACE})
    rows = [Row(name, tuple(_short(run.settings.get(name, "–")) for run in runs)) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]


def incomparable(statements: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps the ε of several runs from being compared or added up at sight."""
    if len(statements) == 1:
        return []
    texts = [
        "Each run has its own epsilon. On the same users they add up; copies of one run that both went on "
        "are accounted for by fedmf account with all their directories."
    ]
    names = {"unit": "units", "adjacency": "adjacencies", "delta": "deltas"}
    differ = [many for name, many in names.items() if len({s[name] for s in statements}) > 1]
    if differ:
        texts.append(f"The runs have different {' and '.join(differ)}: their epsilons cannot be compared.")
    return texts


def _last(points: Sequence[tuple[int, float]] | None) -> str:
    if not points:
        return "–"
    t, value = points[-1]
    return f"{value:.4g} after round {t}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


#: More columns of metrics are not drawn; the table has them all.
_MOST_CHARTS: Final = 24
_POINTS: Final = 120


@dataclass(frozen=True)
class _Described:
    name: str
    document: Document


def render_report(runs: Sequence[RunFigures], public: bool = False) -> str:
    """One page about runs: statements, curves, noise, and a table where there are several.

    Args:
        runs: one or more, as `read_run` gives them.
        public: leave out all that is not private: realised ε, who took part when, and what the settings say
            of places; and what no record vouches for: metrics, and the names of directories.

    Raises:
        ConfigError: there is no run.

    Guarantees:
        The page loads nothing and runs nothing, whatever strings runs hold: they are escaped. Of two runs
        that differ in participation alone, after as many rounds and with the same metrics, the public page is
        the same.
    """
    from jinja2 import Environment, StrictUndefined

    if not runs:
        raise ConfigError("runs (of a report) must be at least one; got none.")
    if public:
        for run in runs:
            _verdict(run).require_whole(run.name, "published in a report")
        runs = [_authenticated(run, at, len(runs)) for at, run in enumerate(runs, start=1)]
    said = [run.statement.public() if public else run.statement.to_dict() for run in runs]
    names = _distinct([run.name for run in runs])
    sections: list[tuple[str, list[LineChart], list[CellMap]]] = [
        ("Learning curves", _learning(runs), []),
        ("Privacy spent", _spending(runs), []),
        ("Noise", _noise(runs), _correlations(names, runs)),
        ("Who took part", [], _participation(names, runs)),
        ("Time", _times(runs), []),
    ]
    compared = [("Figures", figures_of(runs, said))]
    if len(runs) > 1 and not public:
        compared.append(("What differs in the settings", different_settings(runs)))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(TEMPLATE).render(
        title=f"Report on {names[0] if len(names) == 1 else f'{len(names)} runs'}",
        operator=not public,
        names=names,
        runs=[_Described(name, run_document(s)) for name, s in zip(names, said, strict=True)],
        warnings=[*incomparable(said), *_without_curves(names, runs)],
        comparisons=[(heading, _shown(rows, public)) for heading, rows in compared if rows],
        sections=[
            (heading, _shown(charts, public), _shown(maps, public)) for heading, charts, maps in sections
        ],
        colours=COLOURS,
        dashes=DASHES,
        footer=f"Computed by {SOFTWARE} from the runs' {_kind(runs)}."
        if public
        else f"Computed by {SOFTWARE} from the runs' {_kind(runs)}; metrics from metrics.parquet, which "
        "is not part of the authenticated record.",
    )


def _verdict(run: RunFigures) -> Verdict:
    assert run.statement.verdict is not None  # `read_run` asks for it
    return run.statement.verdict


def _kind(runs: Sequence[RunFigures]) -> str:
    """What can be said of ledgers in a word."""
    if all(_verdict(run).whole for run in runs):
        return "ledgers, authenticated with their keys and whole as far as these copies know"
    if any(Fault.UNAUTHENTICATED in _verdict(run).found for run in runs):
        return "ledgers, not all of them authenticated (see above)"
    return "ledgers, authenticated and not all of them whole (see above)"


def _authenticated(run: RunFigures, at: int, total: int) -> RunFigures:
    """Whoever may write into the directory chooses its name, and names and values in metrics.parquet."""
    return replace(run, name="run" if total == 1 else f"run {at}", metrics={})


class _Marked(Protocol):
    @property
    def private(self) -> bool: ...


_Part = TypeVar("_Part", bound=_Marked)


def _shown(parts: Sequence[_Part], public: bool) -> list[_Part]:
    """What may be on the page."""
    return [part for part in parts if part.private or not public]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where several are the same."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: at + 1].count(name)})"
        for at, name in enumerate(names)
    ]


def _without_curves(names: Sequence[str], runs: Sequence[RunFigures]) -> list[str]:
    return [
        f"{name} went on from a backup: what the rounds after it cost is in its figures, and no curve of "
        "epsilon is drawn."
        for name, run in zip(names, runs, strict=True)
        if run.statement.lost
    ]


def _learning(runs: Sequence[RunFigures]) -> list[LineChart]:
    return [
        LineChart(
            column,
            "rounds released",
            [_metric(at, run, column) for at, run in enumerate(runs)],
            note=_meaning(column),
            private=is_private(column),
        )
        for column in drawn_columns(runs)[:_MOST_CHARTS]
        if any(run.metrics.get(column) for run in runs)
    ]


def _metric(at: int, run: RunFigures, column: str) -> Series:
    points = run.metrics.get(column, ())
    known = dict(run.metrics.get(f"{column}_std", ())) if column.endswith("_private") else {}
    return Series(at, points, tuple(known.get(t, 0.0) for t, _ in points) if known else ())


def _meaning(column: str) -> str:
    if not is_private(column):
        return "Computed without noise on examples of users of the run."
    if column.endswith("_private"):
        return "On users' own examples, with noise that epsilon counts; bars are its standard deviation."
    return ""


def _spending(runs: Sequence[RunFigures]) -> list[LineChart]:
    def series(kinds: Iterable[tuple[str, str]]) -> list[Series]:
        return [
            Series(at, _never_below(getattr(run.spent, xs), getattr(run.spent, ys)), kind=kind)
            for at, run in enumerate(runs)
            for kind, (xs, ys) in enumerate(kinds)
        ]

    amplified = any(run.spent.known for run in runs)
    charts = [
        LineChart(
            "ε planned: what the plan allows the worst user",
            "rounds released",
            series([("rounds", "planned"), *([("rounds", "known")] if amplified else [])]),
            ["cohorts secret", "cohorts known"] if amplified else [],
        ),
        LineChart(
            "ε realised: what recorded participation cost",
            "rounds released",
            series([("past", "worst"), ("past", "median")]),
            ["worst user", "half of all users at most"],
            "To an observer who knows in which rounds each user took part." if amplified else "",
            private=False,
        ),
    ]
    return [chart for chart in charts if chart.runs]


def _never_below(rounds: Sequence[int], epsilons: Sequence[float]) -> list[tuple[float, float]]:
    """Steps through what never decreases, so that between two rounds the line is at the later one's ε."""
    points = [*zip(map(float, rounds), epsilons, strict=False)]
    return points[:1] + [place for one, two in pairwise(points) for place in ((one[0], two[1]), two)]


def _noise(runs: Sequence[RunFigures]) -> list[LineChart]:
    notes: Mapping[str, tuple[str, str]] = {
        "mean": (
            "Noise in a round's mean update",
            "Standard deviation of a coordinate, before the server's optimizer.",
        ),
        "total": (
            "Noise in the sum of mean updates",
            "Standard deviation of a coordinate after so many rounds: what SGD of rate 1 would carry.",
        ),
        "signal": (
            "Signal to noise of a round, at best",
            "Length of a mean update over that of its noise, if every update of the planned cohort were as "
            "long as the clip norm and pointed the same way. The true ratio is private and not recorded.",
        ),
    }
    charts = [
        LineChart(
            title,
            "round",
            [Series(at, _thinned(getattr(run.noise, name))) for at, run in enumerate(runs)],
            note=note,
        )
        for name, (title, note) in notes.items()
    ]
    return [chart for chart in charts if chart.runs]


def _times(runs: Sequence[RunFigures]) -> list[LineChart]:
    """Seconds by phase, summed from the first round on: slopes are what a round costs."""
    charts = [
        LineChart(
            f"Seconds spent: {phase}",
            "rounds released",
            [Series(at, _summed(run, phase)) for at, run in enumerate(runs)],
            note=f"{meaning[:1].upper()}{meaning[1:]}. Summed; rounds of a killed process are missing.",
            private=False,
        )
        for phase, meaning in PHASES.items()
    ]
    return [chart for chart in charts if chart.runs]


def _summed(run: RunFigures, phase: str) -> list[tuple[float, float]]:
    known = [(t, phases[phase]) for t, phases in sorted(run.phases.items()) if phase in phases]
    total = np.cumsum([seconds for _, seconds in known])
    return [(known[at][0], float(total[at])) for at in _places(len(known))]


def _places(count: int) -> list[int]:
    """At most so many, first and last among them."""
    return [*map(int, np.unique(np.linspace(0, count - 1, _POINTS).astype(int)))] if count else []


def _thinned(values: Any) -> list[tuple[float, float]]:
    """(round, value) of at most so many rounds, from 1."""
    return [(at + 1.0, float(values[at])) for at in _places(len(values))]


def _correlations(names: Sequence[str], runs: Sequence[RunFigures]) -> list[CellMap]:
    """One for each matrix, named after the first run that has it."""
    shown: list[tuple[str, RunFigures]] = []
    for name, run in zip(names, runs, strict=True):
        matrix = run.noise.correlation
        if matrix.size and not any(np.array_equal(matrix, other.noise.correlation) for _, other in shown):
            shown.append((name, run))
    return [correlation_map(name, run.statement.header.plan, run.noise.correlation) for name, run in shown]


def _participation(names: Sequence[str], runs: Sequence[RunFigures]) -> list[CellMap]:
    return [
        participation_map(
            name,
            run.histories,
            run.statement.recorded.rounds,
            run.statement.header.plan.privacy.unit.plural,
        )
        for name, run in zip(names, runs, strict=True)
        if run.histories.rounds.size
    ]
