"""``fedmf sweep`` as people use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import one_line

from fedmf.cli.app import run

FILE = """
seeds = [0, 1]
[base]
data.kind = "synthetic"
data.users = 20
data.examples-per-user = 4
cohorts.rounds = 6
cohorts.users-per-round = 4
cohorts.min-separation = 3
[grid]
privacy.epsilon = [2.0, 4.0, 8.0]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "sweep.toml").write_text(FILE)
    return str(tmp_path / "sweep.toml")


def test_help_says_what_epsilon_does_not_cover(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "a sweep is not covered by the epsilon of one run" in shown
    assert "--processes" in shown
    assert "--dry-run" in shown


def test_a_dry_run_names_cells_time_and_privacy(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", file, "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("base, privacy.epsilon=2: 0 tuning and 2 reported runs of about ")
    assert lines[3].startswith("6 different runs, about ")
    assert lines[4].startswith("Privacy of the whole sweep: (")
    assert not (tmp_path / "out").exists()


def test_a_sweep_ends_with_its_table_and_what_it_cost(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", file, "--out", str(tmp_path / "out"), "--keep-runs"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("| privacy.epsilon | variant | accuracy (%) | seeds |")
    assert "A seed sets data.seed, model.seed," in shown
    assert "their noise comes from public seeds, which protects nobody" in shown
    assert f"Directory: {tmp_path / 'out'}" in shown
    assert len([*(tmp_path / "out/runs").glob("*/ledger.sqlite")]) == 6
    assert (tmp_path / "out/comparison.png").stat().st_size > 10_000


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.toml").write_text(FILE.replace("seeds = [0, 1]", "seeds = [0, 1]\ntuning-seeds = [1]"))
    assert run(["sweep", str(tmp_path / "sweep.toml")]) == 2
    assert "tuning_seeds must share none of the reported seeds" in one_line(capsys)
