"""Tables as they come: forms and values that are not as declared, by reader, and what is said.

Each variant is a table of 200 rows of 40 people with one fault. It is loaded for training, or
streamed. A line says what came of it: rows that count, and who is told of the others. A variant is
silent if rows are lost that no error, log or count of the operator tells, or if a row that counts
has another value than was written.

    python simulations/table_forms.py
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as parquet

from fedmf import PrivateStream
from fedmf.data import DATASETS, Dataset, InMemoryDataset, Schema
from fedmf.streaming import Settings, open_run

Row = dict[str, Any]
ROWS = 200
PEOPLE = [f"p{i}" for i in range(39)] + ["Zoé"]
SCHEMA = {
    "who": {"kind": "user"},
    "age": {"kind": "number", "lower": 0.0, "upper": 100.0},
    "ward": {"kind": "category", "categories": ["surgery", "clinic"]},
    "y": {"kind": "category", "categories": ["no", "yes"]},
}


def people_rows() -> list[Row]:
    """Rows of which the label says whether the age is above 50."""
    rows: list[Row] = []
    for i in range(ROWS):
        age = float((i * 37) % 100) + 0.5
        label = "yes" if age > 50 else "no"
        ward = "surgery" if i % 3 else "clinic"
        rows.append({"who": PEOPLE[i % len(PEOPLE)], "age": age, "ward": ward, "y": label})
    return rows


#: Faults of the cells of a column: the cell in place of another.
VALUES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "category in capitals": ("ward", lambda cell: str(cell).title()),
    "category with blanks around it": ("ward", lambda cell: f" {cell}  "),
    "category with a zero-width space": ("ward", lambda cell: f"{cell}\u200b"),
    "category missing": ("ward", lambda cell: None),
    "number missing": ("age", lambda cell: None),
    "number NaN": ("age", lambda cell: float("nan")),
    "number infinite": ("age", lambda cell: float("inf")),
    "label in capitals": ("y", lambda cell: str(cell).upper()),
    "label missing": ("y", lambda cell: None),
    "label none of the classes": ("y", lambda cell: "perhaps"),
    "id missing": ("who", lambda cell: None),
    "id not on the user list": ("who", lambda cell: f"{cell} junior"),
    "id with U+FFFD": ("who", lambda cell: f"{cell}\ufffd"),
    "id with a zero-width space": ("who", lambda cell: f"{cell}\u200b"),
    "id with a soft hyphen": ("who", lambda cell: f"\u00ad{cell}"),
    "id with a mark of direction": ("who", lambda cell: f"\u202a{cell}\u202c"),
    "id with a no-break space": ("who", lambda cell: f"{cell}\u00a0"),
    "id with a variation selector": ("who", lambda cell: f"{cell}\ufe0f"),
    "id decomposed (NFD)": ("who", lambda cell: str(cell).replace("é", "e\u0301")),
}
#: Faults of lines of CSV in every fourth row.
LINES: dict[str, Callable[[str], str]] = {
    "one separator more": lambda line: line + ",",
    "three separators more": lambda line: line + ",,,",
    "surplus of quotes and blanks": lambda line: line + ',"", ',
    "surplus field with content": lambda line: line + ",note",
    "decimal comma": lambda line: line.replace(".5", ",5"),
    "a field fewer": lambda line: line.rpartition(",")[0],
    "a quote that is never closed": lambda line: line.replace(",", ',"', 1),
    "carriage return at the end": lambda line: line + "\r",
    "blank line before": lambda line: "\n" + line,
}
#: Faults of the form: the whole column or header.
FORMS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "column missing": lambda frame: frame.drop(columns="age"),
    "column of another name": lambda frame: frame.rename(columns={"who": "person"}),
    "saved index": lambda frame: frame.reset_index(names="Unnamed: 0"),
    "ids as bytes": lambda frame: frame.assign(who=frame["who"].str.encode("utf-8")),
    "ids as lists": lambda frame: frame.assign(who=[[name] for name in frame["who"]]),
    "ids as times": lambda frame: frame.assign(who=pd.Timestamp("2026-01-01")),
    "ids as floats of 2^53 and more": lambda frame: frame.assign(who=2.0**60 + frame.index * 2**10),
    "numbers as times": lambda frame: frame.assign(age=pd.Timestamp("2026-01-01")),
}


class Said(logging.Handler):
    """Warnings of the package, such as on a public test part."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def written(frame: pd.DataFrame, reader: str, folder: Path) -> Path:
    path = folder / f"rows.{reader}"
    if reader == "csv":
        frame.to_csv(path, index=False)
    elif reader == "jsonl":
        lines = [json.dumps(row) for row in frame.to_dict("records")]
        path.write_text("\n".join(lines))
    else:
        parquet.write_table(arrow.Table.from_pandas(frame, preserve_index=False), path)
    return path


def told_of(data: InMemoryDataset, rows: int, tests_apart: int = 0) -> tuple[int, int, str]:
    """Return rows that are lost, how many of them the operator's counts explain, and these."""
    counts = data.row_counts
    assert counts is not None
    tests = 0 if tests_apart else counts.test_rows
    right = (data.features.reshape(len(data.features), -1)[:, 0] > 0) == (data.labels == 1)
    wrong = int((~right[np.concatenate([*data.owned])]).sum())
    lost = rows - counts.examples - tests + wrong
    return lost, sum(counts.left_out.values()), json.dumps(counts.left_out, ensure_ascii=False)


def trained(path: Path, folder: Path, kind: str = "table", **more: Any) -> InMemoryDataset:
    (folder / "users.txt").write_text("\n".join(PEOPLE), encoding="utf-8")
    toml = [f"{name} = {json.dumps(column)}" for name, column in SCHEMA.items()]
    text = "[columns]\n" + "\n".join(toml).replace('": ', '" = ')
    (folder / "schema.toml").write_text(text)
    given: dict[str, Any] = {"user_column": "who", "user_list": str(folder / "users.txt")}
    given |= {"path": str(path), "label_column": ("y",), "partition": "by-user", "users": 32}
    if kind == "table":
        given["schema"] = str(folder / "schema.toml")
    return DATASETS[kind](**{**given, **more}).load()  # type: ignore[return-value]


def of_table(path: Path, folder: Path) -> tuple[int, int, str]:
    return told_of(trained(path, folder), ROWS)


def of_frame(frame: pd.DataFrame) -> tuple[int, int, str]:
    frame = frame.drop(columns="ward")
    frame = (
        frame.assign(age=frame["age"] - 50)
        if frame.get("age", frame["y"]).dtype == float
        else frame
    )
    data = Dataset.from_frame(frame, user="who", label="y", classes=["no", "yes"], user_list=PEOPLE)
    return told_of(data, ROWS)


def of_arrays(change: Callable[[np.ndarray, np.ndarray], None]) -> tuple[int, int, str]:
    """Load arrays of which the public test part has a fault."""
    rows = people_rows()
    x = np.array([[row["age"] - 50] for row in rows])
    y = np.array([int(row["y"] == "yes") for row in rows])
    test_x, test_y = x.copy(), y.copy()
    change(test_x, test_y)
    data = Dataset.from_arrays(
        x, y, [row["who"] for row in rows], classes=2, user_list=PEOPLE, test=(test_x, test_y)
    )
    return told_of(data, ROWS, tests_apart=1)


def of_test_file(column: str, cells: list[Any], folder: Path) -> tuple[int, int, str]:
    """Load what a server reads of data on nodes: a public test file with such cells in turn."""
    rows = people_rows()
    for i, row in enumerate(rows):
        row[column] = cells[i % len(cells)] or row[column]
    given = {"test_path": str(written(pd.DataFrame(rows), "csv", folder)), "users": len(PEOPLE)}
    given |= {"feature_columns": ("age",), "class_names": ("no", "yes")}
    trained(folder, folder, "on-nodes", **given)
    return 0, 0, ""


def of_stream(path: Path, folder: Path) -> tuple[int, int, str]:
    settings = Settings(
        schema=Schema.from_dict(SCHEMA), user_column="who", max_participations=5, epsilon=8.0,
        delta=1e-5, release_every=ROWS, seed=0, clip_norm=float("nan"),
    )  # fmt: skip
    with open_run(folder / "state", settings, path, folder / "out.jsonl") as (run, reader):
        run.feed(reader, whole=True)
        run.conclude()
    counts = json.loads((folder / "state/operator.json").read_text())
    return of_counts(counts)


def of_counts(counts: dict[str, int]) -> tuple[int, int, str]:
    names = ("rows", "steps", "clipped", "zeroed", "beyond_k", "within_b")
    reasons = {name: count for name, count in counts.items() if name not in names and count}
    return counts["zeroed"], sum(reasons.values()), json.dumps(reasons, ensure_ascii=False)


def of_push(frame: pd.DataFrame, folder: Path) -> tuple[int, int, str]:
    schema = Schema.from_dict(SCHEMA)
    budget: dict[str, Any] = {"rounds": ROWS, "epsilon": 8.0, "delta": 1e-5, "seed": 0}
    with PrivateStream(folder / "pushed", schema=schema, max_participations=5, **budget) as stream:
        stream.push_many(frame, users="who")
        return of_counts(stream.counts())


def of_hub(frame: pd.DataFrame, folder: Path, **more: Any) -> tuple[int, int, str]:
    if "age" in frame and frame["age"].dtype == float:
        frame = frame.assign(age=[[age - 50] for age in frame["age"]])
    (folder / "hub").mkdir()
    table = arrow.Table.from_pandas(frame, preserve_index=False)
    parquet.write_table(table, folder / "hub/train.parquet")
    given = {"feature_columns": ("age",), "class_names": ("no", "yes"), "input_shape": (1,)}
    return told_of(trained(folder / "hub", folder, "hub", **{**given, **more}), ROWS)


def of_names(train: list[str], tests: list[str], declared: tuple[str, ...], folder: Path) -> Any:
    """Load a hub data set with class names, a fifth of whose tests have the number −1."""
    from datasets import ClassLabel, Features, List, Value
    from datasets import Dataset as HubDataset

    (folder / "hub").mkdir()
    for part, names in (("train", train), ("test", tests)):
        features = Features({"age": List(Value("float32")), "y": ClassLabel(names=names)})
        ages = [float(i % 50) - 24.5 for i in range(ROWS)]
        order = [names.index(train[int(age > 0)]) if train[0] in names else 0 for age in ages]
        codes = [-1 if part == "test" and i % 5 == 0 else order[i] for i in range(ROWS)]
        made = HubDataset.from_dict({"age": [[age] for age in ages], "y": codes}, features=features)
        made.to_parquet(str(folder / f"hub/{part}.parquet"))
    users = {"partition": "iid", "user_column": "", "user_list": ""}
    given = {"feature_columns": ("age",), "class_names": declared, "input_shape": (1,)}
    data = trained(folder / "hub", folder, "hub", **users, **given)
    wrong = int(((data.test_features[:, 0] > 0) != (data.test_labels == 1)).sum())
    lost, told, words = told_of(data, ROWS, tests_apart=1)
    return lost + wrong, told, words


def variants() -> Iterator[tuple[str, str, Callable[[Path], tuple[int, int, str]]]]:
    """Yield the name of each variant, its reader, and what loads it in an empty folder."""
    frames: dict[str, pd.DataFrame] = {"as declared": pd.DataFrame(people_rows())}
    for name, (column, change) in VALUES.items():
        rows = people_rows()
        for row in rows[::4] + rows[39::40]:
            row[column] = change(row[column])
        frames[name] = pd.DataFrame(rows)
    frames |= {name: change(pd.DataFrame(people_rows())) for name, change in FORMS.items()}
    for name, frame in frames.items():
        for form in ("csv", "jsonl", "parquet"):
            if form == "parquet" or name not in FORMS or name in [*FORMS][:3]:
                yield name, form, lambda at, f=form, x=frame: of_table(written(x, f, at), at)
                yield (
                    name,
                    f"stream {form}",
                    lambda at, f=form, x=frame: of_stream(written(x, f, at), at),
                )
        yield name, "frame", lambda at, x=frame: of_frame(x)
        yield name, "hub", lambda at, x=frame: of_hub(x, at)
        yield name, "push", lambda at, x=frame: of_push(x, at)
    header, *plain = pd.DataFrame(people_rows()).to_csv(index=False).splitlines()
    for name, change in LINES.items():
        lines = [change(line) if i % 4 == 0 else line for i, line in enumerate(plain)]
        text = "\n".join([header, *lines]) + "\n"
        yield name, "csv", lambda at, t=text: of_table(text_file(at, t), at)
        yield name, "stream csv", lambda at, t=text: of_stream(text_file(at, t), at)
    ends = "\n".join([header + ",", *plain]) + "\n"
    yield "header with a separator more", "csv", lambda at: of_table(text_file(at, ends), at)
    arrays: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
        "test labels -1 and 1": lambda x, y: np.copyto(y, np.where(y == 0, -1, 1)),
        "test rows with NaN, most": lambda x, y: x[: 2 * ROWS // 3].fill(np.nan),
        "test rows with NaN, some": lambda x, y: x[: ROWS // 3].fill(np.nan),
    }
    for name, apply in arrays.items():
        yield name, "arrays", lambda at, change=apply: of_arrays(change)
    for name, column, cells in (
        ("test labels in capitals, most", "y", ["YES", "NO", None]),
        ("test labels in capitals, some", "y", ["YES", None, None]),
        ("test numbers with comma, most", "age", ["0,5", "7,5", None]),
    ):
        yield name, "on-nodes", lambda at, c=column, x=cells: of_test_file(c, x, at)
    names = ["no", "yes"]
    for name, tests, declared in (
        ("own class names", names, ("no", "yes")),
        ("class numbers", names, ("0", "1")),
        ("test part in another order", names[::-1], ("no", "yes")),
        ("test part in another order, numbers", names[::-1], ("0", "1")),
        ("test part of other names", ["never", "yes"], ("no", "yes")),
        ("other class names", names, ("No", "Yes")),
    ):
        yield name, "hub", lambda at, t=tests, d=declared: of_names(names, t, d, at)


def text_file(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    log = logging.getLogger("fedmf")
    log.propagate = False
    totals: Counter[str] = Counter()
    for name, reader, load in variants():
        said = Said()
        log.addHandler(said)
        with tempfile.TemporaryDirectory() as folder:
            try:
                lost, told, words = load(Path(folder))
                outcome = "read" if not lost else "told" if told >= lost else "SILENT"
                words = f"{lost} lost {words}" if lost else "all rows count"
            except ValueError as error:
                outcome, words = "refused", str(error).replace(folder, "")
        log.removeHandler(said)
        aloud = " | ".join(line for line in said.lines if line.startswith("test part"))
        totals[outcome] += 1
        print(f"{outcome:8}{name:36}{reader:15}{words:.150} {aloud:.120}".rstrip(), flush=True)
    print(f"{totals.total()} variants: {dict(totals)}")
    sys.exit(bool(totals["SILENT"]))


if __name__ == "__main__":
    main()
