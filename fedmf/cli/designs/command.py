"""``fedmf design``: compare mechanisms before any training."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path

import typer


class AdjacencyName(StrEnum):
    """Which neighbouring data sets ε speaks of."""

    zero_out = "zero-out"
    replace_one = "replace-one"


class Sampling(StrEnum):
    """What may be assumed about how users come to rounds."""

    none = "none"
    cyclic_poisson = "cyclic-poisson"
    balls_in_bins = "balls-in-bins"
    b_min_sep = "b-min-sep"


def design(
    rounds: int = typer.Option(..., "--rounds", metavar="N", help="n, the number of rounds."),
    max_participations: int = typer.Option(
        ..., "--max-participations", metavar="K", help="k, most rounds any user takes part in."
    ),
    min_separation: int = typer.Option(
        ..., "--min-separation", metavar="B", help="b, least distance between two rounds of a user."
    ),
    epsilon: float | None = typer.Option(None, "--epsilon", metavar="E", help="Privacy budget ε."),
    delta: float | None = typer.Option(None, "--delta", metavar="D", help="Privacy budget δ."),
    noise_multiplier: float | None = typer.Option(
        None,
        "--noise-multiplier",
        metavar="S",
        help="In place of --epsilon: noise of each row of C·x per clip norm, as published; prints its ε.",
    ),
    adjacency: AdjacencyName = typer.Option(AdjacencyName.zero_out, help="Neighbouring relation."),
    mechanism: list[str] = typer.Option(
        [], "--mechanism", metavar="NAME", help="Mechanism to evaluate; repeatable. Default: compare all."
    ),
    bands: int | None = typer.Option(
        None, "--bands", metavar="P", help="p, number of bands. Default: optimised."
    ),
    param: list[str] = typer.Option(
        [], "--param", metavar="KEY=VALUE", help="Fix a parameter, e.g. lambda=0.9. Default: optimised."
    ),
    workload: str = typer.Option(
        "prefix",
        metavar="A",
        help="What is released: prefix, exponential:β, window:w, average or momentum:β.",
    ),
    memory_vectors: int | None = typer.Option(
        None, "--memory-vectors", metavar="M", help="At most so many model-sized vectors kept between rounds."
    ),
    objective: str = typer.Option(
        "rmse", metavar="O", help="What is minimised: rmse, max, last or weights:w1,w2,…"
    ),
    sampling: Sampling = typer.Option(
        Sampling.none, help="How users come to rounds; none claims no amplification."
    ),
    plot: Path | None = typer.Option(
        None, "--plot", metavar="FILE", help="Draw error against memory: .png, .svg, .pdf."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON list."),
    as_latex: bool = typer.Option(False, "--latex", help="Print a LaTeX tabular (booktabs)."),
) -> None:
    """Compare mechanisms: error, sensitivity, noise, memory and time under (k, b)-min-separation.

    Errors include the sensitivity and, with --epsilon and --delta, the noise multiplier. Parameters,
    coefficients and the order of rows follow --objective. With --noise-multiplier and --delta each row
    says which ε that noise gives.

    Example: fedmf design --rounds 3900 --max-participations 10 --min-separation 390 --epsilon 8 --delta 1e-5
    """
    from fedmf.accounting import design as compute
    from fedmf.participation import Participation

    parameters = parse_parameters(param)
    if as_json and as_latex:
        raise typer.BadParameter("--json and --latex are two forms of one table; give one.")
    if plot is not None:
        from fedmf.cli.plots import check_picture

        check_picture("--plot", plot)
    from fedmf.cli.designs.table import GrowingTable, latex_table, print_table

    by_noise = noise_multiplier is not None
    with GrowingTable(by_noise) as table:
        rows = compute(
            participation=Participation(rounds, max_participations, min_separation),
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency.value,
            workload=workload,
            memory_vectors=memory_vectors,
            sampling=sampling.value,
            objective=objective,
            noise_multiplier=noise_multiplier,
            mechanisms=mechanism or None,
            bands=bands,
            params=parameters,
            progress=table.begun,
            arrived=table.arrived,
            processes=_processes(),
        )
    if plot is not None:
        from fedmf.cli.plots import save_plot

        save_plot(rows, plot)
    if as_latex:
        typer.echo(latex_table(rows, by_noise), nl=False)
    else:
        typer.echo(json.dumps(rows, indent=2)) if as_json else print_table(rows, by_noise)


def _processes() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_parameters(pairs: list[str]) -> dict[str, float]:
    """KEY=VALUE pairs of ``--param``.

    Raises:
        typer.BadParameter: a pair is none.
    """
    parameters = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            parameters[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise typer.BadParameter(f"--param takes key=number; got {pair!r}.")
    return parameters
