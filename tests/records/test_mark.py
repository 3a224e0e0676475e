"""Runs and streams of which this machine has seen more: older copies are refused in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.directories import commit, create
from support.streams import BUDGET, N, releases, run_once, sample, write_rows

from fedmf.cli.app import run as command
from fedmf.errors import LedgerError
from fedmf.runs.directory import RunDirectory
from fedmf.streaming.settings import Settings

SETTINGS = Settings(**{**BUDGET, "seed": None}, rounds=N)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "this"))
    return tmp_path / "this" / "fedmf" / "marks"


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))


def committed(path: Path, first: int, stop: int) -> torch.Tensor:
    with RunDirectory.open(path) if path.exists() else create(path) as directory:
        for t in range(first, stop):
            commit(directory, t, float(t))
        return torch.tensor([*directory.ledger.openings()[-1].fresh])


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a run after 2 rounds, which then has 4."""
    committed(tmp_path / "run", 0, 2)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    committed(tmp_path / "run", 2, 4)
    return tmp_path / "backup"


def test_a_backup_of_a_run_is_refused_in_one_line(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        LedgerError, match="holds 2 commits and not the 4 that this machine has seen"
    ) as caught:
        RunDirectory.open(backup)
    assert str(caught.value).endswith("Continue with the newest copy.")
    assert "\n" not in str(caught.value)
    assert command(["simulate", "--resume", str(backup)]) == 2
    assert "older copy" in capsys.readouterr().err


def test_a_copy_continues_on_another_machine_and_is_refused_when_it_comes_back(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        elsewhere(other, tmp_path)
        fresh = committed(backup, 2, 6)
    assert not torch.equal(fresh, committed(tmp_path / "run", 4, 4))
    with pytest.raises(LedgerError, match="older copy"):
        RunDirectory.open(backup)


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream with a backup after 10 steps, which then has 20."""
    rows = sample()
    for stop in (10, 20, N):
        write_rows(tmp_path / f"{stop}.csv", rows[:stop])
    run_once(tmp_path, SETTINGS, tmp_path / "10.csv")
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    run_once(tmp_path, SETTINGS, tmp_path / "20.csv")
    return tmp_path


def put_back(folder: Path) -> None:
    shutil.rmtree(folder / "state")
    shutil.copytree(folder / "backup", folder / "state")


def test_a_backup_of_a_stream_is_refused_and_continues_on_another_machine(
    stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [line["mean"] for line in releases(stream / "out.jsonl")]
    put_back(stream)
    with pytest.raises(LedgerError, match="older copy") as caught:
        run_once(stream, SETTINGS, stream / f"{N}.csv")
    assert "\n" not in str(caught.value)
    with monkeypatch.context() as other:
        elsewhere(other, stream)
        run_once(stream, SETTINGS, stream / f"{N}.csv", output="other.jsonl")
    theirs = [line["mean"] for line in releases(stream / "other.jsonl")]
    assert mine[:10] == theirs[:10]
    assert all(not np.array_equal(a, b) for a, b in zip(mine[10:20], theirs[10:20], strict=True))
    with pytest.raises(LedgerError, match="older copy"):
        run_once(stream, SETTINGS, stream / f"{N}.csv", output="other.jsonl")
