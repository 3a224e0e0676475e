"""``fedmf restate``: what a published deployment really gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedmf.cli.designs.command import parse_parameters

if TYPE_CHECKING:
    from fedmf.accounting import Restatement
    from fedmf.factorization import Factorization, MechanismChoice
    from fedmf.participation import Participation


_AGAINST = ["banded-toeplitz", "blt", "bisr", "identity"]


def restate(
    rounds: int = typer.Option(..., "--rounds", metavar="N", help="n, the number of rounds."),
    max_participations: int = typer.Option(
        ..., "--max-participations", metavar="K", help="k, most rounds any user takes part in."
    ),
    min_separation: int = typer.Option(
        ..., "--min-separation", metavar="B", help="b, least distance between two rounds of a user."
    ),
    noise_multiplier: float = typer.Option(
        ...,
        "--noise-multiplier",
        metavar="S",
        help="σ, the noise of each row of C·x per clip norm, as it was published; not per unit sensitivity.",
    ),
    delta: float = typer.Option(..., "--delta", metavar="D", help="δ."),
    mechanism: str | None = typer.Option(
        None, "--mechanism", metavar="NAME", help="C by name, as in fedmf design."
    ),
    param: list[str] = typer.Option(
        [], "--param", metavar="KEY=VALUE", help="Fix a parameter of the mechanism, e.g. full=1."
    ),
    strategy: Path | None = typer.Option(
        None,
        "--strategy",
        metavar="FILE",
        help="C from a file of numpy (.npy): a row for each noisy value, a column for each round.",
    ),
    workload: str = typer.Option("prefix", metavar="A", help="Whose error is compared: as in fedmf design."),
    objective: str = typer.Option(
        "rmse", metavar="O", help="What C by name, and those compared with, minimise: as in fedmf design."
    ),
    against: list[str] = typer.Option(
        _AGAINST, "--against", metavar="NAME", help="Mechanisms to compare with at the same ε; repeatable."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object."),
) -> None:
    """Say what a published mechanism really gives: exact ρ, μ and ε, and the error of others at that ε.

    The figures are those of the worst user that (k, b)-min-separation allows, for both adjacencies.

    Example: fedmf restate --mechanism tree --param full=1 --rounds 2000 --max-participations 6
    --min-separation 314 --noise-multiplier 7 --delta 1e-10
    """
    from fedmf.accounting import design
    from fedmf.accounting import restate as compute
    from fedmf.participation import Participation

    participation = Participation(rounds, max_participations, min_separation)
    found = compute(
        _chosen(mechanism, parse_parameters(param), strategy, participation),
        participation,
        noise_multiplier,
        delta,
        workload,
        objective,
    )
    others = (
        design(participation, against, found.epsilon(), delta, workload=workload, objective=objective)
        if against
        else []
    )
    if as_json:
        typer.echo(json.dumps({**found.figures, "at_the_same_epsilon": others}, indent=2))
    else:
        _show(found, others)


def _chosen(
    name: str | None, parameters: dict[str, float], file: Path | None, participation: Participation
) -> MechanismChoice | Factorization:
    from fedmf.factorization import NamedMechanism, form_of

    if (name is None) == (file is None):
        raise typer.BadParameter("give either --mechanism or --strategy.")
    if name is not None:
        return NamedMechanism(name, form_of(name).checked(parameters, participation.rounds))
    if parameters:
        raise typer.BadParameter("--param belongs to --mechanism; a matrix from a file has none.")
    assert file is not None
    return _read(file)


def _read(file: Path) -> Factorization:
    import numpy as np

    from fedmf.factorization import square_strategy

    try:
        matrix = np.load(file, allow_pickle=False)
    except OSError as error:
        raise typer.BadParameter(f"--strategy {file} cannot be read: {error.strerror or error}.") from None
    except (ValueError, EOFError):  # whose message would advise to load pickled objects, which can run code
        matrix = None
    if not isinstance(matrix, np.ndarray) or matrix.dtype.kind not in "iuf":
        raise typer.BadParameter(
            f"--strategy must be a file of numpy.save with one array of real numbers; {file} is not."
        )
    return square_strategy(matrix)


def _show(found: Restatement, others: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedmf.accounting import at_least

    console = Console(markup=False)
    if not console.is_terminal:
        console = Console(width=140, markup=False)
    figures = found.figures
    mark = "" if found.sensitivity.kind == "exact" else "≤ "
    console.print(
        f"{figures['mechanism']}, n = {figures['rounds']}, k = {figures['max_participations']}, "
        f"b = {figures['min_separation']}: noise multiplier {found.noise_multiplier}, "
        f"sensitivity {mark}{at_least(found.sensitivity.value, 5)} ({found.sensitivity.kind})",
        highlight=False,
    )
    privacy = Table()
    for column in ("adjacency", "ρ", "μ", f"ε at δ = {found.delta}", "ε by ρ alone"):
        privacy.add_column(column, justify="left" if column == "adjacency" else "right")
    for adjacency, row in figures["adjacency"].items():
        privacy.add_row(
            adjacency, *(at_least(row[name], 4) for name in ("rho", "mu", "epsilon", "epsilon_by_rho"))
        )
    console.print(privacy)
    console.print(f"Error of {found.workload} sums at that ε (zero-out), clip norm 1:", highlight=False)
    errors = Table()
    for column in ("mechanism", "RMSE", "of the published"):
        errors.add_column(column, justify="left" if column == "mechanism" else "right")
    errors.add_row("as published", f"{found.rmse:.5g}", "1.000")
    for row in sorted(others, key=lambda row: row["rmse"]):
        errors.add_row(row["mechanism"], f"{row['rmse']:.5g}", f"{row['rmse'] / found.rmse:.3f}")
    console.print(errors)
