"""Who may read what a run or a stream keeps: its owner alone, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.directories import commit, create
from support.small_runs import small_run
from support.streams import sample, write_rows

from fedmf.cli.app import run
from fedmf.runs.directory import KEY, RunDirectory
from fedmf.runs.tables.configuration import render_toml


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {
        str(place.relative_to(folder)): place.lstat().st_mode & 0o777 for place in folder.rglob("*")
    }


def check_closed(folder: Path, expected: set[str]) -> None:
    found = modes(folder)
    assert expected <= found.keys()
    assert folder.stat().st_mode & 0o777 == 0o700
    for name, mode in found.items():
        assert mode == (0o700 if (folder / name).is_dir() else 0o600), name


@pytest.mark.parametrize("mask", [0o000])
def test_a_run_and_a_stream_are_for_their_owner(tmp_path: Path, mask: int, pictures: None) -> None:
    config = tmp_path / "run.toml"
    config.write_text(render_toml(small_run(rounds=3)))
    rows = write_rows(tmp_path / "rows.csv", sample()[:10])
    budget = ["--clip-norm", "1", "--epsilon", "8", "--delta", "1e-5", "--row-level"]
    budget += ["--columns", rows.read_text().partition("\n")[0]]
    output = ["--state-dir", str(tmp_path / "state"), "--output", str(tmp_path / "out.jsonl")]
    with umask(mask):
        assert run(["simulate", str(config), "--out", str(tmp_path / "run")]) == 0
        assert run(["stream", "--input", str(rows), *budget, *output]) == 0
    check_closed(
        tmp_path / "run",
        {
            "config.toml",
            "noise.key",
            "ledger.sqlite",
            "ledger.sqlite.lock",
            "ledger.sqlite-mark",
            "metrics.parquet",
            "learning-curve.png",
            "statement.json",
            "statement.txt",
        },
    )
    check_closed(
        tmp_path / "state", {"noise.key", "stream.sqlite", "stream.sqlite-mark", "operator.json"}
    )


def test_opening_takes_from_others_what_they_could_read(tmp_path: Path) -> None:
    with create(tmp_path / "run") as opened:
        commit(opened, 0, 1.0)
    outside = tmp_path / "outside"
    outside.touch(mode=0o644)
    (tmp_path / "run" / "link").symlink_to(outside)
    for name in modes(tmp_path / "run"):
        if name not in (KEY, "link"):
            (tmp_path / "run" / name).chmod(0o755)
    (tmp_path / "run").chmod(0o755)
    RunDirectory.open(tmp_path / "run").close()
    (tmp_path / "run" / "link").unlink()
    assert all(mode & 0o077 == 0 for mode in modes(tmp_path / "run").values())
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert outside.stat().st_mode & 0o777 == 0o644
