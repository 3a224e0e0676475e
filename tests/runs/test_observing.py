"""A callback after each round: after commits only, again after resuming, and when it ends the run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from support.small_runs import dotted, small_run
from support.wrapped_apps import ROUNDS, USERS, adding, flat, model, private, update_of

import fedmf
from fedmf.flower import InProcessGrid
from fedmf.records import Ledger
from fedmf.runs import RoundRecord, run_of

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


def test_so_it_is_around_a_flower_strategy(tmp_path: Path) -> None:
    seen: list[RoundRecord] = []

    def final(path: Path, rounds: int, **options: Any) -> list[float]:
        strategy = private(FedAvg(), path)
        grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
        result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=rounds, **options)
        strategy.close()
        return flat(result.arrays).tolist()

    whole = final(tmp_path / "run", ROUNDS, on_round=looking(tmp_path / "run", seen))
    assert [record.rounds for record in seen] == [*range(1, ROUNDS + 1)]
    assert whole == final(tmp_path / "alone", ROUNDS)
    stopped = final(tmp_path / "stopped", ROUNDS, on_round=lambda record: record.rounds == 3)
    assert stopped == final(tmp_path / "short", 3)
    assert rounds_on_record(tmp_path / "stopped") == 3


def test_one_that_raises_ends_the_run_which_can_be_continued(tmp_path: Path) -> None:
    seen: list[int] = []

    def fails(record: RoundRecord) -> None:
        seen.append(record.rounds)
        if record.rounds == 5:
            raise RuntimeError("tracker is gone")

    with pytest.raises(RuntimeError, match="tracker is gone"):
        fedmf.simulate(RUN, tmp_path / "run", on_round=fails)
    assert (tmp_path / "run/statement.json").is_file()
    again = fedmf.simulate(RUN, tmp_path / "run", on_round=lambda record: seen.append(record.rounds))
    assert seen == [1, 2, 3, 4, 5, *range(5, 13)]
    assert again.metrics == fedmf.simulate(RUN, tmp_path / "whole").metrics


def test_a_run_that_was_stopped_stays_stopped(tmp_path: Path) -> None:
    for _ in range(2):
        result = fedmf.simulate(RUN, tmp_path / "run", on_round=lambda record: record.rounds >= 6)
        assert result.stopped
        assert rounds_on_record(tmp_path / "run") == 6
    assert result.statement.to_dict()["epsilon_spent"] < RUN.privacy.requested_epsilon  # type: ignore[operator]
    assert not fedmf.simulate(RUN, tmp_path / "run").stopped


@pytest.mark.parametrize("public", [True, False])
def test_exact_figures_of_users_decide_about_no_private_run(public: bool, tmp_path: Path) -> None:
    """Their columns are for the operator: a run that ended by them would tell about users' data."""
    task = RUN.task_source.build()
    if not public:
        owned = dataclasses.replace(task.dataset, test_owner="training users")  # type: ignore[type-var]
        task = dataclasses.replace(task, dataset=owned)
    seen: list[RoundRecord] = []
    run = dataclasses.replace(RUN, task=task)
    fedmf.simulate(run, tmp_path / "run", on_round=seen.append)
    assert {*seen[-1].metrics} == ({"loss", "accuracy", "epsilon"} if public else {"epsilon"})


def test_a_run_that_diverges_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = dotted(mechanism="bisr", bands=2, evaluate_every=1)
    with caplog.at_level(logging.WARNING, "fedmf"):
        fedmf.simulate(run_of(keys), tmp_path / "fine")
        assert caplog.messages == []
        fedmf.simulate(run_of({**keys, "server.learning-rate": 100.0}), tmp_path / "run")
    (line,) = caplog.messages
    assert "the test loss is" in line
    assert "training diverges" in line
