"""``fedmf contract``: a data contract to be filled in."""

from __future__ import annotations

from pathlib import Path

import typer


def contract(
    file: Path = typer.Argument(..., metavar="FILE", help="CSV or Parquet; only its header is read."),
    output: Path = typer.Option(Path("contract.toml"), "--output", metavar="FILE", help="New file."),
) -> None:
    """Draft what the columns of a table may hold, from its header alone. It never replaces a file.

    Rows are not read, nor what Parquet's footer says of them: bounds, words and times are yours to declare,
    from what is known to everybody.

    Example: fedmf contract rows.csv
    """
    from fedmf.data import draft_contract
    from fedmf.records import new_file

    text = draft_contract(file)
    with new_file(output, mode=0o644) as opened:
        opened.write(text.encode())
    typer.echo(
        f"{output} is written. Fill in what it marks, then: fedmf stream --input {file} --contract {output} …"
    )
    typer.echo(
        f"Whether rows keep to it, which is not private: fedmf data --contract {output} --check {file}"
    )
