"""Local training equals a plain loop over users, batches and torch.optim.SGD."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from support.training_cases import ROUND, Plain, cohort, plain_update, trainer_for

from fedmf.models import mlp
from fedmf.training.batches import user_orders
from fedmf.training.local_sgd import LocalEngine, LocalSGD
from fedmf.training.losses import cross_entropy

# float32: a batched product adds in another order than a single one; a few hundred additions deep.
TOLERANCE = 2e-5


@pytest.mark.parametrize("sizes", [[1, 2, 3, 9, 17, 8]], ids=str)
@pytest.mark.parametrize(
    "plan",
    [
        LocalSGD(2, 1, 0.1),
        LocalSGD(1, 100, 1.0),
        LocalSGD(3, 3, 0.1, momentum=0.5, proximal=0.4),
    ],
    ids=str,
)
@pytest.mark.parametrize(("engine", "group_size"), [("vmap", 3), ("loop", None)])
def test_updates_equal_a_plain_loop(
    sizes: list[int], plan: LocalSGD, engine: LocalEngine, group_size: int | None
) -> None:
    dataset = cohort(sizes)
    module = mlp(6, (7,), 4, seed=2)
    trainer = trainer_for(Plain(module), dataset, plan, cross_entropy, engine, group_size)
    updates = trainer.updates(trainer.task.model.initial(), dataset.user_ids, ROUND)
    assert updates.dtype == torch.float32
    expected = torch.stack([plain_update(module, dataset, user, plan) for user in dataset.user_ids])
    assert (expected.norm(dim=1) > 1e-3).all()
    torch.testing.assert_close(updates, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("row", [0, 4])
def test_one_users_broken_examples_do_not_reach_the_others(poison: float, row: int) -> None:
    """Whoever owns the broken example, the updates of the other users stay what they were."""
    dataset = cohort([1, 2, 3, 6])
    trainer = trainer_for(mlp(6, (7,), 4, seed=2), dataset, LocalSGD(2, 2, 0.3))
    start = trainer.task.model.initial()
    clean = trainer.updates(start, dataset.user_ids, ROUND)
    dataset.features[row] = poison
    broken = trainer.updates(start, dataset.user_ids, ROUND)
    victim = next(u for u, owned in enumerate(dataset.owned) if row in owned)
    others = [u for u in range(4) if u != victim]
    torch.testing.assert_close(broken[others], clean[others], rtol=TOLERANCE, atol=TOLERANCE)
    assert poison == 1e38 or not broken[victim].any()


def test_a_user_that_is_done_stands_still() -> None:
    """A model that overflows only in a further step must not take it because others do."""
    dataset = cohort([1, 12], features=1, classes=2)
    dataset.features[dataset.owned[0]] = 1e20
    dataset.labels[dataset.owned[0]] = 0
    module = mlp(1, (), 2, seed=0)
    trainer = trainer_for(
        module, dataset, LocalSGD(1, 4, 1.0), lambda out, labels: (out[..., 0] - labels) ** 2
    )
    start = torch.zeros(trainer.task.model.dimension)
    start[0] = 1e-2
    alone = trainer.updates(start, ["u0"], ROUND)
    assert torch.isfinite(alone).all()
    assert alone.abs().max() > 1e30
    assert torch.equal(trainer.updates(start, ["u0", "u1"], ROUND)[:1], alone)


def test_shuffling_depends_on_seed_round_and_user_alone() -> None:
    draws = set[tuple[int, ...]]()
    for seed, t, user in product((0, 1), (0, 1, 11), ("a", "b", "1|a")):
        draws.add(tuple(user_orders(seed, t, user, 20, 1)[0]))
    assert len(draws) == 18
    assert (user_orders(3, 4, "a", 20, 2) == user_orders(3, 4, "a", 20, 2)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8, 0.1), r"epochs must be greater than or equal to 1; got 0"),
        ((1, 0, 0.1), r"batch_size must be greater than or equal to 1; got 0"),
        ((1, 8, 0.0), r"η \(learning_rate\) must be greater than 0; got 0.0"),
        ((1, 8, math.nan), r"η \(learning_rate\) must be a finite number"),
        ((1, 8, math.inf), r"η \(learning_rate\) must be a finite number"),
        ((1, 8, 0.1, 1.0), r"β \(momentum\) must be less than 1; got 1.0"),
        ((1, 8, 0.1, 0.0, -1.0), r"μ \(proximal\) must be greater than or equal to 0"),
        ((1, 8, 0.1, 0.0, 0.0, "fast"), "engine must be 'auto', 'vmap' or 'loop'; got 'fast'"),
        ((1, 8, 0.1, 0.0, 0.0, "auto", -1), "micro_batch must be greater than or equal to 0"),
    ],
)
def test_impossible_local_training_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalSGD(*arguments)
