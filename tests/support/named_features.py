"""Texts with masks as dictionaries of tensors, a tied and partly frozen model, and torch.optim in
64 bits.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.data.structure import each
from fedmf.training import LocalSGD, Task, next_token_task
from fedmf.training.batches import user_orders
from support.training_cases import LENGTH, TOKENS, examples_of

WIDTH = 8
#: d of `MaskedWords`: the tied matrix once, and the bias of the head.
TRAINED = TOKENS * WIDTH + TOKENS


class MaskedWords(nn.Module):
    """Logits for each position: one matrix at both ends, a frozen layer between, a buffer of
    positions.
    """

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.mixing = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.head.weight = self.embedding.weight
        self.mixing.requires_grad_(False)
        self.register_buffer("positions", torch.linspace(0, 1, LENGTH)[:, None], persistent=False)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        vectors = (self.embedding(input_ids) + self.positions) * mask[..., None]
        return self.head(torch.tanh(self.mixing(vectors + vectors.mean(dim=1, keepdim=True))))


class UnregisteredWords(MaskedWords):
    """The same function, without any frozen parameter or buffer that a module knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = (self.mixing.weight.detach(), self.mixing.bias.detach(), self.positions)
        del self.mixing, self.positions

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        weight, bias, positions = self.hidden
        vectors = (self.embedding(input_ids) + positions) * mask[..., None]
        return self.head(
            torch.tanh(F.linear(vectors + vectors.mean(dim=1, keepdim=True), weight, bias))
        )


def masked_texts(sizes: list[int]) -> InMemoryDataset:
    """Users with so many texts as ``input_ids`` with a ``mask``; 20 texts are the test part."""
    generator = torch.Generator().manual_seed(9)
    count = sum(sizes) + 20
    texts = (TOKENS * torch.rand(count, LENGTH + 1, generator=generator) ** 3).long()
    mask = torch.ones(count, LENGTH)
    mask[::3, -2:] = 0.0
    plain = examples_of(texts[:, :-1], texts[:, 1:], sizes)
    last = sum(sizes)
    return replace(
        plain,
        features={"input_ids": plain.features, "mask": mask[:last]},
        test_features={"input_ids": plain.test_features, "mask": mask[last:]},
    )


def masked_task(sizes: list[int], module: type[nn.Module] = MaskedWords) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return next_token_task(masked_texts(sizes), module(), TOKENS)


def exact_update(task: Task, user: str, t: int, plan: LocalSGD) -> Tensor:
    """What one user sends, by nn.Module and torch.optim.SGD in 64 bits; trained parameters
    alone.
    """
    module = copy.deepcopy(task.model.module).double()
    trained = [p for p in module.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    optimizer = torch.optim.SGD(trained, lr=plan.learning_rate, momentum=plan.momentum)
    features, labels = task.dataset.examples(np.array([task.dataset.index_of(user)]))
    wide = each(lambda x: x.double() if x.is_floating_point() else x, features)
    for order in user_orders(task.seed, t, user, len(labels), plan.epochs):
        for start in range(0, order.size, plan.batch_size):
            rows = torch.from_numpy(order[start : start + plan.batch_size])
            part = each(lambda x, rows=rows: x[rows], wide)
            outputs = module(**part) if isinstance(part, dict) else module(part)
            optimizer.zero_grad()
            task.loss(outputs, labels[rows]).mean().backward()
            optimizer.step()
    return torch.cat([(p.detach() - b).reshape(-1) for p, b in zip(trained, before, strict=True)])
