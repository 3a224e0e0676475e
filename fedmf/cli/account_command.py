"""``fedmf account``, ``export`` and ``predict``: privacy statements, models and their predictions.

Both read directories that a run or stream has written, finished or not, and change nothing there.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
import sys
from collections import Counter
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from fedmf.cli.exit_codes import REFUSED
from fedmf.cli.shared_options import FULL, argument, flag, option
from fedmf.errors import ConfigError
from fedmf.statements.statement import PrivacyStatement

#: Suffixes of a letter in plain words, and of all files with the public part of a statement.
_LETTERS: Final = (".md", ".html")
_PUBLIC: Final = (".json", ".txt", *_LETTERS)

if TYPE_CHECKING:
    from fedmf.ledger.ledger import Ledger
    from fedmf.runs.directory import RunHeader
    from fedmf.statements.composition import PrivacyCost

    #: A statement, and figures of the records for the operator by name.
    Account = tuple[PrivacyStatement, dict[str, str]]


def _check_public(files: list[Path]) -> list[Path]:
    """Reject a form that cannot be written, before anything is."""
    for file in files:
        if file.suffix.lower() not in _PUBLIC:
            raise typer.BadParameter(f"file must end in {', '.join(_PUBLIC)}; got {file}.")
    return files


def account(
    run_dirs: list[Path] = argument(
        ...,
        "RUN_DIR...",
        "Run directory, or state directory of a stream; several are joined by user id.",
    ),
    as_json: bool = flag("--json", "Print the operator's privacy statement as JSON."),
    full: bool = FULL,
    public: list[Path] = option(
        [],
        "FILE",
        "Also write the public part of the statement to a new file: .json, .txt, or .md or .html, a"
        " letter in plain words. Repeatable.",
        callback=_check_public,
    ),
    delta: float | None = option(
        None, "D", "With several directories: delta of their composition."
    ),
    users: Path | None = option(
        None,
        "FILE",
        "Also write the spent epsilon of each user who took part in a run to a new CSV file, which"
        " is only for the operator.",
        "--users",
    ),
    budget: float | None = option(
        None, "E", "Total epsilon of the same users: show what is left of it for later runs."
    ),
) -> None:
    """Print the guaranteed and the spent privacy of a run or stream.

    Reads the ledger, checks every row against the (n, k, b) bound, and computes each user's exact ε
    from the rounds in which that user took part (--users writes them all); in a stream of periods
    it is always the full ε, as who took part in which period is private. The first block may be
    published; the second is only for the operator, because it depends on participation. The exit
    code is 3 if the ledger, or a statement, configuration or released file next to it, is not as it
    was written.

    Several directories are composed: the μ² of a user in all of them add up. Copies of one run that
    were continued count their common rounds once. With --budget, the exit code is 3 if nothing is
    left.

    Example: fedmf account runs/a --public letter.html
    """
    _check_users(users, run_dirs)
    if len(run_dirs) > 1:
        statement, figures = _composition(run_dirs, delta)
    elif delta is not None:
        raise ConfigError("--delta takes several directories; got one.")
    elif _is_stream(run_dirs[0]):
        statement, figures = _stream_statement(run_dirs[0])
    else:
        statement, figures = _run_statement(run_dirs[0], users)
    for file in public:
        _write_public(statement.public(), file)
    left = _left_of(budget, statement)
    if as_json:
        typer.echo(PrivacyStatement({**statement, **left}).to_json(), nl=False)
    else:
        if full:
            typer.echo(statement.render_text(), nl=False)
        else:
            _show_public(statement, public, run_dirs)
        typer.echo("\nOperator only, do not publish:")
        for name, value in (_spent(statement) | figures).items():
            typer.echo(f"  {name:<14} {value}")
        if left:
            typer.echo(f"\n{_in_words(left, statement)}")
        if len(run_dirs) == 1 and any(file.suffix.lower() in _LETTERS for file in public):
            typer.echo(
                f"\nThe letter is about {run_dirs[0]} alone. For one about all runs on the same"
                f" people: fedmf account {run_dirs[0]} OTHER_DIR --public letter.html"
            )
    if left.get("epsilon_left") == 0:
        raise typer.Exit(REFUSED)


def _check_users(users: Path | None, run_dirs: list[Path]) -> None:
    """Reject a file of users unless there is one run: a stream may not say who took part."""
    if users is not None and (len(run_dirs) > 1 or _is_stream(run_dirs[0])):
        raise ConfigError("--users takes the directory of one run; got a stream or several.")


def _show_public(statement: PrivacyStatement, public: list[Path], run_dirs: list[Path]) -> None:
    """Print the most important lines of the public part of a statement."""
    heading = "May be published"
    if statement["epsilon"] is None:
        heading = "Do not publish what this run released about real people"
    if public:
        heading += f" (written to {', '.join(map(str, public))})"
    command = shlex.join(["fedmf", "account", *map(str, run_dirs), "--full"])
    typer.echo(f"{heading}:")
    typer.echo(statement.public().render_text(False, command), nl=False)


def _left_of(budget: float | None, statement: PrivacyStatement) -> dict[str, float]:
    """Return the budget and what is left of it; nothing without a budget."""
    from fedmf.statements.composition import epsilon_left

    if budget is None:
        return {}
    return {"budget": budget, "epsilon_left": epsilon_left(budget, statement)}


def _in_words(left: dict[str, float], statement: PrivacyStatement) -> str:
    """Return what is left of a budget in a sentence, which may be published."""
    from fedmf.accounting.rounding import at_most

    of = f"of epsilon {left['budget']:g} at delta {statement['delta']:g}"
    if not left["epsilon_left"]:
        return f"Budget: nothing is left {of}."
    epsilon = at_most(left["epsilon_left"])
    return f"Budget: epsilon {epsilon} is left {of}, for a later run or stream of the same users."


def _write_public(statement: PrivacyStatement, path: Path) -> None:
    """Write the public part of a statement to a new file in the form that its suffix names."""
    from fedmf.ledger.durable_files import new_file
    from fedmf.statements.letter import PrivacyLetter

    suffix = path.suffix.lower()
    text = statement.to_json()
    if suffix == ".txt":
        text = statement.render_text()
    elif suffix == ".md":
        text = PrivacyLetter.of(statement, date.today()).to_markdown()
    elif suffix == ".html":
        text = PrivacyLetter.of(statement, date.today()).to_html()
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
    from fedmf.statements.composition import PERIODS_COUNTED, compose

    costs = [_cost(directory) for directory in directories]
    statement = compose(costs, delta)
    figures = {}
    if any(cost.spent.others for cost in costs):
        figures["periods"] = PERIODS_COUNTED
    else:
        shared = statement["users_in_several"]
        figures["took part"] = f"{statement['users_participated']:,}"
        figures["in several"] = f"{shared:,} by id; the same people under other ids are not found"
    return statement, figures


def _stream_statement(directory: Path) -> Account:
    """Return the statement of a stream with counts of its rows."""
    from fedmf.statements.composition import PERIODS_COUNTED
    from fedmf.streaming import StreamState
    from fedmf.streaming.stream_statement import checked_costs

    counts = {}
    with StreamState.open(directory, read_only=True) as state:
        for name, count in state.counts().items():
            counts[name.replace("_", " ")] = str(count)
        costs = checked_costs(state)
        if costs.spent.others:
            counts["spent ε"] = PERIODS_COUNTED
        return costs.statement, counts


def _run_statement(directory: Path, users: Path | None) -> Account:
    """Return the statement of a run with figures of its ledger and failures.

    Args:
        directory: of the run.
        users: new file for the spent ε of each user; None for none.
    """
    from fedmf.runs.directory import FAILURES, opened_record
    from fedmf.runs.run_statement import checked_statement

    with opened_record(directory) as (header, ledger):
        figures = _model(ledger)
        figures["rounds"] = f"{ledger.released} released"
        figures["contributions"] = _contributions(header, ledger)
        statement = checked_statement(directory, header, ledger)
        figures |= _failures(directory / FAILURES)
        if users is not None:
            _write_users(users, statement, header, ledger)
            figures["users"] = f"spent ε of each in {users}"
        return statement, figures


def _write_users(
    path: Path, statement: PrivacyStatement, header: RunHeader, ledger: Ledger
) -> None:
    """Write the rounds and the spent ε, rounded up, of each user who took part."""
    from fedmf.accounting.rounding import at_least
    from fedmf.ledger.durable_files import new_file
    from fedmf.runs.run_statement import run_spent
    from fedmf.statements.composition import epsilon_of

    spent = run_spent(header.plan, ledger)
    worst = math.inf
    if statement["epsilon_spent"] is not None:
        worst = statement["epsilon_spent"]

    @cache
    def epsilon(mu: float) -> str:
        return at_least(min(epsilon_of(mu, statement["delta"], certified=False), worst))

    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["user", "rounds", "epsilon_spent"])
    for user, mu in zip(spent.users, spent.mu.tolist(), strict=True):
        rows.writerow([user, ledger.histories.row(user)[1], epsilon(mu)])
    with new_file(path) as file:
        file.write(text.getvalue().encode())


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
        raise ConfigError(f"cannot read {file}: {error}. Move it away to see the rest.") from None
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


def predict(
    run_dir: Path = argument(..., "RUN_DIR", "Run directory, finished or not."),
    source: Path = option(
        ..., "FILE", "CSV, JSON lines, Parquet, or a folder of such files or images.", "--input"
    ),
    output: Path | None = option(
        None, "FILE", "New file, .csv or .parquet. Default: CSV on standard output."
    ),
) -> None:
    """Predict with the last released model of a run for new rows.

    Columns are encoded by the schema of the run, of which the run directory has a copy. There is
    one row of output for each row of input, with empty cells where a feature cannot be read. Of the
    run, only the released model and public declarations are read.

    Example: fedmf predict runs/a --input new.csv --output predictions.csv
    """
    from pyarrow import csv, parquet

    from fedmf.data.row_counts import reasons_in_words
    from fedmf.ledger.durable_files import new_file
    from fedmf.runs.prediction import Predictor

    if output is not None and output.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"output must end in .csv or .parquet; got {output.name!r}.")
    predictions = Predictor.of(run_dir).of_file(source)
    table = predictions.table
    if output is None:
        csv.write_csv(table, sys.stdout.buffer)
    else:
        write = parquet.write_table if output.suffix == ".parquet" else csv.write_csv
        with new_file(output) as file:
            write(table, file)
    said = f"{table.num_rows - predictions.missing:,} of {table.num_rows:,} rows have a prediction"
    if predictions.missing:
        said += f"; left out: {reasons_in_words(predictions.left_out)}"
    typer.echo(f"{said}.", err=True)
