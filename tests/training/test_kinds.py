"""Every kind of task learns with the default engine, and has the metrics of a hand calculation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.training_cases import KINDS, task_of_kind
from support.wrapped_data import WrappedData
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.data.structure import PADDING
from fedmf.training import LocalSGD, LocalTrainer, preflight
from fedmf.training.losses import token_cross_entropy
from fedmf.training.metrics import ACCURACY, F1, MAE, PERPLEXITY, RMSE, TOKEN_ACCURACY

SIZES = [1, 2, 3, 9, 17, 8, 4, 4, 12, 5, 12, 12]
LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.3, momentum=0.5)
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_the_default_engine_learns_and_metrics_improve(kind: str) -> None:
    task = task_of_kind(kind, [20] * 8)
    parameters = task.model.initial()
    before = task.evaluate(parameters)
    trainer = LocalTrainer(task, LocalSGD(epochs=3, learning_rate=0.2))
    for t in range(15):
        total = ClippedSum(task.model.dimension, 100.0)
        assert trainer.add_updates(parameters, task.dataset.user_ids, t, total) == []
        parameters = parameters + (total.total() / 8).to(torch.float32)
    after = task.evaluate(parameters)
    assert after["loss"] < before["loss"]
    for metric in task.metrics:
        gain = after[metric.name] - before[metric.name]
        assert (gain > 0) == metric.higher_is_better, metric.name
    assert set(after) == {"loss", *(metric.name for metric in task.metrics)}


@every_kind
def test_no_users_example_is_looked_at(kind: str) -> None:
    class Locked(WrappedData):
        def examples(self, users: object) -> tuple[Tensor, Tensor]:
            pytest.fail("a user's examples were read")

    open_task = task_of_kind(kind, SIZES)
    assert isinstance(open_task.dataset, InMemoryDataset)
    task = replace(open_task, dataset=Locked(open_task.dataset))
    preflight(task, LOCAL)
    LocalTrainer(task, LOCAL)
    task.identity()


def test_metrics_by_hand() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [5.0, 0.0]]])
    tokens = torch.tensor([[0, 0], [1, PADDING]])
    assert TOKEN_ACCURACY.of(logits, tokens) == pytest.approx(2 / 3)
    losses = [math.log1p(math.exp(-2)), math.log1p(math.exp(2)), math.log1p(math.exp(-1))]
    assert PERPLEXITY.of(logits, tokens) == pytest.approx(math.exp(sum(losses) / 3))
    expected = torch.tensor([(losses[0] + losses[1]) / 2, losses[2]])
    torch.testing.assert_close(token_cross_entropy(logits, tokens), expected)
    assert ACCURACY.of(torch.eye(3), torch.tensor([0, 1, 0])) == pytest.approx(2 / 3)
    predicted = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    true = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert MAE.of(predicted, true) == pytest.approx(5 / 4)
    assert RMSE.of(predicted, true) == pytest.approx(math.sqrt(13 / 4))
    assert MAE.of(torch.tensor([[1.0], [4.0]]), torch.tensor([1.0, 2.0])) == 1.0
    assert F1.of(torch.tensor([[1.0, 1.0, -1.0]]), torch.tensor([[1.0, 0.0, 1.0]])) == 0.5
    assert math.isnan(F1.of(torch.tensor([[-1.0]]), torch.tensor([[0.0]])))
    assert PERPLEXITY.of(1e4 * logits, tokens) == math.inf
