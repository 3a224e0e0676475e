"""Mistakes of an analyst who releases means and covariances of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from slips.attempt import BUDGET, Mistake, fedmf, lines_of, speeds, stream, weather

WHO = "analyst"
#: What an analyst answers to what fedmf asks for: with it the fault is tried again.
UNIT = ("--each-row-a-user", ("--each-row-a-user",))
NAMED = ("--columns", ("--columns", "speed,load"))


def _without(share: int, column: int) -> str:
    rows = speeds()
    for row in rows[::share]:
        row[column] = ""
    return lines_of("speed,load", rows)


def _users() -> str:
    owners = np.random.default_rng(3).zipf(1.6, 2000).clip(max=400)
    return lines_of("user,speed,load", [[int(u), *row] for u, row in zip(owners, speeds(), strict=True)])


def _with(header: str, cell: str | None) -> str:
    """The rows with a first column: one text, or the row's number."""
    return lines_of(header, [[i if cell is None else cell, *row] for i, row in enumerate(speeds())])


def _jsonl() -> str:
    return "".join(f'{{"speed": "{a}", "load": "{b}"}}\n' for a, b in speeds())


def _bytes(folder: Path) -> list[str]:
    (folder / "rows.csv").write_bytes(lines_of("speed,load", speeds()).encode("utf-16"))
    return fedmf("stream", "--input", "rows.csv", "--norm-bound", "1", *BUDGET)


def _excel(folder: Path) -> list[str]:
    (folder / "rows.xlsx").write_bytes(b"PK\x03\x04" + bytes(np.random.default_rng(0).bytes(4000)))
    return fedmf("stream", "--input", "rows.xlsx", "--norm-bound", "1", *BUDGET)


def _pairs(text: str) -> str:
    return lines_of("speed,load", [[text.format(value=100 * float(str(v))) for v in row] for row in speeds()])


MISSING = ("missing|cannot be read|unreadable", "zero|bias|left out|counts for nobody")

STREAM = (
    Mistake(
        WHO,
        "10 % of the cells of a column are missing",
        MISSING,
        stream(lambda: _without(10, 0)),
        answers=(UNIT, NAMED),
    ),
    Mistake(
        WHO,
        "a third of the cells of another column are missing",
        MISSING,
        stream(lambda: _without(3, 1)),
        answers=(UNIT, NAMED),
    ),
    Mistake(
        WHO,
        "a file with a column `user`, without `--user-column`",
        ("user", "--user-column|every row"),
        stream(_users, "--columns", "speed,load"),
    ),
    Mistake(
        WHO,
        "the column `user` is released as a number",
        ("column", "user", "number|declare|named"),
        stream(_users),
        answers=(UNIT,),
    ),
    Mistake(
        WHO,
        "a column of times is taken for a number",
        ("time", "number|declare|named"),
        stream(lambda: _with("time,speed,load", "2026-11-22 10:05")),
        answers=(UNIT,),
    ),
    Mistake(
        WHO,
        "a column of words is taken for a number",
        ("city", "number|declare|named"),
        stream(lambda: _with("city,speed,load", "Graz")),
        answers=(UNIT,),
    ),
    Mistake(
        WHO,
        "semicolons between the cells",
        ("separat|semicolon|comma|declare|named", "speed;load|;"),
        stream(lambda: lines_of("speed;load", speeds(), ";")),
        answers=(UNIT,),
    ),
    Mistake(
        WHO,
        "raw °C, % and hPa with norm bound 1",
        ("norm.bound", "scale"),
        stream(lambda: lines_of("temperature,humidity,pressure", weather())),
        answers=(UNIT, ("--columns", ("--columns", "temperature,humidity,pressure"))),
    ),
    Mistake(
        WHO,
        "percent signs behind the numbers",
        MISSING,
        stream(lambda: _pairs("{value:.2f}%")),
        answers=(UNIT, NAMED),
    ),
    Mistake(
        WHO,
        "JSON with numbers as text",
        MISSING,
        stream(_jsonl, name="rows.jsonl"),
        answers=(UNIT, NAMED),
    ),
    Mistake(WHO, "a file in UTF-16", ("UTF-8",), _bytes, answers=(UNIT, NAMED)),
    Mistake(WHO, "an Excel file", ("UTF-8|csv|parquet|format",), _excel, answers=(UNIT, NAMED)),
    Mistake(
        WHO,
        "with `--user-column`, but k left at 1: most rows are refused",
        ("row of each user|row a user|one row|1 row|max.participations", "refused|take|count|no step"),
        stream(_users, "--user-column", "user", "--columns", "speed,load"),
    ),
    Mistake(
        WHO,
        "a mistyped `--user-column`",
        ("usr", "missing|not"),
        stream(_users, "--user-column", "usr", "--columns", "speed,load"),
    ),
    Mistake(
        WHO,
        "fewer `--rounds` than rows",
        ("horizon|rounds", "refused|beyond|more rows|no step"),
        stream(lambda: lines_of("speed,load", speeds()), "--rounds", "500"),
        answers=(UNIT, NAMED),
    ),
)
