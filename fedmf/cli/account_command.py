"""``fedmf account`` and ``fedmf export``: the privacy statement and the model of a run or stream.

Both read directories that a run or stream has written, finished or not, and change nothing there.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedmf.cli.shared_options import FULL, argument, flag, option
from fedmf.errors import ConfigError

if TYPE_CHECKING:
    from fedmf.ledger.ledger import Ledger
    from fedmf.runs.directory import RunHeader
    from fedmf.statements.composition import PrivacyCost
    from fedmf.statements.statement import PrivacyStatement

    #: A statement, and figures of the records for the operator by name.
    Account = tuple[PrivacyStatement, dict[str, str]]


def account(
    run_dirs: list[Path] = argument(
        ...,
        "RUN_DIR...",
        "Run directory, or state directory of a stream; several are joined by user id.",
    ),
    as_json: bool = flag("--json", "Print the operator's privacy statement as JSON."),
    full: bool = FULL,
    public: Path | None = option(
        None,
        "FILE",
        "Also write the public part of the statement to a new file: .txt as text, else JSON.",
    ),
    delta: float | None = option(
        None, "D", "With several directories: delta of their composition."
    ),
) -> None:
    """Print the guaranteed and the spent privacy of a run or stream.

    Reads the ledger, checks every row against the (n, k, b) bound, and computes each user's exact ε
    from the rounds in which that user took part. The first block may be published; the second is
    only for the operator, because it depends on participation.

    Several directories are composed: the μ² of a user in all of them add up. Copies of one run that
    were continued count their common rounds once.

    Example: fedmf account runs/a --public statement-public.json
    """
    if len(run_dirs) > 1:
        statement, figures = _composition(run_dirs, delta)
    elif delta is not None:
        raise ConfigError("--delta takes several directories; got one.")
    elif _is_stream(run_dirs[0]):
        statement, figures = _stream_statement(run_dirs[0])
    else:
        statement, figures = _run_statement(run_dirs[0])
    if public is not None:
        _write_public(statement.public(), public)
    if as_json:
        typer.echo(statement.to_json(), nl=False)
        return
    if full:
        typer.echo(statement.render_text(), nl=False)
    else:
        heading = "May be published:"
        if public is not None:
            heading = f"May be published (written to {public}):"
        command = shlex.join(["fedmf", "account", *map(str, run_dirs), "--full"])
        typer.echo(heading)
        typer.echo(statement.public().render_text(False, command), nl=False)
    typer.echo("\nOperator only, do not publish:")
    for name, value in (_spent(statement) | figures).items():
        typer.echo(f"  {name:<14} {value}")


def _write_public(statement: PrivacyStatement, path: Path) -> None:
    """Write the public part of a statement to a new file: .txt as text, else JSON."""
    from fedmf.ledger.durable_files import new_file

    text = statement.to_json()
    if path.suffix == ".txt":
        text = statement.render_text()
    with new_file(path, mode=0o644) as file:
        file.write(text.encode())


def _spent(statement: PrivacyStatement) -> dict[str, str]:
    """Return the spent ε of the worst and of the median user, for the operator."""
    from fedmf.accounting.rounding import at_least

    quantiles = statement.get("epsilon_spent_quantiles")
    if not quantiles or statement["epsilon"] is None:
        return {}
    return {
        f"worst {statement['unit']}": f"spent ε {at_least(quantiles['1'])}",
        f"median {statement['unit']}": f"spent ε {at_least(quantiles['0.5'])}",
    }


def _composition(directories: list[Path], delta: float | None) -> Account:
    """Return the statement of several runs and streams together, joined by user id."""
    from fedmf.statements.composition import compose

    costs = [_cost(directory) for directory in directories]
    statement = compose(costs, delta)
    shared = statement["users_in_several"]
    figures = {
        "took part": f"{statement['users_participated']:,}",
        "in several": f"{shared:,} by id; the same people under other ids are not found",
    }
    return statement, figures


def _stream_statement(directory: Path) -> Account:
    """Return the statement of a stream with counts of its rows."""
    from fedmf.streaming import StreamState, account_stream

    counts = {}
    with StreamState.open(directory, remembered=False) as state:
        for name, count in state.counts().items():
            counts[name.replace("_", " ")] = str(count)
    return account_stream(directory), counts


def _run_statement(directory: Path) -> Account:
    """Return the statement of a run with figures of its ledger and failures."""
    from fedmf.runs.directory import FAILURES, opened_record
    from fedmf.runs.run_statement import run_statement

    with opened_record(directory) as (header, ledger):
        figures = _model(ledger)
        figures["rounds"] = f"{ledger.released} released"
        figures["contributions"] = _contributions(header, ledger)
        return run_statement(header, ledger), figures | _failures(directory / FAILURES)


def _model(ledger: Ledger) -> dict[str, str]:
    """Return the metrics of the newest model that was evaluated."""
    metrics = ledger.metrics()
    if not metrics:
        return {}
    newest = max(metrics)
    figures = []
    for name, value in metrics[newest].items():
        if value is not None and name != "epsilon":
            figures.append(f"{name.replace('_', ' ')} {value:.4g}")
    if not figures:
        return {}
    return {"model": f"{', '.join(figures)} after round {newest}"}


def _contributions(header: RunHeader, ledger: Ledger) -> str:
    arrived = ledger.histories.participations
    if not ledger.released:
        return f"{arrived} arrived"
    per_round = arrived / ledger.released
    planned = header.plan.users_per_round
    return f"{arrived} arrived, {per_round:.1f} per round of {planned} planned"


def _failures(file: Path) -> dict[str, str]:
    """Return the number of contributions that count as zeros, and the reasons by stage.

    Raises:
        ConfigError: the file of failures cannot be read.
    """
    try:
        if not file.exists():
            return {"failures": f"unknown: {file} is missing"}
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        failures = [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}.") from None
    zeros = 0
    stages = Counter[str]()
    first_reasons = dict[str, str]()
    for failure in failures:
        if failure.get("user"):
            zeros += 1
        stage = str(failure.get("stage"))
        stages[stage] += 1
        first_reasons.setdefault(stage, str(failure.get("reason"))[:100])
    figures = {}
    if zeros:
        figures["of them zero"] = f"{zeros} after a failure"
    for stage, count in stages.most_common():
        figures[f"  {stage}"] = f"{count}; the first: {first_reasons[stage]}"
    return figures


def _is_stream(directory: Path) -> bool:
    from fedmf.runs.directory import LEDGER

    if (directory / LEDGER).exists():  # a run, for which no module of streams is imported
        return False
    from fedmf.streaming import StreamState

    return StreamState.exists(directory)


def _cost(directory: Path) -> PrivacyCost:
    """Return the cost of a run or stream for each of its users."""
    if _is_stream(directory):
        from fedmf.streaming import stream_costs

        return stream_costs(directory)
    from fedmf.runs.run_statement import costs_of_run

    return costs_of_run(directory)


def export(
    run_dir: Path = argument(..., "RUN_DIR", "Run directory, finished or not."),
    output: Path = option(..., "FILE", "New file with the suffix .safetensors or .pt."),
) -> None:
    """Write the last released model of a run, by parameter name.

    This needs neither the data nor the task of the run, and never overwrites a file.

    Example: fedmf export runs/a --output model.safetensors
    """
    from fedmf.runs.released_model import ReleasedModel, write_tensors

    model = ReleasedModel.of(run_dir)
    write_tensors(output, model.tensors, {"software": model.software, "rounds": str(model.rounds)})
    different = {id(tensor): tensor for tensor in model.tensors.values()}
    parameters = sum(tensor.numel() for tensor in different.values())
    typer.echo(
        f"{output}: {parameters:,} parameters in {len(different)} tensors after {model.rounds}"
        " rounds."
    )
