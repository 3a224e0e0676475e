"""Replies mutated from valid ones, through the path of a deployment: none is taken, no honest one is lost."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

SCRIPT = Path(__file__).parents[3] / "simulations" / "flower" / "hostile_replies.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hostile_replies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


@pytest.mark.parametrize("mode", ["per-user", "one-user", "slice", "wrapper"])
def test_no_mutated_reply_is_taken_and_no_honest_one_is_lost(mode: str, script: ModuleType) -> None:
    judge = script.mutate(mode, replies=300, seed=1, rounds=6)
    assert judge.hostile >= 300
    assert (judge.total("taken"), judge.total("lost"), judge.wrong_sums, judge.ended) == (0, 0, 0, 0)
    kinds = {row["mutation"]: row for row in judge.rows()}
    assert kinds["none"]["replies"] >= 300
    assert kinds["sent twice"]["refused"] == 0
    harmless = sys.modules["hostile.judge"].HARMLESS
    refused = [row for name, row in kinds.items() if name not in harmless]
    assert len(refused) >= (26 if mode == "per-user" else 17)
    assert all(row["refused"] == row["replies"] > 0 for row in refused)


def test_the_judge_sees_a_check_that_is_missing(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of users and round, replies of other rounds and for other users get in."""
    monkeypatch.setattr("fedmf.flower.messages.check_header", lambda *_, **__: None)
    judge = script.mutate("per-user", replies=100, seed=1, rounds=6)
    taken = {row["mutation"] for row in judge.rows() if row["taken"]}
    assert {"another round", "other users", "users swapped", "a user twice"} <= taken


def test_the_judge_sees_a_bad_row_that_takes_others_along(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a reply refused whole for one number, honest rows would be lost."""
    from fedmf.flower.asking import asked

    read = asked.read_rows_reply

    def strict(*given: Any, **named: Any) -> Tensor:
        rows = read(*given, **named)
        if not torch.isfinite(rows).all():
            raise ValueError("a row holds NaN or infinity")
        return rows

    monkeypatch.setattr(asked, "read_rows_reply", strict)
    judge = script.mutate("per-user", replies=300, seed=1, rounds=6)
    assert {row["mutation"] for row in judge.rows() if row["lost"]} == {"NaN", "infinity"}
