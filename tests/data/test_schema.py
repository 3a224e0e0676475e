"""The schema: what it refuses, what a row becomes, what is drafted from a header."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from fedmf.cli.app import run
from fedmf.data import Schema, read_schema
from fedmf.data.schema import Category, Number
from fedmf.data.schema_file import draft_schema

DECLARED = {
    "user": {"kind": "user"},
    "age": {"kind": "number", "lower": 0, "upper": 100, "center": 40, "scale": 20},
    "size": {"kind": "number", "lower": 100.0, "upper": 200.0, "fill": 170.0},
    "city": {"kind": "category", "categories": ["Graz", "Linz"]},
    "when": {"kind": "time", "start": "2026-01-01", "end": "2026-02-01", "step": "1 h"},
    "note": {"kind": "text"},
    "row": {"kind": "ignore"},
}


def schema(**changes: dict) -> Schema:
    return Schema.from_dict({**DECLARED, **changes})


def test_a_category_is_the_same_number_however_it_is_written() -> None:
    cells = ["1", "1.0", " 1 ", "0.", "", "1e300", "9007199254740993.0", "yes"]
    found = Category(categories=("0", "1.0", "9007199254740992.0")).places(cells)
    assert found.tolist() == [1, 1, 1, 0, -1, -1, -1, -1]
    assert Category(categories=("1", "1.0")).places(["1", "1.0", "1.00"]).tolist() == [0, 1, 0]


def test_rows_become_bounded_coordinates_and_nothing_else_decides_them() -> None:
    encoding = schema().encoding()
    cells = [
        ["40", "60", "1e300", "", "old", "nan", "1_0"],
        ["170", "", "100", "150", "150", "150", "150"],
        ["Graz", "Linz", "Graz", "Graz", "Graz", "Graz", "Graz"],
    ]
    z, valid = encoding.encode(encoding.measure(cells))
    assert valid.tolist() == [True, True, True, False, False, False, False]
    np.testing.assert_allclose(z[0], [0.0, 0.4, 1.0, 0.0])
    np.testing.assert_allclose(z[1], [1.0, 0.4, 0.0, 1.0])
    np.testing.assert_allclose(z[2], [3.0, -1.0, 1.0, 0.0])
    assert not z[3:].any()
    assert (np.linalg.norm(z, axis=1) <= encoding.norm_bound * (1 + 1e-12)).all()
    assert encoding.norm_bound == pytest.approx(math.sqrt(9 + 1 + 1))
    for i in range(len(cells[0])):  # alone as together
        one, readable = encoding.encode(encoding.measure([[column[i]] for column in cells]))
        assert (one[0] == z[i]).all()
        assert readable[0] == valid[i]


def test_a_time_chooses_only_its_own_step() -> None:
    declared = schema()
    cells = [
        "2025-12-31T23:00",
        "2026-02-01",
        "soon",
        "",
        "2026-01-01T00:59+01:00",
        "0001-01-01T00:00+23:59",
    ]
    assert declared.columns["when"].labels(cells) == 6 * [""]
    same = [
        "2026-01-01T05:59",
        "2026-01-01T05:59Z",
        "2026-01-01 06:59+01:00",
        "2025-12-31T23:59:59.5-06:00",
    ]
    assert declared.columns["when"].labels(same) == 4 * ["2026-01-01T05:00:00"]
    there = schema(
        when={**WHEN, "start": "2026-01-01T00:00+01:00", "end": "2026-01-02T00:00+01:00"}
    )
    assert there.columns["when"].labels(same) == [
        "2026-01-01T05:00:00+01:00",
        *3 * ["2026-01-01T06:00:00+01:00"],
    ]


NUMBER = {"kind": "number", "lower": 0, "upper": 3}
WHEN = {"kind": "time", "start": "2026-01-01", "end": "2026-01-02", "step": "1 h"}
WRONG: dict[str, dict[str, Any]] = {
    "columns.age.lower (kind number) must be filled in": {"age": {"kind": "number", "upper": 3}},
    "columns.age.uper (kind number) must be left out: no such key; did you mean 'upper'?": {
        "age": {"kind": "number", "lower": 0, "uper": 3}
    },
    "lower (bound) must be less than upper": {"age": {**NUMBER, "lower": 3}},
    "columns.age.scale": {"age": {**NUMBER, "scale": 1e-31}},
    "fill must lie within 0.0..3.0": {"age": {**NUMBER, "fill": 4}},
    "fill must be left out with nullable": {"age": {**NUMBER, "fill": 1, "nullable": True}},
    "columns.age.mean": {"age": {**NUMBER, "mean": 1}},
    "columns.age.kind must be one of number, category": {"age": {"kind": "real"}},
    "categories must be different": {"city": {"kind": "category", "categories": ["a", "a"]}},
    "no control characters; got 'a": {"city": {"kind": "category", "categories": ["a\tb", "c"]}},
    "fill must be one of": {"city": {"kind": "category", "categories": ["a", "b"], "fill": "c"}},
    "valid datetime": {"when": {**WHEN, "end": "later"}},
    "step must leave at most 1000000000 steps; got 31556908800": {
        "when": {**WHEN, "end": "3026-01-01", "step": "1 s"}
    },
    "step must be a number and s, min, h, d or w": {"when": {**WHEN, "step": "often"}},
    "at most one of users; got 'user', 'note'": {"note": {"kind": "user"}},
}


def test_what_is_no_schema_is_refused_by_name() -> None:
    for message, changes in WRONG.items():
        with pytest.raises(ValueError, match="must") as found:
            schema(**changes)
        assert message in str(found.value)
        assert "\n" not in str(found.value)


def test_a_draft_asks_for_what_a_header_does_not_tell(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        "user,temperature,Started at,Car type,a b,Comment,futime,Device\n"
        "ann,7.25,2026-01-03,yes,1,secret,7,9\n"
    )
    draft = draft_schema(file)
    assert "7.25" not in draft
    assert "secret" not in draft
    assert '[columns.temperature]\nkind = "number"   # a guess' in draft
    (tmp_path / "schema.toml").write_text(draft)
    with pytest.raises(ValueError, match=r"columns\.temperature\.lower \(kind number\)"):
        read_schema(tmp_path / "schema.toml")
    answers = {"lower": "-30", "upper": "45", "categories": '["no", "yes"]', "step": '"1 h"'}
    answers |= {"start": "2026-01-01", "end": "2027-01-01T00:00:00"}
    for name, answer in answers.items():
        draft = draft.replace(f"# {name} =", f"{name} = {answer}")
    (tmp_path / "schema.toml").write_text(draft)
    declared = read_schema(tmp_path / "schema.toml")
    kinds = [column.kind for column in declared.columns.values()]
    assert kinds == ["user", "number", "time", "category", "number", "text", "number", "ignore"]
    assert declared.columns["temperature"] == Number(lower=-30, upper=45, nullable=True)


TYPES = {
    "user": arrow.string(),
    "x": arrow.float64(),
    "at": arrow.date32(),
    "sky": arrow.dictionary(arrow.int32(), arrow.string()),
    "count": arrow.int64(),
}
WORLDS: dict[str, list[list[Any]]] = {
    "few": [["ann"], [1.0], [3], ["clear"], [7]],
    "wide": [
        ["quux-1", "quux-2"],
        [-271828.5, None],
        [11_111, 0],
        ["zzyzx", None],
        [-8675309, None],
    ],
    "empty": [[], [], [], [], []],
}


def drafted(folder: Path, world: str, how: str) -> str:
    """Return the draft of the command from a Parquet file of such rows."""
    folder.mkdir()
    cells = zip(TYPES.items(), WORLDS[world], strict=True)
    table = arrow.table({name: arrow.array(column, kind) for (name, kind), column in cells})
    file = folder / "rows.parquet"
    parquet.write_table(table, file)
    if how == "destroyed":  # every byte of the rows, between the mark at the head and the footer
        data = file.read_bytes()
        footer = 8 + int.from_bytes(data[-8:-4], "little")
        file.write_bytes(data[:4] + bytes(len(data) - footer - 4) + data[-footer:])
    assert run(["schema", str(file), "--output", str(folder / "schema.toml")]) == 0
    return (folder / "schema.toml").read_text()


def test_a_draft_of_parquet_is_the_same_whatever_the_rows_hold(tmp_path: Path) -> None:
    """The footer knows how many rows there are, least and largest values, gaps: all functions of
    rows.
    """
    drafts: set[str] = set()
    for world in WORLDS:
        for how in ("plain", "destroyed"):
            draft = drafted(tmp_path / f"{world} {how}", world, how)
            drafts.add(draft)
    (draft,) = drafts
    for told in ("271828", "2000-", "zzyzx", "quux", "8675309"):
        assert told not in draft
    kinds = [line.split('"')[1] for line in draft.splitlines() if line.startswith("kind")]
    assert kinds == ["user", "number", "time", "text", "number"]
    for line in draft.splitlines():
        assert line == "" or line.startswith(("#", "[", "kind", "nullable"))
