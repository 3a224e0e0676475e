"""``fedmf init`` and ``fedmf options``: a configuration to start from, and the keys it may have."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path

import typer

from fedmf.cli.shared_options import argument, flag, option


def options(
    words: list[str] = argument(
        None, "[WORD]...", "Words that the name or description must contain."
    ),
) -> None:
    """List configuration keys with their description and default.

    Set keys in a TOML file, with --set TABLE.KEY=VALUE, or in a Flower run config.

    Example: fedmf options clip norm
    """
    from fedmf.errors import ConfigError
    from fedmf.runs.tables.reference import keys

    wanted = [word.lower() for word in words or []]
    found = [
        key
        for key in keys()
        if all(word in f"{key.dotted} {key.meaning}".lower() for word in wanted)
    ]
    for key in found:
        typer.echo(f"{key.dotted}  ({key.type}, default {key.default})")
        typer.echo(textwrap.indent(textwrap.fill(key.meaning, 100, break_on_hyphens=False), "    "))
    if not found:
        raise ConfigError(
            f"no key has {' and '.join(map(repr, wanted))} in its name or description."
        )


#: What one may start from: files of ``configs/start``, and what the first line of each says.
CASES = ("digits", "text", "amplified", "table")
#: A Flower app without any privacy, to make private: a folder there.
APP = "flower-app"


def init(
    case: str = argument("", "CASE", f"One of: {', '.join((*CASES, APP))}."),
    output: Path | None = option(
        None, "FILE", "File or app folder to create.", show_default="CASE.toml"
    ),
    schema: Path | None = option(None, "FILE", "For table: schema of the columns."),
    list_cases: bool = flag("--list", "Describe the cases without writing a file."),
) -> None:
    """Write a commented configuration to start from; never overwrites a file.

    Example: fedmf init digits && fedmf simulate digits.toml
    """
    from fedmf.errors import ConfigError
    from fedmf.ledger.durable_files import create_directory, new_file
    from fedmf.runs.tables.configuration import shipped_file

    if list_cases:
        for name in CASES:
            first = (
                shipped_file(f"start/{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
            )
            typer.echo(f"{name:<20} {first.removeprefix('# ')}")
        typer.echo(f"{APP:<20} A folder with a Flower app without privacy, to make private.")
        return
    if schema is not None and case != "table":
        raise ConfigError(f"--schema is only for CASE table; got {case!r}.")
    file = output or Path(f"{case}.toml" if case in CASES else case)
    if case == APP:

        def fill(made: Path) -> None:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(
                shipped_file("start/flower_app"), made, ignore=ignored, dirs_exist_ok=True
            )
            (made / "digits_app/plain_server_app.py").replace(made / "digits_app/server_app.py")

        create_directory(file, "folder of the app", fill, mode=0o755)
        typer.echo(
            f"Wrote {file}. In Python: fedmf.flower.run_app({str(file)!r}, num_supernodes=40)"
        )
        return
    if case not in CASES:
        raise ConfigError(
            f"CASE must be one of {', '.join((*CASES, APP))} (see --list); got {case!r}."
        )
    text = shipped_file(f"start/{case}.toml").read_text(encoding="utf-8").replace("FILE", str(file))
    if schema is not None:
        text = _named(text, schema)
    with new_file(file, mode=0o644) as opened:
        opened.write(text.encode())
    typer.echo(f"Wrote {file}. Edit it, then train: fedmf simulate {file}")


def _named(text: str, schema: Path) -> str:
    """The configuration with the file and the columns of a schema in place of the example's."""
    from fedmf.data import read_schema

    declared = read_schema(schema)
    labels = [name for name, column in declared.columns.items() if column.kind == "category"]
    if declared.user is None or not labels:
        raise ValueError(
            f"schema must have a user column and a category for the label; {schema} lacks one."
        )
    label = next((name for name in labels if name.lower() in ("label", "class")), labels[-1])
    for key, example, mine in (
        ("schema", "schema.toml", str(schema)),
        ("user-column", "user", declared.user),
        ("label-column", "label", label),
    ):
        text = text.replace(
            f'{key} = "{example}"', f"{key} = {json.dumps(mine, ensure_ascii=False)}"
        )
    return text
