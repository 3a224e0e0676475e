"""``fedmf account`` and ``export``: what a directory says of its run."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from fedmf.errors import ConfigError

if TYPE_CHECKING:
    from fedmf.records import Costs, Ledger, PrivacyStatement
    from fedmf.runs import RunHeader

#: Figures of parts on a screen; a file has all of them.
MOST_SHOWN: Final = 6
_LONGEST: Final = 100
_MARK: Final = "NOT PRIVATE: exact counts, for the operator alone."


def account(
    run_dirs: list[Path] = typer.Argument(
        ...,
        metavar="RUN_DIR...",
        help="Directory of a finished, running or stopped run, or state of a stream; several are joined by "
        "user id.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the privacy statement as JSON."),
    full: bool = typer.Option(
        False, "--full", help="Print the whole statement, not its short form of at most twelve lines."
    ),
    public: Path | None = typer.Option(
        None,
        "--public",
        metavar="FILE",
        help="Also write the part of the statement that may be public, as a new JSON file.",
    ),
    operator: bool = typer.Option(
        False,
        "--operator",
        help="Print exact counts instead: contributions that arrived, those that count as zeros, and why. "
        "Not private.",
    ),
    namespace: str = typer.Option(
        "",
        "--user-namespace",
        metavar="NAME",
        help="Of several: what user ids are ids of, asserted for directories that name nothing.",
    ),
    delta: float | None = typer.Option(
        None, "--delta", metavar="D", help="Of several: delta of what they give together."
    ),
) -> None:
    """Say what privacy a run promised and what it really gave.

    Replays the participation ledger, checks every row against the (n, k, b) contract, and computes each
    user's exact ε from the rounds in which that user took part. What it prints is for the operator: figures
    of what was spent are not private. Files that exist are never replaced. What is assumed, not covered and
    to be kept secret is counted on the screen and written out with --full.

    The state directory of a stream gives the statement of that stream, computed again.

    Several directories are runs and streams on the same people, each with a noise key of its own: users are
    joined by id, and √Σμ² counts.

    Example: fedmf account runs/a --public statement-public.json
    """
    if operator:
        others = len(run_dirs) > 1 or as_json or full or namespace
        if others or public is not None or delta is not None:
            raise ConfigError(
                "--operator takes one directory and no other option: its counts are not private."
            )
        _show_counts(run_dirs[0])
        return
    if len(run_dirs) > 1:
        if public is not None:
            raise ConfigError("--public takes one directory; got several.")
        if len({directory.resolve() for directory in run_dirs}) < len(run_dirs):
            raise ConfigError("run directories must differ; got one of them twice.")
        from fedmf.records import compose

        _show(compose([*map(costs_of, run_dirs)], namespace, delta), as_json, full, run_dirs)
        return
    if namespace or delta is not None:
        raise ConfigError("--user-namespace and --delta take several directories; got one.")
    from fedmf.records import new_file, require_free

    if public is not None:
        require_free(public)
    statement, model = _of_one(run_dirs[0])
    if public is not None:
        with new_file(public, mode=0o644) as file:
            file.write(statement.public().to_json().encode())
        typer.echo(f"{public}: this file may be published. What follows is for the operator.", err=True)
    _show(statement, as_json, full, run_dirs, model)


def _show(
    statement: PrivacyStatement,
    as_json: bool,
    full: bool,
    directories: list[Path],
    model: Sequence[tuple[str, str]] = (),
) -> None:
    again = shlex.join(["fedmf", "account", *map(str, directories), "--full"])
    typer.echo(statement.to_json() if as_json else statement.render_text(full, again, model), nl=False)


def _of_one(directory: Path) -> tuple[PrivacyStatement, list[tuple[str, str]]]:
    """The statement of a run or stream, and what the records of a run say of its newest model."""
    if _is_stream(directory):
        from fedmf.streaming import account_stream

        return account_stream(directory), []
    from fedmf.runs import opened_record, run_statement

    with opened_record(directory) as (header, ledger):
        if not ledger.authenticated:
            typer.echo(f"{directory}: without noise.key nobody can tell who wrote its ledger.", err=True)
        return run_statement(header, ledger), _noted(header, ledger.metrics())


def _noted(header: RunHeader, rows: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the records say of the newest model that was evaluated, the columns of ``metrics.parquet``: how
    good it is, and what was released beside it."""
    if not rows:
        return []
    rounds, row = max(rows.items())
    columns = [column for one in header.plan.statistics for column in one.columns]
    quality = []
    for column, value in row.items():
        name = column.removesuffix("_not_private")
        if value is None or name.endswith("_std") or name.startswith("epsilon"):
            continue
        if column not in columns:
            mark = "" if column == name else f" ({column.removeprefix(name + '_').replace('_', ' ')})"
            quality.append(f"{name.replace('_', ' ')} {value:.4g}{mark}")
    said = {"quality": quality, "released": released(columns, row)}
    return [(name, f"{', '.join(texts)} after round {rounds}") for name, texts in said.items() if texts]


def released(columns: Sequence[str], row: Mapping[str, Any]) -> list[str]:
    """What parts released, of a row of metrics, in words; of many figures the first few.

    Args:
        columns: those of the parts.
        row: of metrics; it may have nothing of some.
    """
    there = [column for column in columns if row.get(column) is not None]
    more = [f"{len(there) - MOST_SHOWN} more figures"] if len(there) > MOST_SHOWN else []
    return [f"{column.replace('_', ' ')} {row[column]:.4g}" for column in there[:MOST_SHOWN]] + more


def _is_stream(directory: Path) -> bool:
    from fedmf.runs import LEDGER

    if (directory / LEDGER).exists():  # runs need no more than this
        return False
    from fedmf.streaming import StreamState

    return StreamState.exists(directory)


def _show_counts(directory: Path) -> None:
    """Exact counts, on the screen alone."""
    from fedmf.runs import opened_record

    if _is_stream(directory):
        lines = _stream_lines(directory)
    else:
        with opened_record(directory) as (header, ledger):
            lines = _operator_lines(directory, header, ledger)
    typer.echo("\n".join(lines))


def _operator_lines(run_dir: Path, header: RunHeader, ledger: Ledger) -> list[str]:
    """Contributions that arrived, how many of them count as zeros, and why.

    Args:
        run_dir: of the run.
        header: of its record.
        ledger: of its record.

    Raises:
        ConfigError: the file of failures cannot be read.
    """
    rounds, size = ledger.released, header.plan.cohorts.users_per_round
    arrived = ledger.summary().participations
    failures = _failures(run_dir)
    stages = Counter(str(one.get("stage")) for one in failures)
    first = {str(one.get("stage")): str(one.get("reason"))[:_LONGEST] for one in reversed(failures)}
    zero = sum(1 for one in failures if one.get("user"))
    share = f", {100 * zero / arrived:.1f} %" if arrived else ""
    each = f", {arrived / rounds:.1f} a round of {size} planned" if rounds else ""
    return [
        _MARK,
        f"  rounds            {rounds} released",
        f"  contributions     {arrived} arrived{each}",
        f"  of them zero      {zero} for a failure that was noted{share}",
        *(f"    {stage:<14}  {count}; the first: {first[stage]}" for stage, count in stages.most_common()),
    ]


def _stream_lines(state_dir: Path) -> list[str]:
    """How many rows of a stream were clipped, zeroed and refused.

    Raises:
        LedgerError: the state cannot be opened.
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


def costs_of(directory: Path) -> Costs:
    """What a run or stream cost each of its users.

    Raises:
        ConfigError: it is neither.
        LedgerError: records are damaged, or cannot be joined by user id.
    """
    if _is_stream(directory):
        from fedmf.streaming import stream_costs

        return stream_costs(directory)
    from fedmf.runs import costs_of_run

    return costs_of_run(directory)


def export(
    run_dir: Path = typer.Argument(
        ..., metavar="RUN_DIR", help="Directory of a finished, running or stopped run."
    ),
    output: Path = typer.Option(
        ..., "--output", metavar="FILE", help="New file that ends with .safetensors or .pt."
    ),
) -> None:
    """Write the model that a run released last, by the names of the module's parameters.

    Neither the data nor the task of the run are needed. A file that exists is never replaced.

    Example: fedmf export runs/a --output model.safetensors
    """
    from fedmf.records import write_tensors
    from fedmf.runs import ReleasedModel

    model = ReleasedModel.of(run_dir)
    write_tensors(output, model.tensors, {"software": model.software, "rounds": str(model.rounds)})
    entries = sum(tensor.numel() for tensor in model.tensors.values())
    typer.echo(
        f"{output}: {entries:,} parameters in {len(model.tensors)} tensors after {model.rounds} rounds."
    )
