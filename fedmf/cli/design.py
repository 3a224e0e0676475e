"""``fedmf design``: compare mechanisms before any training."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path

import typer

__all__ = ["AdjacencyName", "design", "parse_parameters"]


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
    sampling: Sampling = typer.Option(
        Sampling.none, help="How users come to rounds; none claims no amplification."
    ),
    plot: Path | None = typer.Option(
        None, "--plot", metavar="FILE", help="Draw error against memory (needs matplotlib)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON list."),
) -> None:
    """Compare mechanisms: error, sensitivity, noise, memory and time under (k, b)-min-separation.

    RMSE and MaxSE include the sensitivity and, with --epsilon and --delta, the noise multiplier.

    Example: fedmf design --rounds 3900 --max-participations 10 --min-separation 390 --epsilon 8 --delta 1e-5
    """
    from fedmf.accounting import design as compute
    from fedmf.participation import Participation

    parameters = parse_parameters(param)
    if plot is not None:
        from fedmf.cli.plots import check_picture

        check_picture("--plot", plot)
    participation = Participation(rounds, max_participations, min_separation)
    from fedmf.cli.design_table import GrowingTable, print_table

    with GrowingTable() as table:
        rows = compute(
            participation,
            mechanisms=mechanism or None,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency.value,
            bands=bands,
            params=parameters,
            workload=workload,
            memory_vectors=memory_vectors,
            progress=table.begun,
            sampling=sampling.value,
            arrived=table.arrived,
            processes=_processes(),
        )
    if plot is not None:
        from fedmf.cli.plots import save_plot

        save_plot(rows, plot)
    typer.echo(json.dumps(rows, indent=2)) if as_json else print_table(rows)


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
