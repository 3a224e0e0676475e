"""Rows pushed by a schema: the command's bits, bad rows for nobody, refusals by names and types."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest
from pyarrow import parquet

from fedmf import PrivateStream
from fedmf.cli.app import run
from fedmf.data import Schema, read_schema
from fedmf.errors import ParticipationViolation
from fedmf.streaming import Handling, InputError, PrivateRelease

SCHEMA = """
[columns.user]
kind = "user"
[columns.speed]
kind = "number"
lower = 0
upper = 40
center = 15
scale = 10
{more}
[columns.city]
kind = "category"
categories = ["Graz", "Linz"]
[columns.at]
kind = "time"
start = "2026-01-01"
end = "2026-02-01"
step = "1 d"
[columns.note]
kind = "ignore"
"""
N = 14
BUDGET: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "seed": 3, "rounds": N}
RULES = ["nullable = true", "fill = 22", ""]
NAMES = ["user", "speed", "city", "at", "note"]


def cells() -> list[dict[str, Any]]:
    """Rows as JSON has them, every fifth of them bad in another way."""
    cities, at = ("Graz", "Linz"), "2026-01-05"
    rows: list[dict[str, Any]] = [
        {"user": f"u{i}", "speed": 10.1 + i / 7, "city": cities[i % 2], "at": at, "note": None}
        for i in range(N)
    ]
    rows[1] |= {"speed": None}
    rows[4] |= {"city": "Wien"}
    rows[6] |= {"speed": 1e300}
    rows[9] |= {"city": None, "at": "never"}
    rows[12] |= {"speed": float("inf"), "city": "Linz\x00"}
    return rows


def schema(folder: Path, more: str = "") -> Schema:
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(SCHEMA.format(more=more))
    return read_schema(folder / "schema.toml")


def opened(path: Path, declared: Schema, **more: Any) -> PrivateStream:
    return PrivateStream(path, **{**BUDGET, "schema": declared, **more})


def table() -> arrow.Table:
    rows = cells()
    kinds = {"speed": arrow.float64(), "note": arrow.null()}
    return arrow.table(
        {name: arrow.array([row[name] for row in rows], kinds.get(name, arrow.string())) for name in NAMES}
    )


def commanded(folder: Path, source: Path, *more: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Releases and statement of the command on a file."""
    place = ["--state", str(folder / "state"), "--output", str(folder / "out.jsonl")]
    files = ["--input", str(source), "--schema", str(folder / "schema.toml"), "--rounds", str(N)]
    assert run(["stream", *files, *place, "--epsilon", "8", "--delta", "1e-5", "--seed", "3", *more]) == 0
    lines = (folder / "out.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], json.loads((folder / "state/statement.json").read_text())


@pytest.mark.parametrize("more", RULES)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_releases_are_those_of_the_command(tmp_path: Path, more: str, kind: str) -> None:
    """Mappings as JSON lines, tables as Parquet: bit for bit, one by one and together, statement as well."""
    declared, rows = schema(tmp_path, more), cells()
    source = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows).replace("Infinity", "1e999"))
    else:
        parquet.write_table(table(), source)
    expected, statement = commanded(tmp_path, source)
    got: dict[str, list[PrivateRelease]] = {"singly": []}
    if kind == "jsonl":
        for half in (rows[:5], rows[5:]):
            with opened(tmp_path / "singly", declared) as stream:
                got["singly"] += [stream.push(row, user=row["user"]) for row in half]
        with opened(tmp_path / "together", declared) as stream:
            got["together"] = stream.push_many(rows, [row["user"] for row in rows])
    else:
        with opened(tmp_path / "singly", declared) as stream:
            got["singly"] = [stream.push_many(table().slice(i, 1), "user")[0] for i in range(N)]
        with opened(tmp_path / "together", declared) as stream:
            got["together"] = stream.push_many(table().to_pandas(), "user")
            assert stream.counts()["zeroed"] == (3 if more.startswith("fill") else 4)
    for name, releases in got.items():
        assert [release.to_dict() for release in releases] == expected
        assert json.loads((tmp_path / name / "statement.json").read_text()) == statement
        read = [PrivateRelease.from_dict(line, releases[0].norm_bound).to_dict() for line in expected]
        assert read == expected
    assert ("valid_share" in expected[0]) == (more == RULES[0])


def test_releases_are_in_the_columns_own_units(tmp_path: Path) -> None:
    """By definition, with little noise: means of valid rows, their share, and no density."""
    declared = schema(tmp_path, RULES[0])
    with opened(tmp_path / "state", declared, epsilon=1e9) as stream:
        releases = stream.push_many(cells(), [row["user"] for row in cells()])
        last, wide = releases[-1], stream.table(N).to_pylist()[0]
    valid = [row for i, row in enumerate(cells()) if i not in (1, 4, 9, 12)]
    speed = [min(row["speed"], 40.0) for row in valid]
    expected = [np.mean(speed), np.mean([row["city"] == "Graz" for row in valid])]
    assert isinstance(last.mean_standard_error, np.ndarray)
    assert last.mean_low is not None
    assert last.mean_high is not None
    error = last.mean_standard_error
    assert (error > 0).all()
    assert (np.abs(last.mean[:2] - expected) < 6 * error[:2]).all()
    assert (last.mean_low < last.mean).all()
    assert abs(last.valid_share - len(valid) / N) < 6 * last.valid_share_standard_error  # type: ignore[operator]
    assert last.too_few == ""
    assert wide["mean:speed"] == last.mean[0]
    assert wide["low:mean:speed"] == last.mean_low[0]
    with pytest.raises(ValueError, match=r"density .* must be left out with a schema"):
        last.gaussian()


HOSTILE: list[object] = [
    None, "", "old", float("nan"), math.inf, True, 10**5000, -(10**400), b"7", [7], {"speed": 7}, "\ud800",
    "7_0", "1e999", "0x10", 9 * "9" * 9999, np.float32("nan"), np.array([1.0, 2.0]), object(), "\n", "٣x",
]  # fmt: skip


@pytest.mark.parametrize("more", RULES)
def test_no_cell_refuses_anything(tmp_path: Path, more: str) -> None:
    """Whatever a row holds, it takes its step; what is released differs by its own contribution alone."""
    declared = schema(tmp_path, more)
    rows = [{"speed": 12.0, "city": "Graz"} for _ in range(3)]
    with opened(tmp_path / "good", declared) as stream:
        good = [stream.push(row, f"u{i}") for i, row in enumerate(rows)]
    for n, cell in enumerate([*HOSTILE, *({"speed": 12.0, "city": cell} for cell in HOSTILE), {}]):
        bad = cell if isinstance(cell, dict) and "speed" not in cell else {"speed": cell, "city": "Graz"}
        bad = cell if isinstance(cell, dict) and "city" in cell else bad
        with opened(tmp_path / str(n), declared) as stream:
            found = [stream.push(row, f"u{i}") for i, row in enumerate([rows[0], bad, rows[2]])]
        (z,) = np.unique([good[0].t * good[0].first.size])  # d, and with a count one more
        shares = [(a.first - b.first) * a.t for a, b in zip(good, found, strict=True)]
        filled = more.startswith("fill") and shares[1][0] != -0.3
        np.testing.assert_allclose(shares[0], np.zeros(z), atol=1e-9)
        np.testing.assert_allclose(shares[1], shares[2], atol=1e-9)
        if not filled:
            count = [] if z == 3 else [declared.encoding().norm_bound * 3**-0.25]
            np.testing.assert_allclose(shares[1], [-0.3, 1, 0, *count], atol=1e-9)


def test_users_of_a_table_are_read_as_those_of_a_file(tmp_path: Path) -> None:
    """A row without a user is nobody's, refuses nothing, and limits nobody."""
    declared = schema(tmp_path)
    users = arrow.array([None, "u1", None, *(f"u{i}" for i in range(3, N))])
    given = table().set_column(0, "user", users)
    parquet.write_table(given, tmp_path / "rows.parquet")
    expected, statement = commanded(tmp_path, tmp_path / "rows.parquet")
    with opened(tmp_path / "pushed", declared) as stream:
        assert [release.to_dict() for release in stream.push_many(given, "user")] == expected
        assert stream.statement() == statement
        assert statement["users_participated"] == N - 2
    numbered = given.set_column(0, "user", arrow.array(range(N)))
    with opened(tmp_path / "numbered", declared) as stream:
        assert len(stream.push_many(numbered, "user")) == N
        assert stream.statement()["users_participated"] == N


def test_a_key_tells_the_release_again_and_the_cap_holds(tmp_path: Path) -> None:
    declared = schema(tmp_path, RULES[0])
    row = {"speed": "old", "city": "Graz"}
    with opened(tmp_path / "state", declared) as stream:
        first = stream.push(row, "ann", key="order 1")
        assert stream.push(row, "ann", key="order 1").to_dict() == first.to_dict()
        with pytest.raises(ParticipationViolation):
            stream.push(row, "ann")
        assert stream.t == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.append_column("weight", t["speed"]), "columns must all be declared .*'weight'"),
        (
            lambda t: t.drop_columns(["note"]),
            "columns must each be there once; got no such column for 'note'",
        ),
        (
            lambda t: t.drop_columns(["user"]),
            "columns must each be there once; got no such column for 'user'",
        ),
        (
            lambda t: t.set_column(1, "speed", arrow.array([[1.0]] * len(t), arrow.list_(arrow.float64()))),
            "column 'speed' must hold text, numbers or times",
        ),
    ],
)
def test_tables_are_refused_by_names_and_types_whatever_the_rows(
    tmp_path: Path, change: Any, message: str
) -> None:
    said = set()
    with opened(tmp_path / "state", schema(tmp_path)) as stream:
        for rows in (table(), table().slice(1, 1), table().slice(0, 0)):
            with pytest.raises(ValueError, match=message) as found:
                stream.push_many(change(rows), "user")
            said.add(str(found.value))
        assert stream.t == 0
    assert len(said) == 1


def test_what_is_no_row_of_a_schema_is_refused(tmp_path: Path) -> None:
    declared = schema(tmp_path)
    with opened(tmp_path / "state", declared) as stream:
        for given in ([1.0, 2.0, 3.0], "7", np.zeros(3), None):
            with pytest.raises(ValueError, match=r"x \(row\) must be a mapping by the names of the schema"):
                stream.push(given, "ann")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="user must be text"):
            stream.push({"speed": 1.0}, "")
        with pytest.raises(ValueError, match=r"must be that of the schema, 'user'; got 'city'"):
            stream.push_many(table(), "city")
        frame = pd.DataFrame({"speed": [1.0], "city": ["Graz"], "at": ["x"], "note": [""], "order": ["o1"]})
        assert stream.push_many(frame, ["ann"], "order")[0].t == 1
    handling = Handling(stop_at_faulty=True)
    with opened(tmp_path / "stops", declared, handling=handling) as stream, pytest.raises(InputError):
        stream.push({"speed": "old", "city": "Graz"}, "ann")
    nobody = Schema.from_dict({"x": {"kind": "number", "lower": 0, "upper": 1}})
    for more, message in (
        ({"schema": nobody}, "schema must declare a column of users"),
        ({"schema": "schema.toml"}, "schema must be what fedmf.data.read_schema gives"),
        ({"dimension": 3}, r"d \(dimension\) must be left out with a schema"),
        ({"columns": ["at"]}, "must be a column that the schema declares as number or category"),
        ({"norm_bound": 0}, r"zeta \(norm bound\) must lie in"),
        ({"schema": None, "dimension": 2}, "must be given without a schema"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(tmp_path / "other", declared, **more)
        assert not (tmp_path / "other").exists()


def test_a_stream_goes_on_by_the_same_schema_and_by_no_other(tmp_path: Path) -> None:
    declared = schema(tmp_path)
    with opened(tmp_path / "state", declared) as stream:
        stream.push(cells()[0], "ann")
    other = schema(tmp_path, "fill = 10")
    with pytest.raises(ValueError, match="schema must say what it said when the stream"):
        opened(tmp_path / "state", other)
    with opened(tmp_path / "state", declared) as stream:
        assert stream.t == 1


def test_booleans_and_decimals_are_cells_as_a_table_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    number = 'kind = "number"\nlower = 0\nupper = 10\nnullable = true'
    path.write_text(
        f'[columns.user]\nkind = "user"\n[columns.x]\n{number}\n'
        '[columns.s]\nkind = "category"\ncategories = ["true", "false"]\n'
    )
    rows = [{"x": "7.5", "s": "true"}, {"x": Decimal("7.5"), "s": True}, {"x": 7.5, "s": np.True_}]
    firsts = []
    for place, row in enumerate(rows):
        asked = {**BUDGET, "schema": read_schema(path)}
        with PrivateStream(tmp_path / str(place), **asked) as stream:
            release = stream.push({"user": "a", **row}, "a")
            assert isinstance(release, PrivateRelease)
            firsts.append(release.first.tolist())
    assert firsts == [firsts[0]] * len(rows)
