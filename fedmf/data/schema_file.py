"""Files of schemas: read, or drafted from the header of a table.

``fedmf schema`` drafts a file; runs, nodes and streams read it.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as arrow

from fedmf.data.schema import KINDS, Schema
from fedmf.data.table_reader import ParquetTable, open_table, table_files

_HEAD: Final = """\
# What the columns of {source} may hold: public, decided without looking at the rows.
# Drafted from the header alone; correct the kinds and fill in the marked places.
# Each kind with the keys that it needs:
#   kind = "number"     lower = 0.0, upper = 100.0
#   kind = "category"   categories = ["no", "yes"]
#   kind = "time"       start = 2026-01-01, end = 2027-01-01, step = "15 min"
#   kind = "text", "user" or "ignore": no other key
# The column of kind "user" must identify a person; without one, each row is treated as a different
# person's.
# With nullable = true, rows with a missing cell do not count. With many columns, few rows would be
# left: replace nullable by fill, a public value for missing cells, in each column.
# See docs/data-and-models.md.

"""
_NULLABLE: Final = (
    "nullable = true   # valid rows are counted, with noise; delete if no cell can be missing\n"
)
#: Added to numbers of a CSV file, the cells of which may be anything.
_GUESSED: Final = '   # a guess, as a header has no types; else "category", "text" or "ignore"'
#: Kinds with patterns of column names; the first that matches decides.
_GUESSES: Final = {
    "user": re.compile(
        "(user|patient|customer|client|person|member|subject|driver|student)"
        "([ _-]?(id|name))?|uid|idcode"
    ),
    "time": re.compile("time|day|(.*[ _-])?(timestamp|datetime|date|at)|date[ _-].*"),
    "category": re.compile(
        "(.*[ _-])?(label|class|category|type|kind|sex|gender|city|country|state|group"
        "|ward|department|clinic|hospital|region|status)"
    ),
    "text": re.compile("(.*[ _-])?(comment|note|text|description|remark|title|name)s?"),
    "ignore": re.compile(r"|unnamed: [0-9]+|__index_level_[0-9]+__|(.*[ _-])?id|index|row|device"),
}
#: The column of users in a draft for files named after them.
_USER: Final = "user"
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def read_schema(file: str | Path) -> Schema:
    """Read the schema in a file: TOML with a table ``columns``, which has a table for each column.

    Raises:
        ValueError: the file cannot be read, or is not a valid schema.
    """
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"schema must be a readable TOML file; got {file}: {error}. fedmf schema TABLE drafts"
            " one."
        ) from None
    if set(content) != {"columns"} or not isinstance(content["columns"], dict):
        raise ValueError(
            f"schema must have a table columns and no others; got {', '.join(content) or 'none'} in"
            f" {file}."
        )
    return Schema.from_dict(content["columns"])


def draft_schema(source: Path, user_from: Literal["column", "filename"] = "column") -> str:
    """Draft a schema from the names and types in the header of a CSV or Parquet file.

    Args:
        source: the file, or a folder, of which the first file in the order of names is read.
        user_from: with "filename", the schema has a column ``user`` for the names of the files, and
            no other column of users.

    Raises:
        ValueError: the file has no header that can be read, or a column ``user`` of its own.

    Guarantees: no row is read, nor what Parquet's footer says of rows.
    """
    kinds: dict[str, str] = {}
    typed = False
    file = table_files(source)[0] if source.is_dir() else source
    with open_table(file) as table:
        if isinstance(table, ParquetTable):
            typed = True
            for field in table.schema:
                kinds[field.name] = _kind_of_field(field)
        elif table.headed:
            for name in table.names:
                kinds[name] = _kind_of_name(name)
        else:
            raise ValueError(
                f"FILE must have a first line with the names of its columns; {file} has none. Write"
                " the schema by hand."
            )
    if user_from == "filename":
        if _USER in kinds:
            raise ValueError(
                f"columns of files (user-from filename) must have no {_USER!r}, the column of their"
                f" names; got one in {file}."
            )
        for name, kind in kinds.items():
            if kind == "user":
                kinds[name] = "ignore"
        kinds = {_USER: "user", **kinds}
    tables = [_draft_column(name, kind, typed) for name, kind in kinds.items()]
    return _HEAD.format(source=source.name) + "\n".join(tables)


def _draft_column(name: str, kind: str, typed: bool) -> str:
    """Return the table of a column, with comments for the keys to fill in, required ones first."""
    key = name
    if not _BARE.fullmatch(name):
        key = json.dumps(name, ensure_ascii=False)
    required: list[str] = []
    optional: list[str] = []
    for field, about in KINDS[kind].model_fields.items():
        if field == "nullable":
            optional.append(_NULLABLE)
        elif about.is_required():
            required.append(f"# {field} =   # fill in: {about.description}\n")
        elif field != "kind":
            optional.append(f"# {field} =   # optional: {about.description}\n")
    guessed = ""
    if kind == "number" and not typed:
        guessed = _GUESSED
    head = f"[columns.{key}]\nkind = {json.dumps(kind)}{guessed}\n"
    return "".join([head, *required, *optional])


def _kind_of_name(name: str) -> str:
    """Guess the kind of a column from its name; a number if nothing else fits."""
    for kind, pattern in _GUESSES.items():
        if pattern.fullmatch(name.lower()):
            return kind
    return "number"


def _kind_of_field(field: Any) -> str:
    """Guess the kind of a Parquet column from its type and name."""
    types = arrow.types
    guess = _kind_of_name(field.name)
    if types.is_temporal(field.type):
        return "time"
    if (
        types.is_integer(field.type)
        or types.is_floating(field.type)
        or types.is_decimal(field.type)
    ):
        if guess in ("user", "ignore", "category"):
            return guess
        return "number"
    if guess in ("user", "time"):
        return guess
    if types.is_boolean(field.type):
        return "category"
    return "text"
