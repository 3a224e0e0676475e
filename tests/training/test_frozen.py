"""Frozen layers: features once for each user, and what no user can move."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from support.small_runs import small_run
from support.training_cases import cohort
from torch import Tensor, nn

import fedmf
from fedmf.cli.app import run as cli
from fedmf.runs.released_model import read_tensors
from fedmf.training import LocalSGD, LocalTrainer, classification, frozen_features, preflight

SIZES = [5, 9, 4]
NAMES = ["u0", "u1", "u2"]


class Noting(nn.Module):
    """A frozen layer that notes how many examples it has seen."""

    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.inner(x)


def test_features_are_computed_once_for_each_user_and_for_the_test_part() -> None:
    task = classification(
        cohort(SIZES), nn.Sequential(fedmf.freeze(Noting()), nn.ReLU(), nn.Linear(5, 4))
    )
    trainer = LocalTrainer(task, LocalSGD(epochs=3, batch_size=2))
    origin = task.model.initial()
    Noting.seen.clear()
    first = trainer.updates(origin, NAMES, 0)
    assert sorted(Noting.seen) == sorted(SIZES)
    assert torch.equal(trainer.updates(origin, NAMES[::-1], 0), first.flip(0))
    assert task.evaluate(origin) == task.evaluate(origin)
    assert sorted(Noting.seen) == sorted([*SIZES, 1])


class Always(nn.Module):
    """A frozen layer followed by a function."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.inner(x)
        if self.kind == "random":
            return F.dropout(outputs, 0.5, training=True)
        if self.kind == "mixing":
            return outputs - outputs.mean(dim=0)
        return outputs.repeat(1, 4000)


@pytest.mark.parametrize("kind", ["random", "mixing", "large"])
def test_features_that_change_or_are_large_are_not_kept(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen_features, "_MOST_NUMBERS", 19_999)
    module = nn.Sequential(fedmf.freeze(Always(kind)), nn.LazyLinear(4))
    module(torch.zeros(2, 6))
    task = classification(cohort(SIZES), module)
    assert task.after_frozen_layers is task


def test_layers_in_training_mode_are_not_computed_once() -> None:
    module = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Dropout(0.5), nn.Linear(5, 4))
    task = classification(cohort(SIZES), module)
    assert task.after_frozen_layers is task


class Unused(nn.Module):
    """A layer that the forward pass does not use, and an embedding with padding."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3, padding_idx=padding)
        self.spare = nn.Linear(3, 3)
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding((x > 0).sum(dim=1)))


def _warnings(module: nn.Module, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedmf"):
        preflight(classification(cohort(SIZES), module), LocalSGD(engine="loop"))
    return [record.getMessage() for record in caplog.records]


def test_what_no_user_moves_is_named_before_the_run(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = _warnings(Unused(padding=2), caplog)
    assert "no user can move 'spare.weight', 'spare.bias' (12 of 49 parameters)" in line
    assert "freeze them with requires_grad_(False)" in line
    assert "row 2 (padding_idx) of 'embedding.weight'" in line
    frozen = Unused()
    frozen.spare.requires_grad_(False)
    assert _warnings(frozen, caplog) == []


def test_a_gradient_that_happens_to_be_zero_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """Behind a dead ReLU, and behind zeros as LoRA begins with."""
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    with torch.no_grad():
        module[0].bias.fill_(-100.0)  # type: ignore[operator,union-attr]
        module[2].weight.zero_()  # type: ignore[operator,union-attr]
    assert _warnings(module, caplog) == []


class Turning(nn.Module):
    """A layer with a constant buffer, and one matrix at both ends."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4, bias=False)
        self.last = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.last.weight
        self.register_buffer("table", torch.linspace(0, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.again((self.last(self.first(x)) * self.table.cos()).tanh())


def _backbone() -> nn.Module:
    layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    layers(torch.randn(20, 6) * 3 + 1)
    return nn.Sequential(fedmf.freeze(layers), nn.Linear(5, 4))


@pytest.mark.parametrize("make", [_backbone, Turning], ids=["frozen BatchNorm", "tied, buffers"])
def test_a_whole_model_is_released_and_loads_into_plain_torch(make: type, tmp_path: Path) -> None:
    task = classification(cohort(SIZES), make())
    run = small_run(task, users=len(SIZES), cohort_size=1, rounds=2, mechanism="identity")
    result = fedmf.simulate(run, tmp_path / "run")
    file = tmp_path / "model.safetensors"
    assert cli(["export", str(tmp_path / "run"), "--output", str(file)]) == 0
    module = make()  # with other numbers
    module.load_state_dict(fedmf.load_model(tmp_path / "run"))
    module.eval()
    x = torch.randn(7, 6)
    expected = task.model.forward(result.parameters, x)
    assert torch.equal(module(x), expected)
    module = make()
    module.load_state_dict(read_tensors(file))
    assert torch.equal(module.eval()(x), expected)
