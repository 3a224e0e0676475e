"""Users' examples, each user's failures its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import Dataset, ExampleStructure, Features, TensorStructure, device_of, joined
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


def held_examples(
    dataset: Dataset, structure: ExampleStructure, users: NDArray[np.int64]
) -> tuple[Features, Tensor, NDArray[np.int64]] | None:
    """Users' examples where they lie, for programs that copy each themselves: see `Dataset.held`.

    None where they are to be loaded, as those that are not as they must be are, to find out whose they are.
    The examples of a data set are looked at once, not in every round.
    """
    try:
        held = dataset.held(users)
        if held is None or not isinstance(held[0], Tensor) or not held[0].is_contiguous():
            return None
        if not isinstance(structure.features, TensorStructure):
            return None
        device, number = device_of(dataset.test_features), len(held[1])
        structure.features.check_layout("features", held[0], number, device)
        structure.labels.check_layout("labels", held[1], number, device)
        unfit = dataset.unfit_rows(structure)
        return held if unfit is None or not unfit[held[2]].any() else None
    except BaseException as error:
        pass_interrupt(error)
        return None


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
