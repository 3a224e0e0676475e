"""``fedmf data`` and ``fedmf schema``: what users own, and what the columns of a table may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from fedmf.data import PartitionSummary

#: More names of classes than these would cover each other.
_MOST_NAMES: Final = 30


def schema(
    file: Path = typer.Argument(..., metavar="FILE", help="CSV or Parquet; only its header is read."),
    output: Path = typer.Option(Path("schema.toml"), "--output", metavar="FILE", help="New file."),
) -> None:
    """Draft what the columns of a table may hold, from its header alone. It never replaces a file.

    Rows are not read, nor what Parquet's footer says of them: bounds, categories and times are yours to
    declare, from what is known to everybody.

    Example: fedmf schema rows.csv
    """
    from fedmf.data import draft_schema
    from fedmf.records import new_file

    text = draft_schema(file)
    with new_file(output, mode=0o644) as opened:
        opened.write(text.encode())
    typer.echo(
        f"{output} is written. Fill in what it marks, then: fedmf stream --input {file} --schema {output} …"
    )
    typer.echo(f"Whether rows keep to it, which is not private: fedmf data --schema {output} --check {file}")


def data(
    config: Path | None = typer.Argument(None, metavar="[CONFIG.toml]", help="Run configuration."),
    assignments: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Override a key."),
    output: Path | None = typer.Option(
        None, "--output", metavar="FILE", help="Draw sizes and labels of users: .png, .svg, .pdf."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    schema: Path | None = typer.Option(
        None, "--schema", metavar="FILE", help="Data schema that --check holds rows against."
    ),
    check: Path | None = typer.Option(
        None, "--check", metavar="FILE", help="Table whose rows are held against --schema. Not private."
    ),
) -> None:
    """Show how the examples of a configuration are spread over its users. What it shows is not private.

    With --schema and --check: how many rows of a table keep to its schema, not private either.

    Example: fedmf data configs/digits.toml --set data.partition=dirichlet --output partition.png
    """
    if schema is not None or check is not None:
        if schema is None or check is None or config is not None:
            raise typer.BadParameter("--schema FILE and --check FILE go together, without CONFIG.toml.")
        _check(schema, check, as_json)
        return
    if config is None:
        raise typer.BadParameter("data needs CONFIG.toml, or --schema FILE with --check FILE.")
    from fedmf.cli.plots import check_picture
    from fedmf.data import summarise
    from fedmf.runs import load_run, parse_assignments

    if output is not None:
        check_picture("--output", output)
    source = load_run(config, parse_assignments(assignments)).task_source
    task = source.build()
    summary = summarise(task.dataset)
    row = {**summary.row(), "model_parameters": task.model.dimension}
    if output is not None:
        _draw(summary, _class_names(source, summary.label_counts.shape[1]), output)
    typer.echo(json.dumps(row) if as_json else _table(row))


def _table(row: dict[str, Any]) -> str:
    sizes = ", ".join(f"{name} {size:,}" for name, size in row["sizes"].items())
    lines = {
        "users": f"{row['users']:,}",
        "training examples": f"{row['examples']:,}",
        "test examples": f"{row['test_examples']:,}",
        "one example": "×".join(map(str, row["example_shape"])) + f", {row['classes'] or 'no'} classes",
        "examples a user": sizes,
        "label entropy": f"{row['entropy_of_users']:.2f} bits inside a user, {row['entropy_of_all']:.2f} "
        f"over all ({row['users_looked_at']:,} users looked at)",
        "model": f"{row['model_parameters']:,} parameters",
    }
    return "\n".join(f"{name:<18} {value}" for name, value in lines.items())


def _check(schema: Path, file: Path, as_json: bool) -> None:
    """Say how many rows keep to a schema."""
    from dataclasses import asdict

    from fedmf.data import cell_blocks, check_rows, read_schema

    declared = read_schema(schema)
    seen, rows, valid = check_rows(declared, cell_blocks(file, declared))
    if as_json:
        columns = {name: asdict(kept) for name, kept in seen.items()}
        typer.echo(json.dumps({"private": False, "rows": rows, "valid": valid, "columns": columns}))
        return
    typer.echo("NOT PRIVATE: counted in the rows without noise, for whoever may see them.")
    typer.echo(f"{valid:,} of {rows:,} rows are valid.")
    for name, kept in seen.items():
        faults = {
            "missing" + (" and filled" if kept.filled else ""): kept.missing,
            "unreadable": kept.unreadable,
            "out of bounds": kept.clipped,
        }
        told = ", ".join(f"{count:,} {what}" for what, count in faults.items() if count)
        typer.echo(f"{name:<18} {told or 'as declared'}")


def _class_names(source: object, count: int) -> list[str]:
    """What the classes are called, where schema or configuration say so; else their numbers."""
    from fedmf.data import read_schema

    data = getattr(source, "data", None)
    named = getattr(data, "classes", ())
    if schema := getattr(data, "schema", ""):
        columns = read_schema(Path(schema)).columns
        named = getattr(columns.get(getattr(data, "label_column", "")), "categories", ())
    return list(named) if isinstance(named, tuple) and len(named) == count else [*map(str, range(count))]


def _draw(summary: PartitionSummary, names: list[str], file: Path) -> None:
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    counted = summary.label_counts.shape[1] > 0
    left, *rest = figure.subplots(1, 2 if counted else 1, squeeze=False)[0]
    sizes = np.sort(summary.sizes)[::-1]
    shown = np.unique(np.geomspace(1, sizes.size, 2000).astype(int)) - 1
    left.plot(shown + 1, sizes[shown], drawstyle="steps-mid")
    left.set(xlabel="users, largest first", ylabel="examples", ylim=(0, None))
    for right in rest:
        some = summary.label_counts[:: max(1, len(summary.label_counts) // 100)]
        shares = some / np.maximum(1, some.sum(axis=1, keepdims=True))
        image = right.imshow(shares, aspect="auto", interpolation="nearest", vmin=0, vmax=1, cmap="viridis")
        right.set(xlabel="class", ylabel=f"{len(some)} of {sizes.size:,} users")
        if len(names) <= _MOST_NAMES:
            slanted = {"rotation": 45, "ha": "right"} if max(map(len, names)) > 2 else {}
            right.set_xticks(range(len(names)), names, fontsize=8, **slanted)
        figure.colorbar(image, ax=right, label="share of a user's examples")
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ValueError(f"--output (file) must be writable; got {file}: {error.strerror}.") from None
