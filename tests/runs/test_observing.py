"""A callback after each round: after commits only, again after resuming, and when it ends the
run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.small_runs import small_run

import fedmf
from fedmf.ledger.ledger import Ledger
from fedmf.runs.loop import RoundRecord

RUN = small_run(mechanism="bisr", bands=2, evaluate_every=3)


def rounds_on_record(path: Path) -> int:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        last = ledger.released - 1
    return last + 1


def looking(path: Path, seen: list[RoundRecord]) -> Callable[[RoundRecord], None]:
    def look(record: RoundRecord) -> None:
        assert rounds_on_record(path) == record.rounds
        kept = fedmf.load_model(path)
        assert all(torch.equal(kept[name], tensor) for name, tensor in record.model().items())
        record.parameters().zero_()  # a copy: whatever a callback does to it
        seen.append(record)

    return look


def test_every_round_is_seen_after_its_commit(tmp_path: Path) -> None:
    seen: list[RoundRecord] = []
    result = fedmf.simulate(RUN, tmp_path / "run", on_round=looking(tmp_path / "run", seen))
    assert [record.rounds for record in seen] == [*range(1, 13)]
    assert torch.equal(seen[-1].parameters(), result.parameters)
    assert torch.equal(result.parameters, fedmf.simulate(RUN, tmp_path / "alone").parameters)
    assert [bool(record.metrics) for record in seen] == [record.rounds % 3 == 0 for record in seen]
    assert {*seen[2].metrics} == {"loss", "accuracy", "epsilon"}


@pytest.mark.parametrize("public", [True, False])
def test_exact_figures_of_users_decide_about_no_private_run(public: bool, tmp_path: Path) -> None:
    """Their columns are for the operator: a run that ended by them would tell about users' data."""
    task = RUN.task_source.build()
    if not public:
        owner = "training users"
        owned = dataclasses.replace(task.dataset, test_owner=owner)  # type: ignore[type-var]
        task = dataclasses.replace(task, dataset=owned)
    seen: list[RoundRecord] = []
    run = dataclasses.replace(RUN, task=task)
    fedmf.simulate(run, tmp_path / "run", on_round=seen.append)
    assert {*seen[-1].metrics} == ({"loss", "accuracy", "epsilon"} if public else {"epsilon"})
