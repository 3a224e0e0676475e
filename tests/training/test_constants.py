"""Frozen and tied parameters, buffers, and examples as dictionaries of tensors, in local training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.broken_tasks import with_model
from support.named_features import TRAINED, MaskedWords, UnregisteredWords, exact_update, masked_task
from support.training_cases import LENGTH, TOKENS, cohort
from torch import Tensor, nn

from fedmf.data.structure import NamedStructures, TensorStructure
from fedmf.errors import ConfigError
from fedmf.models import FlatModel, mlp
from fedmf.training import (
    FixedPointSum,
    LocalSGD,
    LocalTrainer,
    Task,
    classification,
    preflight,
    seconds_of_training,
)

SIZES = [5, 9, 4, 1, 8, 3]
PLAN = LocalSGD(epochs=2, batch_size=4, learning_rate=0.3, momentum=0.5, seed=5)
ENGINES = ("auto", "vectorised", "loop")
every_engine = pytest.mark.parametrize("engine", ENGINES)
# float32 against float64: a few hundred additions deep.
TOLERANCE = 2e-5


def half_frozen() -> nn.Module:
    """A chain of layers, so that no engine may take the layer that is frozen for one that is trained."""
    module = mlp(6, (7, 5), 4, seed=2)
    module.get_submodule("hidden1").requires_grad_(False)
    return module


TASKS: dict[str, Callable[[], Task]] = {
    "tied, frozen, named": lambda: masked_task(SIZES),
    "half a chain": lambda: classification(cohort(SIZES), half_frozen()),
}


@every_engine
@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
def test_updates_are_those_of_torch_optim_in_64_bits(make: Callable[[], Task], engine: str) -> None:
    task, local = make(), replace(PLAN, engine=engine)  # type: ignore[arg-type]
    updates = LocalTrainer(task, local).updates(task.model.initial(), task.dataset.user_ids, 3)
    assert updates.shape == (len(SIZES), task.model.dimension)
    for user, update in zip(task.dataset.user_ids, updates, strict=True):
        expected = exact_update(task, user, 3, local)
        assert expected.norm() > 1e-2
        torch.testing.assert_close(update.double(), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_named_features_are_trained_alike_in_groups_threads_and_alone() -> None:
    task = masked_task(SIZES)
    assert task.model.dimension == TRAINED
    users, start = list(task.dataset.user_ids), task.model.initial()
    alone = LocalTrainer(task, PLAN, group_size=1).updates(start, users, 0)
    before = torch.get_num_threads()
    try:
        for threads, group_size in ((1, None), (1, 3), (2, 2)):
            torch.set_num_threads(threads)
            trainer = LocalTrainer(task, PLAN, group_size)
            assert torch.equal(trainer.updates(start, users, 0), alone)
            total, expected = (FixedPointSum(TRAINED, 0.5) for _ in range(2))
            assert trainer.add_updates(start, users, 0, total) == []
            expected.add_updates(alone)
            assert torch.equal(total.fixed_point, expected.fixed_point)
    finally:
        torch.set_num_threads(before)


def test_constants_known_to_the_module_or_not_give_the_same_bits() -> None:
    known, unknown = masked_task(SIZES), masked_task(SIZES, UnregisteredWords)
    assert list(unknown.model.constants) == []
    assert torch.equal(known.model.initial(), unknown.model.initial())
    users = known.dataset.user_ids
    updates = [LocalTrainer(t, PLAN).updates(t.model.initial(), users, 0) for t in (known, unknown)]
    assert torch.equal(*updates)


def test_fingerprints_hold_constants() -> None:
    def changed(name: str) -> str:
        task = masked_task(SIZES)
        with torch.no_grad():
            task.model.constants[name].view(-1)[0] += 1.0
        return task.fingerprint()

    prints = [masked_task(SIZES).fingerprint(), changed("mixing.weight"), changed("positions")]
    assert masked_task(SIZES).fingerprint() == prints[0]
    assert len({*prints}) == 3


def test_constants_are_a_public_input() -> None:
    (entry,) = masked_task(SIZES).constant_inputs()
    digest = masked_task(SIZES).model.constants_digest()
    assert entry.name == "frozen parameters and buffers"
    assert entry.value == f"{8 * 8 + 8 + LENGTH} numbers in 3 tensors, SHA-256 {digest}"
    assert classification(cohort([3]), mlp(6, (), 4, 0)).constant_inputs() == ()


class Counting(nn.Module):
    """Keeps something of the examples that it sees."""

    def __init__(self, keep: Callable[[nn.Module, Tensor], None]) -> None:
        super().__init__()
        self.inner, self.keep = nn.Linear(6, 4), keep
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
        ConfigError, match=f"must not change its parameters or buffers in a pass; got another '{name}'"
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
        outputs = torch.tanh(self.inner(features)) + self.seen + torch.arange(4) * (self.last + self.seen)
        if features.detach().abs().max().item() > 50.0:
            self.seen.add_(1.0)
            self.last = self.last + 2.0
        return outputs


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_what_a_module_keeps_of_a_user_does_not_reach_the_next(engine: str) -> None:
    torch.manual_seed(0)
    local = replace(PLAN, engine=engine)  # type: ignore[arg-type]
    dataset, module = cohort(SIZES), Remembering()
    clean = LocalTrainer(classification(dataset, module), local)
    start, users = clean.task.model.initial(), dataset.user_ids
    expected = clean.updates(start, users, 0)
    dataset.features[dataset.owned[1]] = 100.0
    marked = LocalTrainer(classification(dataset, module), local).updates(start, users, 0)
    others = [u for u in range(len(users)) if u != 1]
    assert torch.equal(marked[others], expected[others])
    assert not torch.equal(marked[1], expected[1])
    assert float(module.seen) == float(module.last) == 0.0


@pytest.mark.parametrize("engine", ["auto"])
def test_preflight_and_time_estimates_take_named_features(engine: str) -> None:
    task, local = masked_task(SIZES), replace(PLAN, engine=engine)  # type: ignore[arg-type]
    preflight(task, local)
    assert seconds_of_training(task, local, 6, 0.5) > 0


def test_preflight_compares_named_features_with_the_test_part() -> None:
    task = masked_task(SIZES)
    other = NamedStructures({**task.structure.features.named, "mask": TensorStructure((LENGTH + 1,))})
    with pytest.raises(ConfigError, match=r"test_features must be .* mask \(8,\) float32; got .*mask \(7,\)"):
        preflight(replace(task, structure=replace(task.structure, features=other)), PLAN)
    with pytest.raises(ConfigError, match=r"must take the declared features, input_ids .*; got TypeError"):
        preflight(replace(task, model=FlatModel(nn.Linear(LENGTH, TOKENS))), PLAN)


def test_evaluation_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    task = masked_task(SIZES)
    whole = task.evaluate(task.model.initial())
    outputs = task.model.forward(task.model.initial(), task.dataset.test_features)
    losses = task.loss(outputs, task.dataset.test_labels)
    assert whole["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    passes: list[int] = []
    forward = FlatModel.forward

    def noted(model: FlatModel, flat: Tensor, features: Any) -> Tensor:
        passes.append(len(features["mask"]))
        return forward(model, flat, features)

    monkeypatch.setattr("fedmf.training.task._OUTPUTS", 6 * LENGTH * TOKENS + 1)
    monkeypatch.setattr(FlatModel, "forward", noted)
    fresh = masked_task(SIZES)
    assert fresh.evaluate(fresh.model.initial()) == pytest.approx(whole, rel=1e-5)
    assert passes == [1, 6, 6, 6, 2]


class Shifting(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, features: Tensor) -> Tensor:
        features -= 0.5
        return self.inner(features)


def test_a_module_that_writes_into_its_inputs_leaves_the_test_part_alone() -> None:
    task = classification(cohort([3, 4]), Shifting())
    features = task.dataset.test_features
    assert isinstance(features, Tensor)
    before = features.clone()
    first = task.evaluate(task.model.initial())
    assert task.evaluate(task.model.initial()) == first
    assert torch.equal(features, before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owned": [np.arange(7) < 3, np.arange(7) > 3]}, r"indices of rows; got bool .*np\.flatnonzero"),
        ({"owned": [np.array([0.0]), np.array([1.0])]}, r"indices of rows; got float64"),
        ({"user_ids": [1, 2]}, "user ids must be text; got 1"),
        ({"features": np.zeros((7, 6), np.float32)}, r"features must be torch tensors; got ndarray"),
    ],
)
def test_rows_and_ids_of_another_type_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(cohort([3, 4]), **changes)  # type: ignore[type-var]


def test_the_module_is_left_as_it_was() -> None:
    task = masked_task(SIZES)
    before = {name: tensor.clone() for name, tensor in task.model.module.state_dict().items()}
    LocalTrainer(task, PLAN).updates(task.model.initial() + 0.1, task.dataset.user_ids, 0)
    after = task.model.module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    module = task.model.module
    assert isinstance(module, MaskedWords)
    assert module.head.weight is module.embedding.weight
