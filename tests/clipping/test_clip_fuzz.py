"""No user adds more than the clip norm: drawn models, rules and examples of every scale, judged
exactly.
"""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from clipping.exact import square_sum
from torch import Tensor, nn

from fedmf.clipping.clipped_sum import ClippedSum, SumSpec
from fedmf.data import InMemoryDataset
from fedmf.models import with_lora
from fedmf.training import LocalSGD, LocalTrainer, Task, classification

#: ζ² in the units of the sum.
LIMIT = 1 << 62
CLASSES = 3
USERS = 48
MOST_EXAMPLES = 8


class Own(nn.Module):
    """A module with a forward of its own."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, inputs) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


def module_of(kind: str, rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]]:
    """A model, and the shape of its examples."""
    inputs = int(rng.integers(2, 50))
    hidden = int(rng.integers(3, 20))
    if kind == "own":
        return Own(inputs), (inputs,)
    if kind == "convolution":
        layers = [
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, CLASSES),
        ]
        return nn.Sequential(*layers), (1, 6, 6)
    dense = [nn.Flatten(), nn.Linear(inputs, hidden, bias=bool(rng.integers(2))), nn.ReLU()]
    module = nn.Sequential(*dense, nn.Linear(hidden, CLASSES))
    if kind == "dense":
        return module, (inputs,)
    adapted = with_lora(
        module, int(rng.integers(1, 8)), float(10.0 ** rng.uniform(-1, 2)), ["1", "3"]
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name and rng.integers(3):
            nn.init.normal_(parameter, std=float(10.0 ** rng.uniform(-3, 1)))
    return adapted, (inputs,)


def examples(rng: np.random.Generator, sizes: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """Rows of a scale that each user has: most are ordinary, others lie at the edges of float32.

    Some rows are sparse, some cancel the one before, some come in pairs whose product is just
    beyond float32.
    """
    users = np.repeat(np.arange(sizes.size), sizes)
    m = sizes.size
    rows = rng.standard_normal((users.size, int(np.prod(shape))))
    edges = rng.uniform((-44, 10, 36.5, 18), (38.5, 38.5, 38.5, 23), (m, 4))
    edges = edges[np.arange(m), rng.integers(4, size=m)]
    scales = np.where(rng.random(m) < 0.75, rng.uniform(-6, 6, m), edges)[users]
    pairs = (scales > 18) & (scales < 23) & (rng.random(users.size) < 0.5)
    scales[pairs] = rng.uniform(39, 42, pairs.sum()) - scales[pairs]
    rows *= 10.0 ** np.clip(scales, -44, 38.5)[:, None]
    rows *= rng.random(rows.shape) < rng.choice([0.05, 0.2, 1.0])
    again = rng.random(users.size - 1) < 0.15
    rows[1:][again] = -rows[:-1][again] * (1 + 10.0 ** rng.uniform(-8, 0))
    return torch.from_numpy(np.clip(rows, -3.4e38, 3.4e38).astype(np.float32)).reshape(-1, *shape)


def drawn(kind: str, engine: str, rng: np.random.Generator) -> tuple[Task, LocalSGD]:
    """A task with users, and a local rule."""
    torch.manual_seed(int(rng.integers(2**31)))
    module, shape = module_of(kind, rng)
    sizes = rng.integers(1, MOST_EXAMPLES, USERS)
    features = examples(rng, sizes, shape)
    labels = torch.from_numpy(rng.integers(CLASSES, size=len(features)))
    owned = tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))
    ids = tuple(f"u{u}" for u in range(USERS))
    data = InMemoryDataset(features, labels, owned, ids, features[:2], labels[:2], CLASSES)
    local = LocalSGD(
        epochs=int(rng.integers(1, 4)),
        batch_size=int(rng.integers(1, MOST_EXAMPLES + 1)),
        learning_rate=float(10.0 ** rng.uniform(-3, 1)),
        momentum=float(rng.choice([0.0, 0.9])),
        proximal=float(rng.choice([0.0, 0.1])),
        engine=engine,
    )
    return classification(data, module), local


def clip_norm(trainer: LocalTrainer, rng: np.random.Generator) -> float:
    """ζ, three of four times below what most updates have."""
    updates = trainer.updates(
        trainer.task.model.initial(), trainer.task.dataset.user_ids, 0
    ).double()
    norms = torch.linalg.vector_norm(updates, dim=1)
    norms = norms[(norms > 0) & torch.isfinite(norms)]
    scale = float(norms.quantile(0.2).log10()) if len(norms) else 0.0
    largest = min(max(scale, -36.0), 36.0)
    if rng.integers(4) == 0:
        largest = 36.0
    return float(10.0 ** rng.uniform(-36.0, largest))


def contributions(trainer: LocalTrainer, zeta: float, sent: str) -> Iterator[list[int]]:
    """The integers that each user adds: to a sum, or by a row that the server clips again."""
    origin = trainer.task.model.initial()
    users = trainer.task.dataset.user_ids
    if sent == "sums":
        for user in users:
            total = SumSpec(origin.numel(), zeta).empty()
            trainer.add_updates(origin, [user], 0, total)
            yield total.fixed_point.tolist()
        return
    rows, _ = trainer.clipped_rows(origin, users, 0, zeta)
    for row in rows.split(1):
        total = ClippedSum(origin.numel(), zeta)
        assert bool(total.add_updates(row)[0])
        yield total.fixed_point.tolist()


@pytest.mark.parametrize(
    ("kind", "engine", "sent"),
    [
        ("dense", "auto", "sums"),
        ("convolution", "auto", "sums"),
        ("adapted", "auto", "sums"),
        ("own", "auto", "sums"),
        ("dense", "loop", "sums"),
        ("dense", "vmap", "sums"),
        ("own", "auto", "rows"),
    ],
)
def test_drawn_users_are_within_the_clip_norm(kind: str, engine: str, sent: str) -> None:
    """Rows at the edges of float32 too (FEDMF-2026-1)."""
    squares = list[int]()
    for seed in range(4):
        rng = np.random.default_rng([seed, 7])
        trainer = LocalTrainer(*drawn(kind, engine, rng))
        zeta = clip_norm(trainer, rng)
        squares += map(square_sum, contributions(trainer, zeta, sent))
    assert max(squares) <= LIMIT
    assert sum(square > 0.99 * LIMIT for square in squares) > len(squares) / 3, (
        "users whose clip norm is reached"
    )
    assert math.isclose(max(squares), LIMIT, rel_tol=1e-7), (
        "and none is shortened by more than rounding"
    )
