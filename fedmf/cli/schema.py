"""``fedmf schema``: draft what the columns of a table may hold, and hold its rows against that."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fedmf.cli.options import flag, option


def schema(
    table: Path = typer.Argument(..., metavar="TABLE", help="CSV or Parquet; only its header is read."),
    output: Path = option(Path("schema.toml"), "FILE", "New file."),
    check: Path | None = option(None, "FILE", "Count the rows that keep to this schema. Not private."),
    as_json: bool = flag("--json", "With --check, print one JSON object."),
) -> None:
    """Draft a schema from the header of a table, or with --check say how many rows keep to one.

    A draft never replaces a file. Rows are not read for it, nor what Parquet's footer says of them: bounds,
    categories and times are yours to declare, from what is known to everybody. What --check prints is counted
    in the rows without noise.

    Example: fedmf schema rows.csv
    """
    from fedmf.data import read_schema
    from fedmf.data.schema_file import check_rows, draft_schema
    from fedmf.records.new_places import new_file

    if check is None:
        text = draft_schema(table)
        with new_file(output, mode=0o644) as opened:
            opened.write(text.encode())
        typer.echo(
            f"{output} is written. Fill in what it marks, then: "
            f"fedmf stream --input {table} --schema {output} …"
        )
        typer.echo(f"Whether rows keep to it, which is not private: fedmf schema {table} --check {output}")
        return
    seen = check_rows(read_schema(check), table)
    if as_json:
        typer.echo(json.dumps({"private": False, **seen}))
        return
    typer.echo("NOT PRIVATE: counted in the rows without noise, for those who may see the rows.")
    typer.echo(f"{seen['valid']:,} of {seen['rows']:,} rows are valid.")
    for name, column in seen["columns"].items():
        told = ", ".join(f"{count:,} {what}" for what, count in column.items() if count)
        typer.echo(f"{name:<18} {told or 'as declared'}")
