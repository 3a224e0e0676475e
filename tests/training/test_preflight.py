"""A broken task is rejected in one line that names the cause; a task that can be trained passes."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from support.broken_tasks import (
    BROKEN,
    Scaled,
    branching,
    raising,
    with_loss,
    with_model,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence

from fedmf.data import InMemoryDataset
from fedmf.data.structure import ExampleStructure, TensorStructure
from fedmf.errors import ConfigError
from fedmf.models import mlp
from fedmf.training import LocalSGD, LocalTrainer, classification, preflight
from fedmf.training.compiled.steps import train_on_rows

ENGINES = ("auto", "vmap", "loop")
every_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.parametrize(
    ("name", "engine"), [(name, ENGINES[i % 3]) for i, name in enumerate(BROKEN)]
)
def test_a_broken_task_is_refused_in_one_line_with_the_cause(
    name: str, engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make, messages, has_cause = BROKEN[name]
    task = make()
    with pytest.raises(ConfigError) as refusal:
        preflight(task, LocalSGD(engine=engine))  # type: ignore[arg-type]
    line = str(refusal.value)
    assert "\n" not in line
    assert [message for message in messages if message not in line] == []
    assert (refusal.value.__cause__ is not None) == has_cause
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_a_model_that_cannot_be_batched_passes_where_it_can_be_trained(engine: str) -> None:
    task = with_model(Scaled(branching))
    local = LocalSGD(engine=engine)  # type: ignore[arg-type]
    preflight(task, local)
    updates = LocalTrainer(task, local).updates(task.model.initial(), ["u0", "u1"], 0)
    assert (updates.norm(dim=1) > 0).all()


def test_a_model_that_cannot_be_batched_is_refused_by_the_engine_that_batches() -> None:
    with pytest.raises(ConfigError) as refusal:
        preflight(with_model(Scaled(branching)), LocalSGD(engine="vmap"))
    line = branching.__code__.co_firstlineno + 2
    assert (
        "model must be one that torch.func can batch with engine 'vmap'; got RuntimeError"
        in str(refusal.value)
    )
    assert f"({raising.__code__.co_filename}:{line})" in str(refusal.value)
    assert "Use 'auto' or 'loop'" in str(refusal.value)
    assert isinstance(refusal.value.__cause__, RuntimeError)


@every_engine
def test_nothing_moves_and_nothing_is_said(
    engine: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Though one module cannot be batched, and another draws random numbers."""
    train_on_rows.compile()  # a notice says so if this takes long
    modules: list[nn.Module] = [mlp(6, (7,), 4, 0)]
    if engine != "vmap":  # which refuses them, and says why
        modules += [
            Scaled(branching),
            nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.1), nn.Linear(5, 4)),
        ]
    for module in modules:
        task = with_model(module)
        before = task.model.initial()
        state = torch.get_rng_state()
        with caplog.at_level(logging.DEBUG, "fedmf"):  # other kernels may be compiled here
            preflight(task, LocalSGD(engine=engine))  # type: ignore[arg-type]
        assert torch.equal(task.model.initial(), before)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(p.grad is None for p in module.parameters())
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_an_update_that_is_not_finite_is_refused() -> None:
    task = with_loss(lambda outputs, labels: 1e6 * outputs[:, 0])
    with pytest.raises(ConfigError, match="update of a user must be finite"):
        preflight(task, LocalSGD(learning_rate=1e38))


class _Packed(nn.Module):
    """A recurrent layer over packed sequences, which must not be empty."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.cell = nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, tokens: Tensor, length: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.table(tokens), length, batch_first=True, enforce_sorted=False
        )
        return self.head(self.cell(packed)[1][-1])


def test_made_up_integers_are_not_below_those_of_the_test_part() -> None:
    tokens = torch.arange(10 * 6).reshape(10, 6) % 9
    features = {"tokens": tokens, "length": 2 + torch.arange(10) % 5}
    data = InMemoryDataset(
        features=features,
        labels=tokens[:, 0] % 2,
        owned=np.arange(8).reshape(4, 2),
        user_ids=["a", "b", "c", "d"],
        test_features=features,
        test_labels=tokens[:, 0] % 2,
        classes=2,
    )
    preflight(classification(data, _Packed()), LocalSGD())
    assert data.structure.features["length"].integers == range(2, 7)
    assert data.structure.features["tokens"].integers == range(9)


def _partly_frozen() -> nn.Module:
    module = mlp(6, (7,), 4, 0)
    frozen = nn.Linear(6, 6).requires_grad_(False)
    with torch.no_grad():
        frozen.weight.copy_(torch.eye(6))
        frozen.bias.zero_()
    return nn.Sequential(nn.Sequential(frozen, nn.Tanh()), module)


@every_engine
def test_training_in_inference_mode_is_training(engine: str) -> None:
    local = LocalSGD(engine=engine)  # type: ignore[arg-type]
    task = with_model(_partly_frozen())
    expected = LocalTrainer(task, local).updates(task.model.initial(), ["u0", "u1"], 0)
    with torch.inference_mode():
        task = with_model(_partly_frozen())
        preflight(task, local)
        updates = LocalTrainer(task, local).updates(task.model.initial(), ["u0", "u1"], 0)
    assert expected.any()
    assert torch.equal(updates, expected)


def test_made_up_labels_of_a_floating_type_may_be_class_numbers() -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels[:, 0].long(), reduction="none")

    labels = torch.rand(50, 1, generator=torch.Generator().manual_seed(0))
    structure = ExampleStructure(TensorStructure((6,)), TensorStructure.of(labels))
    features, made_up = structure.sample(torch.Generator().manual_seed(0), (1000,))
    assert features.min() < -1
    assert loss(torch.zeros(1000, 2), made_up).isfinite().all()
