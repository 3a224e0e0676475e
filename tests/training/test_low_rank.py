"""Local training without users' weights: the same updates, and integers of a clipped update."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.training import LocalSGD, Task, classification
from fedmf.training.barrier import Failures, Group
from fedmf.training.clipping import FRACTION_BITS, FixedPointSum
from fedmf.training.engines import chosen, compiled_programs
from fedmf.training.local import LocalTrainer
from fedmf.training.low_rank import LowRankProgram
from fedmf.training.low_rank import program as low_rank_program
from fedmf.training.low_rank.program import train_and_sum
from fedmf.training.low_rank.values import Work, work

#: Of the largest entry: float32 sums, and a bound of their rounding that the clip norm leaves room for.
TOLERANCE = 5e-5
SCALE = 2.0**FRACTION_BITS
RULES = {
    "one step": LocalSGD(epochs=1, batch_size=200, learning_rate=0.1),
    "one epoch": LocalSGD(epochs=1, batch_size=8, learning_rate=0.1),
    "last batch alone": LocalSGD(epochs=2, batch_size=4, learning_rate=0.2),
    "momentum": LocalSGD(epochs=2, batch_size=5, learning_rate=0.1, momentum=0.9),
    "proximal": LocalSGD(epochs=3, batch_size=6, learning_rate=0.05, momentum=0.5, proximal=0.4),
}
CHAINS = {
    "two layers": lambda: nn.Sequential(nn.Flatten(), nn.Linear(35, 18), nn.ReLU(), nn.Linear(18, 5)),
    "no hidden layer": lambda: nn.Sequential(nn.Linear(35, 5)),
    "without biases": lambda: nn.Sequential(
        nn.Linear(35, 20, bias=False),
        nn.Tanh(),
        nn.Linear(20, 17),
        nn.Sigmoid(),
        nn.Linear(17, 5, bias=False),
    ),
}


def task_of(sizes: list[int], module: nn.Module, seed: int = 0) -> Task:
    generator = torch.Generator().manual_seed(seed)
    examples = sum(sizes)
    features = torch.randn(examples, 35, generator=generator)
    labels = torch.randint(5, (examples,), generator=generator)
    owned = tuple(np.split(np.arange(examples), np.cumsum(sizes)[:-1]))
    ids = tuple(f"user {u}" for u in range(len(sizes)))
    return classification(InMemoryDataset(features, labels, owned, ids, features[:2], labels[:2], 5), module)


def made(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CHAINS[name]()


def groups(task: Task, local: LocalSGD, most: int | None = None) -> list[Group]:
    trainer = LocalTrainer(task, local, most)
    return [group.gathered() for group in trainer._groups(task.dataset.user_ids, 3, Failures())]


def program(task: Task, local: LocalSGD) -> LowRankProgram:
    found = LowRankProgram.of(task, local)
    assert found is not None
    return found


def integers(task: Task, local: LocalSGD, clip_norm: float, most: int | None = None) -> NDArray[np.int64]:
    """The sum over all users."""
    total, origin = FixedPointSum(task.model.dimension, clip_norm), task.model.initial()
    for group in groups(task, local, most):
        assert list(program(task, local).received(origin).add_to(total, group)) == []
    assert total.users == task.dataset.users
    return total.fixed_point.numpy()


def reference(task: Task, local: LocalSGD, user: int) -> Tensor:
    """One user's update by autograd and torch.optim in float64, in the order that the engines use."""
    name = task.dataset.user_ids[user]
    group = next(LocalTrainer(task, local)._groups([name], 3, Failures())).gathered()
    module = made_double(task)
    start = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=local.learning_rate, momentum=local.momentum)
    for rows, weights in zip(group.steps.rows[:, 0], group.steps.weights[:, 0], strict=True):
        real = torch.from_numpy(rows[weights > 0])
        loss = nn.functional.cross_entropy(module(group.features[real].double()), group.labels[real])
        for p, origin in zip(module.parameters(), start, strict=True):
            loss = loss + local.proximal / 2 * (p - origin).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = [(p - origin).reshape(-1) for p, origin in zip(module.parameters(), start, strict=True)]
    return torch.cat(moved).detach()


def made_double(task: Task) -> nn.Module:
    module = task.model.module
    copied = type(module)(*[type_of(part) for part in module]).double()  # type: ignore[arg-type]
    copied.load_state_dict({name: value.double() for name, value in module.state_dict().items()})
    return copied


def type_of(part: nn.Module) -> nn.Module:
    if isinstance(part, nn.Linear):
        return nn.Linear(part.in_features, part.out_features, bias=part.bias is not None)
    return type(part)()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", CHAINS)
def test_sums_are_those_of_clipped_updates(chain: str, rule: str) -> None:
    task, local = task_of([1, 2, 7, 20, 33], made(chain)), RULES[rule]
    for clip_norm in (0.05, 50.0):
        total = integers(task, local, clip_norm)
        expected = torch.zeros(task.model.dimension, dtype=torch.float64)
        for user in range(task.dataset.users):
            update = reference(task, local, user)
            expected += update * min(1.0, clip_norm / float(update.norm())) / clip_norm
        largest = float(expected.abs().max())
        assert np.abs(total / SCALE - expected.numpy()).max() < TOLERANCE * largest


@pytest.mark.parametrize("examples", [1, 20, 200])
def test_any_number_of_examples(examples: int) -> None:
    task, local = (
        task_of([examples], made("two layers")),
        LocalSGD(epochs=1, batch_size=16, learning_rate=0.1),
    )
    update = reference(task, local, 0)
    error = np.abs(integers(task, local, 100.0) / SCALE * 100.0 - update.numpy()).max()
    assert error < TOLERANCE * float(update.abs().max())


@pytest.mark.parametrize("rule", RULES)
def test_one_users_integers_have_at_most_the_clip_norm(rule: str) -> None:
    local = RULES[rule]
    for seed in range(8):
        task = task_of([1 + 5 * seed], made("two layers", seed), seed)
        for clip_norm in (1e-3, 0.1):
            square = sum(int(n) ** 2 for n in integers(task, local, clip_norm))  # exact
            assert square <= 2 ** (2 * FRACTION_BITS)
        assert sum(int(n) ** 2 for n in integers(task, local, 1e-3)) > (2**FRACTION_BITS * 0.9999) ** 2


def test_a_users_integers_do_not_depend_on_the_others() -> None:
    sizes = [3, 9, 20, 20, 33, 1]
    task, local = task_of(sizes, made("two layers")), RULES["momentum"]
    together, alone = integers(task, local, 0.3), FixedPointSum(task.model.dimension, 0.3)
    origin = task.model.initial()
    for name in task.dataset.user_ids:
        for group in LocalTrainer(task, local)._groups([name], 3, Failures()):
            assert not list(program(task, local).received(origin).add_to(alone, group))
    assert np.array_equal(together, alone.fixed_point.numpy())
    assert np.array_equal(together, integers(task, local, 0.3, most=2))


def test_what_is_wrong_with_a_users_examples_is_its_own() -> None:
    task, local = task_of([6] * 4, made("two layers")), RULES["one epoch"]
    (group,) = groups(task, local)
    origin, right, wrong = task.model.initial(), *(FixedPointSum(task.model.dimension, 0.3) for _ in range(2))
    first, last = (slice(int(a), int(b)) for a, b in (group.edges[1:3], group.edges[3:5]))
    group.features[first.start] = math.nan
    group.labels[last.stop - 1] = 5
    found = dict(program(task, local).received(origin).add_to(wrong, group))
    assert found == {
        1: ("update", "holds NaN or infinity"),
        3: ("training", "IndexError: a label is no class of the model"),
    }
    rest = group.without([1, 3])
    assert list(program(task, local).received(origin).add_to(right, rest)) == []
    assert torch.equal(right.fixed_point, wrong.fixed_point)
    assert right.fixed_point.any()


def test_memory_that_others_used_leaves_no_trace() -> None:
    """A group of NaN, huge numbers and other sizes before: the integers are those of a new program."""
    task, local = task_of([6, 9, 20, 20, 3], made("two layers")), RULES["momentum"]
    origin, kept = task.model.initial(), program(task, local)
    for group in groups(task, local, 2):
        sums = [FixedPointSum(task.model.dimension, 0.3) for _ in range(2)]
        for value in (math.nan, 1e30):
            spoilt = replace(group, features=torch.full_like(group.features, value))  # type: ignore[arg-type]
            assert list(kept.received(origin).add_to(FixedPointSum(task.model.dimension, 0.3), spoilt))
        for total, used in zip(sums, (kept, program(task, local)), strict=True):
            assert list(used.received(origin).add_to(total, group)) == []
        assert torch.equal(sums[0].fixed_point, sums[1].fixed_point)
        assert sums[0].fixed_point.any()


@pytest.mark.parametrize("times", [1, 3])
def test_memory_that_fails_for_a_while_costs_nothing(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    task, local = task_of([6] * 8, made("two layers")), RULES["one epoch"]
    expected, left = integers(task, local, 0.3), [times]

    def failing(*arguments: object) -> Work:
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError
        return work(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(low_rank_program, "work", failing)
    assert np.array_equal(integers(task, local, 0.3), expected)


def test_memory_that_is_never_there_makes_users_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    task, local = task_of([6] * 3, made("two layers")), RULES["one epoch"]

    def failing(*_: object) -> Work:
        raise MemoryError("none left")

    monkeypatch.setattr(low_rank_program, "work", failing)
    total = FixedPointSum(task.model.dimension, 0.3)
    (group,) = groups(task, local)
    found = dict(program(task, local).received(task.model.initial()).add_to(total, group))
    assert {user: stage for user, (stage, _) in found.items()} == dict.fromkeys(range(3), "training")
    assert not total.fixed_point.any()
    assert total.users == 3


def test_nothing_is_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    task, local = task_of([6] * 3, made("two layers")), RULES["one epoch"]

    def failing(*arguments: object) -> None:
        train_and_sum(*arguments)
        raise MemoryError

    monkeypatch.setattr(low_rank_program, "train_and_sum", failing)
    total = FixedPointSum(task.model.dimension, 0.3)
    (group,) = groups(task, local)
    with pytest.raises(MemoryError):
        list(program(task, local).received(task.model.initial()).add_to(total, group))
    monkeypatch.undo()
    assert np.array_equal(total.fixed_point.numpy(), integers(task, local, 0.3))


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda _module, _inputs, outputs: 2 * outputs)
    return module


def test_an_example_whose_label_is_padding_counts_for_nothing() -> None:
    """As in torch, whose cross-entropy the other engines use."""
    task, local = task_of([6, 5], made("two layers")), RULES["one epoch"]
    labels = task.dataset.labels.clone()  # type: ignore[attr-defined]
    labels[[1, 7]] = -100
    task = replace(task, dataset=replace(task.dataset, labels=labels))  # type: ignore[type-var]
    total, expected = integers(task, local, 0.3), FixedPointSum(task.model.dimension, 0.3)
    with_weights = LocalTrainer(task, replace(local, engine="loop"))
    assert with_weights.add_updates(task.model.initial(), task.dataset.user_ids, 3, expected) == []
    assert total.any()
    assert np.abs(total - expected.fixed_point.numpy()).max() < TOLERANCE * np.abs(total).max()


def test_other_models_and_losses_are_left_to_others() -> None:
    local, task = LocalSGD(), task_of([2, 3], made("two layers"))
    assert LowRankProgram.of(task, local) is not None
    for module in (
        nn.Sequential(nn.Linear(35, 3), nn.GELU(), nn.Linear(3, 5)),
        nn.Sequential(nn.LayerNorm(35), nn.Linear(35, 5)),
        nn.Sequential(nn.Linear(35, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 5)),
        hooked(made("two layers")),
    ):
        assert LowRankProgram.of(task_of([2, 3], module), local) is None
    assert LowRankProgram.of(replace(task, loss=lambda z, y: (z.sum(1) - y).square()), local) is None
    for other in (LocalSGD(engine="loop"), LocalSGD(engine="vectorised"), LocalSGD(precision="bfloat16")):
        assert LowRankProgram.of(task, other) is None


def test_each_user_is_trained_by_what_is_cheapest_for_its_number_of_examples() -> None:
    """Without weights, with weights in one compiled call, or in groups if there is another activation."""
    counts = np.array([0, 500, 1, 5, 500])
    local = LocalSGD(epochs=1, batch_size=10)
    with_tanh = task_of([1], nn.Sequential(nn.Flatten(), nn.Linear(35, 30), nn.Tanh(), nn.Linear(30, 5)))
    assert chosen(compiled_programs(with_tanh, local), counts).tolist() == [0, 0, 1, 1, 0]
    with_relu = task_of([1], nn.Sequential(nn.Flatten(), nn.Linear(35, 30), nn.ReLU(), nn.Linear(30, 5)))
    assert chosen(compiled_programs(with_relu, local), counts).tolist() == [0, 2, 1, 1, 2]


#: Example's shape, chain, whether the program takes it. What it takes has the updates of the loop.
NEAR_CHAINS = {
    "numbers that lie in rows": (
        (5, 7),
        lambda: [nn.Linear(7, 18), nn.ReLU(), nn.Flatten(), nn.Linear(90, 5)],
        0,
    ),
    "flattened after a layer": ((5, 7), lambda: [nn.Linear(7, 1), nn.Flatten(), nn.Linear(5, 5)], 0),
    "another flattening": ((5, 7), lambda: [nn.Flatten(1, 2), nn.Linear(35, 5)], 0),
    "flattened at once": ((5, 7), lambda: [nn.Flatten(), nn.Linear(35, 18), nn.ReLU(), nn.Linear(18, 5)], 1),
    "flattened in vain": ((35,), lambda: [nn.Linear(35, 18), nn.Flatten(), nn.Tanh(), nn.Linear(18, 5)], 1),
    "a rectifier at the end": ((35,), lambda: [nn.Linear(35, 18), nn.ReLU(), nn.Linear(18, 5), nn.ReLU()], 0),
    "a sigmoid at the end": ((35,), lambda: [nn.Linear(35, 5), nn.Sigmoid()], 0),
    "two activations": ((35,), lambda: [nn.Linear(35, 18), nn.ReLU(), nn.Tanh(), nn.Linear(18, 5)], 0),
    "an activation first": ((35,), lambda: [nn.Tanh(), nn.Linear(35, 5)], 0),
}


@pytest.mark.parametrize("name", NEAR_CHAINS)
def test_what_looks_like_a_chain_of_dense_layers_has_the_updates_of_the_module(name: str) -> None:
    shape, layers, taken = NEAR_CHAINS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(*layers())
    plain = task_of([3, 4, 5], nn.Linear(35, 5))
    dataset = plain.dataset
    assert isinstance(dataset, InMemoryDataset)
    assert isinstance(dataset.features, Tensor)
    task = classification(dataset.reshaped(shape), module)
    rule = LocalSGD(epochs=2, batch_size=2, learning_rate=0.1)
    assert (LowRankProgram.of(task, rule) is not None) == bool(taken)
    sums = []
    for engine in ("auto", "loop"):
        total = FixedPointSum(task.model.dimension, 100.0)
        trainer = LocalTrainer(task, replace(rule, engine=engine))  # type: ignore[arg-type]
        assert not list(trainer.add_updates(task.model.initial(), task.dataset.user_ids, 0, total))
        sums.append(total.total())
    assert sums[1].norm() > 0.1
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-4, atol=1e-5)
