"""Replies mutated from valid ones, through the path of a deployment: none is taken, no honest one is lost."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "simulations" / "flower" / "hostile_replies.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hostile_replies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mode", ["per-user", "slice", "wrapper"])
def test_no_mutated_reply_is_taken_and_no_honest_one_is_lost(mode: str, script: ModuleType) -> None:
    judge = script.mutate(mode, replies=300, seed=1, rounds=6)
    assert judge.hostile >= 300
    assert (judge.total("taken"), judge.total("lost"), judge.wrong_sums, judge.ended) == (0, 0, 0, 0)
    kinds = {row["mutation"]: row for row in judge.rows()}
    assert kinds["none"]["replies"] >= 300
    assert kinds["sent twice"]["refused"] == 0
    refused = [row for name, row in kinds.items() if name not in script.HARMLESS]
    assert len(refused) >= 17
    assert all(row["refused"] == row["replies"] > 0 for row in refused)


def test_the_judge_sees_a_check_that_is_missing(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of users and round, replies of other rounds and for other users get in."""
    monkeypatch.setattr("fedmf.flower.messages.check_header", lambda *_, **__: None)
    judge = script.mutate("per-user", replies=300, seed=1, rounds=6)
    taken = {row["mutation"] for row in judge.rows() if row["taken"]}
    assert {"another round", "other users"} <= taken
