"""The file of a schema: read, and drafted from the header of a table."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pyarrow as arrow

from fedmf.data.schema import KINDS, Schema
from fedmf.data.table_reader import ParquetTable, open_table

_HEAD: Final = """\
# What the columns of {source} may hold: public, decided without looking at the rows. Drafted from the header
# alone; correct the kinds and fill in the marked places. Each kind with the keys that it needs:
#   kind = "number"     lower = 0.0, upper = 100.0
#   kind = "category"   categories = ["no", "yes"]
#   kind = "time"       start = 2026-01-01, end = 2027-01-01, step = "15 min"
#   kind = "text", "user" or "ignore": no other key
# The column of kind "user" must identify a person; without one, each row is taken for another person's.
# See docs/data-and-models.md.

"""
_NULLABLE: Final = (
    "nullable = true   # valid rows are counted, with noise; delete if no cell can be missing\n"
)
_GUESSES: Final = (
    (
        "user",
        re.compile(
            "(user|patient|customer|client|person|member|subject|driver|student)(["
            " _-]?(id|name))?|uid|idcode"
        ),
    ),
    ("time", re.compile(r"time|day|(.*[ _-])?(timestamp|datetime|date|at)|date[ _-].*")),
    (
        "category",
        re.compile(
            "(.*[ _-])?(label|class|category|type|kind|sex|gender|city|country|state|group)"
        ),
    ),
    ("text", re.compile(r"(.*[ _-])?(comment|note|text|description|remark|title|name)s?")),
    ("ignore", re.compile(r"|unnamed: 0|(.*[ _-])?id|index|row|device")),
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def read_schema(file: str | Path) -> Schema:
    """The schema in a file: TOML with a table ``columns``, which has a table for each column.

    Raises:
        ValueError: it cannot be read, or does not say what it must.
    """
    try:
        given = tomllib.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"schema must be a readable TOML file; got {file}: {error}.") from None
    if set(given) != {"columns"} or not isinstance(given["columns"], dict):
        raise ValueError(
            f"schema must have a table columns and no others; got {', '.join(given) or 'none'} in"
            f" {file}."
        )
    return Schema.from_dict(given["columns"])


def draft_schema(file: Path) -> str:
    """A schema to be filled in, from names and types in the header of a CSV or Parquet file alone.

    Raises:
        ValueError: it has no header that can be read.

    Guarantees: no row is read, nor what Parquet's footer says of rows.
    """
    with open_table(file) as table:
        if isinstance(table, ParquetTable):
            kinds = {field.name: _by_type(field.name, field.type) for field in table.schema}
        elif table.headed:
            kinds = {name: _by_name(name) for name in table.names}
        else:
            raise ValueError(
                f"FILE must have a first line with the names of its columns; {file} has none. Write"
                " the schema by hand."
            )
    tables = [
        f"[columns.{_key(name)}]\nkind = {json.dumps(kind)}\n{_asked(kind)}"
        for name, kind in kinds.items()
    ]
    return _HEAD.format(source=file.name) + "\n".join(tables)


def _asked(kind: str) -> str:
    """What is to be filled in, or may be."""
    fields = [(name, about) for name, about in KINDS[kind].model_fields.items() if name != "kind"]
    fields.sort(key=lambda field: not field[1].is_required())
    return "".join(
        (
            _NULLABLE
            if name == "nullable"
            else (
                f"# {name} =   # {'fill in' if about.is_required() else 'optional'}:"
                f" {about.description}\n"
            )
        )
        for name, about in fields
    )


def _by_name(name: str) -> str:
    return next((kind for kind, pattern in _GUESSES if pattern.fullmatch(name.lower())), "number")


def _by_type(name: str, kind: Any) -> str:
    guess = _by_name(name)
    types = arrow.types
    if types.is_temporal(kind):
        return "time"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return guess if guess in ("user", "ignore", "category") else "number"
    return guess if guess in ("user", "time") else "category" if types.is_boolean(kind) else "text"


def _key(name: str) -> str:
    """A key of TOML."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
