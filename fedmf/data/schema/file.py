"""The file of a schema: read, and drafted from the header of a table."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as arrow
import pyarrow.parquet as parquet

from fedmf.addresses import linked
from fedmf.data.schema.schema import Schema
from fedmf.lines import LONGEST_LINE

_HEAD: Final = """\
# What the columns of {source} may hold: public, decided without looking at the rows. Drafted from the header
# alone; correct the kinds and fill in what is marked. Kinds: number, category, text, time, user, ignore.
# {page}

"""
_NUMBER: Final = """\
# lower =                 # fill in: the least value that counts; smaller ones count as this
# upper =                 # fill in: the largest value that counts
# center =                # what becomes 0; else the middle
# scale =                 # what becomes 1; else half the width
# fill =                  # stands for a missing cell; else its row counts for nobody
# nullable = true   # valid rows are counted, with noise, and means are of those
"""
_CATEGORY: Final = """\
# categories = ["", ""]   # fill in: all that there are, in order
# fill = ""               # stands for a missing cell; else its row counts for nobody
# nullable = true   # valid rows are counted, with noise, and means are of those
"""
_TIME: Final = """\
# start =                 # fill in: such as 2026-01-01
# end =                   # fill in: the first time that is too late
# step = ""               # fill in: such as "15 min"
"""
_ASKED: Final = {"number": _NUMBER, "category": _CATEGORY, "time": _TIME}
_GUESSES: Final = (
    (
        "user",
        re.compile(r"(user|patient|customer|client|person|member|subject|device)([ _-]?(id|name))?|uid"),
    ),
    ("time", re.compile(r".*(time|date|timestamp).*|day|hour|month|year")),
    ("category", re.compile(r"label|class|category|type|kind|sex|gender|city|country|state|group")),
    ("ignore", re.compile(r"|unnamed: 0|id|index|row")),
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def read_schema(file: str | Path) -> Schema:
    """The schema in a file: TOML with a table ``columns``, which has a table for each column.

    Raises:
        ValueError: it cannot be read, or does not say what it must.
    """
    try:
        given = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"schema must be a readable TOML file; got {file}: {error}.") from None
    if set(given) != {"columns"} or not isinstance(given["columns"], dict):
        raise ValueError(
            f"schema must have a table columns and no others; got {', '.join(given) or 'none'} in {file}."
        )
    return Schema.from_dict(given["columns"])


def draft_schema(file: Path) -> str:
    """A schema to be filled in, from names and types in the header of a CSV or Parquet file alone.

    Raises:
        ValueError: it has no header that can be read.

    Guarantees: no row is read, nor what Parquet's footer says of rows.
    """
    tables = [
        f"[columns.{_key(name)}]\nkind = {json.dumps(kind)}\n{_ASKED.get(kind, '')}"
        for name, kind in _guessed(file)
    ]
    return _HEAD.format(source=file.name, page=linked("docs/schema.md")) + "\n".join(tables)


def _guessed(file: Path) -> list[tuple[str, str]]:
    """Names of the columns and what they may be."""
    if file.suffix.lower() in (".parquet", ".pq"):
        try:
            schema = parquet.read_schema(file)
        except (arrow.ArrowException, OSError) as error:
            raise ValueError(f"FILE must be readable; got {file}: {' '.join(str(error).split())}") from None
        return [(field.name, _by_type(field.name, field.type)) for field in schema]
    return [(name, _by_name(name)) for name in _header(file)]


def _header(file: Path) -> Sequence[str]:
    try:
        with file.open("rb") as handle:
            line = handle.readline(LONGEST_LINE + 1).removeprefix(b"\xef\xbb\xbf").decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"FILE must be a CSV or Parquet file with a header; got {file}: {error}.") from None
    try:
        names = [name.strip() for name in next(csv.reader([line.rstrip("\r\n")], strict=True))]
    except (csv.Error, StopIteration):
        names = []
    if not names or len(line) > LONGEST_LINE or any(_is_number(name) for name in names):
        raise ValueError(
            f"FILE must have a first line with the names of its columns, separated by commas; {file} has "
            "none. Rows of JSON lines have no header: write the schema by hand."
        )
    if len(names) == 1 and (found := re.search("[;\t|]", names[0])):
        raise ValueError(
            f"FILE must separate cells by commas; got {found.group()!r} in the header of {file}."
        )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.startswith(("{", "["))
    return True


def _by_name(name: str) -> str:
    return next((kind for kind, pattern in _GUESSES if pattern.fullmatch(name.lower())), "number")


def _by_type(name: str, kind: Any) -> str:
    guess, types = _by_name(name), arrow.types
    if types.is_temporal(kind):
        return "time"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return guess if guess in ("user", "ignore", "category") else "number"
    return guess if guess in ("user", "time") else "category" if types.is_boolean(kind) else "text"


def _key(name: str) -> str:
    """A key of TOML."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
