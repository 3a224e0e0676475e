"""Executed sweeps: equal to single runs, stopped, with failing runs; intervals and tables."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats
from support.command_line import one_line
from support.sweeps import BASE, VARIANTS, small_sweep

import fedmf
from fedmf.cli.app import run as command
from fedmf.runs.simulation import run_in_process
from fedmf.sweeps import Sweep, SweepResult, mean_interval
from fedmf.sweeps.latex import latex_table
from fedmf.sweeps.pictures import comparison_of

FILE = """
base = "base.toml"
seeds = [1]
tuning-seeds = [100]
[variants]
identity = { mechanism.kind = "identity" }
"bisr p=2" = { mechanism.kind = "bisr", mechanism.bands = 2 }
[tuned]
server.learning-rate = [0.1, 0.4]
"""


def test_intervals_are_scipys() -> None:
    ends = stats.ttest_1samp([3.1, 2.7, 4.4, 3.9], 0.0).confidence_interval(0.95)
    assert mean_interval([3.1, 2.7, 4.4, 3.9])[1:3] == pytest.approx(
        (ends.low, ends.high), rel=1e-12
    )
    assert mean_interval([2.0])[1:] == (-math.inf, math.inf, 1)
    assert mean_interval([]).size == 0


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return fedmf.run_sweep(small_sweep(), tmp_path_factory.mktemp("sweep") / "all")


def single(sweep: Sweep, at: int, tuned: dict[str, Any], seed: int, place: Path) -> float:
    """Final accuracy of one run, without a sweep."""
    run = sweep.run(sweep.cells[at], tuned, seed)
    return fedmf.simulate(run, place).metrics[run.cohorts.rounds]["accuracy"]


def test_values_are_those_of_single_runs_and_the_best_mean_is_chosen(
    result: SweepResult, tmp_path: Path
) -> None:
    sweep = result.sweep
    cell = result.sweep.cells[4]
    assert single(sweep, 4, result.tuned(cell), 1, tmp_path / "one") == result.values(cell)[1]
    means = [
        statistics.fmean(
            single(sweep, 4, tuned, seed, tmp_path / f"{i}-{seed}") for seed in sweep.tuning_seeds
        )
        for i, tuned in enumerate(sweep.candidates)
    ]
    assert result.tuned(cell) == sweep.candidates[means.index(max(means))]
    noiseless = [cell for cell in sweep.cells if cell.variant == "no noise"]
    assert result.values(noiseless[0]) == result.values(noiseless[1])  # the same runs
    assert len([*(result.path / "finished").iterdir()]) >= len(sweep.promises) - 10
    assert [*(result.path / "runs").iterdir()] == []
    assert len(result.warnings) <= 1  # one line for the tuned key, whatever the number of cells
    assert all("better values may lie beyond" in line for line in result.warnings)


def test_what_it_writes_says_the_same(result: SweepResult) -> None:
    base, cell = (result.values(result.sweep.cells[at]) for at in (0, 1))
    against = result.against_baseline(result.sweep.cells[1])
    assert against is not None
    assert against.estimate == pytest.approx(
        statistics.fmean(cell[seed] - base[seed] for seed in base)
    )
    lines = (result.path / "table.md").read_text().splitlines()
    assert "Privacy of the whole sweep" in lines[-1]
    parsed = [
        [entry.strip() for entry in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    assert parsed[0] == [*result.table.columns]
    assert parsed[2:] == result.table.to_numpy().tolist()
    assert result.table["variant"].tolist() == [*VARIANTS] * 2
    rows = pd.read_parquet(result.path / "runs.parquet")
    assert (
        len(rows) == len(result.sweep.cells) * (2 * 1 + 2) * 3
    )  # evaluated after 0, 5 and 10 rounds
    pytest.importorskip("matplotlib")
    for name in ("comparison.png", "curves.png", "comparison.pdf", "curves.pdf"):
        assert (result.path / name).stat().st_size > 10_000


def test_tables_and_pictures_show_the_mean_and_its_interval(result: SweepResult) -> None:
    cell = result.sweep.cells[1]
    first, second = (100 * value for value in result.values(cell).values())
    half_width = 12.7062 * abs(first - second) / 2  # Student's quantile for two values
    mean = (first + second) / 2
    assert result.shown_metric(cell) == f"{mean:.1f} ± {half_width:.1f}"
    pytest.importorskip("matplotlib")
    (axes,) = comparison_of(result).axes
    _, _, (bars,) = axes.containers[1].lines
    ends = [height for _, height in bars.get_segments()[0]]
    assert ends == pytest.approx([mean - half_width, mean + half_width], abs=1e-3)


def test_the_table_for_a_paper_is_the_table_escaped(tmp_path: Path) -> None:
    """Unescaped, a % in a heading hides the end of a row, and pdflatex never ends."""
    names = ["50 % of a_b & c", "DP-λCGD {x} ~^\\", '[0, ∞] #1 $ <"|>', "two\nlines"]
    table = pd.DataFrame({"accuracy (%)": ["84.8 ± 0.4"] * 4, "− a_b": names})
    text = latex_table(table, "of two\nlines, 95 %")
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("%")] == lines[:2]
    assert lines[2] == r"\begin{tabular}{rl}"
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) == 5
    for row in rows:
        body = row.removesuffix(r" \\")
        assert body.isascii()
        assert len(re.findall(r"(?<!\\)&", body)) == 1
        assert re.search(r"(?<!\\)[%#_]", body) is None
        assert len(re.findall(r"(?<!\\)\$", body)) % 2 == 0
        bare = re.sub(r"\\[{}]", "", body)
        assert bare.count("{") == bare.count("}")
    assert not any(row.startswith(("[", "*")) for row in rows)


def function_of(name: str) -> str:
    return f"support.sweep_tasks:{name}"


def base_of(name: str) -> dict[str, Any]:
    base = {name: value for name, value in BASE.items() if not name.startswith("data.")}
    function = {
        "task.kind": "function",
        "task.function": function_of(name),
        "task.users": 20,
    }
    return {**base, **function}


def test_runs_that_fail_cost_themselves_alone(tmp_path: Path) -> None:
    lines: list[str] = []
    variants = {name: {"task.function": function_of(name)} for name in ("make", "raising")}
    found = fedmf.run_sweep(
        Sweep(base_of("make"), (1, 2, 3), variants),
        tmp_path / "out",
        on_run=lambda *said: lines.append(said[2]),
    )
    fine, broken = (found.values(cell) for cell in found.sweep.cells)
    assert [*fine] == [1, 2, 3]
    assert broken == {seed: fine[seed] for seed in (1, 3)}
    (failure,) = found.failures
    assert failure.startswith("raising, seed 2: ")
    assert "two lines of reasons" in failure
    assert f"failed: {failure}" in lines
    assert found.against_baseline(found.sweep.cells[1])[::3] == (0.0, 2)  # type: ignore[index]
    assert any("without seeds [2]" in line for line in found.warnings)


def written(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    lines = (f"{name} = {json.dumps(value)}" for name, value in base_of("held").items())
    (folder / "base.toml").write_text("\n".join(lines))
    (folder / "sweep.toml").write_text(FILE)
    return folder


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


def carried_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    assert command(["sweep", "sweep.toml", "--out", "out"]) == 0
    return (folder / "out/table.md").read_text()


def test_a_killed_sweep_of_two_processes_continues_and_ends_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (written(tmp_path) / "hold").touch()
    finished = tmp_path / "out/finished"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmf", "sweep", "sweep.toml", "--out", "out", "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    wait_for(lambda: (tmp_path / "held").exists() and len([*finished.glob("*.json")]) >= 2, process)
    process.kill()  # the parent alone: its workers notice
    process.communicate()
    wait_for(lambda: group_is_gone(process.pid))
    files = {file: file.stat().st_mtime_ns for file in finished.glob("*.json")}
    (tmp_path / "hold").unlink()
    table = carried_out(tmp_path, monkeypatch)
    shown = capsys.readouterr().out
    assert "| identity |" in shown
    assert "comes from public seeds, which give no privacy" in shown
    assert all(file.stat().st_mtime_ns == then for file, then in files.items())
    assert table == carried_out(written(tmp_path / "undisturbed"), monkeypatch)


def test_a_dry_run_names_cells_time_and_privacy_and_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written(tmp_path))
    assert (
        command(
            ["sweep", "sweep.toml", "--dry-run", "--set", f"task.function={function_of('make')}"]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("identity: 2 tuning and 1 reported runs of about ")
    assert lines[-1].startswith("Privacy of the whole sweep: (")
    assert not (tmp_path / "sweeps").exists()
    assert command(["sweep", "sweep.toml", "--set", "tuning-seeds=[1]"]) == 2
    assert "tuning_seeds must share none of the reported seeds" in one_line(capsys)


def test_an_interrupted_run_with_rare_checkpoints_begins_anew(tmp_path: Path) -> None:
    """Resumed it would lack the rounds since its checkpoint, which no table would say."""
    base = {**BASE, "execution.checkpoint-every": 10}
    sweep = small_sweep(
        base=base,
        variants={"a": {"mechanism.kind": "identity"}},
        grid={},
        tuned={},
        tuning_seeds=(),
        seeds=(0,),
    )
    cell = sweep.cells[0]
    place = tmp_path / "sweep/runs" / sweep.planned(cell, {}, 0).digest
    (tmp_path / "sweep/finished").mkdir(parents=True)

    def killed(*_: Any) -> bool:
        raise OSError("killed")

    with (
        pytest.raises(OSError, match="killed"),
        fedmf.start(sweep.run(cell, {}, 0), place) as session,
    ):
        run_in_process(session, killed)
    found = fedmf.run_sweep(sweep, tmp_path / "sweep").values(cell)[0]
    assert found == single(sweep, 0, {}, 0, tmp_path / "alone")
