"""Rows of files and pipes: which are valid, which are rejected, and that none affects others."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from fedmf.cli.app import run
from fedmf.data.table_reader import InputError
from fedmf.streaming import Settings
from fedmf.streaming.stream_rows import Layout, Reader, label_of, open_reader

CSV = (
    b"user,x,y,note\n"
    b"ann,0.5,-1e-3,plain\n"
    b'bob,"2",3,"quoted, with comma"\n'
    b"\n"
    b"eve,abc,1,\n"
    b"eve,nan,1,\n"
    b"eve,1\n"
    b",1,2,nobody\n"
    b"zoe,1_0,2,\n"
    b"zoe,,2,\n"
    b"zoe,1e999,2,\n"
    b'zoe,"1,2,\n'
    b"z\xc3\xb6e, 7 ,8,\r\n"
    b"ann,0.1,0.2,last"
)
BAD = [0.0, 0.0]
ROWS = [
    ("ann", [0.5, -1e-3], False),
    ("bob", [2.0, 3.0], False),
    ("eve", BAD, True),
    ("eve", BAD, True),
    (None, BAD, True),
    (None, BAD, True),
    ("zoe", BAD, True),
    ("zoe", BAD, True),
    ("zoe", BAD, True),
    (None, BAD, True),
    ("zöe", [7.0, 8.0], False),
    ("ann", [0.1, 0.2], False),
]


def rows_of(reader: Reader, most: int = 5) -> list[tuple[str | None, list[float], bool]]:
    found = []
    while (block := reader.read(most)) is not None:
        users = block.users or [None] * len(block)
        found += [
            (users[i], block.values[i].tolist(), bool(block.invalid[i])) for i in range(len(block))
        ]
    return found


def settings(**more: Any) -> Settings:
    return Settings(1.0, 1e-5, 1.0, **more)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_csv_rows_whatever_comes_together(tmp_path: Path, size: int) -> None:
    (tmp_path / "rows.csv").write_bytes(CSV)
    with open_reader(
        tmp_path / "rows.csv", settings(columns=("x", "y"), user_column="user")
    ) as reader:
        assert rows_of(reader, size) == ROWS


def test_rows_of_a_pipe_come_as_they_arrive() -> None:
    """Byte by byte; a row is there before the next one starts."""
    kept = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    seen = threading.Event()

    def write() -> None:
        for i in range(len(CSV)):
            os.write(write_end, CSV[i : i + 1])
            if CSV[: i + 1].endswith(b"-1e-3,plain\n"):
                assert seen.wait(60)
        os.close(write_end)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with open_reader(None, settings(columns=("x", "y"), user_column="user")) as reader:
            first = reader.read(1)
            assert first is not None
            seen.set()
            assert [("ann", first.values[0].tolist(), False), *rows_of(reader)] == ROWS
    finally:
        seen.set()
        writer.join()
        os.dup2(kept, 0)
        os.close(kept)


def test_parquet_and_its_labels(tmp_path: Path) -> None:
    place = tmp_path / "rows.parquet"
    table = arrow.table(
        {
            "x": arrow.array([0.1, None, 0.3]),
            "user": arrow.array([1, None, 3]),
            "when": arrow.array([0, None, 3600], arrow.timestamp("s")),
        }
    )
    parquet.write_table(table, place)
    with open_reader(
        place, settings(columns=("x",), user_column="user", timestamp="when")
    ) as reader:
        assert reader.layout.columns == ("x",)
        blocks = [reader.read(1), reader.read(5)]
    told = [label for block in blocks if block is not None for label in block.labels]
    assert [label[0][:13] for label in told] == ["1970-01-01 00", "", "1970-01-01 01"]
    with open_reader(place, settings(columns=("x",), user_column="user")) as reader:
        assert [row[:2] for row in rows_of(reader)] == [("1", [0.1]), (None, [0.0]), ("3", [0.3])]
    with open_reader(place, settings(columns=("x",)), first_row=1) as reader:
        assert (reader.skip(2), len(rows_of(reader))) == (2, 1)
    vectors = arrow.array([[0.1, 0.2], [0.3], None, [0.5, 0.6]])
    parquet.write_table(arrow.table({"x": vectors}), place)
    with open_reader(place, settings()) as reader:
        assert [row for _, row, _ in rows_of(reader)] == [[0.1, 0.2], BAD, BAD, [0.5, 0.6]]
    parquet.write_table(arrow.table({"x": [0.1], "when": arrow.array([["a"]])}), place)
    for more, message in (
        ({"columns": ("x",), "timestamp": "when"}, "must hold text"),
        ({"columns": ("when", "x")}, "must hold numbers"),
    ):
        with (
            pytest.raises(InputError, match=f"column 'when' {message}"),
            open_reader(place, settings(**more)),
        ):
            pass


def test_the_first_row_of_json_lines_decides_no_other(tmp_path: Path) -> None:
    """A list where none is declared spoils its row alone, and so does none where an input continues
    lists.
    """
    path = tmp_path / "rows.jsonl"
    good = {"user": "bob", "x": 0.5, "y": 1}
    for bad in ({"x": [1]}, {"user": ["ann"]}, {"y": None}):
        path.write_text(f"{json.dumps(good | bad)}\n{json.dumps(good)}\n")
        with open_reader(path, settings(columns=("x", "y"), user_column="user")) as reader:
            (_, _, invalid), then = rows_of(reader)
        assert (invalid, then) == (True, ("bob", [0.5, 1.0], False))
    path.write_text('{"user": "ann", "x": null}\n{"user": "bob", "x": [0.5, 1]}\n')
    with open_reader(
        path, settings(user_column="user"), layout=Layout(("x1", "x2"), "user", (), "x")
    ) as reader:
        assert rows_of(reader) == [("ann", BAD, True), ("bob", [0.5, 1.0], False)]


def test_labels_are_one_line() -> None:
    assert label_of("a\r\nb\u2028c\x1f\ud800") == "a\ufffd\ufffdb\ufffdc\ufffd\ufffd"
    assert (label_of(True), label_of(10**5000), label_of([1])) == ("true", "…", "")
    assert len(label_of(10_000 * "ö")) == 256


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("", {}, "must have rows"),
        ("x,y\n", {}, "must have rows"),
        ("x,y\n1,2\n", {}, "columns of numbers must be named .* The input has 'x', 'y'"),
        ("x,x\n1,2\n", {}, "column 'x' appears twice"),
        ("x,y\n1,2\n", {"columns": ("x", "z")}, "column 'z' is missing"),
        ("x,y\n1,2\n", {"user_column": "name"}, "column 'name' is missing"),
        ("user\n1\n", {"user_column": "user"}, "columns must be at least one"),
    ],
)
def test_inputs_without_rows_or_columns_are_refused(
    tmp_path: Path, text: str, more: dict[str, Any], message: str
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with (
        pytest.raises(InputError, match=message),
        open_reader(tmp_path / "rows.csv", settings(**more)),
    ):
        pass


COUNT = 12
AT = 5
BUDGET = (
    "--clip-norm 1 --epsilon 8 --delta 1e-5 --seed 3 --workload prefix --user-column user --columns"
    " x,y --raw"
)
LINES = {
    "text": "u5,0.1,secret,t5",
    "nan": "u5,nan,0.1,t5",
    "short": "u5,0.1",
    "more": "u5,0.1,0.2,t5,9",
}


@pytest.mark.parametrize("bad", LINES)
def test_an_invalid_row_shows_in_its_own_contribution_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], bad: str
) -> None:
    """Screen, exit code and releases of a stream with an invalid row, and labels; bit for bit those
    with zeros in its place.
    """
    x = np.random.default_rng(0).uniform(-0.4, 0.4, size=(COUNT, 2))
    labels = "" if bad in ("short", "more") else "t5"
    worlds = {
        "good": f"u5,{x[AT][0]!r},{x[AT][1]!r},t5",
        "zero": f"u5,0,0,{labels}",
        "bad": LINES[bad],
    }
    found = {}
    for name, line in worlds.items():
        lines = [
            "user,x,y,when",
            *(f"u{i},{a!r},{b!r},t{i}" for i, (a, b) in enumerate(x.tolist())),
        ]
        lines[1 + AT] = line.replace("np.float64(", "").replace(")", "")
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        options = "--timestamp when --input-format csv"
        code = run(f"stream --input {tmp_path / name} {BUDGET} {options}".split())
        shown = capfd.readouterr()
        found[name] = code, shown.err, [json.loads(text) for text in shown.out.splitlines()]
    assert found["bad"][0] == 0
    if labels:
        assert found["bad"] == found["zero"]
    assert len(found["good"][2]) == len(found["bad"][2]) == COUNT
    for t, (with_row, without) in enumerate(zip(found["good"][2], found["bad"][2], strict=True)):
        expected = x[AT] if t >= AT else np.zeros(2)
        np.testing.assert_allclose(
            np.subtract(with_row["sum"], without["sum"]), expected, atol=1e-12
        )
    assert found["bad"][2][AT]["timestamp"] == labels
