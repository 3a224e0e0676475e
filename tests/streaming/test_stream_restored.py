"""A stream that goes on from a backup of its state: refused, or with what was lost counted as spent."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.streams import BUDGET, N, releases, run_once, sample, write_rows

from fedmf.accounting import gaussian_epsilon
from fedmf.streaming.session import open_run, stream_costs
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StateError

SETTINGS = Settings(**{**BUDGET, "seed": None}, rounds=N)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "fedmf" / "guards"


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream of 10 rows with a backup, then of 20."""
    rows = sample()
    write_rows(tmp_path / "10.csv", rows[:10])
    write_rows(tmp_path / "20.csv", rows[:20])
    write_rows(tmp_path / "all.csv", rows)
    run_once(tmp_path, SETTINGS, tmp_path / "10.csv")
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    run_once(tmp_path, SETTINGS, tmp_path / "20.csv")
    return tmp_path


def put_back(stream: Path) -> None:
    shutil.rmtree(stream / "state")
    shutil.copytree(stream / "backup", stream / "state")


def test_a_backup_is_refused_or_counts_what_was_lost(stream: Path) -> None:
    whole = run_once(stream, SETTINGS, stream / "20.csv")
    put_back(stream)
    with pytest.raises(StateError, match=r"20 steps .* of which it holds 10") as caught:
        run_once(stream, SETTINGS, stream / "all.csv")
    assert "\n" not in str(caught.value)
    told = run_once(stream, SETTINGS, stream / "all.csv", output="again.jsonl", restored=True)
    assert told["steps"] == N == len(releases(stream / "again.jsonl"))
    assert told["steps_lost"] == [{"first": 10, "released": 20}]
    sigma = told["noise_multiplier"]
    expected = gaussian_epsilon(sigma / np.sqrt(2), told["delta"])
    assert told["epsilon_planned"] == pytest.approx(expected, rel=1e-9)
    assert told["epsilon_realised"] == pytest.approx(expected, rel=1e-9)
    assert whole["epsilon_planned"] < 0.8 * expected
    assert any("went on from a backup" in entry for entry in told["assumptions"])
    assert run_once(stream, SETTINGS, stream / "all.csv", output="again.jsonl")["steps_lost"]  # said once


def test_a_stream_whose_lost_steps_held_rows_of_somebody_is_not_joined_by_user(tmp_path: Path) -> None:
    """Two users of the steps that were lost are in no record: to count nothing for them is too little."""
    rows, settings = sample(), Settings(**{**BUDGET, "seed": None, "user_column": "user"}, rounds=N)
    write_rows(tmp_path / "10.csv", rows[:10], [f"u{i}" for i in range(10)])
    write_rows(tmp_path / "12.csv", rows[:12], [f"u{i}" for i in range(12)])
    run_once(tmp_path, settings, tmp_path / "10.csv")
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    run_once(tmp_path, settings, tmp_path / "12.csv")
    assert len(stream_costs(tmp_path / "state").users) == 12
    put_back(tmp_path)
    write_rows(tmp_path / "all.csv", rows, [f"{'u' if i < 10 else 'v'}{i}" for i in range(N)])
    run_once(tmp_path, settings, tmp_path / "all.csv", restored=True)
    with pytest.raises(StateError, match="whose rows the lost steps held is not known"):
        stream_costs(tmp_path / "state")


def test_a_copy_that_went_on_elsewhere_is_refused(stream: Path) -> None:
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(stream / "elsewhere"))
        put_back(stream)
        run_once(stream, SETTINGS, stream / "all.csv", output="other.jsonl")
    with pytest.raises(StateError, match="of which it holds 10"):
        run_once(stream, SETTINGS, stream / "all.csv", output="other.jsonl")


def test_a_stream_without_a_lasting_state_is_not_remembered(tmp_path: Path, state: Path) -> None:
    source = write_rows(tmp_path / "rows.csv", sample())
    with open_run(tmp_path / "state", SETTINGS, source, tmp_path / "out", remembered=False) as (run, reader):
        run.feed(reader)
        run.conclude()
    assert not state.exists()
    run_once(tmp_path, SETTINGS, source, "out")
    assert state.exists()
