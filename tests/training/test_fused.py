"""Compiled local steps of convolutional and dense chains: the updates, and integers of a clipped one."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.fused import CHAINS, RULES, SCALE, TOLERANCE, groups, integers, program, reference, task_of
from torch import Tensor, nn

from fedmf.training import LocalSGD, classification
from fedmf.training.barrier import Failures
from fedmf.training.clipping import FRACTION_BITS, FixedPointSum
from fedmf.training.fused import FusedProgram
from fedmf.training.fused import program as fused_program
from fedmf.training.fused.steps import train_and_sum
from fedmf.training.fused.values import Work, work
from fedmf.training.local import LocalTrainer


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """Machine code, once and not in every process of the tests."""
    integers(task_of([2], "one dense layer"), RULES["one step"], 1.0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", CHAINS)
def test_sums_are_those_of_clipped_updates(chain: str, rule: str) -> None:
    task, local = task_of([1, 2, 7, 13], chain), RULES[rule]
    updates = [reference(task, local, user) for user in range(task.dataset.users)]
    for clip_norm in (0.05, 50.0):
        total = integers(task, local, clip_norm)
        expected = sum(u * min(1.0, clip_norm / float(u.norm())) / clip_norm for u in updates)
        assert isinstance(expected, Tensor)
        assert np.abs(total / SCALE - expected.numpy()).max() < TOLERANCE * float(expected.abs().max())


@pytest.mark.parametrize("chain", ["as in benchmarks", "low-rank head"])
@pytest.mark.parametrize("examples", [1, 3, 20, 50])
def test_any_number_of_examples(examples: int, chain: str) -> None:
    task, local = task_of([examples], chain), LocalSGD(batch_size=16, learning_rate=0.05)
    update = reference(task, local, 0)
    error = np.abs(integers(task, local, 100.0) / SCALE * 100.0 - update.numpy()).max()
    assert error < TOLERANCE * float(update.abs().max())


@pytest.mark.parametrize("chain", ["as in benchmarks", "low rank everywhere"])
def test_one_users_integers_have_at_most_the_clip_norm(chain: str) -> None:
    for seed, rule in enumerate(RULES):
        task = task_of([1 + 3 * seed], chain, seed)
        for clip_norm in (1e-3, 0.1):
            square = sum(int(n) ** 2 for n in integers(task, RULES[rule], clip_norm))  # exact
            assert square <= 2 ** (2 * FRACTION_BITS)
        assert sum(int(n) ** 2 for n in integers(task, RULES[rule], 1e-3)) > (SCALE * 0.999999) ** 2


@pytest.mark.parametrize("chain", ["larger kernels", "low-rank head", "low rank everywhere"])
def test_a_users_integers_do_not_depend_on_the_others(chain: str) -> None:
    task, local = task_of([3, 9, 26, 20, 13, 1], chain), RULES["momentum"]
    together, alone = integers(task, local, 0.3), FixedPointSum(task.model.dimension, 0.3)
    origin, trainer = task.model.initial(), LocalTrainer(task, local)
    for name in task.dataset.user_ids:
        for group in trainer._groups([name], 3, Failures()):
            assert list(program(task, local).received(origin).add_to(alone, group)) == []
    assert np.array_equal(together, alone.fixed_point.numpy())
    assert np.array_equal(together, integers(task, local, 0.3, most=2))


@pytest.mark.parametrize("chain", ["as in benchmarks", "low-rank head"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_trainer_has_the_same_bits_on_any_number_of_threads(workers: int, chain: str) -> None:
    task, local = task_of([3, 9, 20, 20, 13, 1, 0], chain), RULES["last batch alone"]
    trainer, total = LocalTrainer(task, local, group_size=2), FixedPointSum(task.model.dimension, 0.3)
    trainer._workers.count = workers
    assert trainer.add_updates(task.model.initial(), task.dataset.user_ids, 3, total) == []
    assert total.users == 7
    owning = task_of([3, 9, 20, 20, 13, 1], chain)
    assert np.array_equal(total.fixed_point.numpy(), integers(owning, local, 0.3))


@pytest.mark.parametrize("chain", ["as in benchmarks", "low-rank head"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_wrong_with_a_users_examples_is_its_own(wrong: float, chain: str) -> None:
    """A number that is not finite makes the update so, as in torch, and a label may be out of range."""
    task, local = task_of([6] * 4, chain), RULES["last batch alone"]
    (group,) = groups(task, local, 4)
    right, total = (FixedPointSum(task.model.dimension, 0.3) for _ in range(2))
    received = program(task, local).received(task.model.initial())
    assert isinstance(group.features, Tensor)
    group.features[group.edges[1] + 2].view(-1)[-1] = wrong
    group.labels[group.edges[4] - 1] = 5
    looped = LocalTrainer(task, replace(local, engine="loop"))
    failures = Failures()
    models = torch.cat(
        [looped._models(task.model.initial(), group.part(u, u + 1), failures) for u in range(4)]
    )
    assert not models[1].isfinite().all()
    assert [failure.user for failure in failures.named(task.dataset.user_ids)] == ["user 3"]
    found = dict(received.add_to(total, group))
    assert found == {
        1: ("update", "holds NaN or infinity"),
        3: ("training", "IndexError: a label is no class of the model"),
    }
    assert list(received.add_to(right, group.without([1, 3]))) == []
    assert torch.equal(right.fixed_point, total.fixed_point)
    assert right.fixed_point.any()


@pytest.mark.parametrize("chain", CHAINS)
def test_nothing_that_lies_in_memory_is_read(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work arrays full of NaN and of large numbers, as a user whose training failed may leave them."""
    task, local = task_of([6, 3, 9], chain), RULES["momentum"]
    expected = integers(task, local, 0.3)

    def poisoned(*arguments: object) -> Work:
        memory = work(*arguments)  # type: ignore[arg-type]
        for name, values in memory._asdict().items():
            if name not in ("begin", "marked"):
                values[:] = math.nan if values.dtype == np.float32 else 200
        return memory

    monkeypatch.setattr(fused_program, "work", poisoned)
    assert np.array_equal(integers(task, local, 0.3), expected)
    assert expected.any()


def test_a_pixel_that_is_no_number_costs_its_own_user_alone() -> None:
    """Channels that fill no vector, followed by a convolution: the lanes between them must not keep NaN."""
    task, local = task_of([4] * 4, "odd sides, no padding"), RULES["one step"]
    (group,) = groups(task, local, 4)  # past loading, which lets no such pixel through
    assert isinstance(group.features, Tensor)
    group.features[0, 0, 3, 3] = math.nan
    totals = [FixedPointSum(task.model.dimension, 0.3) for _ in range(2)]
    received = program(task, local).received(task.model.initial())
    assert dict(received.add_to(totals[0], group)) == {0: ("update", "holds NaN or infinity")}
    LocalTrainer(task, local).add_updates(task.model.initial(), task.dataset.user_ids[1:], 3, totals[1])
    assert torch.equal(totals[0].fixed_point, totals[1].fixed_point)
    assert totals[0].fixed_point.any()


def test_infinity_that_no_output_shows_makes_an_update_fail_as_in_torch() -> None:
    """Kernels below zero make it minus infinity, which ReLU hides; its gradient is zero times infinity."""
    dataset, local = task_of([6, 6], "many channels").dataset, RULES["one step"]
    layers = nn.Conv2d(18, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)
    task = classification(dataset, nn.Sequential(*layers))
    origin = task.model.initial()
    origin[: 16 * 18 * 9] = -origin[: 16 * 18 * 9].abs()
    (group,) = groups(task, local, 2)
    assert isinstance(group.features, Tensor)
    group.features[7, 3, 4, 4] = math.inf
    total = FixedPointSum(origin.numel(), 0.3)
    found = dict(program(task, local).received(origin).add_to(total, group))
    assert found == {1: ("update", "holds NaN or infinity")}


def test_a_model_that_diverges_adds_nothing() -> None:
    task, local = task_of([20, 2], "as in benchmarks"), LocalSGD(epochs=4, batch_size=2, learning_rate=1e9)
    (group,) = groups(task, local, 2)
    total = FixedPointSum(task.model.dimension, 0.3)
    found = dict(program(task, local).received(task.model.initial()).add_to(total, group))
    assert found[0] == ("update", "holds NaN or infinity")


def test_an_example_whose_label_is_padding_counts_for_nothing() -> None:
    """As in torch, whose cross-entropy the other engines use."""
    task, local = task_of([6, 5], "as in benchmarks"), RULES["last batch alone"]
    labels = task.dataset.labels.clone()  # type: ignore[attr-defined]
    labels[[1, 7]] = -100
    task = replace(task, dataset=replace(task.dataset, labels=labels))  # type: ignore[type-var]
    total, expected = integers(task, local, 0.3), FixedPointSum(task.model.dimension, 0.3)
    with_torch = LocalTrainer(task, replace(local, engine="loop"))
    assert with_torch.add_updates(task.model.initial(), task.dataset.user_ids, 3, expected) == []
    assert total.any()
    assert np.abs(total - expected.fixed_point.numpy()).max() < TOLERANCE * np.abs(total).max()


@pytest.mark.parametrize("times", [1, 3])
def test_memory_that_fails_for_a_while_costs_nothing(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    task, local = task_of([6] * 8, "as in benchmarks"), RULES["one step"]
    expected, left = integers(task, local, 0.3), [times]

    def failing(*arguments: object) -> Work:
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError
        return work(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fused_program, "work", failing)
    assert np.array_equal(integers(task, local, 0.3), expected)


def test_nothing_is_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    task, local = task_of([6] * 3, "as in benchmarks"), RULES["one step"]

    def failing(*arguments: object) -> None:
        train_and_sum(*arguments)
        raise MemoryError

    monkeypatch.setattr(fused_program, "train_and_sum", failing)
    total = FixedPointSum(task.model.dimension, 0.3)
    (group,) = groups(task, local, 3)
    with pytest.raises(MemoryError):
        list(program(task, local).received(task.model.initial()).add_to(total, group))
    monkeypatch.undo()
    assert np.array_equal(total.fixed_point.numpy(), integers(task, local, 0.3))


def test_other_models_and_losses_are_left_to_others() -> None:
    local, task = LocalSGD(), task_of([2, 3], "as in benchmarks")
    tail = (nn.Flatten(), nn.LazyLinear(5))
    for first in (
        nn.Sequential(nn.Flatten(), nn.Tanh()),
        nn.Conv2d(1, 4, 3, stride=2),
        nn.Conv2d(1, 4, 3, dilation=2),
        nn.Conv2d(1, 4, 2),
        nn.Conv2d(1, 4, (3, 5)),
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(1, 4, 3).requires_grad_(False),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh()),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.AvgPool2d(2)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, ceil_mode=True)),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 4, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)),
    ):
        module = nn.Sequential(first, *copy.deepcopy(tail))
        module(task.dataset.test_features)  # type: ignore[arg-type]
        assert FusedProgram.of(classification(task.dataset, module), local) is None
    module = copy.deepcopy(task.model.module)
    module[0].register_forward_hook(lambda _module, _inputs, outputs: 2 * outputs)  # type: ignore[index]
    assert FusedProgram.of(classification(task.dataset, module), local) is None
    assert FusedProgram.of(replace(task, loss=lambda z, y: (z.sum(1) - y).square()), local) is None
    for other in (LocalSGD(engine="loop"), LocalSGD(engine="vectorised"), LocalSGD(precision="bfloat16")):
        assert FusedProgram.of(task, other) is None
    assert FusedProgram.of(task, local) is not None
