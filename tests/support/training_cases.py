"""Users with a few examples, what one of them sends by nn.Module and torch.optim, and trainers for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.data.memory import InMemoryDataset
from fedmf.models.flat_model import FlatModel
from fedmf.training.engines import LocalEngine
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.shuffling import user_orders
from fedmf.training.task import cross_entropy

SEED, ROUND = 11, 3


def cohort(sizes: list[int], features: int = 6, classes: int = 4) -> InMemoryDataset:
    """Users with the given numbers of random examples."""
    generator = torch.Generator().manual_seed(5)
    total = sum(sizes)
    edges = np.cumsum([0, *sizes])
    order = np.random.default_rng(5).permutation(total)
    return InMemoryDataset(
        features=torch.randn(total, features, generator=generator),
        labels=torch.randint(classes, (total,), generator=generator),
        owned=tuple(np.sort(order[a:b]) for a, b in pairwise(edges)),
        user_ids=tuple(f"u{i}" for i in range(len(sizes))),
        test_features=torch.zeros(1, features),
        test_labels=torch.zeros(1, dtype=torch.int64),
        classes=classes,
    )


def plain_update(module: nn.Module, dataset: InMemoryDataset, user: str, plan: LocalSGD) -> Tensor:
    """What one user sends, by nn.Module and torch.optim.SGD."""
    module = copy.deepcopy(module)
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=plan.learning_rate, momentum=plan.momentum)
    owned = dataset.owned[dataset.user_ids.index(user)]
    for order in owned[user_orders(SEED, ROUND, user, owned.size, plan.epochs)]:
        for start in range(0, order.size, plan.batch_size):
            rows = torch.from_numpy(order[start : start + plan.batch_size])
            optimizer.zero_grad()
            loss = F.cross_entropy(module(dataset.features[rows]), dataset.labels[rows])
            moved = nn.utils.parameters_to_vector(module.parameters()) - before
            (loss + plan.proximal / 2 * moved.square().sum()).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach() - before


def trainer_for(
    module: nn.Module,
    dataset: InMemoryDataset,
    plan: LocalSGD,
    loss: Callable[..., Tensor] = cross_entropy,
    engine: LocalEngine = "auto",
    group_size: int | None = None,
) -> LocalTrainer:
    return LocalTrainer(FlatModel(module), dataset, plan, loss, SEED, engine, group_size)


class Plain(nn.Module):
    """A module that is no chain of layers to look into."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: Tensor) -> Tensor:
        return self.inner(features)
