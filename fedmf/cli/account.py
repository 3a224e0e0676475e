"""``fedmf account``: planned and realised privacy of a run, from its ledger."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["account"]


def account(
    run_dir: Path = typer.Argument(
        ..., metavar="RUN_DIR", help="Directory of a finished, running or stopped run."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the privacy statement as JSON."),
) -> None:
    """Say what privacy a run promised and what it really gave.

    Replays the participation ledger, checks every row against the (n, k, b) contract, and computes each
    user's exact ε from the rounds in which that user took part.
    """
    from fedmf.accounting.header import RunHeader
    from fedmf.accounting.ledger import Ledger
    from fedmf.accounting.statement import build_statement
    from fedmf.runs.directory import LEDGER, read_config

    read_config(run_dir)
    with Ledger.open(run_dir / LEDGER, read_only=True) as ledger:
        statement = build_statement(RunHeader.from_dict(ledger.header), ledger)
    typer.echo(statement.to_json() if as_json else statement.render_text())
