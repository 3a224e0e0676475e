"""The tables of a report: figures of several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedmf.accounting import at_least, at_most
from fedmf.report.reading import RunFigures

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
        row("epsilon planned", lambda s: _up(s["epsilon_planned"])),
        row("delta", lambda s: _up(s["delta"])),
        row("unit, adjacency", lambda s: f"{s['unit']}, {s['adjacency']}"),
        row("mechanism", lambda s: s["mechanism"]),
        row("rounds released", lambda s: f"{s['rounds_released']} of {s['rounds']}"),
        row("participations, separation", lambda s: f"{s['max_participations']}, {s['min_separation']}"),
        row("cohort", lambda s: f"{s['cohort_size']} of {s['users']}"),
        row("clip norm", lambda s: _up(s["clip_norm"])),
        row("noise multiplier", lambda s: at_most(s["noise_multiplier"])),
        row("sensitivity", lambda s: f"{_up(s['sensitivity'])} ({s['sensitivity_kind'].replace('_', ' ')})"),
    ]
    if all("epsilon_realised" in s for s in statements):
        rows.insert(1, row("epsilon realised, worst", lambda s: _up(s["epsilon_realised"]), False))
        half = "epsilon realised, half at most"
        rows.insert(2, row(half, lambda s: _up(s["epsilon_realised_quantiles"]["0.5"]), False))
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


def _up(value: float | None) -> str:
    return "infinite" if value is None else at_least(value)


def _last(points: Sequence[tuple[int, float]] | None) -> str:
    if not points:
        return "–"
    t, value = points[-1]
    return f"{value:.4g} after round {t}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
