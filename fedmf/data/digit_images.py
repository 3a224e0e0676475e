"""The digits data set."""

from __future__ import annotations

import numpy as np
import torch

from fedmf.data.memory import InMemoryDataset
from fedmf.data.partition_plan import PartitionPlan
from fedmf.data.user_ids import NumberedUsers

__all__ = ["digits"]


def digits(
    users: int,
    *,
    partition: str = "iid",
    dirichlet_alpha: float = 1.0,
    size_exponent: float = 2.0,
    shards_per_user: int = 2,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> InMemoryDataset:
    """The 1,797 handwritten 8×8 digits that ship inside scikit-learn, split over users.

    Args:
        users: number of users; at most the number of training examples.
        partition: one of `fedmf.data.PARTITIONS`.
        dirichlet_alpha: see `PartitionPlan`.
        size_exponent: see `PartitionPlan`.
        shards_per_user: see `PartitionPlan`.
        test_fraction: held-out share of all examples, in (0, 1).
        seed: public seed of the split.

    Returns:
        Features scaled to [0, 1], shape (examples, 64).

    References:
        E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    from sklearn.datasets import load_digits

    plan = PartitionPlan(users, partition, dirichlet_alpha, size_exponent, shards_per_user)
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test-fraction must lie in (0, 1); got {test_fraction}.")
    images, targets = (np.asarray(part) for part in load_digits(return_X_y=True))
    rng = np.random.default_rng([seed, 0xD161])
    order = rng.permutation(targets.size)
    held_out = round(test_fraction * targets.size)
    if held_out == 0:
        raise ValueError(
            f"test-fraction must hold out at least one of {targets.size} examples; got {test_fraction}."
        )
    test, train = order[:held_out], order[held_out:]
    owned = plan.split(targets[train], rng)
    features = torch.from_numpy((images / 16.0).astype(np.float32))
    labels = torch.from_numpy(targets.astype(np.int64))
    return InMemoryDataset(
        features=features[train],
        labels=labels[train],
        owned=owned,
        user_ids=NumberedUsers(users),
        test_features=features[test],
        test_labels=labels[test],
        classes=10,
    )
