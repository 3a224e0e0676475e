"""Local training with frozen and tied parameters, buffers, and examples as dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.broken_tasks import with_model
from support.named_features import exact_update, masked_task
from support.training_cases import cohort
from torch import Tensor, nn

from fedmf.errors import ConfigError
from fedmf.models import freeze, mlp
from fedmf.training import (
    LocalSGD,
    LocalTrainer,
    Task,
    classification,
    preflight,
)

SIZES = [5, 9, 4, 1, 8, 3]
PLAN = LocalSGD(epochs=2, batch_size=4, learning_rate=0.3, momentum=0.5)
ENGINES = ("auto", "vmap", "loop")
every_engine = pytest.mark.parametrize("engine", ENGINES)
# float32 against float64: a few hundred additions deep.
TOLERANCE = 2e-5


def half_frozen() -> nn.Module:
    """A chain of layers with a frozen one, which no engine may take for a trained one."""
    module = mlp(6, (7, 5), 4, seed=2)
    module.get_submodule("hidden1").requires_grad_(False)
    return module


def frozen_backbone() -> nn.Module:
    layers = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Dropout(0.5), nn.Tanh())
    layers(torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) * 3 + 1)
    return freeze(layers)


TASKS: dict[str, Callable[[], Task]] = {
    "tied, frozen, named": lambda: masked_task(SIZES),
    "half a chain": lambda: classification(cohort(SIZES), half_frozen()),
    "features": lambda: classification(
        cohort(SIZES), nn.Sequential(frozen_backbone(), nn.Linear(7, 4))
    ),
    "frozen BatchNorm": lambda: classification(
        cohort(SIZES), nn.Sequential(nn.Linear(6, 6), frozen_backbone(), nn.Linear(7, 4))
    ),
}


@every_engine
@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
def test_updates_are_those_of_torch_optim_in_64_bits(make: Callable[[], Task], engine: str) -> None:
    task = make()  # type: ignore[arg-type]
    local = replace(PLAN, engine=engine)  # type: ignore[arg-type]
    updates = LocalTrainer(task, local).updates(task.model.initial(), task.dataset.user_ids, 3)
    assert updates.shape == (len(SIZES), task.model.dimension)
    for user, update in zip(task.dataset.user_ids, updates, strict=True):
        expected = exact_update(task, user, 3, local)
        assert expected.norm() > 1e-2
        torch.testing.assert_close(update.double(), expected, rtol=TOLERANCE, atol=TOLERANCE)


class Counting(nn.Module):
    """Keeps something of the examples that it sees."""

    def __init__(self, keep: Callable[[nn.Module, Tensor], None]) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.keep = keep
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, features: Tensor) -> Tensor:
        self.keep(self, features.detach())
        return self.inner(features)


def _in_place(module: nn.Module, features: Tensor) -> None:
    module.seen.add_(features.reshape(-1, 6)[0])  # type: ignore[operator,union-attr]


def _another(module: nn.Module, features: Tensor) -> None:
    module.seen = module.seen + features.reshape(-1, 6)[0]  # type: ignore[operator]


def _one_more(module: nn.Module, features: Tensor) -> None:
    module.register_buffer("last", features.reshape(-1, 6)[0])


@pytest.mark.parametrize("engine", ["auto"])
@pytest.mark.parametrize(
    ("keep", "name"),
    [(_in_place, "seen"), (_another, "seen"), (_one_more, "last")],
    ids=["moved", "replaced", "new"],
)
def test_a_module_whose_buffers_move_is_refused(keep: Any, name: str, engine: str) -> None:
    task = with_model(Counting(keep))
    with pytest.raises(
        ConfigError,
        match=f"must not change its parameters or buffers in a pass; got another '{name}'",
    ):
        preflight(task, LocalSGD(engine=engine))  # type: ignore[arg-type]
    assert not task.model.constants["seen"].any()


def _signed(module: nn.Module, _features: Tensor) -> None:
    module.seen = -module.seen  # type: ignore[operator]


def test_buffers_are_compared_bit_by_bit() -> None:
    """A zero that changes its sign has moved; one that is NaN and stays so has not."""
    with pytest.raises(
        ConfigError, match="must not change its parameters or buffers in a pass; got another 'seen'"
    ):
        preflight(with_model(Counting(_signed)), LocalSGD())
    module = Counting(lambda *_: None)
    module.seen.fill_(torch.nan)  # type: ignore[operator,union-attr]
    preflight(with_model(module), LocalSGD())


class Remembering(nn.Module):
    """Writes into its buffers, which its outputs depend on, once it sees large numbers."""

    seen: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        outputs = (
            torch.tanh(self.inner(features)) + self.seen + torch.arange(4) * (self.last + self.seen)
        )
        if features.detach().abs().max().item() > 50.0:
            self.seen.add_(1.0)
            self.last = self.last + 2.0
        return outputs


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_what_a_module_keeps_of_a_user_does_not_reach_the_next(engine: str) -> None:
    torch.manual_seed(0)
    local = replace(PLAN, engine=engine)  # type: ignore[arg-type]
    dataset = cohort(SIZES)
    module = Remembering()
    clean = LocalTrainer(classification(dataset, module), local)
    start = clean.task.model.initial()
    users = dataset.user_ids
    expected = clean.updates(start, users, 0)
    dataset.features[dataset.owned[1]] = 100.0
    marked = LocalTrainer(classification(dataset, module), local).updates(start, users, 0)
    others = [u for u in range(len(users)) if u != 1]
    assert torch.equal(marked[others], expected[others])
    assert not torch.equal(marked[1], expected[1])
    assert float(module.seen) == float(module.last) == 0.0
