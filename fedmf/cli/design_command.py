"""``fedmf design``: a comparison of mechanisms before any training.

`fedmf.mechanisms.design` computes the rows; `design_screen` prints them, `design_picture` draws
them.
"""

from __future__ import annotations

import json
import math
import os
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

#: Ways to choose cohorts by a secret seed: name, mechanism, sampling, and what must stay secret.
_SECRET_COHORTS: Final = (
    ("Poisson (cyclic-poisson, b = 1)", "identity", "cyclic-poisson", "who is in each cohort"),
    (
        "cyclic-poisson",
        "banded-toeplitz",
        "cyclic-poisson",
        "who is in each cohort, not the groups",
    ),
    ("balls-in-bins", "banded-toeplitz", "balls-in-bins", "each user's bin, so all its rounds"),
)


def design(
    rounds: int = option(..., "N", "Number of rounds, n."),
    users: int | None = option(
        None, "N", "Number of users; with --users-per-round it determines k and b.", min=1
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
    objective: str = option("rmse", "O", "Error to minimize: rmse, max, last or weights:w1,w2,…"),
    sampling: Literal["none", "cyclic-poisson", "balls-in-bins", "b-min-sep"] = option(
        "none",
        "NAME",
        "Secret sampling for amplification: cyclic-poisson, balls-in-bins or b-min-sep; none: no"
        " amplification.",
    ),
    silos: int | None = option(
        None, "J", "Also show the cost if J silos of these users each add their own noise.", min=1
    ),
    wide: bool = flag("--wide", "Also show MaxSE, sensitivity and noise of each mechanism."),
    plot: Path | None = PLOT,
    as_json: bool = flag("--json", "Print a JSON list."),
) -> None:
    """Compare the error, memory and time of mechanisms for given participation.

    By default it compares independent noise, λ-CGD, BISR, BLT, banded Toeplitz, banded and dense
    matrices, as far as they take seconds, and recommends one.
    Give participation by --users and --users-per-round, or by --max-participations and
    --min-separation. Errors include the sensitivity and, with --epsilon and --delta, the noise
    multiplier. With users and a budget, it compares ways to choose cohorts, too.

    Example: fedmf design --rounds 3900 --users 5000 --users-per-round 12 --epsilon 8 --delta 1e-5
    """
    from rich.console import Console

    from fedmf.cli.design_screen import show_comparison
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

        setting: dict[str, Any] = {
            "participation": participation,
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": adjacency,
            "workload": workload,
            "objective": objective,
        }
        rows = compute(
            **setting,
            memory_vectors=memory_vectors,
            sampling=sampling,
            noise_multiplier=noise_multiplier,
            mechanisms=mechanism or None,
            bands=bands,
            params=parse_parameters(param),
            progress=show_started,
            arrived=lambda row: finished.append(row["mechanism"]),
            processes=None,
            all_mechanisms=all_mechanisms,
        )
        samplings = {}
        restricted = mechanism or param or bands or memory_vectors is not None or sampling != "none"
        if users and users_per_round and epsilon and not restricted and not as_json:
            samplings = _samplings(rows, setting)
    typed = {canonical_name(name): name for name in mechanism}
    rows = [{**row, "mechanism": typed.get(row["mechanism"], row["mechanism"])} for row in rows]
    ranked = sorted(rows, key=lambda row: row["objective_error"])
    if plot is not None:
        from fedmf.cli.design_picture import draw_comparison

        draw_comparison(ranked, plot, compared=not mechanism)
        typer.echo(f"Wrote {plot}", err=True)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    show_comparison(
        ranked, wide, noise_multiplier, users_per_round, samplings, compared=not mechanism
    )
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


def _samplings(
    rows: list[dict[str, Any]], setting: dict[str, Any]
) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the row of each way to choose cohorts, and what it must keep secret.

    Accountants of secret cohorts do not cover every setting; ways without one are left out.

    Args:
        rows: the comparison for fixed cohorts.
        setting: arguments of `fedmf.mechanisms.design.design` that all rows share.
    """
    from fedmf.mechanisms.design import design as compute
    from fedmf.mechanisms.design import recommended

    samplings = {"cyclic (in turns)": (recommended(rows), "nothing")}
    for name, mechanism, sampling, secret in _SECRET_COHORTS:
        try:
            (row,) = compute(**setting, mechanisms=[mechanism], sampling=sampling)
        except ValueError:
            continue
        samplings[name] = (row, secret)
    return samplings


def _say_silos(row: dict[str, Any], silos: int) -> None:
    """Print the error of a mechanism if each silo adds its own noise: variances add up."""
    factor = math.sqrt(silos)
    typer.echo(
        f"In {silos} silos that each protect their own users against the server too, every error is"
        f" √{silos} = {factor:.3g} times as large: {factor * row['objective_error']:.5g} with"
        f" {row['mechanism']}, instead of {row['objective_error']:.5g} with a trusted server."
    )
