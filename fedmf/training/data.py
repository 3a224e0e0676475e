"""Federated datasets: who holds which examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["FederatedDataset", "digits", "partition_by_label", "partition_evenly"]


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Training examples owned by users, and a central held-out test part.

    Args:
        features: shape (examples, …), float32.
        labels: shape (examples,), int64.
        owned: per user, the indices of its examples; user u is called ``user_ids[u]``.
        user_ids: unique, stable names.
        test_features: shape (tests, …).
        test_labels: shape (tests,).
        classes: number of classes.
    """

    features: Tensor
    labels: Tensor
    owned: tuple[NDArray[np.int64], ...]
    user_ids: tuple[str, ...]
    test_features: Tensor
    test_labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        if len(self.owned) != len(self.user_ids) or len(set(self.user_ids)) != len(self.user_ids):
            raise ValueError(
                f"user ids must be unique, one for each user; got {len(self.user_ids)} ids "
                f"({len(set(self.user_ids))} different) for {len(self.owned)} users."
            )
        empty = next(
            (name for name, rows in zip(self.user_ids, self.owned, strict=True) if rows.size == 0), None
        )
        if empty is not None:
            raise ValueError(f"every user must own at least one example; got none for {empty}.")

    def to(self, device: torch.device | str) -> Self:
        """The same examples on ``device``."""
        names = ("features", "labels", "test_features", "test_labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.user_ids)


def digits(
    users: int,
    *,
    partition: str = "iid",
    dirichlet_alpha: float = 1.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> FederatedDataset:
    """The 1,797 handwritten 8×8 digits that ship inside scikit-learn, split over users.

    Args:
        users: number of users; at most the number of training examples.
        partition: "iid" (even random split) or "dirichlet" (label skew).
        dirichlet_alpha: α of the label skew; small is more skewed.
        test_fraction: held-out share of all examples, in (0, 1).
        seed: public seed of the split.

    Returns:
        Features scaled to [0, 1], shape (examples, 64).

    References:
        E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    from sklearn.datasets import load_digits

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
    if not 1 <= users <= train.size:
        raise ValueError(f"users must lie in 1..{train.size}, the number of training examples; got {users}.")
    if partition == "iid":
        owned = partition_evenly(train.size, users, rng)
    elif partition == "dirichlet":
        owned = partition_by_label(targets[train], users, dirichlet_alpha, rng)
    else:
        raise ValueError(f"partition must be one of iid, dirichlet; got {partition!r}.")
    features = torch.from_numpy((images / 16.0).astype(np.float32))
    labels = torch.from_numpy(targets.astype(np.int64))
    width = len(str(users - 1))
    return FederatedDataset(
        features=features[train],
        labels=labels[train],
        owned=owned,
        user_ids=tuple(f"user-{u:0{width}d}" for u in range(users)),
        test_features=features[test],
        test_labels=labels[test],
        classes=10,
    )


def partition_evenly(examples: int, users: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
    """A random split into parts whose sizes differ by at most one."""
    return tuple(np.sort(part) for part in np.array_split(rng.permutation(examples), users))


def partition_by_label(
    labels: NDArray[np.int64], users: int, alpha: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], ...]:
    """A split with Dirichlet(α) label skew in which all users own about equally many examples.

    Each user draws label proportions from Dirichlet(α) and fills its quota from the labels' pools,
    passing to what is left when a pool runs dry.

    References:
        Hsu, Qi, Brown (2019), "Measuring the Effects of Non-Identical Data Distribution", section 3.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"α (dirichlet-alpha) must be positive and finite; got {alpha}.")
    classes = int(labels.max()) + 1
    pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in range(classes)]
    quotas = [part.size for part in np.array_split(np.arange(labels.size), users)]
    owned = []
    for quota in quotas:
        taste = rng.dirichlet(np.full(classes, alpha))
        mine = []
        for _ in range(quota):
            weights = np.array([t if pool else 0.0 for t, pool in zip(taste, pools, strict=True)])
            if weights.sum() <= 0.0:
                weights = np.array([float(len(pool)) for pool in pools])
            mine.append(pools[rng.choice(classes, p=weights / weights.sum())].pop())
        owned.append(np.sort(np.array(mine, dtype=np.int64)))
    return tuple(owned)
