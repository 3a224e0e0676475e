"""Readers: what a row is, what is wrong with it, and that it does not depend on how the input arrives."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from fedmf.streaming.lines import Lines
from fedmf.streaming.parquet_rows import ParquetReader
from fedmf.streaming.rows import InputError, RowReader
from fedmf.streaming.session import open_reader
from fedmf.streaming.settings import Settings
from fedmf.streaming.text_rows import CsvReader, JsonLinesReader

CSV = (
    b"user,x,y,note\n"
    b"ann,0.5,-1e-3,plain\n"
    b'bob,"2",3,"quoted, with comma"\n'
    b"\n"
    b"eve,abc,1,\n"
    b"eve,nan,1,\n"
    b"eve,1\n"
    b"eve,1,2,caf\xe9\n"
    b",1,2,nobody\n"
    b"zoe,1_0,2,\n"
    b"zoe,,2,\n"
    b"zoe,1e999,2,\n"
    b'zoe,"1,2,\n'
    b"z\xc3\xb6e, 7 ,8,\r\n"
    b"ann,0.1,0.2,last"
)
ROWS = [
    ("ann", [0.5, -1e-3], None),
    ("bob", [2.0, 3.0], None),
    ("eve", [0, 0], "column 'x' must be a number"),
    ("eve", [0, 0], "column 'x' must be finite"),
    (None, [0, 0], "must have 4 fields; got 2"),
    (None, [0, 0], "must be UTF-8"),
    (None, [0, 0], "column 'user' must name a user"),
    ("zoe", [0, 0], "column 'x' must be a number"),
    ("zoe", [0, 0], "column 'x' must be a number"),
    ("zoe", [0, 0], "column 'x' must be finite"),
    (None, [0, 0], "must be one line of CSV"),
    ("zöe", [7.0, 8.0], None),
    ("ann", [0.1, 0.2], None),
]


class Pipe:
    """A descriptor through which bytes arrive in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.read_end, self._write_end = os.pipe()
        self._writer = threading.Thread(target=self._write, args=(pieces,))
        self._writer.start()

    def _write(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            os.write(self._write_end, piece)
        os.close(self._write_end)

    def __enter__(self) -> int:
        return self.read_end

    def __exit__(self, *_: object) -> None:
        self._writer.join()
        os.close(self.read_end)


def rows_of(reader: RowReader, most: int = 5) -> list[tuple[str | None, list[float], str | None]]:
    found = []
    while (block := reader.read(most)) is not None:
        assert block.first == len(found) + 1
        for i in range(len(block)):
            user = None if block.users is None else block.users[i]
            found.append((user, block.values[i].tolist(), block.faults.get(i)))
    return found


def pieces_of(content: bytes, seed: int) -> list[bytes]:
    rng, pieces = random.Random(seed), []
    while content:
        size = rng.randint(1, 40)
        pieces.append(content[:size])
        content = content[size:]
    return pieces


@pytest.mark.parametrize("seed", range(6))
def test_csv_rows_whatever_comes_together(seed: int) -> None:
    marked = b"\xef\xbb\xbf" * (seed % 2) + CSV
    with Pipe(pieces_of(marked, seed)) as descriptor:
        reader = CsvReader(Lines(descriptor), ["x", "y"], "user")
        assert rows_of(reader, seed + 1) == ROWS
        assert reader.where(2) == "row 2"  # a blank line was seen: line numbers are not told


def test_numbers_of_csv_have_every_bit() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3)) * 10.0 ** np.arange(-9, 18, 9)
    lines = [f"{a!r},u{i}, {b!r},{c!r} " for i, (a, b, c) in enumerate(x.tolist())]
    with Pipe(["\n".join(["a,user,b,c", *lines]).encode()]) as descriptor:
        found = rows_of(CsvReader(Lines(descriptor), None, "user"), 100)
    assert found == [(f"u{i}", row, None) for i, row in enumerate(x.tolist())]


def test_a_long_field_is_judged_alike_whatever_comes_with_it() -> None:
    """Python's reader takes 131,072 characters, also where the line has no quote."""
    for note in ("plain", '"quoted"'):
        text = f"user,x,note\nann,1,{'n' * 140_000}\nbob,2,{note}\n".encode()
        with Pipe([text]) as descriptor:
            found = rows_of(CsvReader(Lines(descriptor), ["x"], "user"))
        assert found == [(None, [0.0], "must be one line of CSV"), ("bob", [2.0], None)]


def test_a_parquet_user_that_is_not_utf8_is_a_row_without_one(tmp_path: Path) -> None:
    names = arrow.array([b"ann", b"\xff", b"b\xef\xbf\xbdb"], arrow.binary())
    for users in (names, names.view(arrow.string())):
        parquet.write_table(arrow.table({"x": [0.1, 0.2, 0.3], "user": users}), tmp_path / "rows.parquet")
        found = rows_of(ParquetReader(tmp_path / "rows.parquet", None, "user"))
        assert [row[0] for row in found] == ["ann", None, "b\ufffdb"]
        assert found[1][1:] == ([0.0], "column 'user' must name a user")
    nested = arrow.array([["ann"], ["bob"]])
    parquet.write_table(arrow.table({"x": [0.1, 0.2], "user": nested}), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="column 'user' must hold ids of users"):
        ParquetReader(tmp_path / "rows.parquet", None, "user")


def test_numbers_in_the_first_line_are_a_row() -> None:
    with Pipe([b"1,2\n3,4\n"]) as descriptor:
        reader = CsvReader(Lines(descriptor), None, None)
        assert reader.layout.columns == ("1", "2")
        assert rows_of(reader) == [(None, [1.0, 2.0], None), (None, [3.0, 4.0], None)]
        assert reader.where(2) == "row 2 (line 2)"


def test_json_lines() -> None:
    lines = [
        ('{"user": 7, "x": [1, 2.5]}', "7", [1.0, 2.5], None),
        ('{"user": "ann", "x": [1]}', "ann", [0, 0], "must have 2 numbers; got 1"),
        ('{"user": "ann", "x": [1, true]}', "ann", [0, 0], "column '2' must be a number"),
        ('{"user": "ann", "x": [NaN, 1]}', "ann", [0, 0], "column '1' must be finite"),
        ('{"user": "ann", "x": [1e999, 1]}', "ann", [0, 0], "column '1' must be finite"),
        ('{"user": "ann", "x": [1' + "0" * 400 + ", 1]}", "ann", [0, 0], "column '1' must be finite"),
        ('{"user": true, "x": [1, 2]}', None, [0, 0], "column 'user' must name a user"),
        ('{"x": [1, 2]}', None, [0, 0], "column 'user' must name a user"),
        ('{"user": "\\ud800", "x": [1, 2]}', None, [0, 0], "column 'user' must name a user"),
        ('{"user": "ann"}', "ann", [0, 0], "must hold an array of numbers"),
        ("[1, 2", None, [0, 0], "must hold an array of numbers"),
        ("[" * 100_000, None, [0, 0], "must hold an array of numbers"),
        ('{"user": "ann", "x": [3, 4]}', "ann", [3.0, 4.0], None),
    ]
    for size in (1, 3, 100):
        with Pipe(["".join(line + "\n" for line, *_ in lines).encode()]) as descriptor:
            reader = JsonLinesReader(Lines(descriptor), None, "user")
            assert rows_of(reader, size) == [tuple(rest) for _, *rest in lines]


def test_json_objects_of_numbers_and_bare_arrays() -> None:
    with Pipe([b'{"a": 1, "b": 2}\n{"b": 4, "a": 3, "c": 9}\n{"a": 1}\n5\n']) as descriptor:
        assert rows_of(JsonLinesReader(Lines(descriptor), None, None)) == [
            (None, [1.0, 2.0], None),
            (None, [3.0, 4.0], None),
            (None, [0, 0], "column 'b' is missing"),
            (None, [0, 0], "must be a JSON object"),
        ]
    with Pipe([b"[1, 2]\n[3, 4, 5]\n"]) as descriptor:
        assert rows_of(JsonLinesReader(Lines(descriptor), None, None)) == [
            (None, [1.0, 2.0], None),
            (None, [0, 0], "must have 2 numbers; got 3"),
        ]


@pytest.mark.parametrize("kind", ["columns", "lists", "fixed"])
def test_parquet(tmp_path: Path, kind: str) -> None:
    x = np.random.default_rng(0).normal(size=(50, 2))
    values: list[list[float | None]] = x.tolist()
    values[7], values[30] = [1.0, float("inf")], [None, 2.0]
    users = [f"u{i}" for i in range(50)]
    users[9] = None  # type: ignore[call-overload]
    if kind == "columns":
        table = {"a": [row[0] for row in values], "b": [row[1] for row in values]}
    elif kind == "lists":
        values[20], values[21] = [1.0], None  # type: ignore[call-overload]
        table = {"x": arrow.array(values, arrow.list_(arrow.float64()))}
    else:
        values[30] = [float("nan"), 2.0]
        table = {"x": arrow.array(values, arrow.list_(arrow.float64(), 2))}
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.table({**table, "user": users}), path, row_group_size=12)
    whole = rows_of(ParquetReader(path, None, "user"), 7)
    expected = list(x.tolist())
    bad = {7, 9, 30} | ({20, 21} if kind == "lists" else set())
    assert {i for i, row in enumerate(whole) if row[2] is not None} == bad
    assert [row[1] for i, row in enumerate(whole) if i not in bad] == [
        row for i, row in enumerate(expected) if i not in bad
    ]
    assert all(row[1] == [0.0, 0.0] for i, row in enumerate(whole) if i in bad)
    for skipped in (0, 1, 11, 12, 13, 36, 49):
        reader = ParquetReader(path, None, "user")
        assert reader.skip(skipped) == skipped
        block = reader.read(3)
        assert block is not None
        assert block.first == skipped + 1
        assert [block.values[0].tolist()] == [whole[skipped][1]]
    reader = ParquetReader(path, None, "user")
    assert [reader.skip(30), reader.skip(30), reader.skip(30)] == [30, 20, 0]


def test_inputs_that_tell_no_layout(tmp_path: Path) -> None:
    cases = {
        "empty.csv": (b"", {}, "rows"),
        "empty.jsonl": (b"\n\n", {}, "rows"),
        "twice.csv": (b"a,a\n1,2\n", {}, "twice"),
        "missing.csv": (b"a,b\n1,2\n", {"columns": ("a", "c")}, "'c' is missing; the input has 'a', 'b'"),
        "user.csv": (b"a,b\n1,2\n", {"user_column": "who"}, "'who' is missing"),
        "both.csv": (b"a,b\n1,2\n", {"columns": ("a", "b"), "user_column": "a"}, "different"),
        "latin.csv": (b"caf\xe9,b\n1,2\n", {}, "UTF-8"),
        "broken.jsonl": (b"{\n", {}, "JSON"),
        "array.jsonl": (b"[1]\n", {"columns": ("a",)}, "objects"),
        "none.jsonl": (b"[]\n", {}, "numbers"),
        "broken.parquet": (b"PAR1 and nothing more", {}, "cannot be read"),
        "guessed": (b"PAR1 and nothing more", {}, "cannot be read"),
    }
    for name, (content, more, word) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        settings = Settings(1.0, 1.0, 1e-5, **more)
        with pytest.raises(InputError, match=word) as caught, open_reader(path, settings):
            pass
        assert "\n" not in str(caught.value), name
    with pytest.raises(InputError, match="opened"), open_reader(tmp_path / "absent.csv", settings):
        pass
    with pytest.raises(InputError, match="directory"), open_reader(tmp_path, settings):
        pass
    words = arrow.table({"x": ["a", "b"]})
    parquet.write_table(words, tmp_path / "words.parquet")
    with (
        pytest.raises(InputError, match="must hold numbers"),
        open_reader(tmp_path / "words.parquet", Settings(1.0, 1.0, 1e-5)),
    ):
        pass
