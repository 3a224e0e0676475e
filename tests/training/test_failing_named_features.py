"""A user whose examples are dictionaries of tensors fails alone, whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.named_features import TRAINED, masked_task
from support.wrapped_data import WrappedData
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import InMemoryDataset
from fedmf.training import LocalSGD, LocalTrainer

SIZES = [5, 9, 4, 1, 8, 3]
PLAN = LocalSGD(epochs=2, batch_size=4, learning_rate=0.3, momentum=0.5)


def _raise(_: dict[str, Tensor]) -> Any:
    raise OSError("cannot be decoded")


FAULTS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "raises": (_raise, "loading"),
    "another name": (lambda x: {"input_ids": x["input_ids"], "masks": x["mask"]}, "loading"),
    "fewer rows of one": (lambda x: {**x, "mask": x["mask"][:-1]}, "loading"),
    "NaN": (lambda x: {**x, "mask": torch.full_like(x["mask"], torch.nan)}, "loading"),
    "a token beyond": (
        lambda x: {**x, "input_ids": torch.full_like(x["input_ids"], 999)},
        "loading",
    ),
}
VICTIM = 4


class Tampered(WrappedData):
    """One user's features are something else."""

    def __init__(self, inner: InMemoryDataset, change: Callable[[dict[str, Tensor]], Any]) -> None:
        super().__init__(inner)
        self.change = change

    def examples(self, users: NDArray[np.int64]) -> tuple[Any, Tensor]:
        features, labels = self.inner.examples(users)
        if VICTIM in users:
            features = self.change(features)  # type: ignore[arg-type]
        return features, labels


@pytest.mark.parametrize(
    ("fault", "engine"), [(f, ("auto", "loop")[i % 2]) for i, f in enumerate(FAULTS)]
)
def test_a_failing_user_of_named_features_moves_nobody_else(fault: str, engine: str) -> None:
    change, stage = FAULTS[fault]
    task = masked_task(SIZES)  # type: ignore[arg-type]
    local = replace(PLAN, engine=engine)  # type: ignore[arg-type]
    assert isinstance(task.dataset, InMemoryDataset)
    tampered = replace(task, dataset=Tampered(task.dataset, change))
    users = task.dataset.user_ids
    start = task.model.initial()
    clean = LocalTrainer(task, local, group_size=3).updates(start, users, 0)
    total = ClippedSum(TRAINED, 0.5)
    expected = ClippedSum(TRAINED, 0.5)
    failures = LocalTrainer(tampered, local, group_size=3).add_updates(start, users, 0, total)
    assert [(failure.user, failure.stage) for failure in failures] == [(users[VICTIM], stage)]
    clean[VICTIM] = 0.0
    expected.add_updates(clean)
    assert torch.equal(total.fixed_point, expected.fixed_point)
