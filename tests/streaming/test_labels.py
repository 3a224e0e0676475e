"""Timestamp and key of a row: declared public, beside the release of its step, also when made again."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet
from support.command_line import one_line
from support.streams import BUDGET, releases, run_once

from fedmf.cli.app import run as run_command
from fedmf.errors import LedgerError
from fedmf.streaming import InputError, Settings, account_stream
from fedmf.streaming.session import open_reader

N = 14
LABELS = {"timestamp": "when", "key": "id"}
ASKED = {**BUDGET, "user_column": "user", "columns": ("x", "y"), "rounds": N, **LABELS}
ASKED["mechanisms"] = ("identity",)
#: What they become: plain, awkward in CSV or in a spreadsheet, none, control characters, too long.
TEXTS = {
    "2026-11-22 10:00": "2026-11-22 10:00",
    'a, "b"': 'a, "b"',
    "=1+1": "=1+1",
    " café ": " café ",
    "": "",
    "two\nlines\r": "two\ufffdlines\ufffd",
    "nul\0, \u2028, \x85": "nul\ufffd, \ufffd, \ufffd",
    300 * "é": 255 * "é" + "…",
}


def rows(n: int = N) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(n, 2))


def times(n: int = N) -> list[str]:
    return [f"2026-11-22, {i:02}:00" for i in range(n)]


def write_csv(path: Path, n: int = N, users: list[str] | None = None, begin: int = 0) -> Path:
    """Rows begin … n − 1, with a header; the user of row i is u{i} by default, its key k{i}."""
    people, when = users or [f"u{i}" for i in range(n)], times(n)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "user", "x", "when", "y"])
        for i, (x, y) in list(enumerate(rows(n).tolist()))[begin:]:
            writer.writerow([f"k{i}", people[i], repr(x), when[i], repr(y)])
    return path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_release_has_the_labels_of_its_own_steps_row(tmp_path: Path) -> None:
    """In every format, with a row that takes no step and steps that release nothing; numbers as without."""
    users = [f"u{i}" for i in range(N)]
    users[3] = users[1]  # refused: k is 1
    source = write_csv(tmp_path / "rows.csv", users=users)
    admitted = [i for i in range(N) if i != 3]
    every, folder = 4, tmp_path
    places = ("plain", "json", "tidy", "wide", "parquet")
    for name in places:
        (folder / name).mkdir()
    asked = {**ASKED, "every": every, "rounds": N - 1}
    with_labels, without = Settings(**asked), Settings(**{**asked, "timestamp": None, "key": None})
    run_once(folder / "plain", without, source)
    for shape in ("json", "tidy", "wide"):
        run_once(folder / shape, with_labels, source, "out", shape=shape)
    run_once(folder / "parquet", with_labels, source, "out.parquet")
    plain, found = releases(folder / "plain/out.jsonl"), releases(folder / "json/out")
    assert [list(release)[:3] for release in found] == [["t", "timestamp", "key"]] * len(found)
    stepped = [(row["t"], row["timestamp"], row["key"]) for row in found]
    due = sorted({*range(every, N, every), N - 1})
    assert stepped == [(t, times()[admitted[t - 1]], f"k{admitted[t - 1]}") for t in due]
    assert [{**row, **LABELS} for row in plain] == [{**row, **LABELS} for row in found]
    texts = [(str(t), when, key) for t, when, key in stepped]
    wide, tidy = table(folder / "wide/out"), table(folder / "tidy/out")
    assert [(row["t"], row["timestamp"], row["key"]) for row in wide] == texts
    assert len(tidy) == len(found) * (2 + 3 + 2 + 3)
    assert sorted({(row["t"], row["timestamp"], row["key"]) for row in tidy}) == sorted(texts)
    assert [float(row["mean:y"]) for row in wide] == [row["mean"][1] for row in found]
    assert parquet.read_table(folder / "parquet/out.parquet").to_pylist() == found


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("shape", ["json", "tidy", "wide"])
def test_texts_pass_through_and_break_no_line(tmp_path: Path, suffix: str, shape: str) -> None:
    given = [text for text in TEXTS if suffix != "csv" or not {"\n", "\0"} & set(text)]
    n, source = len(given), tmp_path / f"rows.{suffix}"
    x = rows(n)
    if suffix == "csv":
        with source.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [
                    ["x", "y", "when"],
                    *([*map(repr, row), text] for row, text in zip(x.tolist(), given, strict=True)),
                ]
            )
    elif suffix == "jsonl":
        lines = ({"x": row, "when": text} for row, text in zip(x.tolist(), given, strict=True))
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        parquet.write_table(arrow.table({"x": x[:, 0], "y": x[:, 1], "when": given}), source)
    settings = Settings(**BUDGET, rounds=n, timestamp="when", second="energy", mechanisms=("identity",))
    run_once(tmp_path, settings, source, "out", shape=shape)
    content, lines = (tmp_path / "out").read_bytes(), {"json": n, "tidy": 5 * n + 1, "wide": n + 1}[shape]
    assert content.count(b"\n") == len(content.decode().splitlines()) == lines
    if shape == "json":
        found = [release["timestamp"] for release in releases(tmp_path / "out")]
    else:
        found = list({row["t"]: row["timestamp"] for row in table(tmp_path / "out")}.values())
    assert found == [TEXTS[text] for text in given]


def test_times_of_a_parquet_file(tmp_path: Path) -> None:
    """Times, dates, numbers, categories and bytes as Arrow writes them; what is no text has one line."""

    def labels(values: Any) -> list[str]:
        parquet.write_table(arrow.table({"x": [0.1, 0.2], "when": values}), tmp_path / "rows.parquet")
        settings = Settings(1.0, 1.0, 1e-5, timestamp="when")
        with open_reader(tmp_path / "rows.parquet", settings) as reader:
            block = reader.read(9)
            assert block is not None
            assert reader.layout.columns == ("x",)
            return [text for (text,) in block.labels]

    assert labels(arrow.array([0, None], arrow.timestamp("ms"))) == ["1970-01-01 00:00:00.000", ""]
    assert labels(arrow.array([0, 3600], arrow.timestamp("s", "UTC")))[1].startswith("1970-01-01 01:00:00")
    assert labels(arrow.array([1, 2], arrow.date32())) == ["1970-01-02", "1970-01-03"]
    assert labels(arrow.array([1, None], arrow.int64())) == ["1", ""]
    assert labels(arrow.array(["a", None]).dictionary_encode()) == ["a", ""]
    torn = arrow.array([b"a\xff", b"b"], arrow.binary())
    assert labels(torn) == labels(torn.view(arrow.string())) == ["a\ufffd", "b"]
    for values in (arrow.array([["a"], ["b"]]), arrow.array([0, 1], arrow.timestamp("s", "Nowhere/At_All"))):
        with pytest.raises(InputError, match="column 'when' must hold text, numbers or times"):
            labels(values)


@pytest.mark.parametrize(("output", "shape"), [("o", "json"), ("o", "tidy"), ("o", "wide"), ("o.pq", "json")])
def test_a_stream_in_parts_ends_with_the_same_bytes(tmp_path: Path, output: str, shape: str) -> None:
    """Cut and lost outputs are made again from the state alone, whatever the input still holds."""
    settings = Settings(**ASKED)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    run_once(whole, settings, write_csv(tmp_path / "rows.csv"), output, shape=shape)
    for stop in (1, 5, 9):
        run_once(parts, settings, write_csv(tmp_path / "part.csv", stop), output, shape=shape)
    text = (parts / output).read_bytes()
    (parts / output).write_bytes(text[: len(text) // 2])
    rest = write_csv(tmp_path / "rest.csv", begin=9)
    run_once(parts, settings, rest, output, shape=shape, first_row=10)
    assert (parts / output).read_bytes() == (whole / output).read_bytes()
    (parts / output).unlink()
    run_once(parts, settings, rest, output, shape=shape, first_row=10)
    assert (parts / output).read_bytes() == (whole / output).read_bytes()


def test_another_row_of_the_same_numbers_is_noticed(tmp_path: Path) -> None:
    settings = Settings(**ASKED)
    source = write_csv(tmp_path / "rows.csv", 9)
    run_once(tmp_path, settings, source)
    source.write_text(source.read_text().replace("k8,", "k9,"))
    with pytest.raises(InputError, match="must be the one that was dealt with before"):
        run_once(tmp_path, settings, source)


def test_labels_are_bound_to_the_key(tmp_path: Path) -> None:
    settings, source = Settings(**ASKED), write_csv(tmp_path / "rows.csv", 9)
    run_once(tmp_path, settings, source)
    with sqlite3.connect(tmp_path / "state/stream.sqlite") as connection:
        changed = connection.execute("UPDATE commits SET about = replace(about, 'k4', 'k5')").rowcount
    connection.close()
    assert changed >= 1
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(LedgerError, match="not as it was written"):
        run_once(tmp_path, settings, source)


BAD_ROWS = {  # of user u5, whose row is "k5,u5,0.1,t5,0.2" in the other world
    "text": ("k5,u5,secret,t5,0.2", ("t5", "k5")),
    "nan": ("k5,u5,0.1,t5,nan", ("t5", "k5")),
    "long": ("k5,u5,30,t5,40", ("t5", "k5")),
    "shifted": ("u5,0.123,k5,t5", ("", "")),
    "more": ("k5,u5,0.1,0.123,t5,0.2", ("", "")),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
def test_a_bad_number_does_not_show_in_labels(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], bad: str
) -> None:
    """Labels are the same; of a row that cannot be told apart into cells there is none, never a number."""
    line, labels = BAD_ROWS[bad]
    found = {}
    for name, middle in (("zero", f"k5,u5,0,{labels[0]},0"), ("bad", line)):
        lines = [f"k{i},u{i},0.1,t{i},0.2" for i in range(N)]
        lines[5] = middle if name == "bad" or labels[0] else ",u5,0,,0"
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,user,x,when,y", *lines]) + "\n")
        command = f"stream --input {tmp_path}/{name}.csv --norm-bound 1 --epsilon 8 --delta 1e-5 --seed 3"
        options = (
            "--user-column user --columns x,y --timestamp when --key id --on-long refuse --second diagonal"
        )
        assert run_command([*command.split(), *options.split()]) == 0
        found[name] = capfd.readouterr()
    assert found["bad"] == found["zero"]
    row = json.loads(found["bad"].out.splitlines()[5])
    assert (row["timestamp"], row["key"]) == labels


def test_the_statement_names_what_was_declared_public(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "rows.csv", 9)
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    statement = run_once(tmp_path / "with", Settings(**ASKED), source)
    other = run_once(tmp_path / "without", Settings(**{**ASKED, "timestamp": None, "key": None}), source)
    declared = [
        {"name": name, "value": f"column {column!r}, beside each release as given", "source": "declared"}
        for name, column in LABELS.items()
    ]
    assert (statement["public_inputs"], other["public_inputs"]) == (declared, [])
    assert account_stream(tmp_path / "with/state")["public_inputs"] == declared
    for place in ("assumptions", "not_covered"):
        assert ["timestamp and key of" in text for text in statement[place]].count(True) == 1
    text = (tmp_path / "with/state/statement.txt").read_text()
    assert "Public inputs" in text
    assert "timestamp: column 'when', beside each release as given (declared)" in text
    assert all(label not in text for label in ("k4", times()[4]))
    without = (tmp_path / "without/state/statement.txt").read_text()
    assert "timestamp" not in without
    assert "Public inputs" not in without


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--key user", "key (column) must not be that of the user ids; got 'user'"),
        ("--timestamp user", "timestamp (column) must not be that of the user ids"),
        ("--columns x,y --key y", "key (column) must not be one of the numbers; got 'y'"),
        ("--key when --timestamp when", "key (column) must not be the timestamp's; got 'when' for both"),
        ("--key nope", "column 'nope' is missing; the input has 'id', 'user'"),
        ("--key=", "key (column) must have a name"),
    ],
)
def test_refused_columns_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    source = write_csv(tmp_path / "rows.csv")
    command = f"stream --input {source} --norm-bound 1 --epsilon 8 --delta 1e-5 --user-column user"
    assert run_command([*command.split(), *options.split()]) == 2
    assert message in one_line(capsys)
