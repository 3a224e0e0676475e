"""Files of rows in which one user's rows are broken: for the data sets that read files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

_ROWS, _WIDTH, _CLASSES = 6, 4, 3
_NAMES: Final = "abcd"
Line = bytes
#: From the features of a row to what takes their place.
Broken = Callable[[list[float]], Sequence[float | None] | None]


def _field(place: int, text: str) -> Callable[[list[str]], Line]:
    """A line with one field replaced."""
    return lambda fields: _joined([*fields[:place], text, *fields[place + 1 :]])


def _joined(fields: list[str]) -> Line:
    return ",".join(fields).encode()


#: What one line of a user of a table does, by name; None takes all of the user's lines out.
TABLE_BEHAVIOURS: Final[dict[str, Callable[[list[str]], Line] | None]] = {
    "nan": _field(2, "nan"),
    "inf": _field(2, "inf"),
    "huge": _field(2, "1e38"),
    "diverging": _field(2, "1e20"),
    "overflow": _field(2, "1e300"),
    "missing": _field(2, ""),
    "text": _field(2, "oops"),
    "rare-label": lambda fields: _joined([*fields[:-1], "99"]),
    "no-label": lambda fields: _joined([*fields[:-1], ""]),
    "short-line": lambda fields: _joined(fields[:3]),
    "long-line": lambda fields: _joined([*fields, "1", "2"]),
    "no-utf-8": lambda fields: _joined(fields[:2]) + b",\xff\xfe," + _joined(fields[3:]),
    "open-quote": _field(2, '"1.0'),
    "long-text": _field(2, "7" * 200_000),
    "empty": None,
}


def write_table(path: Path, users: int, hostile: tuple[int, str] | None = None) -> None:
    """Write a CSV file of users u0, u1, … with six rows each, the second one of the hostile user broken."""
    rng = np.random.default_rng(11)
    lines = [b"who," + ",".join(_NAMES).encode() + b",y"]
    for row in range(users * _ROWS):
        user, label = row % users, int(rng.integers(_CLASSES))
        fields = [f"u{user}", *(f"{x + label:.5f}" for x in rng.normal(size=_WIDTH)), str(label)]
        if hostile is None or hostile[0] != user:
            lines.append(_joined(fields))
            continue
        behaviour = TABLE_BEHAVIOURS[hostile[1]]
        if behaviour is not None:
            lines.append(behaviour(fields) if row // users == 1 else _joined(fields))
    path.write_bytes(b"\n".join(lines) + b"\n")


def write_contract(path: Path) -> None:
    """Write what the columns of the table may hold; a cell of the third may be missing."""
    numbers = "".join(
        f'[columns.{name}]\nkind = "number"\nlower = -4\nupper = 8\n'
        + ("may-be-missing = true\n" if name == "c" else "")
        for name in _NAMES
    )
    label = '[columns.y]\nkind = "category"\nwords = ["0", "1", "2"]\n'
    path.write_text(f'[columns.who]\nkind = "user"\n{numbers}{label}', encoding="utf-8")


def _list(value: float) -> Broken:
    return lambda numbers: [numbers[0], value, *numbers[2:]]


#: What one row of a user of a data set in Hugging Face's format does, by name: features, or None for those of
#: the label; "empty" takes all rows out.
HUB_BEHAVIOURS: Final[dict[str, Broken | None]] = {
    "nan": _list(float("nan")),
    "inf": _list(float("inf")),
    "huge": _list(1e38),
    "diverging": _list(1e20),
    "overflow": _list(1e300),
    "null-number": lambda numbers: [numbers[0], None, *numbers[2:]],
    "null": lambda _: None,
    "short-list": lambda numbers: [*numbers[:-1]],
    "long-list": lambda numbers: [*numbers, 1.0],
    "empty-list": lambda _: [],
    "very-long-list": lambda numbers: numbers * 50_000,
    "rare-label": None,
    "no-label": None,
    "empty": None,
}
_LABELS: Final = {"rare-label": "99", "no-label": None}


def write_hub(folder: Path, users: int, hostile: tuple[int, str] | None = None) -> None:
    """Write train and test split as Parquet files, the second row of the hostile user broken."""
    rng = np.random.default_rng(12)
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for row in range((users + 2) * _ROWS):
        user, label = row % (users + 2), int(rng.integers(_CLASSES))
        x: Any = (rng.normal(size=_WIDTH) + label).tolist()
        name: str | None = str(label)
        if hostile is not None and hostile[0] == user:
            if hostile[1] == "empty":
                continue
            if row // (users + 2) == 1:
                broken = HUB_BEHAVIOURS[hostile[1]]
                x = x if broken is None else broken(x)
                name = _LABELS.get(hostile[1], name)
        rows.append({"x": x, "label": name, "who": f"u{user}"})
    schema = arrow.schema({"x": arrow.list_(arrow.float64()), "label": arrow.string(), "who": arrow.string()})
    own = [f"u{user}" for user in range(users)]
    for split, chosen in (
        ("train", [row for row in rows if row["who"] in own]),
        ("test", [row for row in rows if row["who"] not in own]),
    ):
        table = arrow.Table.from_pylist(chosen, schema=schema)
        parquet.write_table(table, folder / f"{split}-0.parquet")


def write_roster(path: Path, users: int) -> None:
    """Write the ids of all users, one a line."""
    path.write_text("".join(f"u{user}\n" for user in range(users)), encoding="utf-8")
