"""The table of ``fedmf design``: on a terminal it grows while rows are computed."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from fedmf.accounting import at_least, at_most
from fedmf.mechanisms.errors import Objective

_NUMBERS = ("sensitivity", "noise multiplier", "stored vectors", "regenerated", "ns/coord.")
_ALWAYS = {"RMSE": "rmse", "MaxSE": "max_se"}


class GrowingTable:
    """Shows rows on a terminal as they come, best first, and how many are there; nothing anywhere else.

    Args:
        by_noise: whether the noise was given and each row says its ε.
    """

    def __init__(self, by_noise: bool) -> None:
        self._by_noise = by_noise
        console = Console(stderr=True, markup=False)
        self._rows: list[dict[str, Any]] = []
        self._spinner = Spinner("dots", text="designing")
        self._live = Live(self._spinner, console=console, transient=True, refresh_per_second=8)
        self._shown = console.is_terminal

    def __enter__(self) -> Self:
        if self._shown:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._live.stop()

    def begun(self, name: str) -> None:
        """The row of this name is being computed."""
        self._spinner.update(text=f"{len(self._rows)} rows so far; {name}")

    def arrived(self, row: dict[str, Any]) -> None:
        """A row is there."""
        self._rows.append(row)
        if self._shown:
            best_first = sorted(self._rows, key=lambda row: row["objective_error"])
            self._live.update(Group(table_of(best_first, self._by_noise), self._spinner))


def print_table(rows: list[dict[str, Any]], by_noise: bool) -> None:
    """The whole table, on standard output."""
    console = Console(markup=False)
    if not console.is_terminal:
        console = Console(width=140, markup=False)
    console.print(table_of(rows, by_noise))


def latex_table(rows: list[dict[str, Any]], by_noise: bool) -> str:
    """The same for a paper."""
    from fedmf.sweeps import Table as Text

    header, cells = _header(rows[0], by_noise), tuple(_cells(row, by_noise) for row in rows)
    return Text(header, cells, len(header) - 2).latex()


def table_of(rows: list[dict[str, Any]], by_noise: bool) -> Table:
    """The rows of one contract and budget."""
    first = rows[0]
    budget = "no budget: σ left out"
    if first["epsilon"] is not None:
        asked = (
            f"noise per clip norm {first['noise_std']}" if by_noise else f"ε = {at_least(first['epsilon'])}"
        )
        budget = f"{asked}, δ = {at_least(first['delta'])}"
    table = Table(
        title=f"n = {first['rounds']}, k = {first['max_participations']}, b = {first['min_separation']}, "
        f"{first['workload']}, {first['adjacency']}, {budget}, sampling {first['sampling']}"
    )
    name, parameters, *numbers = _header(first, by_noise)
    table.add_column(name, no_wrap=True)
    table.add_column(parameters)
    for number in numbers:
        table.add_column(number, justify="right")
    for row in rows:
        table.add_row(*_cells(row, by_noise))
    return table


def _header(first: dict[str, Any], by_noise: bool) -> tuple[str, ...]:
    errors = _errors(Objective.parse(first["objective"]))
    return ("mechanism", "parameters", *(["ε"] if by_noise else []), *errors, *_NUMBERS)


def _cells(row: dict[str, Any], by_noise: bool) -> tuple[str, ...]:
    mark = "" if row["sensitivity_kind"] == "exact" else "≤ "
    # What a run with this mechanism has to add is rounded up, what one is said to have added is not.
    rounded = at_most if by_noise else at_least
    sigma = "" if row["noise_multiplier"] is None else rounded(row["noise_multiplier"], 5)
    return (
        row["mechanism"],
        ", ".join(f"{k}={v:.5g}" for k, v in row["params"].items()),
        *([at_least(row["epsilon"], 5)] if by_noise else []),
        *(f"{row[field]:.5g}" for field in _errors(Objective.parse(row["objective"])).values()),
        mark + at_least(row["sensitivity"], 5),
        sigma,
        str(row["memory_vectors"]),
        str(row["regenerated_vectors"]),
        f"{row['nanoseconds_per_coordinate']:.0f}",
    )


def _errors(objective: Objective) -> dict[str, str]:
    """The columns of errors with the fields that they show: the objective first."""
    first = {objective.label: "objective_error"}
    return {**first, **{name: field for name, field in _ALWAYS.items() if name not in first}}
