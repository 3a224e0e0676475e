"""Replies mutated from valid ones, through the path of a deployment: none is taken, no honest one is lost."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.hostile.judge import HARMLESS
from support.hostile.runs import mutate
from torch import Tensor


@pytest.mark.parametrize("mode", ["per-user", "one-user", "slice", "wrapper"])
def test_no_mutated_reply_is_taken_and_no_honest_one_is_lost(mode: str, tmp_path: Path) -> None:
    judge = mutate(mode, 300, 1, tmp_path, rounds=6)
    assert judge.hostile >= 300
    assert (judge.total("taken"), judge.total("lost"), judge.wrong_sums) == (0, 0, 0)
    kinds = judge.kinds()
    assert kinds["none"]["replies"] >= 300
    assert kinds["sent twice"]["refused"] == 0
    refused = [row for name, row in kinds.items() if name not in HARMLESS]
    assert len(refused) >= (26 if mode == "per-user" else 17)
    assert all(row["refused"] == row["replies"] > 0 for row in refused)


def test_the_judge_sees_a_check_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of users and round, replies of other rounds and for other users get in."""
    monkeypatch.setattr("fedmf.flower.messages.check_header", lambda *_, **__: None)
    judge = mutate("per-user", 100, 1, tmp_path, rounds=6)
    taken = {name for name, row in judge.kinds().items() if row["taken"]}
    assert {"another round", "other users", "users swapped", "a user twice"} <= taken


def test_the_judge_sees_a_bad_row_that_takes_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a reply refused whole for one number, honest rows would be lost."""
    from fedmf.flower import strategy

    read = strategy.read_rows_reply

    def strict(*given: Any, **named: Any) -> Tensor:
        rows = read(*given, **named)
        if not torch.isfinite(rows).all():
            raise ValueError("a row holds NaN or infinity")
        return rows

    monkeypatch.setattr(strategy, "read_rows_reply", strict)
    judge = mutate("per-user", 300, 1, tmp_path, rounds=6)
    assert {name for name, row in judge.kinds().items() if row["lost"]} == {"NaN", "infinity"}
