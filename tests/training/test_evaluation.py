"""Evaluation of users: the same sums, however their examples are cut."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.small_runs import small_run

from fedmf.training import evaluation
from fedmf.training.evaluation import evaluate_users

TASK = small_run(partition="dirichlet-sizes").task_source.build()


@pytest.mark.parametrize("rows", [1, 7, 64, 10**6])
def test_the_sums_do_not_depend_on_the_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_ROWS", rows)
    users = [5, 0, 17, 3, 22]
    names = [TASK.dataset.user_ids[u] for u in users]
    theta = TASK.model.initial() * 3
    totals = evaluate_users(TASK, theta, names)
    features, labels = TASK.dataset.examples(np.array(users))
    outputs = TASK.model.forward(theta, features)
    assert totals.examples == labels.numel() == int(TASK.dataset.sizes(np.array(users)).sum())
    assert totals.sums["accuracy"] == (int((outputs.argmax(dim=-1) == labels).sum()),)
    assert totals.sums["loss"][0] == pytest.approx(
        float(F.cross_entropy(outputs, labels, reduction="sum")), rel=1e-5
    )


def test_a_diverged_model_gives_a_loss_that_is_not_finite() -> None:
    theta = torch.full((TASK.model.dimension,), torch.nan)
    totals = evaluate_users(TASK, theta, TASK.dataset.user_ids[:2])
    assert np.isnan(totals.sums["loss"][0])
    assert 0 <= totals.sums["accuracy"][0] <= totals.examples


def test_unknown_users_are_an_error() -> None:
    with pytest.raises(KeyError):
        evaluate_users(TASK, TASK.model.initial(), ["nobody"])
