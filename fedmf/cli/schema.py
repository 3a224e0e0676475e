"""``fedmf schema``: draft what the columns of a table may hold."""

from __future__ import annotations

from pathlib import Path

import typer

from fedmf.cli.options import argument, option


def schema(
    table: Path = argument(..., "TABLE", "CSV or Parquet; only its header is read."),
    output: Path = option(Path("schema.toml"), "FILE", "New file."),
) -> None:
    """Draft a schema from the header of a table.

    A draft never replaces a file. Rows are not read for it, nor what Parquet's footer says of them: bounds,
    categories and times are yours to declare, from what is known to everybody.

    Example: fedmf schema rows.csv
    """
    from fedmf.data.schema_file import draft_schema
    from fedmf.records.files import new_file

    text = draft_schema(table)
    with new_file(output, mode=0o644) as opened:
        opened.write(text.encode())
    typer.echo(
        f"{output} is written. Fill in what it marks, then: fedmf stream --input {table} --schema {output} …"
    )
