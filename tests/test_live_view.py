"""What a terminal shows while a run goes on; what is not private is marked or not there."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.small_runs import linear_regression, small_run

import fedmf
from fedmf.cli.account import released
from fedmf.cli.view import RunView
from fedmf.runs import Run, run_in_process
from fedmf.runs.statistics import OwnStatistic, QuantileClipping
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


def test_a_bar_follows_the_run(tmp_path: Path) -> None:
    text = shown(tmp_path / "run", small_run(**KEYS))
    last = text[text.rindex("12/12") :]
    assert all(title in last for title in ("loss ", "accuracy ", "ε so far "))


def test_what_parts_release_is_shown_and_is_not_called_quality(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every column that a part declares; of many the first few."""
    own = OwnStatistic("support.own_functions:halves", ("first", "last"), share=0.1)
    run = dataclasses.replace(
        small_run(**KEYS), clipping=QuantileClipping(quantile=0.4), extra_releases=(own,)
    )
    text = shown(tmp_path / "run", run)
    titles = [column.replace("_", " ") for one in run.statistics for column in one.columns]
    assert titles[:2] == ["clip norm", "own first"]
    assert all(title in text for title in titles)
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:13].strip(): line for line in lines}
    assert all(title in rows["released"] for title in titles)
    assert not any(title in rows["quality"] for title in titles)
    assert len(lines) <= 12
    lines = shown(tmp_path / "again", run, terminal=False).splitlines()
    assert all(title in lines[-1] for title in titles)
    figures = {f"own_{number}": float(number) for number in range(9)}
    assert released(list(figures), figures)[-2:] == ["own 5 5", "3 more figures"]


def test_a_run_ends_in_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown(tmp_path / "run", small_run(**KEYS), terminal=False)
    short = capsys.readouterr().out.splitlines()
    shown(tmp_path / "again", small_run(**KEYS), terminal=False, full=True)
    full = capsys.readouterr().out
    statement = (tmp_path / "again/statement.txt").read_text()
    assert statement in full
    assert len(short) <= 12
    assert short[0] == statement.splitlines()[0]
    rows = {line.split()[0]: line for line in short[1:]}
    assert " ".join(rows["quality"].split()[1:]) == full.splitlines()[0].replace("  ", " ")
    assert "12 of 12 rounds" in rows["quality"]
    assert "--full, or statement.txt there" in rows["statement"]
    assert str(tmp_path / "run") in rows["files"]


def failing_task() -> Task:
    """Most users own rows that are not finite."""
    task = linear_regression(24, 3)
    features = task.dataset.features.clone()  # type: ignore[attr-defined]
    for user in range(4, 24):
        features[torch.from_numpy(task.dataset.owned[user])] = float("nan")  # type: ignore[attr-defined]
    return dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, features=features))  # type: ignore[type-var]


def test_failures_are_told_before_the_second_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Most contributions of every round: once for their reason, with and without privacy."""
    for private in (False, True):
        caplog.clear()
        run = small_run(failing_task(), mechanism="identity", private=private)
        text = shown(tmp_path / str(private), run, terminal=False)
        (line,) = [record.message for record in caplog.records if "contributions" in record.message]
        assert line.startswith("round 1: ")
        assert "finite" in line
        assert "contribution" not in text
