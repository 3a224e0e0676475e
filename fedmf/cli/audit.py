"""``fedmf audit``: try to find canary users in what the mechanism releases."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import typer

__all__ = ["audit"]


def audit(
    config: Path = typer.Argument(..., metavar="CONFIG.toml", help="Run configuration; data are not used."),
    assignments: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Override a key, e.g. --set cohorts.rounds=12. Repeatable."
    ),
    canaries: int = typer.Option(2000, help="Canary users in each run; also the dimension of its model."),
    runs: int = typer.Option(1, help="Independent runs of the mechanism."),
    confidence: float = typer.Option(0.99, help="Confidence of the lower bound."),
    seed: int | None = typer.Option(None, help="Seed of the canaries' coins; default: unseeded."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Bound from below what a mechanism really leaks, and compare it with what it claims.

    Runs the real plan, clip, sum, noise stream and release on canary users of the worst participation
    pattern. A bound above the claim proves that something is wrong (exit code 1); one below it proves
    nothing, but mistakes of scale show.

    Example: fedmf audit configs/digits.toml --set cohorts.rounds=24
    """
    from rich.console import Console
    from rich.progress import Progress

    from fedmf.accounting import at_least, at_most
    from fedmf.runs import audit as run_audit
    from fedmf.runs import load_run, parse_assignments

    run = load_run(config, parse_assignments(assignments))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("auditing", total=runs * run.cohorts.rounds)
        audited = run_audit(run, canaries, runs, confidence, seed, lambda: progress.advance(bar))
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(audited), "refuted": audited.refuted}, indent=2))
    else:
        bound = audited.bound
        typer.echo(
            f"claimed   ε = {at_least(audited.epsilon_claimed, 4)} at δ = {at_least(audited.delta)}, as "
            f"μ-GDP {at_least(audited.mu_claimed, 4)}\n"
            f"measured  ε ≥ {at_most(bound.epsilon_gdp, 4)} (as μ-GDP {at_most(bound.mu, 4)}), confidence "
            f"{audited.confidence:g}\n"
            f"          ε ≥ {at_most(bound.epsilon, 4)} without assuming a Gaussian trade-off\n"
            f"          {bound.false_positives} of {bound.absent} absent and {bound.false_negatives} of "
            f"{bound.present} present canaries were judged wrongly\n"
            + (
                "REFUTED: the mechanism leaks more than it claims."
                if audited.refuted
                else "no contradiction."
            )
        )
    if audited.refuted:
        raise typer.Exit(1)
