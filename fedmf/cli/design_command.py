"""``fedmf design``: a comparison of mechanisms before any training."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from fedmf.cli.shared_options import ADJACENCY, BANDS, PARAMS, PLOT, flag, option
from fedmf.participation import Adjacency, Participation


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
    adjacency: Adjacency = ADJACENCY,
    mechanism: list[str] = option([], "NAME", "Mechanism to evaluate; repeatable. Default: seven."),
    all_mechanisms: bool = flag("--all", "Compare all mechanisms."),
    bands: int | None = BANDS,
    param: list[str] = PARAMS,
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
    contract = _participation(rounds, users, users_per_round, max_participations, min_separation)
    with bar(Console(stderr=True, markup=False), "mechanisms") as show:
        arrived: list[str] = []

        def begun(name: str) -> None:
            show(len(arrived), None, name)

        rows = compute(
            participation=contract,
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
            progress=begun,
            arrived=lambda row: arrived.append(row["mechanism"]),
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


def _participation(
    rounds: int, users: int | None, users_per_round: int | None, k: int | None, b: int | None
) -> Participation:
    """(n, k, b) as given, or for users who take turns.

    Raises:
        typer.BadParameter: neither pair of options is whole.
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
    """A row for each mechanism as people read it."""
    from fedmf.accounting.rounding import at_least
    from fedmf.mechanisms.objective import Objective
    from fedmf.mechanisms.registry import families

    also = {family.name: f" or {family.aliases[0]}" for family in families() if family.aliases}
    label = Objective.parse(rows[0]["objective"]).label
    errors = {row["mechanism"]: row["objective_error"] for row in rows}
    independent = errors.get("identity", errors.get("dp-sgd"))
    table = []
    for row in rows:
        params = ", ".join(f"{name} = {value:.4g}" for name, value in row["params"].items())
        kept = row["memory_vectors"]
        drawn = row["regenerated_vectors"]
        error = row["objective_error"]
        gain = (
            ""
            if independent is None
            else f"{100 * (error / independent - 1):+.0f} %".replace("-", "−")
        )
        name = (
            row["mechanism"] + also.get(row["mechanism"], "") + (f" ({params})" if params else "")
        )
        plain = row["mechanism"] in ("identity", "dp-sgd")
        shown = {
            "mechanism": name + ("" if plain or kept or drawn else ": independent noise"),
            f"error ({label})": f"{error:.5g}",
            "vs independent": "—" if plain else gain,
            "memory": (
                " + ".join(
                    word
                    for count, word in ((kept, f"{kept} × model"), (drawn, f"{drawn} regenerated"))
                    if count
                )
                or "none"
            ),
            "per parameter": f"{row['nanoseconds_per_coordinate']:.0f} ns",
        }
        if wide:
            shown |= {
                "ε": "" if row["epsilon"] is None else at_least(row["epsilon"], 5),
                "MaxSE": f"{row['max_se']:.5g}",
                "RMSE": f"{row['rmse']:.5g}",
                "sensitivity": (
                    ("" if row["sensitivity_kind"] == "exact" else "≤ ")
                    + at_least(row["sensitivity"], 5)
                ),
                "noise multiplier": (
                    "" if row["noise_multiplier"] is None else at_least(row["noise_multiplier"], 5)
                ),
            }
        table.append(shown)
    return [
        {name: row[name] for name in table[0] if any(one[name] for one in table)} for row in table
    ]


def _show(
    rows: Sequence[dict[str, Any]],
    wide: bool,
    noise: float | None,
    size: int | None,
    compared: bool,
) -> None:
    """Print the budget in a line, the table, and the recommended mechanism if none was named."""
    from rich.console import Console
    from rich.table import Table

    from fedmf.accounting.rounding import at_least
    from fedmf.mechanisms.design import recommended

    first = rows[0]
    console = Console(markup=False, highlight=False)
    budget = "no budget: errors leave the noise multiplier out"
    if noise is not None:
        budget = f"noise {noise:g} per clip norm, δ = {at_least(first['delta'])}: ε of each row"
    elif first["epsilon"] is not None:
        budget = f"ε = {at_least(first['epsilon'])}, δ = {at_least(first['delta'])}"
    console.print(
        f"{first['rounds']} rounds, each user in at most {first['max_participations']} of them, at"
        f" least {first['min_separation']} apart; workload {first['workload']},"
        f" {first['adjacency']} adjacency, sampling {first['sampling']}; {budget}",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    cells = _table(rows, wide or noise is not None)
    for at, name in enumerate(cells[0]):
        table.add_column(name, justify="right" if at else "left", no_wrap=at > 0)
    for row in cells:
        table.add_row(*row.values())
    wider = Console(markup=False, highlight=False, width=160)
    (console if console.is_terminal else wider).print(table)
    if compared:
        console.print(
            f"Recommended: {recommended(rows)['mechanism']}. Of the mechanisms within 5 % of the "
            "smallest error, its noise takes the least time.",
            soft_wrap=True,
        )
    if size:
        console.print(
            f"Errors are of the sum of updates; of their mean they are {size} times smaller."
        )
    if not (wide or noise):
        console.print("(--wide adds MaxSE, sensitivity and noise of each row.)")


def _draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the error of each mechanism, the smallest first, with the memory that its noise takes.

    Raises:
        OSError: the file cannot be written.
    """
    from fedmf.figures import COLOURS, new_figure, style

    first = rows[0]
    cells = _table(rows, wide=False)
    figure = new_figure(7, 0.32 * len(rows) + 1.5)
    axes = figure.subplots()
    errors = [row["objective_error"] for row in rows]
    colours = [COLOURS["vs independent" in row and row["vs independent"] == "—"] for row in cells]
    bars = axes.barh([row["mechanism"] for row in cells], errors, color=colours)
    memory = [row["memory"].partition(" (")[0].replace("none", "no memory") for row in cells]
    axes.bar_label(
        bars,
        [f"{error:.4g}, {kept}" for error, kept in zip(errors, memory, strict=True)],
        padding=4,
    )
    axes.invert_yaxis()
    axes.margins(y=0.01)
    budget = "" if first["epsilon"] is None else f", ε = {first['epsilon']:.4g}"
    figure.suptitle(
        f"{first['rounds']} rounds, each user in at most {first['max_participations']}{budget}"
    )
    label = next(name for name in cells[0] if name.startswith("error"))
    style(axes, xlabel=f"{label} and memory of the noise", xlim=(0, 1.7 * max(errors)))
    axes.grid(False, axis="y")
    figure.savefig(file, dpi=150)
