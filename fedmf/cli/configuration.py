"""``fedmf init`` and ``fedmf options``: a configuration to start from, and the keys it may have."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path

import typer

from fedmf.cli.options import argument, flag, option


def options(
    words: list[str] = argument(
        None, "[WORD]...", "Show keys that have all these words in their name or meaning."
    ),
) -> None:
    """List configuration keys with their meaning and default.

    Set them in a TOML file, by --set TABLE.KEY=VALUE, or in a Flower run config.

    Example: fedmf options clip norm
    """
    from fedmf.errors import ConfigError
    from fedmf.runs.tables.reference import keys

    wanted = [word.lower() for word in words or []]
    found = [key for key in keys() if all(word in f"{key.dotted} {key.meaning}".lower() for word in wanted)]
    for key in found:
        typer.echo(f"{key.dotted}  ({key.type}, default {key.default})")
        typer.echo(textwrap.indent(textwrap.fill(key.meaning, 100, break_on_hyphens=False), "    "))
    if not found:
        raise ConfigError(f"no key has {' and '.join(map(repr, wanted))} in its name or meaning.")


#: What one may start from: files of ``configs/start``, and what the first line of each says.
CASES = ("digits", "text", "amplified", "table")
#: A Flower app without any privacy, to make private: a folder there.
APP = "flower-app"


def init(
    case: str = argument("", "CASE", f"One of: {', '.join((*CASES, APP))}."),
    output: Path | None = option(None, "FILE", "New file, or folder of the app.", show_default="CASE.toml"),
    schema: Path | None = option(None, "FILE", "For table: the schema that names the columns."),
    list_cases: bool = flag("--list", "Describe the cases; write nothing."),
) -> None:
    """Write a commented configuration to start from. Existing files are never replaced.

    Example: fedmf init digits && fedmf simulate digits.toml
    """
    from fedmf.errors import ConfigError
    from fedmf.records.files import create_directory, new_file
    from fedmf.runs.tables.configuration import shipped_file

    if list_cases:
        for name in CASES:
            first = shipped_file(f"start/{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
            typer.echo(f"{name:<20} {first.removeprefix('# ')}")
        typer.echo(f"{APP:<20} A Flower app without any privacy, to make private: a folder.")
        return
    if schema is not None and case != "table":
        raise ConfigError(f"--schema goes with CASE table; got {case!r}.")
    file = output or Path(f"{case}.toml" if case in CASES else case)
    if case == APP:

        def fill(made: Path) -> None:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(shipped_file("start/flower_app"), made, ignore=ignored, dirs_exist_ok=True)
            (made / "digits_app/plain_server_app.py").replace(made / "digits_app/server_app.py")

        create_directory(file, "folder of the app", fill, mode=0o755)
        typer.echo(
            f"{file} is written. Run it as it is: fedmf.flower.run_app({str(file)!r}, num_supernodes=40)"
        )
        return
    if case not in CASES:
        raise ConfigError(
            f"CASE must be one of {', '.join((*CASES, APP))}; got {case!r}. See: fedmf init --list."
        )
    text = shipped_file(f"start/{case}.toml").read_text(encoding="utf-8").replace("FILE", str(file))
    if schema is not None:
        text = _named(text, schema)
    with new_file(file, mode=0o644) as opened:
        opened.write(text.encode())
    typer.echo(f"{file} is written. Read it, change it, and train: fedmf simulate {file}")


def _named(text: str, schema: Path) -> str:
    """The configuration with the file and the columns of a schema in place of the example's."""
    from fedmf.data import read_schema

    declared = read_schema(schema)
    labels = [name for name, column in declared.columns.items() if column.kind == "category"]
    if declared.user is None or not labels:
        raise ValueError(f"schema must have a column of users and a category as the label; {schema} has not.")
    label = next((name for name in labels if name.lower() in ("label", "class")), labels[-1])
    for key, example, mine in (
        ("schema", "schema.toml", str(schema)),
        ("user-column", "user", declared.user),
        ("label-column", "label", label),
    ):
        text = text.replace(f'{key} = "{example}"', f"{key} = {json.dumps(mine, ensure_ascii=False)}")
    return text
