"""Users with a few examples, what one of them sends by nn.Module and torch.optim, and trainers for
them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.data.structure import PADDING
from fedmf.models import mlp
from fedmf.training.batches import user_orders
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalEngine, LocalSGD
from fedmf.training.losses import cross_entropy
from fedmf.training.task import Task
from fedmf.training.task_kinds import (
    classification,
    multi_label,
    next_token,
    regression,
    tagging,
)

SEED = 11
ROUND = 3


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
    task = replace(classification(dataset, module, loss), seed=SEED)
    return LocalTrainer(task, replace(plan, engine=engine), group_size)


class Plain(nn.Module):
    """A module that is no chain of layers to look into."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: Tensor) -> Tensor:
        return self.inner(features) + 0.0


def examples_of(
    features: Tensor, labels: Tensor, sizes: list[int], classes: int = 0
) -> InMemoryDataset:
    """Users with the given numbers of these examples; the rest is the test part."""
    edges = np.cumsum([0, *sizes])
    return InMemoryDataset(
        features=features[: edges[-1]],
        labels=labels[: edges[-1]],
        owned=tuple(np.arange(a, b) for a, b in pairwise(edges)),
        user_ids=tuple(f"u{i}" for i in range(len(sizes))),
        test_features=features[edges[-1] :],
        test_labels=labels[edges[-1] :],
        classes=classes,
    )


class Words(nn.Module):
    """Logits for each position of a text from its token and a mean of the text."""

    def __init__(self, vocabulary: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.head = nn.Linear(8, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens)
        return self.head(torch.tanh(vectors + vectors.mean(dim=1, keepdim=True)))


TOKENS = 50
LENGTH = 7
TAGS = 5


def _texts(count: int) -> tuple[Tensor, Tensor]:
    """Texts with repeated words, the last two positions of some padded, and the words that
    follow.
    """
    generator = torch.Generator().manual_seed(9)
    texts = (TOKENS * torch.rand(count, LENGTH + 1, generator=generator) ** 3).long()
    following = texts[:, 1:].clone()
    following[::3, -2:] = PADDING
    return texts[:, :-1], following


def _numbers(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(8))


def _next_token(sizes: list[int], count: int) -> Task:
    dataset = examples_of(*_texts(count), sizes)
    return next_token(dataset, Words(TOKENS, TOKENS), TOKENS)


def _tagging(sizes: list[int], count: int) -> Task:
    texts, following = _texts(count)
    tags = torch.where(following == PADDING, PADDING, texts % TAGS)
    return tagging(examples_of(texts, tags, sizes), Words(TOKENS, TAGS))


def _tagging_of_numbers(sizes: list[int], count: int) -> Task:
    """Positions with numbers, so that the model is a chain of layers."""
    features = _numbers(count, LENGTH, 6)
    tags = (TAGS * features[..., 0].sigmoid()).long()
    return tagging(examples_of(features, tags, sizes), mlp(6, (9,), TAGS, 2))


def _regression(sizes: list[int], count: int) -> Task:
    features = _numbers(count, 6)
    return regression(examples_of(features, features.sin().sum(dim=1), sizes), mlp(6, (7,), 1, 2))


def _multi_label(sizes: list[int], count: int) -> Task:
    features = _numbers(count, 6)
    return multi_label(
        examples_of(features, (features[:, :3] > 0).float(), sizes), Plain(mlp(6, (7,), 3, 2))
    )


def _classification(sizes: list[int], count: int) -> Task:
    features = _numbers(count, 6)
    dataset = examples_of(features, (4 * features[:, 0].sigmoid()).long(), sizes, classes=4)
    return classification(dataset, mlp(6, (7,), 4, 2))


KINDS: dict[str, Callable[[list[int], int], Task]] = {
    "classification": _classification,
    "next token": _next_token,
    "tagging": _tagging,
    "tagging of numbers": _tagging_of_numbers,
    "regression": _regression,
    "multi-label": _multi_label,
}


def task_of_kind(kind: str, sizes: list[int]) -> Task:
    """A small task that can be learnt, with users of these sizes and 40 test examples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return KINDS[kind](sizes, sum(sizes) + 40)
