"""Users' examples, each user's failures its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import ExampleStructure, FederatedDataset, TensorStructure
from fedmf.training.barrier.description import described, pass_interrupt

__all__ = ["example_counts", "load_examples"]

#: Called with the place of a user and why it failed.
Note = Callable[[int, str], None]


def example_counts(
    dataset: FederatedDataset, users: NDArray[np.int64], note: Note = lambda _place, _reason: None
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


def _checked_counts(dataset: FederatedDataset, users: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = np.asarray(dataset.sizes(users))
    if counts.shape != users.shape or counts.dtype.kind not in "iu":
        raise ValueError(f"sizes must be {users.size} integers; got {counts.dtype} of shape {counts.shape}.")
    if counts.size and int(counts.min()) < 0:
        raise ValueError(f"sizes must not be negative; got {int(counts.min())}.")
    return counts.astype(np.int64, copy=False)


def load_examples(
    dataset: FederatedDataset,
    structure: ExampleStructure,
    users: NDArray[np.int64],
    counts: NDArray[np.int64],
    note: Note,
) -> tuple[Tensor, Tensor]:
    """All examples of some users, one user after the other; zeros in place of those that fail.

    Args:
        dataset: whose examples.
        structure: what one example must look like.
        users: indices, shape (m,).
        counts: how many examples each must have, shape (m,), each at least 1.
        note: told of the users whose examples cannot be loaded, or are not as they must be.

    Guarantees:
        What one user's examples are does not depend on another's. Users are loaded together only by data
        sets that promise as many examples as they count (`FederatedDataset.counts_are_exact`), and one by
        one where that fails.
    """
    parts: list[tuple[Tensor, Tensor]] = []
    device = dataset.test_features.device

    def load(first: int, last: int) -> None:
        try:
            features, labels = dataset.examples(users[first:last])
            expected = int(counts[first:last].sum())
            _check("features", structure.features, features, expected, device)
            _check("labels", structure.labels, labels, expected, device)
        except BaseException as error:
            pass_interrupt(error)
            if last - first > 1:
                halve(first, last)
                return
            note(first, described(error))
            features, labels = _zeros(structure, int(counts[first]), device)
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
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _check(name: str, declared: TensorStructure, values: Tensor, examples: int, device: torch.device) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(values).__name__}.")
    if len(values) != examples or tuple(values.shape[1:]) != declared.shape or values.dtype != declared.dtype:
        raise ValueError(
            f"{name} must be {examples} of {declared}; got {tuple(values.shape)} {values.dtype}."
        )
    if values.device != device:
        raise ValueError(f"{name} must be on {device}; got {values.device}.")
    # On a processor an impossible number raises where it is used; on a GPU it would end the process.
    if values.is_cuda and not declared.fits(values):
        raise ValueError(f"{name} must be {declared}; got {int(values.max())}.")


def _zeros(structure: ExampleStructure, examples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Valid examples that say nothing."""
    shapes = structure.features, structure.labels
    features, labels = (
        torch.zeros((examples, *part.shape), dtype=part.dtype, device=device) for part in shapes
    )
    return features, labels
