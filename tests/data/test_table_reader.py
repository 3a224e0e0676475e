"""The reader of tables: what a row is, what is none, and that no row decides another."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.data.cells import cells_of, ids, numbers
from fedmf.data.line_reader import LONGEST_LINE, PASSED_OVER, Lines
from fedmf.data.table_reader import CsvTable, InputError, RowBatch, open_table

laws = settings(derandomize=True, max_examples=100, deadline=None, database=None)
HEAD = b"who,a,note\n"
#: A line, and its cells; None for what is no row.
LINES: dict[str, tuple[bytes, list[str] | None]] = {
    "plain": (b"ann,0.5,x", ["ann", "0.5", "x"]),
    "empty cells": (b",,", ["", "", ""]),
    "quoted comma": (b'"a, b","2",', ["a, b", "2", ""]),
    "doubled quotes": (b'ann,1,"say ""hi"""', ["ann", "1", 'say "hi"']),
    "a quote inside": (b"ann,1,5'10\"", ["ann", "1", "5'10\""]),
    "carriage return at the end": (b"ann,1,x\r", ["ann", "1", "x"]),
    "carriage return inside": (b"ann,1\r,x", None),
    "carriage return in quotes": (b'ann,"1\r",x', ["ann", "1\r", "x"]),
    "a quote that never ends": (b'ann,"1,x', None),
    "the end of a quoted newline": (b'2",x', None),
    "text behind quotes": (b'ann,"1"2,x', None),
    "a field too many": (b"ann,1,x,y", None),
    "separators at the end": (b"ann,1,x,,", ["ann", "1", "x"]),
    "empty quotes at the end": (b'ann,"1, 2",x,"", ', ["ann", "1, 2", "x"]),
    "fields too few": (b"ann", None),
    "not UTF-8": (b"ann,1,caf\xe9", ["ann", "1", "caf\ufffd"]),
    "a mark at the front": (b"\xef\xbb\xbfann,1,x", ["\ufeffann", "1", "x"]),
    "a zero byte": (b"ann,1\x00,x", ["ann", "1\x00", "x"]),
    "words for nothing": (b"NA,null,nan", ["NA", "null", "nan"]),
    "a long field": (b"ann,1," + b"x" * 200_000, ["ann", "1", "x" * 200_000]),
}
#: Of files; a line of a pipe is a row.
JOINED: dict[str, tuple[bytes, list[str] | None]] = {
    "a row in a cell": (b'ann,"1","x\nbob,1,y\n\n"', ["ann", "1", "x\nbob,1,y\n\n"]),
    "two cells of two lines": (b'ann,"1\n2","x\ny"', ["ann", "1\n2", "x\ny"]),
    "quotes in a cell of two lines": (b'ann,1,"""x\n""y"""', ["ann", "1", '"x\n"y"']),
}


def rows_of(source: Path | int, columns: tuple[str, ...], most: int = 5) -> list[Any]:
    """Return the cells of each row as a list of text; None for a line that is not a row."""
    rows: list[Any] = []
    with open_table(source) as table:
        table.select(columns)
        for batch in table.batches(most):
            rows += rows_of_batch(batch, columns)
    return rows


def rows_of_batch(batch: RowBatch, columns: tuple[str, ...]) -> list[list[str] | None]:
    cells = np.array([cells_of(batch.columns[name]) for name in columns], dtype=object)
    rows: list[list[str] | None] = cells.T.tolist()
    for place in batch.faults:
        rows[place] = None
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_lines_of_csv_are_rows_in_any_company_and_however_many_at_once(
    tmp_path: Path, seed: int
) -> None:
    """A line break in a quoted cell adds no row (FEDMF-2026-10)."""
    cases = [*LINES.values()]
    if seed == 0:
        cases += JOINED.values()
    random.Random(seed).shuffle(cases)
    mark = b"\xef\xbb\xbf" * (seed % 2)
    content = mark + HEAD + b"".join(line + b"\n" * (1 + seed) for line, _ in cases)
    expected = [cells for _, cells in cases]
    (tmp_path / "rows.csv").write_bytes(content)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(content))
    for name in ("rows.csv", "rows.csv.gz"):
        assert rows_of(tmp_path / name, ("who", "a", "note"), seed + 1) == expected
    for line, cells in cases:
        (tmp_path / "alone.csv").write_bytes(HEAD + line + b"\n")
        (row,) = rows_of(tmp_path / "alone.csv", ("note", "who", "a"))
        if cells is None:
            assert row is None
        else:
            assert row == [cells[2], cells[0], cells[1]]


def test_a_row_with_too_many_fields_keeps_its_first_cell_alone(tmp_path: Path) -> None:
    lines = b'ann,1,x,y\n"b""ob",1,x,,y\nann,1\nann,1\r,x\n'
    (tmp_path / "rows.csv").write_bytes(HEAD + lines)
    with open_table(tmp_path / "rows.csv") as table:
        table.select(("who", "a"))
        batch = table.read(9)
    assert batch is not None
    assert cells_of(batch.columns["who"]) == ["ann", 'b"ob', "", ""]
    assert cells_of(batch.columns["a"]) == 4 * [""]
    more = "more fields than the header"
    fewer = "fewer fields than the header"
    assert [*batch.faults.values()] == [more, more, fewer, "quotes or line ends that are not CSV"]


def test_a_header_may_end_with_separators_that_its_rows_lack(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"who,a,,\nann,1\nann,1,\nann,1,x,y\nann,1,x,y,z\n")
    with open_table(tmp_path / "rows.csv") as table:
        assert table.names == ("who", "a")
    assert rows_of(tmp_path / "rows.csv", ("who", "a")) == [*3 * [["ann", "1"]], None]


@laws
@given(line=st.binary(max_size=60).filter(lambda line: b"\n" not in line))
def test_whatever_a_line_holds_others_are_read_as_before(
    line: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "law.csv"
    path.write_bytes(HEAD + b"u1,1,x\n" + line + b'\nu2,2,"y"\n')
    rows = rows_of(path, ("who", "a", "note"))
    assert [rows[0], rows[-1]] == [["u1", "1", "x"], ["u2", "2", "y"]]
    assert len(rows) == 2 + bool(line.strip())


JSON: dict[str, tuple[bytes, Any]] = {
    "a row": (b'{"who": "ann", "a": 0.5}', ["ann", "0.5"]),
    "a number for an id": (b'{"a": 12, "who": 7}', ["7", "12"]),
    "a truth value": (b'{"who": "ann", "a": true}', ["ann", "true"]),
    "NaN": (b'{"who": NaN, "a": NaN}', ["", ""]),
    "infinity": (b'{"who": "ann", "a": Infinity}', ["ann", "Infinity"]),
    "a huge integer": (b'{"who": "ann", "a": 1' + b"0" * 5000 + b"}", ["ann", "1" + "0" * 5000]),
    "null": (b'{"who": null, "a": null}', ["", ""]),
    "a missing key": (b'{"a": 1}', ["", "1"]),
    "a list for a number": (b'{"who": "ann", "a": [1]}', ["ann", ""]),
    "an object for a number": (b'{"who": "ann", "a": {"b": 1}}', ["ann", ""]),
    "half a pair": (b'{"who": "\\ud800", "a": 1}', ["\ufffd", "1"]),
    "an array": (b"[1, 2]", None),
    "a number alone": (b"5", None),
    "half an object": (b'{"who": ', None),
    "deep brackets": (b"[" * 200_000, None),
    "not UTF-8": (b'{"who": "\xff", "a": 1}', ["\ufffd", "1"]),
}


def test_lines_of_json_are_rows_in_any_company(tmp_path: Path) -> None:
    first = [*JSON].index("a list for a number")
    for most, at in ((1, 0), (4, first), (100, 0)):
        lines = [*JSON.values()][at:] + [*JSON.values()][:at]
        (tmp_path / "rows.jsonl").write_bytes(b"".join(line + b"\n" for line, _ in lines))
        assert rows_of(tmp_path / "rows.jsonl", ("who", "a"), most) == [row for _, row in lines]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_rows_are_skipped_and_found_again(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"rows.{form}"
    table = arrow.table({"a": range(9)})
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=4)
    elif form == "csv":
        table.to_pandas().to_csv(path, index=False)
    else:
        table.to_pandas().to_json(path, orient="records", lines=True)
    with open_table(path) as table:
        table.select(("a",))
        assert table.skip(4) == 4
        batch = table.read(2)
        assert batch is not None
        assert cells_of(batch.columns["a"]) == ["4", "5"]
        assert (table.skip(10), table.read(1), table.skip(3)) == (3, None, 0)


Name = str
REFUSED: dict[str, tuple[Name, bytes, tuple[str, ...], str]] = {
    "an empty file": ("rows.csv", b"", (), "must have rows; got an empty table"),
    "a header twice": ("rows.csv", b"a,a\n1,2\n", ("a",), "column 'a' occurs more than once"),
    "no such column": ("rows.csv", b"a,b\n1,2\n", ("c",), "column 'c' is missing; .* has 'a', 'b'"),
    "a latin header": (
        "rows.csv",
        b"caf\xe9,b\n1,2\n",
        (),
        "must be UTF-8 text; its first line is not",
    ),
    "a quote in the header": ("rows.csv", b'a,"b\n1,2\n', (), "must be one line of CSV"),
    "arrays by name": ("rows.jsonl", b"[1]\n", ("a",), "must be JSON objects if columns are named"),
    "no Parquet": ("rows.parquet", b"PAR1 and nothing more", (), "cannot be read any further"),
    "no gzip": ("rows.csv.gz", b"a,b\n1,2\n", (), "cannot be read any further: Not a gzipped file"),
}


def test_a_table_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    for name, content, columns, message in REFUSED.values():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            rows_of(tmp_path / name, columns)
        assert "\n" not in str(caught.value)


@laws
@given(st.lists(st.text("ab\n", max_size=9).map(str.encode), max_size=8), st.integers(1, 6))
def test_lines_do_not_depend_on_how_they_arrive(pieces: list[bytes], longest: int) -> None:
    reader = Lines(iter([*filter(None, pieces), b""]).__next__, longest)
    expected: list[bytes] = []
    for line in b"".join(pieces).split(b"\n"):
        if len(line) > longest:
            expected.append(PASSED_OVER)
        elif line:
            expected.append(line)
    lines: list[bytes] = []
    while reader.peek() is not None:
        lines += reader.take(2)
    assert lines == expected
    assert reader.take(2) == []


def test_a_line_that_is_too_long_is_a_row_without_cells() -> None:
    pieces: list[bytes] = [b"a,b\n1,2\n", *5 * [b"3" * (LONGEST_LINE // 4)], b"\n4,5\n", b""]
    read: Callable[[], bytes] = iter(pieces).__next__
    table = CsvTable(Lines(read), "rows")
    table.select(("a",))
    rows: list[list[str] | None] = []
    for batch in table.batches(9):
        rows += rows_of_batch(batch, ("a",))
    assert rows == [["1"], None, ["4"]]


CELLS: dict[str, tuple[Any, list[float], list[str]]] = {
    "text": (
        ["1", " 2 ", "1_0", "", None, "many", "-inf", "٣"],
        [1, 2, *4 * [np.nan], -np.inf, 3],
        [],
    ),
    "integers": (arrow.array([1, None, -3]), [1, np.nan, -3], ["1", "", "-3"]),
    "huge integers": (arrow.array([2**62 + 1]), [float(2**62)], [str(2**62 + 1)]),
    "floats": (arrow.array([0.5, None, np.nan]), [0.5, np.nan, np.nan], ["0.5", "", "nan"]),
    "truth values": (arrow.array([True, False, None]), [1, 0, np.nan], ["true", "false", ""]),
    "categories": (
        arrow.array(["1", None, "x"]).dictionary_encode(),
        [1, np.nan, np.nan],
        ["1", "", "x"],
    ),
    "bytes": (arrow.array([b"7", b"\xff", None]), [7, np.nan, np.nan], ["7", "\ufffd", ""]),
    "text that is no text": (
        arrow.array([b"7", b"\xff"], arrow.binary()).view(arrow.string()),
        [7, np.nan],
        ["7", "\ufffd"],
    ),
    "nothing": (arrow.nulls(2), [np.nan, np.nan], ["", ""]),
    "chunks": (arrow.chunked_array([["1"], ["b"]]), [1, np.nan], ["1", "b"]),
}


def test_cells_become_numbers_and_text_each_by_itself() -> None:
    for case, (column, expected, words) in CELLS.items():
        alone = [numbers(column[i : i + 1])[0] for i in range(len(column))]
        for found in (numbers(column), alone):
            assert np.array_equal(found, expected, equal_nan=True), case
        assert not words or cells_of(column) == words, case


def test_columns_of_other_types_are_refused_by_their_type() -> None:
    times = arrow.array([0], arrow.timestamp("s"))
    for parse, column in (
        (numbers, times),
        (numbers, arrow.array([[1]])),
        (ids, times),
        (cells_of, arrow.array([[1]])),
    ):
        with pytest.raises(ValueError, match="column 'x' must hold"):
            parse(column, "column 'x'")
    assert cells_of(times) == ["1970-01-01 00:00:00"]
