"""``fedmf init`` and ``fedmf options``: a configuration to start from, and all possible keys."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path
from typing import Final

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
    any_key = False
    for key in keys():
        description = f"{key.dotted} {key.meaning}".lower()
        if all(word in description for word in wanted):
            any_key = True
            meaning = textwrap.fill(key.meaning, 100, break_on_hyphens=False)
            typer.echo(f"{key.dotted}  ({key.type}, default {key.default})")
            typer.echo(textwrap.indent(meaning, "    "))
    if not any_key:
        raise ConfigError(
            f"no key has {' and '.join(map(repr, wanted))} in its name or description."
            " Without a word, fedmf options lists all keys."
        )


#: Configurations to start from: files of ``configs/start``; the first line of each describes it.
CASES = ("digits", "text", "amplified", "table")
#: A Flower app, a folder there: private, and without privacy to make it private.
PRIVATE_APP = "flower"
APP = "flower-app"
APPS: Final = {
    PRIVATE_APP: "A folder with a private Flower app, for flwr run.",
    APP: "A folder with a Flower app without privacy, to make private.",
}


def init(
    case: str = argument("", "CASE", f"One of: {', '.join((*CASES, *APPS))}."),
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

    if list_cases:
        for name in CASES:
            first_line, _, _ = _start_file(name).partition("\n")
            typer.echo(f"{name:<20} {first_line.removeprefix('# ')}")
        for name, description in APPS.items():
            typer.echo(f"{name:<20} {description}")
        return
    if schema is not None and case != "table":
        raise ConfigError(f"--schema is only for CASE table; got {case!r}.")
    if case in APPS:
        folder = output or Path(case)
        create_directory(folder, "folder of the app", _copy_app, mode=0o755)
        plain = folder / "digits_app/plain_server_app.py"
        if case == APP:
            plain.replace(folder / "digits_app/server_app.py")
        else:
            plain.unlink()
        typer.echo(
            f"Wrote {folder}. Run it: flwr run {folder} --stream; or in Python:"
            f" fedmf.flower.run_app({str(folder)!r}, num_supernodes=2)"
        )
        return
    if case not in CASES:
        raise ConfigError(
            f"CASE must be one of {', '.join((*CASES, *APPS))} (see --list); got {case!r}."
        )
    file = output or Path(f"{case}.toml")
    text = _start_file(case).replace("FILE", str(file))
    if schema is not None:
        text = _with_schema(text, schema)
    with new_file(file, mode=0o644) as opened:
        opened.write(text.encode())
    typer.echo(f"Wrote {file}. Edit it, then train: fedmf simulate {file}")


def _start_file(case: str) -> str:
    from fedmf.runs.tables.configuration import shipped_file

    return shipped_file(f"start/{case}.toml").read_text(encoding="utf-8")


def _copy_app(folder: Path) -> None:
    """Copy the Flower app into an empty folder, with both server apps."""
    from fedmf.runs.tables.configuration import shipped_file

    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(shipped_file("start/flower_app"), folder, ignore=ignored, dirs_exist_ok=True)


def _with_schema(text: str, schema: Path) -> str:
    """Replace the file and the columns of the example configuration by those of a schema."""
    from fedmf.data import read_schema

    declared = read_schema(schema)
    labels = [name for name, column in declared.columns.items() if column.kind == "category"]
    if declared.user is None or not labels:
        raise ValueError(
            f"schema must have a user column and a category for the label; {schema} lacks one."
        )
    label = next((name for name in labels if name.lower() in ("label", "class")), labels[-1])
    text = text.replace('schema = "schema.toml"', f"schema = {_toml(str(schema))}")
    text = text.replace('user-column = "user"', f"user-column = {_toml(declared.user)}")
    return text.replace('label-column = "label"', f"label-column = {_toml(label)}")


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
