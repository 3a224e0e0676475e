"""Users' examples, each user's failures its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import Dataset
from fedmf.data.structure import ExampleStructure, Features, device_of, joined
from fedmf.training.barrier.description import described, pass_interrupt

#: Called with the place of a user and why it failed.
Note = Callable[[int, str], None]


def example_counts(
    dataset: Dataset, users: NDArray[np.int64], note: Note = lambda _place, _reason: None
) -> NDArray[np.int64]:
    """How many examples each user owns, 0 for one whose count fails. Shape (m,)."""
    try:
        return _checked_counts(dataset, users)
    except BaseException as error:
        pass_interrupt(error)
    counts = np.zeros(users.size, dtype=np.int64)
    for place in range(users.size):
        try:
            counts[place : place + 1] = _checked_counts(dataset, users[place : place + 1])
        except BaseException as error:
            pass_interrupt(error)
            note(place, described(error))
    return counts


def _checked_counts(dataset: Dataset, users: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = np.asarray(dataset.sizes(users))
    if counts.shape != users.shape or counts.dtype.kind not in "iu":
        raise ValueError(f"sizes must be {users.size} integers; got {counts.dtype} of shape {counts.shape}.")
    if counts.size and int(counts.min()) < 0:
        raise ValueError(f"sizes must not be negative; got {int(counts.min())}.")
    return counts.astype(np.int64, copy=False)


def load_examples(
    dataset: Dataset,
    structure: ExampleStructure,
    users: NDArray[np.int64],
    counts: NDArray[np.int64],
    note: Note,
) -> tuple[Features, Tensor]:
    """All examples of some users, one user after the other; zeros in place of those that fail.

    Args:
        dataset: whose examples.
        structure: what one example must look like.
        users: indices, shape (m,).
        counts: how many examples each must have, shape (m,), each at least 1.
        note: told of the users whose examples cannot be loaded, or are not as they must be.

    Guarantees:
        What one user's examples are does not depend on another's. Users are loaded together only by data
        sets that promise as many examples as they count (`Dataset.counts_are_exact`), and one by
        one where that fails.
    """
    parts: list[tuple[Features, Tensor]] = []
    device = device_of(dataset.test_features)

    def load(first: int, last: int) -> None:
        try:
            features, labels = dataset.examples(users[first:last])
            expected = int(counts[first:last].sum())
            structure.features.check("features", features, expected, device)
            structure.labels.check("labels", labels, expected, device)
        except BaseException as error:
            pass_interrupt(error)
            if last - first > 1:
                halve(first, last)
                return
            note(first, described(error))
            owned = int(counts[first])
            features, labels = structure.features.zeros(owned, device), structure.labels.zeros(owned, device)
        parts.append((features, labels))

    def halve(first: int, last: int) -> None:
        middle = (first + last) // 2
        load(first, middle)
        load(middle, last)

    if dataset.counts_are_exact:
        load(0, users.size)
    else:
        for place in range(users.size):
            load(place, place + 1)
    if len(parts) == 1:
        return parts[0]
    return joined([part[0] for part in parts]), torch.cat([part[1] for part in parts])
