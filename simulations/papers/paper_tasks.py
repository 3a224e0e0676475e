"""A task whose data are no kind of a configuration: a function for ``task.function``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedmf.data import Digits, InMemoryDataset
from fedmf.data.dataset import NumberedUsers
from fedmf.models import Mlp
from fedmf.training import Task, classification

__all__ = ["prototypes"]

_CLASSES, _SHAPE = 10, (1, 4, 4)


def prototypes(source: Any) -> Task:
    """Noisy pictures, one a user: the random picture of a class, plus standard normal noise."""
    width = int(np.prod(_SHAPE))
    rng = np.random.default_rng([source.seed, 0x9407])
    pictures = rng.standard_normal((_CLASSES, width), dtype=np.float32)

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = rng.integers(_CLASSES, size=count)
        features = rng.standard_normal((count, width), dtype=np.float32) + pictures[labels]
        return torch.from_numpy(features.reshape(count, *_SHAPE)), torch.from_numpy(labels)

    features, labels = drawn(source.users)
    test_features, test_labels = drawn(round(0.2 * source.users))
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=Digits(users=source.users, partition="each-example").split(labels.numpy(), rng),
        user_ids=NumberedUsers(source.users),
        test_features=test_features,
        test_labels=test_labels,
        classes=_CLASSES,
    )
    return classification(dataset, Mlp(hidden_units=(32,)).build(_SHAPE, _CLASSES))
