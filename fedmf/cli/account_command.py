"""``fedmf account`` and ``export``: the statement and the model of a directory."""

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

    Several directories, each with its own noise key, are composed: the μ² of a user in all of them
    add up.

    Example: fedmf account runs/a --public statement-public.json
    """
    again = shlex.join(["fedmf", "account", *map(str, run_dirs), "--full"])
    if len(run_dirs) > 1:
        from fedmf.statements.composition import compose

        statement = compose([*map(_costs_of, run_dirs)], delta)
        several = (
            f"{statement['users_in_several']:,} by id; the same people under other ids are not"
            " found"
        )
        operator = {"took part": f"{statement['users_participated']:,}", "in several": several}
    elif delta is not None:
        raise ConfigError("--delta takes several directories; got one.")
    else:
        statement, operator = _of_one(run_dirs[0])
    if public is not None:
        from fedmf.ledger.durable_files import new_file

        with new_file(public, mode=0o644) as file:
            kept = statement.public()
            file.write((kept.render_text() if public.suffix == ".txt" else kept.to_json()).encode())
    if as_json:
        typer.echo(statement.to_json(), nl=False)
        return
    if full:
        typer.echo(statement.render_text(), nl=False)
    else:
        written = f" (written to {public})" if public else ""
        typer.echo(f"May be published{written}:")
        typer.echo(statement.public().render_text(False, again), nl=False)
    quantiles = statement.get("epsilon_spent_quantiles")
    if quantiles and statement["epsilon"] is not None:
        from fedmf.accounting.rounding import at_least

        spent = {
            f"{who} {statement['unit']}": quantiles[at]
            for who, at in (("worst", "1"), ("median", "0.5"))
        }
        operator = {name: f"spent ε {at_least(value)}" for name, value in spent.items()} | operator
    typer.echo("\nOperator only, do not publish:")
    for name, value in operator.items():
        typer.echo(f"  {name:<14} {value}")


def _of_one(directory: Path) -> tuple[PrivacyStatement, dict[str, str]]:
    """The statement of a run or stream, and figures of its records for the operator."""
    if _is_stream(directory):
        from fedmf.streaming import StreamState, account_stream

        with StreamState.open(directory) as state:
            counts = {
                name.replace("_", " "): str(count)
                for name, count in state.position.counts().items()
            }
        return account_stream(directory), counts
    from fedmf.runs.directory import opened_record
    from fedmf.runs.run_statement import run_statement

    with opened_record(directory) as (header, ledger):
        return run_statement(header, ledger), _counts(directory, header, ledger)


def _counts(directory: Path, header: RunHeader, ledger: Ledger) -> dict[str, str]:
    """The newest model that was evaluated, contributions that arrived, how many count as zeros, and
    why.

    Raises:
        ConfigError: the file of failures cannot be read.
    """
    from fedmf.runs.directory import FAILURES

    file = directory / FAILURES
    metrics = ledger.metrics()
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        failures = [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}.") from None
    model = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in metrics.get(max(metrics, default=0), {}).items()
        if value is not None and name != "epsilon"
    )
    rounds = ledger.released
    size = header.plan.users_per_round
    arrived = ledger.histories.participations
    zero = sum(1 for one in failures if one.get("user"))
    stages = Counter(str(one.get("stage")) for one in failures)
    first = {str(one.get("stage")): str(one.get("reason"))[:100] for one in reversed(failures)}
    each = f", {arrived / rounds:.1f} per round of {size} planned" if rounds else ""
    return {
        **({"model": f"{model} after round {max(metrics)}"} if model else {}),
        "rounds": f"{rounds} released",
        "contributions": f"{arrived} arrived{each}",
        **({"of them zero": f"{zero} after a failure"} if zero else {}),
        **{
            f"  {stage}": f"{count}; the first: {first[stage]}"
            for stage, count in stages.most_common()
        },
    }


def _is_stream(directory: Path) -> bool:
    from fedmf.runs.directory import LEDGER

    if (directory / LEDGER).exists():  # runs need no more than this
        return False
    from fedmf.streaming import StreamState

    return StreamState.exists(directory)


def _costs_of(directory: Path) -> PrivacyCost:
    """The cost of a run or stream for each of its users."""
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
    entries = sum(tensor.numel() for tensor in model.tensors.values())
    typer.echo(
        f"{output}: {entries:,} parameters in {len(model.tensors)} tensors after {model.rounds}"
        " rounds."
    )
