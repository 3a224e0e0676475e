"""Columns of a stream are those of its names, in whatever order and by whatever way its rows come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.command_line import one_line
from support.streams import BUDGET, releases, run_once, sample

from fedmf import PrivateStream
from fedmf.cli.app import run
from fedmf.streaming import InputError
from fedmf.streaming.settings import Settings

N = 12
NAMES = ["speed", "load"]


def frame(first: int, names: list[str] = NAMES) -> pd.DataFrame:
    x = 0.4 * sample(2 * N, 2)[first : first + N]
    columns = dict(zip(NAMES, x.T, strict=True))
    return pd.DataFrame({name: columns.get(name, x[:, 0]) for name in names})


def write(path: Path, rows: pd.DataFrame) -> Path:
    if path.suffix == ".csv":
        rows.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        rows.to_parquet(path, index=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_dict("records")))
    return path


def whole(folder: Path, second: Path) -> list[dict[str, Any]]:
    """Releases of a stream of a first file and a second one."""
    settings = Settings(**{**BUDGET, "rounds": 2 * N})
    run_once(folder, settings, write(folder / f"first{second.suffix}", frame(0)))
    run_once(folder, settings, second, first_row=N + 1)
    return releases(folder / "out.jsonl")


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_second_file_is_read_by_name(tmp_path: Path, ending: str) -> None:
    got = []
    for name, columns in (("same", NAMES), ("swapped", NAMES[::-1])):
        folder = tmp_path / name
        folder.mkdir()
        got.append(whole(folder, write(folder / f"second.{ending}", frame(N, columns))))
    assert len(got[0]) == 2 * N
    assert got[0] == got[1]
    for columns in (["income", "debt"], ["speed", "debt"], ["speed", "load", "debt"]):
        folder = tmp_path / "-".join(columns)
        folder.mkdir()
        with pytest.raises(InputError, match=r"'speed', 'load'.*got .*'debt'") as caught:
            whole(folder, write(folder / f"second.{ending}", frame(N, columns)))
        assert "\n" not in str(caught.value)
        assert len(releases(folder / "out.jsonl")) == N


def test_a_first_row_of_json_without_a_number_stops_nothing(tmp_path: Path) -> None:
    """A missing number is the row's own fault; the row does not decide which columns there are."""
    second = write(tmp_path / "second.jsonl", frame(N))
    lines = second.read_text().splitlines()
    second.write_text("\n".join(['{"speed": 0.1}', *lines[1:]]))
    assert len(whole(tmp_path, second)) == 2 * N
    for line, message in (("[1, 2]", "must be JSON objects"), ('{"debt": 1}', "got 'debt'")):
        folder = tmp_path / message[-4:]
        folder.mkdir()
        (folder / "second.jsonl").write_text(line)
        with pytest.raises(InputError, match=message):
            whole(folder, folder / "second.jsonl")


def test_another_order_in_another_format(tmp_path: Path) -> None:
    """The order of the first part is kept, whatever the later ones are written in."""
    settings = Settings(**{**BUDGET, "rounds": 2 * N})
    run_once(tmp_path, settings, write(tmp_path / "a.csv", frame(0)))
    second = write(tmp_path / "b.parquet", frame(N, NAMES[::-1]))
    run_once(tmp_path, settings, second, first_row=N + 1)
    (tmp_path / "other").mkdir()
    assert releases(tmp_path / "out.jsonl") == whole(tmp_path / "other", second.with_suffix(".parquet"))


def test_the_command_refuses_other_columns_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        write(tmp_path / "a.parquet", frame(0)),
        write(tmp_path / "b.parquet", frame(N, ["x", "y"])),
    )
    options = ["--each-row-a-user", "--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5", "--seed", "0"]
    options += ["--rounds", str(2 * N), "--state", str(tmp_path / "st"), "--output", str(tmp_path / "o.csv")]
    assert run(["stream", "--input", str(first), *options]) == 0
    capsys.readouterr()
    assert run(["stream", "--input", str(second), "--from-row", str(N + 1), *options]) == 2
    assert "(of numbers) must be 'speed', 'load', as in the rows before; got 'x', 'y'." in one_line(capsys)


def test_tables_that_are_pushed_to_a_stream_of_so_many_numbers(tmp_path: Path) -> None:
    """The first table names the columns, also for the process that goes on."""
    users = [f"u{i}" for i in range(2 * N)]

    def opened(name: str) -> PrivateStream:
        return PrivateStream(tmp_path / name, **BUDGET, dimension=2, rounds=2 * N)

    with opened("array") as stream:
        straight = stream.push_many(np.vstack([frame(0), frame(N)]), users)
    for name in ("one", "two"):
        with opened(name) as stream:
            got = stream.push_many(frame(0), users[:N])
            if name == "one":
                got += stream.push_many(frame(N, NAMES[::-1]), users[N:])
        if name == "two":
            with opened(name) as stream:
                for columns in (["income", "debt"], ["speed", "debt"]):
                    with pytest.raises(ValueError, match="must be 'speed', 'load', as in the rows before"):
                        stream.push_many(frame(N, columns), users[N:])
                assert stream.t == N
                got += stream.push_many(frame(N, NAMES[::-1]), users[N:])
        assert [release.to_dict() for release in got] == [release.to_dict() for release in straight]


def test_a_table_that_was_refused_names_nothing(tmp_path: Path) -> None:
    with PrivateStream(tmp_path / "st", **BUDGET, dimension=2, rounds=N) as stream:
        with pytest.raises(ValueError, match="b \\(min_separation\\)"):
            stream.push_many(frame(0, ["income", "debt"])[:2], ["ann", "ann"])
        assert len(stream.push_many(frame(0), [f"u{i}" for i in range(N)])) == N
