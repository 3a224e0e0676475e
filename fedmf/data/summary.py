"""What a partition looks like: sizes of users, and how unequal their labels are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import FederatedDataset

_LEVELS: Final = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
_CHUNK: Final = 100_000


@dataclass(frozen=True)
class PartitionSummary:
    """Sizes of all users, and labels of some.

    Args:
        sizes: number of examples of each user, shape (users,).
        label_counts: labels of each class, or tokens of each number, that the users looked at own, shape
            (looked at, classes); of no classes where labels are real numbers.
        test_examples: size of the central test part.
        example_shape: of one example.
    """

    sizes: NDArray[np.int64]
    label_counts: NDArray[np.int64]
    test_examples: int
    example_shape: tuple[int, ...]

    def row(self) -> dict[str, Any]:
        """Numbers to print: counts, size quantiles, and label entropies in bits.

        ``entropy_of_users`` is the mean over users of the entropy of their own labels; ``entropy_of_all``
        that of their labels together. Equal values mean equal labels; 0 means one label a user.
        """
        return {
            "users": int(self.sizes.size),
            "examples": int(self.sizes.sum()),
            "test_examples": self.test_examples,
            "example_shape": list(self.example_shape),
            "classes": int(self.label_counts.shape[1]),
            "sizes": {
                name: int(np.quantile(self.sizes, level, method="nearest")) for name, level in _LEVELS.items()
            },
            "entropy_of_users": float(_entropy(self.label_counts).mean()),
            "entropy_of_all": float(_entropy(self.label_counts.sum(axis=0, keepdims=True))[0]),
            "users_looked_at": len(self.label_counts),
        }


def summarise(dataset: FederatedDataset, most_users: int = 1000) -> PartitionSummary:
    """Look at a data set.

    Args:
        dataset: any.
        most_users: labels are counted for this many evenly spaced users at most; sizes for all.
    """
    everybody = range(0, dataset.users, _CHUNK)
    sizes = [dataset.sizes(np.arange(u, min(u + _CHUNK, dataset.users))) for u in everybody]
    looked_at = np.unique(np.linspace(0, dataset.users - 1, min(most_users, dataset.users)).astype(np.int64))
    counts = [_counts(dataset, u) for u in looked_at]
    shape = tuple(dataset.test_features.shape[1:])
    return PartitionSummary(np.concatenate(sizes), np.stack(counts), len(dataset.test_labels), shape)


def _counts(dataset: FederatedDataset, user: np.int64) -> NDArray[np.int64]:
    """How often the user has each label, padding left out."""
    labels = dataset.examples(np.array([user]))[1].cpu().numpy()
    if labels.dtype.kind == "f":
        return np.zeros(0, dtype=np.int64)
    return np.bincount(labels[labels >= 0], minlength=dataset.classes or dataset.vocabulary)


def _entropy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=1)
