"""The interval between checkpoints is chosen from the time that they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import linear_task, small_run

import fedmf
from fedmf.ledger.ledger import INLINE
from fedmf.release import checkpoints
from fedmf.release.checkpoints import CheckpointInterval


def _kept(
    monkeypatch: pytest.MonkeyPatch, interval: CheckpointInterval, state: int, seconds: float
) -> list[int]:
    """The rounds of 500 whose state is kept, where a round takes 10 ms and a state ``seconds``."""
    now = 0.0
    kept = [0]
    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: now)
    for t in range(1, 501):
        due = interval.due(t, t - kept[-1])
        commit = 0.002 + due * seconds
        now += 0.01 + commit
        interval.note(commit, due * state)
        if due:
            kept.append(t)
    return kept[1:]


@pytest.mark.parametrize(
    ("fixed", "state", "seconds", "distance"),
    [
        (7, INLINE + 1, 1.0, 7),
        (0, INLINE, 1.0, 1),
        (0, INLINE + 1, 0.0001, 1),
        (0, INLINE + 1, 0.01, 42),
        (0, INLINE + 1, 1.0, 100),
    ],
)
def test_checkpoints_take_two_percent_of_the_time(
    monkeypatch: pytest.MonkeyPatch, fixed: int, state: int, seconds: float, distance: int
) -> None:
    kept = _kept(monkeypatch, CheckpointInterval(fixed, INLINE), state, seconds)
    assert np.diff(kept)[-2:].tolist() == pytest.approx([distance] * 2, rel=0.05)
    assert np.diff(kept).max() <= 100


def test_released_models_do_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmf.release.private_server.INLINE", 0)
    task = linear_task(24, 40)
    fixed = fedmf.simulate(small_run(task, checkpoint_every=1), tmp_path / "a")
    chosen = fedmf.simulate(small_run(task, checkpoint_every=0), tmp_path / "b")
    assert torch.equal(fixed.parameters, chosen.parameters)
