"""The dry run counts what a run takes besides training: loading of examples, and its record."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.ledgers import begin

from fedmf.data.synthetic import Synthetic
from fedmf.participation import Participation
from fedmf.runs.cost_estimate import RecordSize
from fedmf.training import classification, seconds_of_loading


def test_examples_that_are_made_on_demand_take_time() -> None:
    dataset = Synthetic(users=100).load()
    task = classification(dataset, torch.nn.Linear(60, 10))
    assert 0 < seconds_of_loading(task, 10) < seconds_of_loading(task, 10_000)


def test_the_size_of_a_ledger(tmp_path: Path) -> None:
    """40 rounds of 500 users out of 2,000, each with a state in the two files."""
    path = tmp_path / "ledger.sqlite"
    with begin(path, Participation(40, 10, 4)) as ledger:
        for t in range(40):
            users = [f"user-{(500 * t + u) % 2000:04}" for u in range(500)]
            ledger.commit_round(t, users, bytes(100_000))
    size = RecordSize(20_000, 2000, 9, rounds=40, state=100_000, released=0)
    actual = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size.disk == pytest.approx(actual, rel=0.1)
