"""Metrics of a simulation's users: computed on examples that they hold out, before training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import small_run
from torch.nn.functional import cross_entropy

import fedmf
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.user_statistics import ReportedNumber
from fedmf.data import InMemoryDataset
from fedmf.data.held_out import ExamplesPart
from fedmf.errors import ConfigError
from fedmf.runs.loop import Reply, RoundRecord
from fedmf.runs.session import Session
from fedmf.runs.simulation import run_in_process
from fedmf.runs.tables.configuration import load_run, render_toml
from fedmf.training import LocalTrainer

ACCURACY = fedmf.ClientMetric("accuracy", budget_share=0.1)
LOSS = fedmf.ClientMetric("loss", bound=1.5)
#: Engine and messages, which change nothing but the way of computing.
WAYS = {"auto": "aggregate", "loop": "per-user"}


def run_with(engine: str, messages: str, **changes: object) -> fedmf.Run:
    run = small_run(dataset="digits", local_engine=engine)
    values: dict[str, object] = {
        "client": dataclasses.replace(run.client, held_out=0.3),
        "execution": dataclasses.replace(run.execution, messages=messages),
        "extra_releases": (ACCURACY, LOSS),
    }
    return dataclasses.replace(run, **{**values, **changes})


def by_hand(run: fedmf.Run, session: Session, t: int) -> tuple[float, float]:
    """Mean accuracy and mean loss, cut to 1.5, of the model on held-out examples of the cohort."""
    task = run.task_source.build()
    held_out = ExamplesPart(task.dataset, 0.3, held_out=True)
    cohort = session.cohort_schedule().cohort(t)
    accuracies = 0.0
    losses = 0.0
    for user in cohort:
        features, labels = held_out.examples(np.array([user]))
        outputs = task.model.forward(session.server.parameters, features)
        accuracies += float((outputs.argmax(1) == labels).double().mean())
        losses += min(1.5, float(cross_entropy(outputs, labels).double()))
    return accuracies / cohort.size, losses / cohort.size


@pytest.mark.parametrize("engine", WAYS)
def test_users_are_judged_by_the_model_they_receive(engine: str, tmp_path: Path) -> None:
    run = run_with(
        engine, WAYS[engine], privacy=fedmf.NoPrivacy(clip_norm=0.3), mechanism="identity"
    )
    wanted = []
    with fedmf.start(run, tmp_path / "run") as session:

        def judge(record: RoundRecord) -> None:
            wanted.append(by_hand(run, session, record.rounds % 12))

        wanted.append(by_hand(run, session, 0))
        run_in_process(session, judge)
        rows = [session.metrics[t] for t in range(13)]
    assert rows[0]["client_accuracy"] is None
    for row, (accuracy, loss) in zip(rows[1:], wanted, strict=False):
        assert row["client_accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert row["client_loss"] == pytest.approx(loss, abs=1e-5)
        assert row["client_accuracy_std"] == row["client_loss_std"] == 0.0


def test_nobody_trains_on_examples_that_are_held_out() -> None:
    task = small_run(dataset="digits").task_source.build()
    assert isinstance(task.dataset, InMemoryDataset)
    assert isinstance(task.dataset.features, torch.Tensor)
    users = task.dataset.user_ids[:4]
    places = task.dataset.indices(users)
    changed = task.dataset.features.clone()
    for user in places:
        rows = task.dataset.rows(np.array([user]))
        held_out = ExamplesPart(task.dataset, 0.3, held_out=True).examples(np.array([user]))[0]
        gone = (changed[rows][:, None] == held_out).all(dim=2).any(dim=1).numpy()
        assert 0 < gone.sum() < len(rows)
        changed[rows[gone]] = torch.nan
    other = dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, features=changed))
    local = fedmf.LocalSGD(held_out=0.3)
    start = task.model.initial()
    clean = LocalTrainer(task, local)
    tampered = LocalTrainer(other, local)
    assert torch.equal(clean.updates(start, users, 0), tampered.updates(start, users, 0))
    values, failures = tampered.held_out.metrics(start, users)
    assert np.isnan(values["accuracy"]).all()
    assert {failure.stage for failure in failures} == {"held-out"}


def test_a_number_of_a_user_moves_one_integer() -> None:
    """Whatever the others report, and whatever the update is."""
    number = ReportedNumber("x", 1 << 20, 2.0)
    rows = torch.tensor([[0.1], [torch.nan], [0.2]])
    reports = np.array([1.0, -9.0, np.nan])
    total = ClippedSum(1, 1.0, statistics=[number])
    failures = Reply(("a", "b", "c"), rows, reported={"x": reports}).add_to(total)
    assert total.scalar(number) == (1 << 19) - (1 << 20)
    assert [(each.user, each.stage) for each in failures] == [("b", "reply"), ("c", "metric")]
    with pytest.raises(ValueError, match=r"reported x must be 3 numbers; got shape \(2,\)\."):
        total.add_updates(rows, None, {"x": reports[:2]})
    assert total.users == 3
    coarse = ReportedNumber("x", 1, 2.0)  # each number is rounded by itself, not their sum
    assert coarse.total(np.array([0.9, 0.9, 0.9, 1.1])) == 1


def test_a_configuration_has_one_metric(tmp_path: Path) -> None:
    run = run_with("auto", "aggregate", extra_releases=(LOSS,))
    path = tmp_path / "run.toml"
    path.write_text(render_toml(run))
    assert load_run(path).difference(run) is None
    assert fedmf.Run.from_dict(run.to_dict()).extra_releases == (LOSS,)


def test_metrics_that_cannot_be_computed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"held_out .* must be above 0 with the client metric"):
        run_with("auto", "aggregate", client=fedmf.LocalSGD())
    with pytest.raises(ConfigError, match="must have different names"):
        run_with("auto", "aggregate", extra_releases=(LOSS, fedmf.ClientMetric("loss")))
    with pytest.raises(ValueError, match="not end in _std; got 'loss_std'"):
        fedmf.ClientMetric("loss_std")
    unknown = run_with("auto", "aggregate", extra_releases=(fedmf.ClientMetric("f1"),))
    with pytest.raises(ConfigError, match="one of this task's, loss, accuracy; got 'f1'"):
        fedmf.start(unknown, tmp_path / "run")
    assert not (tmp_path / "run").exists()
