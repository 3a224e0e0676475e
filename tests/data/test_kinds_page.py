"""The table of data kinds in docs/data.md: every kind, each with an example that a run takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedmf.data import DATASETS
from fedmf.runs import parse_assignments, run_of

PAGE = (Path(__file__).resolve().parents[2] / "docs/data.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z0-9-]+)` \|.*\| `kind=([^`]+)` \|$", PAGE, flags=re.MULTILINE)
#: A model and a task for what is no image and no class.
TEXTS = ("token-rows", "code-tokens")
OTHERS = {"diabetes": ["task.kind=regression"]} | {
    name: ["task.kind=next-token", "model.kind=lstm"] for name in TEXTS
}


def test_every_kind_has_its_row() -> None:
    assert [name for name, _ in ROWS] == [example.split()[0] for _, example in ROWS]
    assert {name for name, _ in ROWS} == set(DATASETS)


@pytest.mark.parametrize(("name", "example"), ROWS)
def test_the_example_makes_a_private_run(name: str, example: str) -> None:
    keys = [f"data.{part}" for part in f"kind={example}".split()]
    run = run_of(parse_assignments([*keys, *OTHERS.get(name, []), "cohorts.size=10", "cohorts.rounds=8"]))
    assert run.is_private
    assert run.task_source.data.kind == name  # type: ignore[attr-defined]
    assert run.task_source.public_inputs()
