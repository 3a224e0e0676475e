"""Divergence of local training, seen on users made of public examples alone; and δ above 1/N."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import linear_regression, small_run

import fedmf
from fedmf.runs import LocalCheck, LocalOutcome, dry_run
from fedmf.runs.observing import StandIns
from fedmf.training import LocalSGD, Task

RATES = {0.01: 0, 0.1: 0, 1000.0: 4}


def task_with_tests(tests: int = 40) -> Task:
    task = linear_regression(20, 3)
    x = torch.randn((tests, 3), generator=torch.Generator().manual_seed(1))
    dataset = dataclasses.replace(task.dataset, test_features=x, test_labels=x[:, :1] - 0.5 * x[:, 1:2])  # type: ignore[type-var]
    return dataclasses.replace(task, dataset=dataset)


def outcome(task: Task, local: LocalSGD, clip_norm: float = 1.0) -> LocalOutcome:
    stand_ins = StandIns.of(task, local, clip_norm)
    assert stand_ins is not None
    return stand_ins.outcome(task.model.initial(), 0)


def test_losses_are_those_of_local_sgd_written_out() -> None:
    """Gradient descent on ‖x·w + b − y‖²-like losses of ten examples, by hand."""
    task = task_with_tests()
    rows = np.random.default_rng(0).permutation(40)[:10]  # a quarter of the test part, below 16
    x, y = task.dataset.test_features[rows], task.dataset.test_labels[rows]
    theta = task.model.initial().clone().requires_grad_()
    loss = task.loss(task.model.forward(theta, x), y).mean()
    (gradient,) = torch.autograd.grad(loss, theta)
    stand_ins = StandIns(task, LocalSGD(learning_rate=0.1, batch_size=10), 1.0)
    moved = task.loss(task.model.forward(theta.detach() - 0.1 * gradient, x), y).mean()
    found = stand_ins.outcome(theta.detach(), 0)
    assert found.stand_ins == 4
    assert stand_ins._loss(theta.detach() - 0.1 * gradient, 0) == pytest.approx(float(moved))
    longer = sum(0.1 * float(g.norm()) > 0.2 for g in gradients(task))
    assert outcome(task, LocalSGD(learning_rate=0.1, batch_size=10), 0.2).clipped == longer
    assert longer > 0
    assert found.after < found.before


def gradients(task: Task) -> list[torch.Tensor]:
    rows = np.random.default_rng(0).permutation(40).reshape(4, 10)
    theta = task.model.initial().clone().requires_grad_()
    found = []
    for own in rows:
        x, y = task.dataset.test_features[own], task.dataset.test_labels[own]
        found += torch.autograd.grad(task.loss(task.model.forward(theta, x), y).mean(), theta)
    return found


@pytest.mark.parametrize("rate", RATES)
def test_rates_that_diverge_and_that_do_not(rate: float) -> None:
    found = outcome(task_with_tests(), LocalSGD(learning_rate=rate, epochs=20, batch_size=2))
    assert (found.diverged, found.diverges) == (RATES[rate], RATES[rate] > 0)


def test_updates_that_are_not_finite_are_seen() -> None:
    found = outcome(task_with_tests(), LocalSGD(learning_rate=1e30, epochs=20, batch_size=2))
    assert (found.diverged, found.clipped) == (4, 0)
    assert "not finite after" in found.warning(1e30)
    assert "\n" not in found.warning(1e30)


def first_look(task: Task, place: Path, **privacy: float) -> str:
    run = small_run(task, mechanism="bisr")
    run = dataclasses.replace(run, privacy=dataclasses.replace(run.privacy, **privacy))
    with fedmf.start(run, place) as session:
        return LocalCheck(session).look() or ""


def test_features_and_clip_norms_of_another_size_are_named(tmp_path: Path) -> None:
    """255 in place of 1, 10⁻⁶ in place of 0.3: from the public test part alone."""
    task = task_with_tests()
    assert not first_look(task, tmp_path / "one")
    assert "times as long as the clip norm 1e-06" in first_look(task, tmp_path / "two", clip_norm=1e-6)
    for features, named in (
        (task.dataset.test_features * 80 + 100, "reach "),
        (torch.full((40, 3), 255.0), "features of the public test part reach 255: "),
        (torch.full((40, 3), float("nan")), ""),
        (torch.full((40, 3), 3.0), ""),
    ):
        changed = dataclasses.replace(task.dataset, test_features=features)  # type: ignore[type-var]
        found = StandIns(dataclasses.replace(task, dataset=changed), LocalSGD(), 1.0).far_from_one()
        assert (named or "reach") in str(found) if named else found is None
    outcomes = LocalOutcome(0, 4, 4, 0, 1.0, 0.5, 30.0)
    assert outcomes.beyond_the_clip(0.301) is None
    assert "1e+02 times as long as the clip norm 0.3" in str(outcomes.beyond_the_clip(0.3))
    for norm in (float("nan"), float("inf")):
        assert dataclasses.replace(outcomes, norm=norm).beyond_the_clip(1.0) is None


def test_real_users_are_not_looked_at() -> None:
    """Whatever they own, the same is found; without a public test part nothing is."""
    task = task_with_tests()
    features = torch.full_like(task.dataset.features, float("nan"))  # type: ignore[attr-defined]
    hostile = dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, features=features))  # type: ignore[type-var]
    local = LocalSGD(learning_rate=0.1, epochs=2, batch_size=2)
    assert outcome(task, local) == outcome(hostile, local)
    owned = tuple(np.zeros(50, np.int64) for _ in task.dataset.user_ids)
    richer = dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, owned=owned))  # type: ignore[type-var]
    assert outcome(task, local) == outcome(richer, local)
    for changed in (
        {"test_owner": "training users"},
        {"test_features": torch.zeros(0, 3), "test_labels": torch.zeros(0, 1)},
    ):
        dataset = dataclasses.replace(task.dataset, **changed)  # type: ignore[type-var]
        assert StandIns.of(dataclasses.replace(task, dataset=dataset), local, 1.0) is None
    few = task_with_tests(3)
    assert outcome(few, local).stand_ins == 3


def test_a_check_neither_moves_the_run_nor_a_generator(tmp_path: Path) -> None:
    run = small_run(mechanism="bisr", bands=2)
    with fedmf.start(run, tmp_path / "run") as session:
        state = torch.random.get_rng_state()
        check = LocalCheck(session)
        assert check.look() is None
        first = check.outcome
        assert first is not None
        assert check.look() is None
        assert check.outcome is first  # once for a round
        assert torch.equal(torch.random.get_rng_state(), state)


def test_python_runs_log_it_first_and_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = small_run(mechanism="identity", local_learning_rate=1000.0, local_epochs=3)
    with caplog.at_level(logging.WARNING, "fedmf"):
        fedmf.simulate(run, tmp_path / "run")
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in said] == [
        "local training diverges after round 0",
        "local training diverges after round 10",
    ]


def test_delta_above_one_over_users_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = small_run(mechanism="identity", users=24)
    for delta, told in ((1 / 24, False), (0.05, True)):
        caplog.clear()
        asked = dataclasses.replace(run, privacy=fedmf.UserLevel(delta=delta))
        with caplog.at_level(logging.WARNING, "fedmf"):
            dry_run(asked)
            fedmf.start(asked, tmp_path / str(delta)).directory.close()
        lines = [record.getMessage() for record in caplog.records if "1/N" in record.getMessage()]
        assert len(lines) == 2 * told
        assert all("at most 1/N for N=24 users; got 0.05" in line for line in lines)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedmf"):
        dry_run(dataclasses.replace(run, privacy=fedmf.NoPrivacy(delta=0.5)))
    assert "1/N" not in caplog.text
