"""``fedmf verify`` and ``keygen``: statements checked without data; what only the operator is told."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from fedmf.errors import ConfigError

if TYPE_CHECKING:
    from fedmf.records import Ledger
    from fedmf.runs import Verification
    from fedmf.statements import RunHeader


_LONGEST: Final = 100
_MARK: Final = "NOT PRIVATE: exact counts, for the operator alone."
#: Failures of these stages are of no contribution to a round.
_BESIDE: Final = ("evaluation", "quarantine")


def operator_lines(run_dir: Path, header: RunHeader, ledger: Ledger) -> list[str]:
    """Contributions that arrived, how many of them count as zeros, and why.

    Args:
        run_dir: of the run.
        header: of its record.
        ledger: of its record.

    Raises:
        ConfigError: the file of failures cannot be read.
    """
    last = ledger.last_round()
    rounds, size = 0 if last is None else last + 1, header.plan.cohorts.size
    arrived = sum(1 for _ in ledger.participations())
    failures = _failures(run_dir)
    stages = Counter(str(one.get("stage")) for one in failures)
    first = {str(one.get("stage")): str(one.get("reason"))[:_LONGEST] for one in reversed(failures)}
    zero = sum(1 for one in failures if one.get("user") and one.get("stage") not in _BESIDE)
    share = f", {100 * zero / arrived:.1f} %" if arrived else ""
    each = f", {arrived / rounds:.1f} a round of {size} planned" if rounds else ""
    return [
        _MARK,
        f"  rounds            {rounds} released",
        f"  contributions     {arrived} arrived{each}",
        f"  of them zero      {zero} for a failure that was noted{share}",
        *(f"    {stage:<14}  {count}; the first: {first[stage]}" for stage, count in stages.most_common()),
    ]


def stream_lines(state_dir: Path) -> list[str]:
    """How many rows of a stream were clipped, zeroed and refused.

    Raises:
        StateError: the state cannot be opened.
    """
    from fedmf.streaming import StreamState

    with StreamState.open(state_dir) as state:
        counts = state.position.counts()
    return [_MARK, *(f"  {name.replace('_', ' '):<16}  {value}" for name, value in counts.items())]


def _failures(run_dir: Path) -> list[dict[str, object]]:
    from fedmf.runs import FAILURES

    try:
        with (run_dir / FAILURES).open(encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {run_dir / FAILURES}: {error}.") from None


def keygen(
    path: Path = typer.Argument(
        ..., metavar="FILE", help="New file for the key, outside everything that is published."
    ),
) -> None:
    """Make a key that signs privacy statements (Ed25519), and FILE.pub for those who verify them.

    FILE is for its owner alone (mode 0600): whoever has it can state anything in the operator's name. It has
    no part in the noise; the noise key of a run is another one.

    Example: fedmf keygen operator.key
    """
    from fedmf.records import SigningKey

    key = SigningKey.create(path)
    typer.echo(
        f"{path}: keep it secret, and a backup of it. {SigningKey.public_file(path)} is for everybody: "
        f"{key.public_key}"
    )
    typer.echo(f"sign with: fedmf account RUN_DIR --publish DIR --sign-with {shlex.quote(str(path))}")


_MOST_DIGITS = 15


def verify(
    statement: Path = typer.Argument(
        ..., metavar="STATEMENT", help="The statement.json that fedmf account --publish wrote."
    ),
    signer: Path | None = typer.Option(
        None, "--signed-by", metavar="FILE", help="The operator's public key (FILE.pub of fedmf keygen)."
    ),
    run: Path | None = typer.Option(
        None, "--run", metavar="DIR", help="The run's directory, for an auditor: check its records too."
    ),
    committed: Path | None = typer.Option(
        None,
        "--committed",
        metavar="STATEMENT",
        help="A statement of this run that was published earlier, say before round 0: compare what it "
        "commits to.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object."),
) -> None:
    """Check a published privacy statement: its signature, and every figure computed again.

    Needs neither data nor keys. Says what was verified and what could not be. Whatever does not fit ends with
    one line and exit code 2.

    Example: fedmf verify public/statement.json --signed-by operator.key.pub
    """
    from fedmf.records import read_public_key
    from fedmf.runs import verify_statement

    key = None if signer is None else read_public_key(signer)
    found = verify_statement(statement, key, run, committed)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2, ensure_ascii=False))
    else:
        _show(found)


def _show(found: Verification) -> None:
    from fedmf.accounting import at_least, at_most

    figures = found.figures
    typer.echo("Computed again:")
    if figures["epsilon_planned"] is not None:
        typer.echo(f"  as stated    epsilon {at_least(figures['epsilon_planned'])}")
    for adjacency, row in figures["adjacencies"].items():
        values = ", ".join(
            f"{name} {'≤ ' if row['kind'] != 'exact' else ''}{at_least(row[name])}"
            for name in ("epsilon", "mu", "rho")
        )
        typer.echo(f"  {adjacency:<12} {values} at delta {at_least(figures['delta'])}")
    count = figures["allowed_patterns"]
    shown = f"{count:,}" if len(str(count)) <= _MOST_DIGITS else f"about 10^{len(str(count)) - 1}"
    typer.echo(
        f"  sensitivity {at_least(figures['sensitivity'])}, noise multiplier "
        f"{at_most(figures['noise_multiplier'])}, {figures['rounds_released']} rounds released, {shown} "
        "patterns of rounds allowed"
    )
    sections = (
        (
            "Beside the model, counted in these",
            [": ".join(row) for row in figures["beside_the_model"].items()],
        ),
        ("Verified", found.verified),
        ("Not verified", found.unverified),
        ("The operator's word alone", found.stated),
    )
    for title, entries in sections:
        if not entries:
            continue
        typer.echo(f"{title}:")
        for entry in entries:
            typer.echo(f"  - {entry}")
