"""``fedmf account``: planned and realised privacy of a run, from its ledger."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fedmf.accounting.statement import PrivacyStatement

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
    if as_json:
        typer.echo(statement.to_json())
    else:
        typer.echo(statement.render_text())
        _show_users(statement)


def _show_users(statement: PrivacyStatement) -> None:
    """How ε is spread over users: a bar for each bin of the histogram."""
    from rich.console import Console
    from rich.table import Table

    bins = statement.epsilon_realised_histogram
    if not bins:
        return
    table = Table(title="Users by realised ε (worst user last)", title_justify="left")
    for heading in ("ε from", "to", "users", ""):
        table.add_column(heading, justify="right" if heading else "left")
    most = max(entry.users for entry in bins)
    for entry in bins:
        bar = "█" * math.ceil(30 * entry.users / most)
        table.add_row(f"{entry.low:.4g}", f"{entry.high:.4g}", f"{entry.users:,}", bar)
    Console().print(table)
    rounds = ", ".join(map(str, statement.realised_worst_pattern))
    typer.echo(
        f"{statement.realised_patterns:,} different patterns; a worst user joined the rounds {rounds} "
        f"(from 0)."
    )
