"""A user's bits do not depend on companions, groups, threads or the path that is chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.training_cases import ROUND, Plain, cohort, trainer_for
from torch import Tensor, nn

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.models import mlp
from fedmf.training import LocalTrainer, classification
from fedmf.training.batches import groups_of, step_rows, user_orders, user_seed
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.workers import Workers

SIZES = [1, 2, 3, 9, 17, 8, 4, 4, 30, 5, 12, 12]
PLAN = LocalSGD(2, 4, 0.3, momentum=0.5, proximal=0.1)


def small_cnn() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Unflatten(1, (1, 3, 2)),
            nn.Conv2d(1, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6, 4),
        )


def with_dropout() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.4), nn.Tanh(), nn.Linear(7, 4))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: mlp(6, (7,), 4, seed=2),
    "general": lambda: Plain(mlp(6, (7,), 4, seed=2)),
    "convolution": small_cnn,
    "dropout": with_dropout,
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("plan", [LocalSGD(2, 4, 0.3), PLAN], ids=["plain", "momentum"])
def test_bits_do_not_depend_on_companions_groups_or_threads(name: str, plan: LocalSGD) -> None:
    dataset = cohort(SIZES)
    users = list(dataset.user_ids)
    alone = trainer_for(MODULES[name](), dataset, plan, group_size=1)
    start = alone.task.model.initial() + 0.1
    expected = torch.cat([alone.updates(start, [user], ROUND) for user in users])
    for group_size in (None, 2, 5):
        trainer = trainer_for(MODULES[name](), dataset, plan, group_size=group_size)
        assert torch.equal(trainer.updates(start, users, ROUND), expected)
        assert torch.equal(trainer.updates(start, users[::-1], ROUND).flip(0), expected)
        assert torch.equal(trainer.updates(start, users[3:10:2], ROUND), expected[3:10:2])
    total = ClippedSum(start.numel(), 0.5)
    rows = ClippedSum(start.numel(), 0.5)
    for user in users:
        assert alone.add_updates(start, [user], ROUND, total) == []
    rows.add_updates(expected)
    torch.testing.assert_close(total.total(), rows.total(), rtol=1e-5, atol=1e-6)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            trainer = trainer_for(MODULES[name](), dataset, plan, group_size=3)
            split = ClippedSum(start.numel(), 0.5)
            assert trainer.add_updates(start, users, ROUND, split) == []
            assert torch.get_num_threads() == threads
            assert torch.equal(split.fixed_point, total.fixed_point)
            assert split.users == len(users)
    finally:
        torch.set_num_threads(before)


class Noisy(nn.Module):
    """It draws from torch's generator itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = with_dropout()

    def forward(self, features: Tensor) -> Tensor:
        return self.inner(features + 0.1 * torch.randn(features.shape))


def test_dropout_layers_are_trained_on_all_threads_and_other_draws_on_one() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        counts = []
        for module in (with_dropout(), Noisy()):
            trainer = trainer_for(module, cohort([3, 3]), LocalSGD(1, 4, 0.3))
            assert trainer.path == "loop"
            counts.append(trainer._workers.count)
        assert counts == [2, 1]
    finally:
        torch.set_num_threads(before)


def test_the_steps_of_a_group_are_copied_to_the_device_before_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU every copy waits for all that is queued there."""
    plan = LocalSGD(3, 4, 0.3)
    trainer = trainer_for(mlp(6, (7,), 4, seed=2), cohort([9] * 32), plan, engine="vmap")
    start = trainer.task.model.initial()
    trainer.updates(start, ["u0"], ROUND)
    copied: list[int] = []
    real = torch.from_numpy

    def counted(values: np.ndarray) -> Tensor:
        if values.ndim == 3:
            copied.append(len(values))
        return real(values)

    monkeypatch.setattr(torch, "from_numpy", counted)
    trainer.updates(start, list(trainer.task.dataset.user_ids), ROUND)
    assert copied == [9, 9]  # rows and weights of all steps


def test_a_failing_group_stops_the_others_and_is_reported() -> None:
    workers = Workers(lambda: None)
    workers.count = 2
    seen: list[int] = []

    def work(item: int, total: ClippedSum) -> None:
        seen.append(item)
        if item == 3:
            raise OverflowError("group 3")

    with pytest.raises(OverflowError, match="group 3"):
        workers.each(work, range(100), ClippedSum(1, 1.0))
    assert len(seen) < 10


class Branching(nn.Module):
    """Its path depends on the numbers, which torch.func cannot batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, features: Tensor) -> Tensor:
        outputs = self.inner(features)
        if outputs.sum().item() > 0:
            return 2 * outputs
        return outputs


def test_a_module_that_cannot_be_batched_falls_back_to_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = cohort([5, 9, 4])
    plan = LocalSGD(2, 3, 0.2)
    with caplog.at_level(logging.WARNING, "fedmf"):
        trainer = trainer_for(Branching(), dataset, plan)
    (record,) = caplog.records
    assert "slower path 'loop'" in record.getMessage()
    assert "\n" not in record.getMessage()
    loop = trainer_for(Branching(), dataset, plan, engine="loop")
    start = trainer.task.model.initial()
    assert torch.equal(
        trainer.updates(start, ["u1", "u0"], 1), loop.updates(start, ["u1", "u0"], 1)
    )
    with pytest.raises(
        ValueError, match=r"must be one that torch\.func can batch with engine 'vmap'"
    ):
        trainer_for(Branching(), dataset, plan, engine="vmap")


@pytest.mark.parametrize("engine", ["auto"])
def test_batch_statistics_are_refused_with_the_way_out(engine: str) -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ValueError, match=r"got BatchNorm1d '1'.*Use GroupNorm or LayerNorm"):
        trainer_for(module, cohort([3]), LocalSGD(), engine=engine)  # type: ignore[arg-type]


def test_groups_that_a_round_would_leave_half_empty_are_not_taken() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.GroupNorm(2, 4))
    task = classification(cohort([3, 40]), module)
    for users, path in ((1, "loop"), (16, "loop"), (32, "vmap"), (40, "loop"), (72, "vmap")):
        assert LocalTrainer(task, LocalSGD(), users=users).path == path


@pytest.mark.parametrize(
    ("module", "engine", "path"),
    [
        (mlp(6, (), 4, seed=0), "auto", "compiled"),
        (mlp(6, (), 4, seed=0), "loop", "loop"),
        (nn.Sequential(nn.Linear(6, 4), nn.GroupNorm(2, 4)), "auto", "vmap"),
        (nn.Sequential(nn.Linear(6, 4), nn.PReLU()), "vmap", "vmap"),
        (
            nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4000), nn.GELU(), nn.Linear(4000, 4)),
            "auto",
            "loop",
        ),
        (Branching(), "auto", "loop"),
    ],
)
def test_the_path_that_is_chosen(module: nn.Module, engine: str, path: str) -> None:
    local = LocalSGD(engine=engine)  # type: ignore[arg-type]
    trainer = LocalTrainer(classification(cohort([3, 4]), module), local)
    assert trainer.path == path


def test_steps_hold_each_users_examples_in_its_own_order() -> None:
    sizes = np.array([7, 5, 2])
    batch = 3
    epochs = 2
    (first,) = [shape for shape, _ in groups_of(sizes[:1], batch, epochs, 1)]
    seeds = np.array([user_seed(1, 2, name) for name in "abc"], dtype=np.uint64)
    steps = step_rows(seeds, sizes, batch, epochs, first)
    assert steps.active.tolist() == [3, 3, 2, 2, 1, 1]
    for u, (name, size, start) in enumerate(zip("abc", sizes, (0, 7, 12), strict=True)):
        order = user_orders(1, 2, name, size, epochs).ravel()  # epochs follow each other
        real = steps.weights[:, u] > 0
        assert (steps.rows[:, u][real] == start + order).all()
        assert np.isin(steps.rows[:, u], np.arange(start, start + size)).all()
        sums = steps.weights[:, u].sum(axis=1)
        np.testing.assert_allclose(
            sums, np.arange(sums.size) < epochs * -(-size // batch), rtol=1e-6
        )
