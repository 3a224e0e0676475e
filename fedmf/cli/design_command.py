"""``fedmf design``: a comparison of mechanisms before any training.

`fedmf.mechanisms.design` computes the rows; here they are printed as a table, drawn, or written as
JSON.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import typer

from fedmf.cli.shared_options import (
    PLOT,
    adjacency_option,
    bands_option,
    flag,
    option,
    params_option,
)
from fedmf.participation import Adjacency, Participation

#: Names of independent noise, with which the others are compared.
_INDEPENDENT: Final = ("identity", "dp-sgd")


def design(
    rounds: int = option(..., "N", "Number of rounds, n."),
    users: int | None = option(
        None, "N", "Number of users; with --users-per-round it determines k and b."
    ),
    users_per_round: int | None = option(None, "M", "Number of users per round, sampled in turn."),
    max_participations: int | None = option(None, "K", "Largest number of rounds of one user, k."),
    min_separation: int | None = option(
        None, "B", "Smallest distance between two rounds of one user, b."
    ),
    epsilon: float | None = option(None, "E", "Privacy budget ε."),
    delta: float | None = option(None, "D", "Privacy budget δ."),
    noise_multiplier: float | None = option(
        None, "S", "In place of --epsilon: standard deviation of the noise of C·x per clip norm."
    ),
    adjacency: Adjacency = adjacency_option(),
    mechanism: list[str] = option([], "NAME", "Mechanism to evaluate; repeatable. Default: seven."),
    all_mechanisms: bool = flag("--all", "Compare all mechanisms."),
    bands: int | None = bands_option(),
    param: list[str] = params_option(),
    workload: str = option(
        "prefix", "A", "Released sums: prefix, exponential:β, window:w, average or momentum:β."
    ),
    memory_vectors: int | None = option(
        None, "M", "Store at most M model-sized vectors between rounds."
    ),
    objective: str = option("rmse", "O", "Error to minimise: rmse, max, last or weights:w1,w2,…"),
    sampling: Literal["none", "cyclic-poisson", "balls-in-bins", "b-min-sep"] = option(
        "none", None, "Secret sampling for amplification; none: no amplification."
    ),
    silos: int | None = option(
        None, "J", "Also say what it costs if J silos of these users add noise of their own."
    ),
    wide: bool = flag("--wide", "Also show MaxSE, sensitivity and noise of each mechanism."),
    plot: Path | None = PLOT,
    as_json: bool = flag("--json", "Print a JSON list."),
) -> None:
    """Compare the error, memory and time of mechanisms for given participation.

    By default it compares independent noise, λ-CGD, BISR, BLT, banded Toeplitz, banded and dense
    matrices, as far as they take seconds.
    Give participation by --users and --users-per-round, or by --max-participations and
    --min-separation. Errors include the sensitivity and, with --epsilon and --delta, the noise
    multiplier.

    Example: fedmf design --rounds 3900 --users 5000 --users-per-round 12 --epsilon 8 --delta 1e-5
    """
    from rich.console import Console

    from fedmf.mechanisms.design import design as compute
    from fedmf.mechanisms.design_cache import THREAD_LIMITS
    from fedmf.mechanisms.registry import canonical_name
    from fedmf.runs.progress import bar
    from fedmf.values import parse_parameters

    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))  # of libraries that are not loaded yet
    participation = _participation(
        rounds, users, users_per_round, max_participations, min_separation
    )
    with bar(Console(stderr=True, markup=False), "mechanisms") as show:
        finished: list[str] = []

        def show_started(name: str) -> None:
            show(len(finished), None, name)

        rows = compute(
            participation=participation,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            workload=workload,
            memory_vectors=memory_vectors,
            sampling=sampling,
            objective=objective,
            noise_multiplier=noise_multiplier,
            mechanisms=mechanism or None,
            bands=bands,
            params=parse_parameters(param),
            progress=show_started,
            arrived=lambda row: finished.append(row["mechanism"]),
            processes=None,
            all_mechanisms=all_mechanisms,
        )
    typed = {canonical_name(name): name for name in mechanism}
    rows = [{**row, "mechanism": typed.get(row["mechanism"], row["mechanism"])} for row in rows]
    ranked = sorted(rows, key=lambda row: row["objective_error"])
    if plot is not None:
        _draw(ranked, plot)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _show(ranked, wide, noise_multiplier, users_per_round, compared=not mechanism)
        if silos is not None:
            _say_silos(ranked[0], silos)


def _participation(
    rounds: int, users: int | None, users_per_round: int | None, k: int | None, b: int | None
) -> Participation:
    """Return (n, k, b) as given, or for users who take turns.

    Raises:
        typer.BadParameter: neither pair of options is complete.
    """
    from fedmf.cohorts import cyclic_participation

    if users is not None and users_per_round is not None:
        turns = cyclic_participation(users, users_per_round, rounds)
        return Participation(rounds, k or turns.max_participations, b or turns.min_separation)
    if k is None or b is None:
        raise typer.BadParameter(
            "use --users and --users-per-round, or --max-participations and --min-separation."
        )
    return Participation(rounds, k, b)


def _table(rows: Sequence[dict[str, Any]], wide: bool) -> list[dict[str, str]]:
    """Return the cells of the table by column, one row for each mechanism, without empty columns.

    Args:
        rows: the rows of the comparison.
        wide: whether to add ε, MaxSE, RMSE, sensitivity and noise multiplier.
    """
    table = []
    independent_error = _independent_error(rows)
    for row in rows:
        cells = _main_cells(row, independent_error)
        if wide:
            cells |= _wide_cells(row)
        table.append(cells)
    for column in list(table[0]):
        if not any(cells[column] for cells in table):
            for cells in table:
                del cells[column]
    return table


def _independent_error(rows: Sequence[dict[str, Any]]) -> float | None:
    errors = {row["mechanism"]: row["objective_error"] for row in rows}
    for name in _INDEPENDENT:
        if name in errors:
            return errors[name]
    return None


def _main_cells(row: dict[str, Any], independent_error: float | None) -> dict[str, str]:
    return {
        "mechanism": _full_name(row),
        _error_column(row): f"{row['objective_error']:.5g}",
        "vs independent": _gain(row, independent_error),
        "memory": _memory(row),
        "per parameter": f"{row['nanoseconds_per_coordinate']:.0f} ns",
    }


def _error_column(row: dict[str, Any]) -> str:
    from fedmf.mechanisms.objective import Objective

    return f"error ({Objective.parse(row['objective']).label})"


def _full_name(row: dict[str, Any]) -> str:
    """Return the name of a mechanism with its alias and parameters."""
    from fedmf.mechanisms.registry import families

    name = row["mechanism"]
    text = name
    for family in families():
        if family.name == name and family.aliases:
            text += f" or {family.aliases[0]}"
    if row["params"]:
        params = [f"{param} = {value:.4g}" for param, value in row["params"].items()]
        text += f" ({', '.join(params)})"
    if name not in _INDEPENDENT and not row["memory_vectors"] and not row["regenerated_vectors"]:
        text += ": independent noise"
    return text


def _gain(row: dict[str, Any], independent_error: float | None) -> str:
    """Return the error in percent above (or below) that of independent noise."""
    if row["mechanism"] in _INDEPENDENT:
        return "—"
    if independent_error is None:
        return ""
    percent = 100 * (row["objective_error"] / independent_error - 1)
    return f"{percent:+.0f} %".replace("-", "−")


def _memory(row: dict[str, Any]) -> str:
    parts = []
    if row["memory_vectors"]:
        parts.append(f"{row['memory_vectors']} × model")
    if row["regenerated_vectors"]:
        parts.append(f"{row['regenerated_vectors']} regenerated")
    return " + ".join(parts) or "none"


def _wide_cells(row: dict[str, Any]) -> dict[str, str]:
    from fedmf.accounting.rounding import at_least

    epsilon = ""
    if row["epsilon"] is not None:
        epsilon = at_least(row["epsilon"], 5)
    noise_multiplier = ""
    if row["noise_multiplier"] is not None:
        noise_multiplier = at_least(row["noise_multiplier"], 5)
    sensitivity = at_least(row["sensitivity"], 5)
    if row["sensitivity_kind"] != "exact":
        sensitivity = f"≤ {sensitivity}"
    return {
        "ε": epsilon,
        "MaxSE": f"{row['max_se']:.5g}",
        "RMSE": f"{row['rmse']:.5g}",
        "sensitivity": sensitivity,
        "noise multiplier": noise_multiplier,
    }


def _show(
    rows: Sequence[dict[str, Any]],
    wide: bool,
    noise: float | None,
    users_per_round: int | None,
    compared: bool,
) -> None:
    """Print the budget in a line, the table, and the recommended mechanism if none was named.

    Args:
        rows: the rows of the comparison, the smallest error first.
        wide: whether to show all columns.
        noise: the noise multiplier, if it was given in place of ε.
        users_per_round: m, if it was given.
        compared: whether the mechanisms are fedmf's choice, so that one is recommended.
    """
    from rich.console import Console
    from rich.table import Table

    from fedmf.mechanisms.design import recommended

    first = rows[0]
    console = Console(markup=False, highlight=False)
    console.print(
        f"{first['rounds']} rounds, each user in at most {first['max_participations']} of them, at"
        f" least {first['min_separation']} apart; workload {first['workload']},"
        f" {first['adjacency']} adjacency, sampling {first['sampling']}; {_budget(first, noise)}",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    cells = _table(rows, wide or noise is not None)
    mechanism, *numbers = cells[0]
    table.add_column(mechanism)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*row.values())
    if console.is_terminal:
        console.print(table)
    else:  # a file or pipe, which has no width
        Console(markup=False, highlight=False, width=160).print(table)
    if compared:
        console.print(
            f"Recommended: {recommended(rows)['mechanism']}. Of the mechanisms within 5 % of the "
            "smallest error, its noise takes the least time.",
            soft_wrap=True,
        )
    if users_per_round:
        console.print(
            "Errors are of the sum of updates; of their mean they are"
            f" {users_per_round} times smaller."
        )
    if not (wide or noise):
        console.print("(--wide adds MaxSE, sensitivity and noise of each row.)")


def _say_silos(row: dict[str, Any], silos: int) -> None:
    """Print the error of a mechanism if each silo adds its own noise: variances add up."""
    factor = math.sqrt(silos)
    typer.echo(
        f"In {silos} silos that each protect their own users against the server too, every error is"
        f" √{silos} = {factor:.3g} times as large: {factor * row['objective_error']:.5g} with"
        f" {row['mechanism']}, instead of {row['objective_error']:.5g} with a trusted server."
    )


def _budget(row: dict[str, Any], noise: float | None) -> str:
    from fedmf.accounting.rounding import at_least

    if noise is not None:
        return f"noise {noise:g} per clip norm, δ = {at_least(row['delta'])}: ε of each row"
    if row["epsilon"] is not None:
        return f"ε = {at_least(row['epsilon'])}, δ = {at_least(row['delta'])}"
    return "no budget: errors leave the noise multiplier out"


def _draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the error of each mechanism, the smallest first, with the memory that its noise takes.

    Raises:
        OSError: the file cannot be written.
    """
    from fedmf.figures import COLOURS, new_figure, style

    names = []
    errors = []
    colours = []
    labels = []
    for row in rows:
        error = row["objective_error"]
        memory = _memory(row).replace("none", "no memory")
        names.append(_full_name(row))
        errors.append(error)
        labels.append(f"{error:.4g}, {memory}")
        if row["mechanism"] in _INDEPENDENT:
            colours.append(COLOURS[1])
        else:
            colours.append(COLOURS[0])
    first = rows[0]
    figure = new_figure(7, 0.32 * len(rows) + 1.5)
    axes = figure.subplots()
    bars = axes.barh(names, errors, color=colours)
    axes.bar_label(bars, labels, padding=4)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    title = f"{first['rounds']} rounds, each user in at most {first['max_participations']}"
    if first["epsilon"] is not None:
        title += f", ε = {first['epsilon']:.4g}"
    figure.suptitle(title)
    xlabel = f"{_error_column(first)} and memory of the noise"
    style(axes, xlabel=xlabel, xlim=(0, 1.7 * max(errors)))
    axes.grid(False, axis="y")
    figure.savefig(file, dpi=150)
