"""``fedmf init``: a commented configuration to start from."""

from __future__ import annotations

from pathlib import Path

import typer

#: What one may start from: files of ``configs/start``, and what the first line of each says.
CASES = ("digits", "text", "amplified", "private-evaluation", "table")


def init(
    case: str = typer.Argument("", metavar="CASE", help=f"One of: {', '.join(CASES)}."),
    output: Path | None = typer.Option(
        None, "--output", metavar="FILE", help="New file.", show_default="CASE.toml"
    ),
    list_cases: bool = typer.Option(False, "--list", help="Say what each case is; write nothing."),
) -> None:
    """Write a commented configuration to start from. A file that exists is never replaced.

    Example: fedmf init digits && fedmf simulate digits.toml
    """
    from fedmf.errors import ConfigError
    from fedmf.records import new_file
    from fedmf.runs.tables import shipped_file

    if list_cases:
        for name in CASES:
            first = shipped_file(f"start/{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
            typer.echo(f"{name:<20} {first.removeprefix('# ')}")
        return
    if case not in CASES:
        raise ConfigError(f"CASE must be one of {', '.join(CASES)}; got {case!r}. See: fedmf init --list.")
    file = output or Path(f"{case}.toml")
    text = shipped_file(f"start/{case}.toml").read_text(encoding="utf-8").replace("FILE", str(file))
    with new_file(file, mode=0o644) as opened:
        opened.write(text.encode())
    typer.echo(f"{file} is written. Read it, change it, and train: fedmf simulate {file}")
