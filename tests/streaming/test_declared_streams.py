"""Streams by a schema: what is released, what a row can change, and what must be told first."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from support.command_line import one_line

from fedmf.cli.app import run
from fedmf.moments import fieller
from fedmf.streaming import Settings, account_stream

BUDGET = ["--epsilon", "8", "--delta", "1e-5", "--seed", "3"]
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
N, BAD = 40, 7
HEADER = "user,speed,city,at,note"


def row(i: int, speed: object = None, city: str = "", at: str = "") -> str:
    value = 10 + i % 7 if speed is None else speed
    return f"u{i},{value},{city or ('Graz', 'Linz')[i % 2]},{at or f'2026-01-{1 + i % 28:02}T07:30'},x{i}"


def write(folder: Path, lines: list[str], more: str = "nullable = true", header: str = HEADER) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(SCHEMA.format(more=more))
    (folder / "rows.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder


def stream(folder: Path, *options: str, name: str = "rows.csv") -> int:
    files = ["--input", str(folder / name), "--schema", str(folder / "schema.toml")]
    return run(["stream", *files, *BUDGET, *options])


def released(folder: Path, capfd: pytest.CaptureFixture[str], *options: str, name: str = "rows.csv") -> Any:
    capfd.readouterr()
    assert stream(folder, *options, name=name) == 0
    shown = capfd.readouterr()
    return [json.loads(line) for line in shown.out.splitlines()], shown.err


def test_releases_are_ratios_in_the_columns_own_units(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By definition: z = (x − 15)/10 and words, c a row that counts, means c·Y/R mapped back."""
    lines = [row(i, "" if i % 3 == 0 else None) for i in range(N)]
    found, _ = released(write(tmp_path, lines), capfd)
    zeros, _ = released(write(tmp_path / "zeros", [row(i, "") for i in range(N)]), capfd)
    zeta, d = math.sqrt(2.5**2 + 1), 3
    c = zeta * d**-0.25
    statement = stated(tmp_path)
    assert statement["clip_norm"] == pytest.approx(math.hypot(zeta, c))
    assert statement["dimension"] == d + 1
    z = np.array(
        [[(10 + i % 7 - 15) / 10, i % 2 == 0, i % 2 == 1, c] if i % 3 else [0, 0, 0, 0] for i in range(N)]
    )
    for t in (0, 4, N - 1):
        first = np.array(found[t]["first"])
        np.testing.assert_allclose(first - zeros[t]["first"], z[: t + 1].mean(axis=0), atol=1e-9)
        shift = np.array(found[t]["second"]) - zeros[t]["second"]
        np.testing.assert_allclose(shift, z[: t + 1].T @ z[: t + 1] / (t + 1), atol=1e-9)
    last, v = found[-1], found[-1]["standard_error"] ** 2
    Y, R = np.array(last["first"][:3]), last["first"][3]
    assert last["too_few"] == ""
    assert last["valid_share"] == pytest.approx(R / c)
    units, centers = np.array([10, 1, 1]), np.array([15, 0, 0])
    np.testing.assert_allclose(last["mean"], centers + units * c * Y / R)
    ratio = fieller(Y, np.array(R), np.array(v), c)
    lower, upper = np.array([0, 0, 0]), np.array([40, 1, 1])
    np.testing.assert_allclose(last["mean_low"], np.clip(centers + units * ratio.low, lower, upper))
    np.testing.assert_allclose(last["mean_high"], np.clip(centers + units * ratio.high, lower, upper))
    np.testing.assert_allclose(last["mean_standard_error"], units * ratio.error)
    m, share = c * Y / R, R / c
    expected = np.array(last["second"])[:3, :3] / share - np.outer(m, m)
    expected += v / share**2 * (np.eye(3) + np.outer(m, m) / c**2)
    np.testing.assert_allclose(last["covariance"], expected * np.outer(units, units))
    few = [line["first"][3] <= 1.959964 * line["standard_error"] for line in zeros]
    assert [line["too_few"] == "too few valid rows to tell" for line in zeros] == few
    assert sum(few) > N / 2
    none = zeros[few.index(True)]
    assert none["mean"] == none["covariance"][0] == none["mean_standard_error"] == [None, None, None]
    assert (none["mean_low"], none["mean_high"]) == ([0, 0, 0], [40, 1, 1])


def stated(folder: Path) -> dict[str, Any]:
    """The statement of the same stream, with a state."""
    assert stream(folder, "--state", str(folder / "state"), "--output", str(folder / "out.jsonl")) == 0
    return account_stream(folder / "state")


BAD_ROWS = {
    "missing": row(BAD, ""),
    "text": row(BAD, "fast"),
    "infinite": row(BAD, "inf"),
    "another word": row(BAD, None, "Wien"),
    "all missing": f"u{BAD},,,2026-01-08T07:30,",
    "too few cells": f"u{BAD},7",
    "too many cells": row(BAD) + ",7,7",
    "not UTF-8 in place of signs": row(BAD, "\ufffd"),
}


@pytest.mark.parametrize("more", ["nullable = true", ""])
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_a_bad_row_changes_its_own_contribution_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], bad: str, more: str
) -> None:
    """Screen, exit code and steps are equal; the releases differ by the row that is missing from them."""
    lines = [row(i) for i in range(N)]
    good, said = released(write(tmp_path, lines, more), capfd)
    lines[BAD] = BAD_ROWS[bad]
    found, told = released(write(tmp_path, lines, more), capfd)
    assert told == said
    assert [line.keys() for line in found] == [line.keys() for line in good]
    for t in range(N):
        share = np.subtract(good[t]["first"], found[t]["first"]) * (t + 1)
        expected = [(10 + BAD % 7 - 15) / 10, 0, 1] if t >= BAD else [0, 0, 0]
        np.testing.assert_allclose(share[:3], expected, atol=1e-9)


def test_what_is_out_of_bounds_counts_as_the_bound(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = [
        released(write(tmp_path / str(speed), [row(0, speed)]), capfd)[0][0]["first"] for speed in (40, 1e9)
    ]
    assert found[0] == found[1]


def test_a_missing_cell_is_filled_where_the_schema_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filled = released(write(tmp_path / "filled", [row(0, "")], "fill = 25"), capfd)
    given = released(write(tmp_path / "given", [row(0, 25)], "fill = 25"), capfd)
    assert filled[0] == given[0]
    assert "biased towards it" in filled[1]


def test_the_outputs_say_shares_and_intervals(tmp_path: Path) -> None:
    write(tmp_path, [row(i) for i in range(N)])
    for name, more in (("wide.csv", ()), ("tidy.csv", ("--format", "tidy")), ("out.parquet", ())):
        picture = ("--plot", str(tmp_path / "means.png"))
        assert stream(tmp_path, "--output", str(tmp_path / name), *more, *picture) == 0
    with (tmp_path / "wide.csv").open(newline="") as file:
        wide = list(csv.DictReader(file))[-1]
    with (tmp_path / "tidy.csv").open(newline="") as file:
        tidy = [line for line in csv.DictReader(file) if line["t"] == str(N)]
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()[-1]
    share = next(line for line in tidy if line["quantity"] == "valid_share")
    speed = next(line for line in tidy if (line["quantity"], line["column"]) == ("mean", "speed"))
    assert float(wide["valid_share"]) == float(share["value"]) == table["valid_share"]
    assert float(wide["mean:speed"]) == float(speed["value"]) == table["mean"][0]
    assert float(wide["low:mean:speed"]) == float(speed["low"]) == table["mean_low"][0]
    assert (tmp_path / "means.png").read_bytes().startswith(b"\x89PNG")


def test_a_stream_goes_on_by_the_same_schema_and_by_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [row(i) for i in range(9)])
    more = ("--state", str(tmp_path / "state"), "--output", str(tmp_path / "out.jsonl"), "--rounds", "20")
    assert stream(tmp_path, *more) == 0
    write(tmp_path, [row(i) for i in range(20)])
    assert stream(tmp_path, *more) == 0
    write(tmp_path / "whole", [row(i) for i in range(20)])
    assert stream(tmp_path / "whole", "--output", str(tmp_path / "whole.jsonl"), "--rounds", "20") == 0
    assert (tmp_path / "whole.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    capfd.readouterr()
    write(tmp_path, [row(i) for i in range(20)], "fill = 10")
    norm = ("--norm-bound", str(account_stream(tmp_path / "state")["clip_norm"]))
    assert stream(tmp_path, *more, *norm) == 2
    assert "schema must say what it said when the stream" in one_line(capfd)


@pytest.mark.parametrize(
    ("options", "header", "message"),
    [
        ([], HEADER + ",weight", "columns must all be declared in the schema; got 'weight'"),
        ([], HEADER.replace("speed", "Speed"), "columns must all be declared in the schema; got 'Speed'"),
        ([], HEADER.replace(",", ";"), "columns must all be declared"),
        (["--columns", "at"], HEADER, "must be a column that the schema declares as number or category"),
        (["--user-column", "note"], HEADER, "user_column must be that of the schema"),
        (["--each-row-a-user"], HEADER, "--each-row-a-user must be left out"),
        (["--density"], HEADER, "density (of a release) must be left out with a schema"),
        (["--second", "energy"], HEADER, "second moment must be full or diagonal"),
    ],
)
def test_refusals_are_one_line_and_hold_whatever_the_rows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], header: str, message: str
) -> None:
    said = []
    for lines in ([row(0), row(1)], [row(0, "fast"), "u1"], [row(0, 1e300), ""]):
        write(tmp_path, lines, header=header)
        capfd.readouterr()
        assert stream(tmp_path, "--state", str(tmp_path / "state"), *options) == 2
        said.append(capfd.readouterr())
        assert not (tmp_path / "state").exists()
    assert said[0] == said[1] == said[2]
    assert message in said[0].err
    assert said[0].err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "header", "message"),
    [
        ("--columns x", "user,x", "--user-column NAME for the column that says whose a row is"),
        ("--columns x", "user,x", "or --each-row-a-user where every row is another person's"),
        ("--each-row-a-user", "user,x", "columns of numbers must be named, --columns A,B"),
        ("--each-row-a-user", "x,start_time", "where a column is called 'start_time'"),
        ("--each-row-a-user", "x,Patient ID", "where a column is called 'Patient ID'"),
        ("--each-row-a-user", "user;x", "cells must be separated by commas; got ';'"),
        ("--each-row-a-user --user-column user --columns x", "user,x", "--each-row-a-user must be left out"),
        ("", "user,x", "users of the rows must be told"),
    ],
)
def test_without_a_schema_users_and_columns_must_be_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: str, header: str, message: str
) -> None:
    (tmp_path / "rows.csv").write_text(f"{header}\n1,0.5\n2,0.25\n")
    command = ["stream", "--input", str(tmp_path / "rows.csv"), "--norm-bound", "1", *BUDGET]
    assert run([*command, *options.split(), "--state", str(tmp_path / "state")]) == 2
    assert message in one_line(capfd)
    assert not (tmp_path / "state").exists()


def test_a_density_is_refused_in_python_too(tmp_path: Path) -> None:
    """Releases are in the columns' own units, to which the norm bound of a density does not belong."""
    from fedmf.data import read_schema
    from fedmf.streaming import open_run

    declared = read_schema(write(tmp_path, [row(0)], "") / "schema.toml")
    settings = Settings(2.7, 8.0, 1e-5, user_column="user", schema=declared, seed=1)
    place = (tmp_path / "state", settings, tmp_path / "rows.csv", tmp_path / "o.jsonl")
    with open_run(*place) as (stream_run, reader):
        stream_run.feed(reader)
        with pytest.raises(ValueError, match=r"density .* must be left out with a schema"):
            stream_run.gaussian()


def test_a_reader_cannot_make_a_row_count_twice(tmp_path: Path) -> None:
    """The coordinate that counts is c or 0 whatever a reader gave, and the rest is shortened to ζ."""
    from fedmf.streaming import RowBlock, RowReader, open_run

    write(tmp_path, [row(0)])
    from fedmf.data import read_schema

    declared = read_schema(tmp_path / "schema.toml")
    settings = Settings(norm_bound=1.0, epsilon=8.0, delta=1e-5, user_column="user", schema=declared, seed=1)

    class Liar(RowReader):
        layout, first_row, given = None, 1, False

        def read(self, most: int) -> RowBlock | None:
            if self.given:
                return None
            self.given = True
            return RowBlock(1, np.array([[30.0, 40.0, 0.0, 1e9]]), ["u0"], {})

        def skip(self, rows: int) -> int:
            return 0

        def where(self, row: int) -> str:
            return ""

        def close(self) -> None:
            pass

    seen = {}
    with open_run(tmp_path / "state", settings, tmp_path / "rows.csv", tmp_path / "o.jsonl") as (
        stream_run,
        _,
    ):
        liar = Liar()
        liar.layout = stream_run.plan.layout  # type: ignore[assignment]
        seen["rows"], _ = stream_run._bounded(liar.read(1).values)  # type: ignore[union-attr]
    norm = float(np.linalg.norm(seen["rows"]))
    assert norm <= settings.vector_norm
    assert norm == pytest.approx(settings.vector_norm, rel=1e-8)
