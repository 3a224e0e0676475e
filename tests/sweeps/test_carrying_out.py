"""A sweep carried out: equal to single runs, stopped anywhere, with runs that fail."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.sweeps import BASE, VARIANTS, small_sweep

import fedmf
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError, LedgerError
from fedmf.sweeps import Progress, Sweep, SweepResult, result_table

FILE = """
base = "base.toml"
seeds = [0, 1]
tuning-seeds = [100]
[variants]
identity = { mechanism.kind = "identity" }
"bisr p=2" = { mechanism.kind = "bisr", mechanism.bands = 2 }
[tuned]
server.learning-rate = [0.1, 0.4]
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return fedmf.carry_out(small_sweep(), tmp_path_factory.mktemp("sweep") / "all")


def single(sweep: Sweep, at: int, tuned: dict[str, object], seed: int, place: Path) -> float:
    """Final accuracy of one run, without a sweep."""
    run = sweep.run(sweep.cells[at], tuned, seed)  # type: ignore[arg-type]
    return fedmf.simulate(run, place).metrics[run.cohorts.rounds]["accuracy"]


def test_values_are_those_of_single_runs(result: SweepResult, tmp_path: Path) -> None:
    for at, seed in ((1, 0), (5, 2)):
        found = result.cells[at]
        assert found.tuned is not None
        assert single(result.sweep, at, dict(found.tuned), seed, tmp_path / f"{at}") == found.values[seed]


def test_what_is_chosen_has_the_best_mean_over_tuning_seeds(result: SweepResult, tmp_path: Path) -> None:
    found = result.cells[4]
    means = [
        statistics.fmean(
            single(result.sweep, 4, tuned, seed, tmp_path / f"{i}-{seed}")
            for seed in result.sweep.tuning_seeds
        )
        for i, tuned in enumerate(result.sweep.candidates)
    ]
    assert found.tuning == pytest.approx(means, rel=1e-12)
    assert found.tuned == result.sweep.candidates[means.index(max(means))]


def test_shared_runs_are_carried_out_once_and_runs_are_tidied_away(result: SweepResult) -> None:
    assert len([*(result.path / "finished").iterdir()]) >= len(result.sweep.promises)
    assert [*(result.path / "runs").iterdir()] == []
    noiseless = [found for found in result.cells if found.cell.variant == "no noise"]
    assert noiseless[0].values == noiseless[1].values


def test_results_for_programs(result: SweepResult) -> None:
    written = json.loads((result.path / "results.json").read_text())
    assert [cell["variant"] for cell in written["cells"]] == [*VARIANTS] * 2
    assert "7 of " in written["privacy"]["text"]
    cell = written["cells"][1]
    assert cell["values"] == {str(seed): value for seed, value in result.cells[1].values.items()}
    base = result.cells[0].values
    assert cell["against_baseline"]["estimate"] == pytest.approx(
        statistics.fmean(result.cells[1].values[seed] - base[seed] for seed in base)
    )


def test_the_long_table_has_a_row_for_each_evaluation(result: SweepResult) -> None:
    rows = pd.read_parquet(result.path / "runs.parquet")
    assert len(rows) == len(result.cells) * (2 * 2 + 3) * 3  # evaluated after 0, 5 and 10 rounds
    picked = rows.query(
        "variant == 'bisr p=2' and `privacy.epsilon` == 8 and part == 'reported' and round == 10"
    )
    assert dict(zip(picked.seed, picked.accuracy, strict=True)) == dict(result.cells[4].values)


def test_the_tables_say_the_same(result: SweepResult) -> None:
    table = result_table(result)
    lines = (result.path / "table.md").read_text().splitlines()
    parsed = [[entry.strip() for entry in line.strip("|").split("|")] for line in lines]
    assert parsed[0] == [*table.header]
    assert parsed[2:] == [[*row] for row in table.rows]
    latex = (result.path / "table.tex").read_text()
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == len(table.rows)
    assert all(line.count("&") == len(table.header) - 1 and line.endswith(r"\\") for line in body)
    assert latex.splitlines()[1] == r"\begin{tabular}{lllrrr}"
    mean = 100 * statistics.fmean(result.cells[3].values.values())
    assert table.rows[3][:4] == ("8", "identity", table.rows[3][2], table.rows[3][3])
    assert table.rows[3][3].startswith(f"{mean:.1f} (")


def test_special_characters_reach_latex_and_markdown_whole(result: SweepResult) -> None:
    from fedmf.sweeps import Table

    table = Table(("a_b", "50 %"), (("x|y & z", "−1"),), 1)
    assert table.markdown().splitlines()[2] == r"| x\|y & z | −1 |"
    assert r"a\_b & 50 \%" in table.latex()
    assert r"x|y \& z & $-$1" in table.latex()


def test_a_best_value_at_the_edge_is_noted(result: SweepResult) -> None:
    assert len(result.warnings) == len(result.cells)  # of two values each is at an edge
    assert all("a better one may lie beyond" in line for line in result.warnings)


def test_metrics_that_runs_lack_and_directories_of_others_are_refused(
    result: SweepResult, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"metric .* must be one of accuracy, loss; got 'perplexity'"):
        fedmf.carry_out(small_sweep(metric="perplexity"), result.path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="must be new or a sweep's"):
        fedmf.carry_out(small_sweep(), tmp_path)
    with pytest.raises(ConfigError, match=r"processes .* must be a whole number ≥ 1; got 0"):
        fedmf.carry_out(small_sweep(), tmp_path / "new", processes=0)


def test_runs_that_fail_cost_themselves_alone(tmp_path: Path) -> None:
    lines: list[str] = []

    def observe(progress: Progress) -> None:
        lines.extend(filter(None, [progress.line]))

    sweep = Sweep(
        base_of("fine"),
        seeds=(1, 2, 3),
        variants={how: {"task.options": how} for how in ("fine", "raise", "die")},
    )
    found = fedmf.carry_out(sweep, tmp_path / "out", observer=observe)
    fine, *broken = found.cells
    assert [*fine.values] == [1, 2, 3]
    assert len(lines) == len(found.failures) == 2
    for cell, how, why in zip(
        broken,
        ("raise", "die"),
        ("two lines of reasons", "its process ended with signal SIGKILL"),
        strict=True,
    ):
        assert [*cell.values] == [1, 3]
        assert cell.values == {seed: fine.values[seed] for seed in (1, 3)}
        (failure,) = [failure for failure in found.failures if why in failure]
        (line,) = [line for line in lines if line.startswith(f"failed: {how}, seed 2: ")]
        assert "\n" not in line + failure
        against = found.against_baseline(cell)
        assert against is not None
        assert (against.count, against.estimate) == (2, 0.0)
    assert sum("without seeds [2]" in line for line in found.warnings) == 2


def base_of(options: str) -> dict[str, Any]:
    base = {name: value for name, value in BASE.items() if not name.startswith("data.")}
    function = {"task.kind": "function", "task.function": "support.sweep_tasks:make", "task.users": 20}
    return {**base, **function, "task.options": options}


def written(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    lines = (f"{name} = {json.dumps(value)}" for name, value in base_of("hold").items())
    (folder / "base.toml").write_text("\n".join(lines))
    (folder / "sweep.toml").write_text(FILE)
    return folder


def begun_and_held(folder: Path, processes: int) -> subprocess.Popen[str]:
    """The command, which has finished some runs and is in the middle of another, and stays there."""
    (written(folder) / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmf", "sweep", "sweep.toml", "--out", "out", "--processes", str(processes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    wait_for(lambda: (folder / "held").exists() and in_the_middle(folder), process)
    return process


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def group_is_gone(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return True
    return False


def in_the_middle(folder: Path) -> bool:
    """Some runs are finished and another one has begun."""
    return len([*(folder / "out/finished").glob("*.json")]) >= 2 and any(
        (folder / "out/runs").glob("*/ledger.sqlite-wal")
    )


def carried_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The command again, or for the first time, to its end."""
    monkeypatch.chdir(folder)
    assert command(["sweep", "sweep.toml", "--out", "out"]) == 0
    return json.loads((folder / "out/results.json").read_text())


def test_a_killed_sweep_goes_on_and_ends_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = begun_and_held(tmp_path, 1)
    begun = {place.name for place in (tmp_path / "out/runs").iterdir()}
    process.kill()  # the parent alone: its workers notice
    process.communicate()
    wait_for(lambda: group_is_gone(process.pid))
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "out/finished").glob("*.json")}
    (tmp_path / "hold").unlink()
    results = carried_out(tmp_path, monkeypatch)
    assert "| identity |" in capsys.readouterr().out
    assert len(files) >= 2
    assert begun
    assert all(file.stat().st_mtime_ns == then for file, then in files.items())
    assert results["cells"] == carried_out(written(tmp_path / "undisturbed"), monkeypatch)["cells"]


def test_two_processes_do_not_share_a_sweep(tmp_path: Path) -> None:
    from fedmf.sweeps.place import SweepPlace

    with SweepPlace(tmp_path / "out"), pytest.raises(LedgerError, match="being written by another process"):
        SweepPlace(tmp_path / "out")
