"""``fedmf schema``: draft the ranges of the columns of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from fedmf.cli.shared_options import argument, option


def schema(
    table: Path = argument(..., "TABLE", "CSV or Parquet, or a folder; only a header is read."),
    user_from: Literal["column", "filename"] = option(
        "column", None, "filename: TABLE is a folder with a file for each user."
    ),
    output: Path = option(Path("schema.toml"), "FILE", "File to create."),
) -> None:
    """Draft a schema from the header of a table.

    Reads neither rows nor Parquet statistics, and never overwrites a file. Fill in the bounds,
    categories and times from public knowledge.

    Example: fedmf schema rows.csv
    """
    from fedmf.data.schema_file import draft_schema
    from fedmf.ledger.durable_files import new_file

    text = draft_schema(table, user_from)
    with new_file(output, mode=0o644) as opened:
        opened.write(text.encode())
    rows = str(table)
    if user_from == "filename":
        rows += " --user-from filename"
    elif table.is_dir():  # which a stream reads only with a file for each user
        rows = "FILE"
    typer.echo(
        f"Wrote {output}. Fill in the marked values, then: fedmf stream --input {rows} --schema"
        f" {output} … or, to train: fedmf init table --schema {output}"
    )
