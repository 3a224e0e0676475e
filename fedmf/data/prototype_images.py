"""Noisy class prototypes: images of nothing, for measuring engines."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from fedmf.data.memory import InMemoryDataset
from fedmf.data.partition_plan import PartitionPlan
from fedmf.data.user_ids import NumberedUsers

__all__ = ["prototypes"]

_MOST_NUMBERS: Final = 1 << 33


def prototypes(
    plan: PartitionPlan,
    examples_per_user: int,
    *,
    shape: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    noise: float = 1.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> InMemoryDataset:
    """Each example is its class's fixed random image plus noise; labels are uniform.

    Args:
        plan: how the U·n examples are spread over users.
        examples_per_user: n, the mean number of examples of a user.
        shape: of one example.
        classes: number of prototypes, each with independent standard normal entries.
        noise: standard deviation of the noise on every entry.
        test_fraction: test examples as a share of the training examples, at most 10,000 of them.
        seed: public seed.

    Raises:
        ValueError: an empty shape, or more than 2³³ numbers, all of which would lie in memory.

    >>> data = prototypes(PartitionPlan(users=5), examples_per_user=20)
    >>> data.features.shape, data.sizes(np.arange(5)).tolist(), data.test_labels.numel()
    (torch.Size([100, 1, 28, 28]), [20, 20, 20, 20, 20], 20)
    """
    examples, width = plan.users * examples_per_user, int(np.prod(shape))
    if min(examples_per_user, classes, width) < 1:
        raise ValueError(
            "examples-per-user, classes and input-shape must be positive; "
            f"got {examples_per_user}, {classes}, {shape}."
        )
    if examples * width > _MOST_NUMBERS:
        raise ValueError(
            f"prototypes must have at most {_MOST_NUMBERS} numbers in memory; got {examples * width}. "
            "Use fewer users, or the synthetic dataset, which is generated on demand."
        )
    rng = np.random.default_rng([seed, 0x9407])
    images = rng.standard_normal((classes, width), dtype=np.float32)
    tests = min(10_000, max(1, round(test_fraction * examples)))

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = rng.integers(classes, size=count)
        features = rng.standard_normal((count, width), dtype=np.float32)
        features *= np.float32(noise)
        features += images[labels]
        return torch.from_numpy(features.reshape(count, *shape)), torch.from_numpy(labels)

    features, labels = draw(examples)
    test_features, test_labels = draw(tests)
    return InMemoryDataset(
        features=features,
        labels=labels,
        owned=plan.split(labels.numpy(), rng),
        user_ids=NumberedUsers(plan.users),
        test_features=test_features,
        test_labels=test_labels,
        classes=classes,
    )
