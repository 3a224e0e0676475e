"""The page on text says what is so: its program runs, its tables are configurations."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fedmf.data import Table
from fedmf.runs import FunctionTask, NextToken, run_of
from fedmf.runs.named_tasks import NAMED_TASKS

PAGE = (Path(__file__).parents[2] / "docs/text.md").read_text(encoding="utf-8")


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(program, "docs/text.md", "exec"), {})
    before, after = map(float, capsys.readouterr().out.split(" → "))
    assert 200 < before < 300
    assert after < before


def test_the_table_is_a_private_run() -> None:
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    run = run_of({**tomllib.loads(table), "cohorts": {"size": 8}})
    assert isinstance(run.task, NextToken)
    assert isinstance(run.task.data, Table)
    assert run.is_private
    assert run.task.data.undeclared() == ()


def test_every_kind_of_task_is_listed() -> None:
    listed = re.findall(r"^\| `([\w-]+)`", PAGE.partition("## Code tokens")[0], flags=re.MULTILINE)
    assert listed == [*NAMED_TASKS, FunctionTask.kind]
