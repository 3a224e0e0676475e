"""What a terminal shows while a run goes on; what is not private is marked or not there."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.small_runs import linear_regression, small_run

import fedmf
from fedmf.cli.account import released
from fedmf.cli.view import Column, LiveTable, RunView
from fedmf.parts import OwnStatistic, QuantileClipping
from fedmf.rounds import run_in_process
from fedmf.runs import VERDICTS, Run
from fedmf.training import Task

KEYS = {"mechanism": "bisr", "bands": 2, "evaluate_every": 4}


def shown(path: Path, run: Run, terminal: bool = True, full: bool = False) -> str:
    """Everything that the view of a whole run prints, the last state of the table included."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=160, color_system=None)
    with fedmf.start(run, path) as session:
        with RunView(session, console) as view:
            run_in_process(session, view.update)
        view.conclude(full)
    return text.getvalue()


def test_brackets_in_a_path_are_part_of_it(tmp_path: Path) -> None:
    text = shown(tmp_path / "run[", small_run(**KEYS)) + shown(tmp_path / "[/b][red]x", small_run(**KEYS))
    assert "[/b][red]x" in text


def test_the_table_follows_the_run(tmp_path: Path) -> None:
    run = small_run(**KEYS, evaluation="not-private")
    text = shown(tmp_path / "run", run)
    last = text[text.rindex("round  ") :]
    header, *rows = last.splitlines()
    assert header.split("  ")[0] == "round"
    for title in ("loss", "accuracy", "users' own accuracy †", "ε so far", "clipped *"):
        assert title in header
    assert [row.split()[0] for row in rows[:4]] == ["0", "4", "8", "12"]
    assert rows[3].split()[-1] == "%"
    assert "† not private: from users' own examples, without noise" in last
    assert "stand-in users made of the public test part" in last
    assert "round 12/12" in last
    assert "users/s" in last
    assert "0:00:00 left" in last
    assert "trend: " in last


def test_what_parts_release_has_columns_and_is_not_called_quality(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every column that a part declares is in the table; of many the first few."""
    own = OwnStatistic("support.own_functions:halves", ("first", "last"), share=0.1)
    run = dataclasses.replace(small_run(**KEYS), clipping=QuantileClipping(quantile=0.4), beside=(own,))
    text = shown(tmp_path / "run", run)
    header = text[text.rindex("round  ") :].splitlines()[0]
    titles = [column.replace("_", " ") for part in run.parts for column in part.columns]
    assert titles[:2] == ["clip norm", "own first"]
    places = [header.index(title) for title in [*titles, "ε so far"]]
    assert places == sorted(places)
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:13].strip(): line for line in lines}
    assert all(title in rows["released"] for title in titles)
    assert not any(title in rows["quality"] for title in titles)
    assert len(lines) <= 12
    lines = shown(tmp_path / "again", run, terminal=False).splitlines()
    assert all(title in lines[-1] for title in titles)
    figures = {f"own_{number}": float(number) for number in range(9)}
    assert released(list(figures), figures)[-2:] == ["own 5 5", "3 more figures"]


def test_without_a_terminal_lines_are_what_they_were(tmp_path: Path) -> None:
    text = shown(tmp_path / "run", small_run(**KEYS), terminal=False)
    lines = text.splitlines()
    assert lines[0].startswith("bisr ")
    assert re.match(
        r"noise: norm [0-9.]+ times the clip norm in a round's mean update, [0-9.]+ times", lines[1]
    )
    assert [line.split("  ")[0] for line in lines[2:]] == [f"round {t}/12" for t in range(1, 13)]
    assert all("ε so far" in line for line in lines[5:])
    assert all(line.split("  ")[-1] in VERDICTS for line in lines[5:])
    assert "clipped" not in text


def test_a_run_ends_in_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown(tmp_path / "run", small_run(**KEYS), terminal=False)
    short = capsys.readouterr().out.splitlines()
    shown(tmp_path / "again", small_run(**KEYS), terminal=False, full=True)
    full = capsys.readouterr().out
    statement = (tmp_path / "again/statement.txt").read_text()
    assert statement in full
    assert len(short) <= 12
    assert statement.splitlines()[0] == "Record: whole as far as this copy knows."
    assert short[0] == statement.splitlines()[1]
    rows = {line.split()[0]: line for line in short[1:]}
    assert " ".join(rows["quality"].split()[1:]) == full.splitlines()[0].replace("  ", " ")
    assert "12 of 12 rounds" in rows["quality"]
    assert rows["trend"].split(":")[0].split(maxsplit=1)[1] in VERDICTS
    assert "record whole as far as this copy knows; " in rows["statement"]
    assert "--full, or statement.txt there" in rows["statement"]
    assert str(tmp_path / "run") in rows["files"]


def test_pace_and_time_left() -> None:
    now = [0.0]
    table = LiveTable(
        [Column("loss", lambda row: f"{row['loss']:.1f}")], 100, 40, cohort_size=50, clock=lambda: now[0]
    )
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as before:
        console.print(table)
    assert "users/s" not in before.get()
    now[0] = 10.0
    for rounds in range(41, 61):
        table.add(rounds, {"loss": rounds}, "25 %")
    with console.capture() as after:
        console.print(table)
    assert "100 users/s" in after.get()  # 20 rounds of 50 users in 10 s
    assert "0:00:20 left" in after.get()  # 40 rounds more
    assert [line.split()[0] for line in after.get().splitlines()[1:9]] == [str(t) for t in range(53, 61)]


def failing_task() -> Task:
    """Most users own rows that are not finite."""
    task = linear_regression(24, 3)
    features = task.dataset.features.clone()  # type: ignore[attr-defined]
    for user in range(4, 24):
        features[torch.from_numpy(task.dataset.owned[user])] = float("nan")  # type: ignore[attr-defined]
    return dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, features=features))  # type: ignore[type-var]


def test_failures_are_told_where_there_is_no_privacy_and_nowhere_else(tmp_path: Path) -> None:
    """In a private run they would tell of users' data: two worlds must look alike on the screen."""
    task = failing_task()
    text = shown(tmp_path / "open", small_run(task, mechanism="identity", private=False), terminal=False)
    assert text.count("contributions to round 1 failed and counted as zeros; the first at ") == 1
    assert "contributions failed and counted as zeros; the first, of u" in text
    text = shown(tmp_path / "private", small_run(task, mechanism="identity"), terminal=False)
    assert "contribution" not in text


def test_divergence_is_told_when_it_is_seen_and_at_the_end(tmp_path: Path) -> None:
    run = small_run(**KEYS, local_learning_rate=1000.0, local_epochs=3)
    lines = shown(tmp_path / "run", run, terminal=False).splitlines()
    warned = [line for line in lines if line.startswith("warning: local training diverges after round ")]
    assert len(warned) == 2
    assert lines.index(warned[0]) < lines.index(next(line for line in lines if line.startswith("round 1/")))
    assert warned[1] == lines[-1]
    assert "local.learning-rate 1000 is too high" in warned[0]
