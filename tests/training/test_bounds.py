"""A user with entries beyond the declared bounds contributes zeros, and no other user changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from support.training_cases import mlp
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.models import FlatModel
from fedmf.training import LocalSGD, LocalTrainer, Task, classification, next_token
from fedmf.training.user_failures import Failures

V = 7
T = 5
USERS = 9
ROWS = 6
VICTIM = 4


class Tokens(nn.Module):
    """An embedding of its own in a module of its own: torch.func flattens users and tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, 8)
        self.head = nn.Linear(8, V)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(tokens)))


def texts() -> Task:
    generator = torch.Generator().manual_seed(1)
    tokens, labels = torch.randint(V, (2, USERS * ROWS, T), generator=generator)
    labels[:, -1] = -100  # padding is no fault
    torch.manual_seed(0)
    return next_token(owned(tokens, labels), Tokens(), V)


def numbers(model: nn.Module | FlatModel | None = None) -> Task:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(USERS * ROWS, 6, generator=generator)
    labels = torch.randint(4, (USERS * ROWS,), generator=generator)
    labels[::7] = -100
    return classification(
        replace(owned(features, labels), classes=4), model or mlp(6, (7,), 4, seed=2)
    )


def owned(features: Tensor, labels: Tensor) -> InMemoryDataset:
    rows = [np.arange(user, USERS * ROWS, USERS) for user in range(USERS)]
    return InMemoryDataset(
        features,
        labels,
        rows,
        [f"u{i}" for i in range(USERS)],
        features[:2].clamp(max=V - 1),
        labels[:2] * 0,
    )


def put(part: str, value: float) -> Callable[[Task], Task]:
    """One entry of the victim's last example becomes this."""

    def change(task: Task) -> Task:
        dataset = task.dataset
        assert isinstance(dataset, InMemoryDataset)
        values = getattr(dataset, part).clone()
        values[dataset.owned[VICTIM][-1]].view(-1)[0] = value
        return replace(task, dataset=replace(dataset, **{part: values}))

    return change


TEXTS = {
    "token V": put("features", V),
    "token -1": put("features", -1),
    "label V": put("labels", V),
    "label -1": put("labels", -1),
}
NUMBERS = {
    "NaN": put("features", torch.nan),
    "infinite": put("features", torch.inf),
    "label 4": put("labels", 4),
    "label -1": put("labels", -1),
}
CASES = [
    *product([texts], TEXTS.values(), ["vmap"]),
    *product([numbers], NUMBERS.values(), ["auto", "loop"]),
]
NAMES = [*TEXTS, *map("-".join, product(NUMBERS, ["auto", "loop"]))]


@pytest.mark.parametrize(("make", "change", "engine"), CASES, ids=NAMES)
def test_a_user_outside_of_the_bounds_is_zero_and_nobody_else_moves(
    make: Callable[[], Task], change: Callable[[Task], Task], engine: str
) -> None:
    task = make()
    users = list(task.dataset.user_ids)  # type: ignore[arg-type]
    local = LocalSGD(1, 3, 0.5, engine=engine)  # type: ignore[arg-type]
    clean = LocalTrainer(task, local, group_size=4).updates(task.model.initial(), users, 0)
    assert (clean.norm(dim=1) > 0).all()
    failures = Failures()
    trainer = LocalTrainer(change(task), local, group_size=4)
    got = trainer.updates(task.model.initial(), users, 0, failures)
    assert [(failure.user, failure.stage) for failure in failures.named(users)] == [
        (users[VICTIM], "loading")
    ]
    clean[VICTIM] = 0.0
    assert torch.equal(got, clean)
