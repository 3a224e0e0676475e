"""`fedmf account --operator`: exact counts of contributions, for the operator, on the screen alone."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from support.small_runs import linear_task, small_run

import fedmf
from fedmf.cli.app import run


def test_counts_are_those_of_the_ledger_and_of_noted_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = linear_task(24, 5)
    features, dead = task.dataset.features.clone(), [0, 5, 7]
    features[dead] = math.nan  # user u owns example u
    broken = dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, features=features))
    fedmf.simulate(small_run(broken), tmp_path / "run")
    statement = fedmf.account(tmp_path / "run").to_dict()
    capsys.readouterr()
    assert run(["account", str(tmp_path / "run"), "--operator"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "NOT PRIVATE: exact counts, for the operator alone."
    assert said[1].split() == ["rounds", "12", "released"]
    arrived = 12 * statement["users_per_round"]
    assert said[2].startswith(f"  contributions     {arrived} arrived, ")
    lost = arrived * len(dead) // 24
    assert said[3].startswith(f"  of them zero      {lost} for a failure that was noted, ")
    assert sum(int(line.split()[1].strip(";")) for line in said[4:]) == lost


@pytest.mark.parametrize("option", ["--json", "--full", "--public=public.json"])
def test_nothing_that_may_be_handed_on_holds_them(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedmf.simulate(small_run(linear_task(24, 5)), tmp_path / "run")
    capsys.readouterr()
    assert run(["account", str(tmp_path / "run"), "--operator", option]) == 2
    assert "--operator takes one directory and no other option" in capsys.readouterr().err
