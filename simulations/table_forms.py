"""Tables as they come: forms and values that are not as declared, by reader, and what is said.

Each variant is a table of 200 rows of 40 people with one fault, loaded for training or streamed. It
is silent if rows are lost, or have another value than was written, and nobody is told.

    python simulations/table_forms.py
"""

from __future__ import annotations

import io
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as parquet

from fedmf import PrivateStream
from fedmf.data import DATASETS, Dataset, read_schema
from fedmf.streaming import Settings, open_run

#: Rows that are lost, rows that the operator's counts explain, and the reasons.
Outcome = tuple[int, int, str]
ROWS = 200
PEOPLE = [f"p{i}" for i in range(39)] + ["Zoé"]
SCHEMA = """[columns]
who = { kind = "user" }
age = { kind = "number", lower = 0.0, upper = 100.0 }
ward = { kind = "category", categories = ["surgery", "clinic"] }
y = { kind = "category", categories = ["no", "yes"] }
"""
BUDGET: dict[str, Any] = {"max_participations": 5, "epsilon": 8.0, "delta": 1e-5, "seed": 0}
TAUGHT: dict[str, Any] = {"feature_columns": ("age",), "class_names": ("no", "yes")}
#: Faults of cells in every fourth row, and in the rows of Zoé: the column, and the other cell.
VALUES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "category in capitals": ("ward", lambda cell: cell.title()),
    "category missing": ("ward", lambda cell: None),
    "number missing": ("age", lambda cell: None),
    "id missing": ("who", lambda cell: None),
    "id decomposed (NFD)": ("who", lambda cell: cell.replace("é", "e\u0301")),
}
for unseen in "\u200b\u00ad\u202a\u00a0\ufe0f\ufffd":
    VALUES[f"id with U+{ord(unseen):04X}"] = ("who", lambda cell, end=unseen: cell + end)
#: Faults of every fourth line of CSV.
LINES: dict[str, Callable[[str], str]] = {
    "one separator more": lambda line: line + ",",
    "surplus of quotes and blanks": lambda line: line + ',"", ',
    "surplus field with content": lambda line: line + ",note",
    "decimal comma": lambda line: line.replace(".5", ",5"),
    "a field fewer": lambda line: line.rpartition(",")[0],
    "a quote that is never closed": lambda line: line.replace(",", ',"', 1),
}
#: Faults of the form.
FORMS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "column missing": lambda frame: frame.drop(columns="age"),
    "column of another name": lambda frame: frame.rename(columns={"who": "person"}),
    "saved index": lambda frame: frame.reset_index(names="Unnamed: 0"),
    "ids as bytes": lambda frame: frame.assign(who=frame["who"].str.encode("utf-8")),
    "ids as lists": lambda frame: frame.assign(who=[[name] for name in frame["who"]]),
    "ids as floats of 2^53 and more": lambda frame: frame.assign(who=2.0**60 + frame.index * 2**10),
    "numbers as times": lambda frame: frame.assign(age=pd.Timestamp("2026-01-01")),
}


TESTS: dict[str, Callable[[Any, Any], None]] = {
    "test labels -1 and 1": lambda x, y: np.copyto(y, 2 * y - 1),
    "test rows with NaN, most": lambda x, y: x[:150].fill(np.nan),
}


def people_rows() -> pd.DataFrame:
    """Return rows with a label that says whether the age is above 50."""
    rows = pd.DataFrame({"who": 5 * PEOPLE, "age": np.arange(ROWS) * 37 % 100 + 0.5})
    wards = np.where(rows.index % 2, "surgery", "clinic")
    return rows.assign(ward=wards, y=np.where(rows["age"] > 50, "yes", "no"))


def spoilt(column: str, change: Callable[[Any], Any]) -> pd.DataFrame:
    rows = people_rows().to_dict("records")
    for row in rows[::4] + rows[39::40]:
        row[column] = change(row[column])
    return pd.DataFrame(rows)


def written(table: pd.DataFrame | str, form: str, folder: Path) -> Path:
    path = folder / f"rows.{form}"
    if isinstance(table, str):
        path.write_text(table, encoding="utf-8", newline="")
    elif form == "csv":
        table.to_csv(path, index=False)
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in table.to_dict("records")))
    else:
        parquet.write_table(arrow.Table.from_pandas(table, preserve_index=False), path)
    return path


def outcome_of(data: Any, tests_apart: bool = False) -> Outcome:
    counts = data.row_counts
    tests = 0 if tests_apart else counts.test_rows
    trained = np.concatenate([*data.owned])
    right = (data.features.reshape(len(data.features), -1)[:, 0] > 0) == (data.labels == 1)
    lost = ROWS - counts.examples - tests + int((~right[trained]).sum())
    return lost, sum(counts.left_out.values()), json.dumps(counts.left_out)


def trained(path: Path, folder: Path, kind: str, **more: Any) -> Any:
    (folder / "users.txt").write_text("\n".join(PEOPLE), encoding="utf-8")
    given: dict[str, Any] = {"user_column": "who", "user_list": str(folder / "users.txt")}
    given |= {"path": str(path), "label_column": ("y",), "partition": "by-user", "users": 32}
    return DATASETS[kind](**{**given, **more}).load()


def of_table(table: pd.DataFrame | str, form: str, folder: Path) -> Outcome:
    schema = str(folder / "schema.toml")
    return outcome_of(trained(written(table, form, folder), folder, "table", schema=schema))


def of_frame(frame: pd.DataFrame, folder: Path) -> Outcome:
    frame = frame.drop(columns="ward")
    if "age" in frame and frame["age"].dtype == float:
        frame["age"] -= 50
    given = {"user": "who", "label": "y", "classes": ["no", "yes"], "user_list": PEOPLE}
    return outcome_of(Dataset.from_frame(frame, **given))


def of_hub(frame: pd.DataFrame, folder: Path) -> Outcome:
    if "age" in frame and frame["age"].dtype == float:
        frame = frame.assign(age=[[age - 50] for age in frame["age"]])
    written(frame, "parquet", folder).rename(folder / "train.parquet")
    return outcome_of(trained(folder, folder, "hub", input_shape=(1,), **TAUGHT))


def of_stream(table: pd.DataFrame | str, form: str, folder: Path) -> Outcome:
    path = written(table, form, folder)
    given = {"schema": read_schema(folder / "schema.toml"), "clip_norm": float("nan")}
    settings = Settings(**given, **BUDGET, user_column="who", release_every=ROWS)
    with open_run(folder / "state", settings, path, folder / "out.jsonl") as (run, reader):
        run.feed(reader, whole=True)
    return of_counts(json.loads((folder / "state/operator.json").read_text()))


def of_push(frame: pd.DataFrame, folder: Path) -> Outcome:
    schema = read_schema(folder / "schema.toml")
    with PrivateStream(folder / "pushed", schema=schema, rounds=ROWS, **BUDGET) as stream:
        stream.push_many(frame, users="who")
        return of_counts(stream.counts())


def of_counts(counts: dict[str, int]) -> Outcome:
    names = ("rows", "steps", "clipped", "zeroed", "beyond_k", "within_b")
    reasons = {name: count for name, count in counts.items() if name not in names and count}
    lost = counts["zeroed"] + ROWS - counts["steps"]
    return lost, sum(reasons.values()) + counts["beyond_k"], json.dumps(reasons)


def of_arrays(change: Callable[[Any, Any], None], folder: Path) -> Outcome:
    """Load arrays of which the public test part has a fault."""
    rows = people_rows()
    x = rows[["age"]].to_numpy() - 50
    y = (rows["y"] == "yes").to_numpy().astype(int)
    test = (x.copy(), y.copy())
    change(*test)
    given: dict[str, Any] = {"classes": 2, "user_list": PEOPLE, "test": test}
    return outcome_of(Dataset.from_arrays(x, y, rows["who"].tolist(), **given), tests_apart=True)


def of_names(tests: list[str], declared: tuple[str, ...], folder: Path) -> Outcome:
    """Load a hub data set with class names; a fifth of its tests has no class."""
    from datasets import ClassLabel, Features, List, Value
    from datasets import Dataset as HubDataset

    for part, names in (("train", ["no", "yes"]), ("test", tests)):
        ages = [i % 50 - 24.5 for i in range(ROWS)]
        codes = [int((age > 0) == (names[-1] == "yes")) for age in ages]
        if part == "test":
            codes[::5] = [-1] * len(codes[::5])
        cells = {"age": [[age] for age in ages], "y": codes}
        features = Features({"age": List(Value("float32")), "y": ClassLabel(names=names)})
        rows = HubDataset.from_dict(cells, features=features)
        rows.to_parquet(str(folder / f"{part}.parquet"))
    given = {**TAUGHT, "class_names": declared, "partition": "iid", "input_shape": (1,)}
    data = trained(folder, folder, "hub", **given, user_column="", user_list="")
    lost, told, reasons = outcome_of(data, tests_apart=True)
    wrong = (data.test_features[:, 0] > 0) != (data.test_labels == 1)
    return lost + int(wrong.sum()), told, reasons


def variants() -> Iterator[tuple[str, str, Callable[[Path], Outcome]]]:
    """Yield the name of each variant, its reader, and what loads it in an empty folder."""
    frames = {"as declared": people_rows()}
    frames |= {name: spoilt(*fault) for name, fault in VALUES.items()}
    frames |= {name: change(people_rows()) for name, change in FORMS.items()}
    for name, frame in frames.items():
        typed = name.startswith(("ids", "numbers"))  # which text cannot have
        for form in ("parquet", "csv", "jsonl")[: 1 if typed else 3]:
            yield name, form, partial(of_table, frame, form)
            yield name, f"stream {form}", partial(of_stream, frame, form)
        yield name, "frame", partial(of_frame, frame)
        yield name, "hub", partial(of_hub, frame)
        yield name, "push", partial(of_push, frame)
    header, *plain = people_rows().to_csv(index=False).splitlines()
    texts = {"header with a separator more": [header + ",", *plain]}
    for name, change in LINES.items():
        changed = [change(line) if i % 4 == 0 else line for i, line in enumerate(plain)]
        texts[name] = [header, *changed]
    for name, lines in texts.items():
        yield name, "csv", partial(of_table, "\n".join(lines), "csv")
        yield name, "stream csv", partial(of_stream, "\n".join(lines), "csv")
    for name, change in TESTS.items():
        yield name, "arrays", partial(of_arrays, change)
    for names in (["no", "yes"], ["yes", "no"], ["never", "yes"]):
        for declared in (("no", "yes"), ("0", "1"), ("No", "Yes")):
            name = f"test classes {'/'.join(names)}, {'/'.join(declared)}"
            yield name, "hub", partial(of_names, names, declared)


def main() -> None:
    log = logging.getLogger("fedmf")
    totals: Counter[str] = Counter()
    for name, reader, load in variants():
        said = io.StringIO()
        log.handlers = [logging.StreamHandler(said)]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "schema.toml").write_text(SCHEMA)
            try:
                lost, told, reasons = load(Path(folder))
                words = f"{lost:2} {reasons}"
                outcome = ("SILENT", "told")[told >= lost] if lost else "read"
            except ValueError as error:
                outcome = "refused"
                words = f"   {error}".replace(folder, "")
        aloud = said.getvalue().partition("test part")[2].strip()
        totals[outcome] += 1
        print(f"{outcome:8}{name:36}{reader:15}{words:.150} {aloud:.120}".rstrip())
    print(f"{totals.total()} variants: {dict(totals)}")
    raise SystemExit(bool(totals["SILENT"]))


if __name__ == "__main__":
    main()
