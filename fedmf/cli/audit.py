"""``fedmf audit``: try to find canary users in what a run releases or released."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedmf.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress

    from fedmf.audit import Audit
    from fedmf.runs import CanaryFinding, Run


def audit(
    config: Path = typer.Argument(
        ...,
        metavar="CONFIG.toml|RUN_DIR",
        help="Run configuration, of which data are not used; or the directory of a run with canaries.",
    ),
    assignments: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Override a key, e.g. --set cohorts.rounds=12. Repeatable."
    ),
    canaries: int = typer.Option(2000, min=16, max=10_000_000, help="Canary users in each run."),
    runs: int = typer.Option(0, help="Independent runs with canaries.", show_default="1", min=0),
    confidence: float | None = typer.Option(
        None, help="Confidence of the lower bounds.", show_default="0.99, of a directory 0.95"
    ),
    seed: int | None = typer.Option(None, min=0, help="Seed of the canaries' coins; default: unseeded."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Bound from below what a run really leaks, and compare it with what it claims.

    Runs the real plan, clip, sum, noise stream and release on canary users of the worst participation
    pattern. A contradiction proves that something is wrong (exit code 1); none proves nothing, but mistakes
    of scale show.

    Of the directory of a run with canaries (canaries.count), running, stopped or finished, it guesses the
    canaries' coins from what was released and bounds ε from below (docs/canaries.md).

    Example: fedmf audit configs/digits.toml --set cohorts.rounds=24
    """
    from fedmf.runs import load_run, parse_assignments

    if config.is_dir():
        _refuse_options(assignments or runs or seed is not None)
        if _in_a_run(config, 0.95 if confidence is None else confidence, as_json):
            raise typer.Exit(1)
        return
    confidence = 0.99 if confidence is None else confidence
    run = load_run(config, parse_assignments(assignments))
    refuted = _mechanism(run, canaries, runs or 1, confidence, seed, as_json)
    if refuted:
        raise typer.Exit(1)


def _refuse_options(given: object) -> None:
    if given:
        raise ConfigError(
            "--set, --runs and --seed take a configuration; got a run directory, whose canaries are "
            "what they were."
        )


def _in_a_run(path: Path, confidence: float, as_json: bool) -> bool:
    from fedmf.runs import canary_finding

    found = canary_finding(path, confidence)
    typer.echo(_json(found) if as_json else _text_of_a_run(found))
    return found.refuted


def _mechanism(
    run: Run, canaries: int, runs: int, confidence: float, seed: int | None, as_json: bool
) -> bool:
    from fedmf.audit import audit as run_audit

    with _progress() as progress:
        bar = progress.add_task("auditing", total=runs * run.cohorts.rounds)
        audited = run_audit(run, canaries, runs, confidence, seed, lambda: progress.advance(bar))
    typer.echo(_json(audited) if as_json else _text(audited))
    return audited.refuted


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr, markup=False)
    with Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        yield progress


def _json(audited: Audit | CanaryFinding) -> str:
    return json.dumps({**dataclasses.asdict(audited), "refuted": audited.refuted}, indent=2)


def _claim(audited: Audit | CanaryFinding) -> str:
    from fedmf.accounting import at_least

    return (
        f"ε = {at_least(audited.epsilon_claimed, 4)} at δ = {at_least(audited.delta)}, as μ-GDP "
        f"{at_least(audited.mu_claimed, 4)}"
    )


def _text(audited: Audit) -> str:
    from fedmf.accounting import at_most

    bound = audited.bound
    return (
        f"claimed   {_claim(audited)}\n"
        f"measured  ε ≥ {at_most(bound.epsilon_gdp, 4)} (as μ-GDP {at_most(bound.mu, 4)}), confidence "
        f"{audited.confidence:g}\n"
        f"          ε ≥ {at_most(bound.epsilon, 4)} without assuming a Gaussian trade-off\n"
        f"          {bound.false_positives} of {bound.absent} absent and {bound.false_negatives} of "
        f"{bound.present} present canaries were judged wrongly\n"
        + ("REFUTED: the mechanism leaks more than it claims." if audited.refuted else "no contradiction.")
    )


def _text_of_a_run(found: CanaryFinding) -> str:
    from fedmf.accounting import at_most

    bound = found.bound
    return (
        f"claimed   {_claim(found)}\n"
        f"measured  ε ≥ {at_most(bound.epsilon, 4)} (as μ-GDP {at_most(bound.mu, 4)}) at "
        f"{100 * bound.confidence:g} % confidence\n"
        f"          {bound.guessed} of {bound.judged} canaries' coins guessed rightly from {found.rounds} "
        "released rounds\n"
        "          a lower bound from the canaries in this run; it says nothing about runs without canaries "
        "beyond the same code\n"
        + ("REFUTED: the run leaks more than it claims." if found.refuted else "no contradiction.")
    )
