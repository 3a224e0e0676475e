"""What keeps a user's failure with that user: groups of users with their examples, loaded one
user's failures its own, and what went wrong in a task's own code, in one line.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import Dataset, InMemoryDataset
from fedmf.data.structure import (
    ExampleStructure,
    Features,
    TensorStructure,
    device_of,
    each,
    joined,
    named,
)
from fedmf.noise.jit import compiled, jit_reassoc
from fedmf.training.batches import StepRows

_MOST_CHARACTERS: Final = 500


@dataclass(frozen=True)
class UserFailure:
    """A user that contributed the zero vector to a round. It depends on data: as secret as the
    ledger.

    Args:
        user: the user's id; empty if a reply names no user.
        stage: at what: "sizes", "loading", "training", "update", "reply" or "quarantine".
        reason: why, in one line.
        fault: the reason without text that users or their code chose, which logs may show; empty
            if there is none.
    """

    user: str
    stage: str
    reason: str
    fault: str = ""

    def to_dict(self) -> dict[str, str]:
        """JSON-able; texts from elsewhere are cut."""
        texts = {"user": self.user, "stage": self.stage, "reason": self.reason}
        return {name: text[:_MOST_CHARACTERS] for name, text in texts.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> UserFailure:
        """What `to_dict` made, or whatever a stranger sent instead."""
        return cls(
            *(str(values.get(name, ""))[:_MOST_CHARACTERS] for name in ("user", "stage", "reason"))
        )


class Failures:
    """The failures among users who are known by their places; may be noted by several threads."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[str, str]] = {}

    def note(self, place: int, stage: str, reason: str) -> None:
        """The first reason counts."""
        self._at.setdefault(place, (stage, reason))

    def __contains__(self, place: int) -> bool:
        return place in self._at

    def named(self, user_ids: Sequence[str]) -> list[UserFailure]:
        """The failures in the order of the users."""
        return [UserFailure(str(user_ids[place]), *self._at[place]) for place in sorted(self._at)]


#: Packages whose frames are not the task's own.
LIBRARIES = frozenset({"fedmf", "functorch", "numpy", "torch", *sys.stdlib_module_names})
MOST_CHARACTERS = 300


def described(error: BaseException) -> str:
    """Type, message and the deepest place in the task's own code, if it passed through any.

    >>> described(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    message = " ".join(_text(error).split())[:MOST_CHARACTERS].rstrip(".")
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in LIBRARIES:
            return f"{type(error).__name__}: {message} ({frame.f_code.co_filename}:{line})"
    return f"{type(error).__name__}: {message}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:  # an exception of somebody's own may fail at anything
        pass_interrupt(another)
        return "no message"


def pass_interrupt(error: BaseException) -> None:
    """Raise what only the operator can have caused; everything else may come from a user's data."""
    if isinstance(error, KeyboardInterrupt):
        raise error


@contextmanager
def silent() -> Iterator[None]:
    """Without Python's warnings: they would depend on a user's data, for example on overflow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True, eq=False)
class Group:
    """Users of one width of batches with their examples.

    Args:
        positions: the users' places in the cohort, shape (users,).
        width: examples in a step, padding included.
        edges: user u owns the examples edges[u] … edges[u + 1] − 1, shape (users + 1,).
        features: of all examples.
        labels: of all examples.
        steps: which examples each step takes.
        seeds: of the random numbers that the model draws for each user, see `draw_seed`; shape
            (users,).
        absent: users (0 is the first of the group) that stay where they start: they failed.
        loaded: where features and labels are a whole data set's, and steps take its rows: makes the
            same group with examples of its own.
    """

    positions: NDArray[np.int64]
    width: int
    edges: NDArray[np.int64]
    features: Features
    labels: Tensor
    steps: StepRows
    seeds: NDArray[np.uint64]
    absent: frozenset[int] = frozenset()
    loaded: Callable[[], Group] | None = None

    def __len__(self) -> int:
        return self.positions.size

    def taken(self, rows: Tensor) -> tuple[Features, Tensor]:
        """Features and labels of these examples."""
        return each(lambda values: values[rows], self.features), self.labels[rows]

    def part(self, first: int, last: int) -> Group:
        """Some of the users, with the examples of all."""
        active = np.clip(self.steps.active - first, 0, last - first)
        taking = np.flatnonzero(active)
        steps = StepRows(
            self.steps.rows[taking, first:last],
            self.steps.weights[taking, first:last],
            active[taking],
        )
        absent = frozenset(user - first for user in self.absent if first <= user < last)
        load = self.loaded
        return replace(
            self,
            positions=self.positions[first:last],
            edges=self.edges[first : last + 1],
            steps=steps,
            seeds=self.seeds[first:last],
            absent=absent,
            loaded=None if load is None else lambda: load().part(first, last),
        )

    def parts(self, users: int) -> Iterator[Group]:
        """All of the users, as evenly as can be in parts of so many at most."""
        if len(self) <= users:
            yield self
            return
        count = -(-len(self) // users)
        size = -(-len(self) // count)
        for first in range(0, len(self), size):
            yield self.part(first, min(first + size, len(self)))

    def halves(self) -> tuple[Group, Group]:
        """The first and the second half of the users."""
        middle = len(self) // 2
        return self.part(0, middle), self.part(middle, len(self))

    def without(self, users: Iterable[int]) -> Group:
        """The same with zeros for these users' examples: no shape changes, nor anybody else's
        bits.
        """
        features = each(lambda values: values.clone(), self.features)
        labels = self.labels.clone()
        failed = frozenset(users)
        for user in failed:
            owned = slice(int(self.edges[user]), int(self.edges[user + 1]))
            for values in (*named(features).values(), labels):
                values[owned] = 0
        return replace(self, features=features, labels=labels, absent=self.absent | failed)


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
        raise ValueError(
            f"sizes must be {users.size} integers; got {counts.dtype} of shape {counts.shape}."
        )
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
        dataset: of the examples.
        structure: what one example must look like.
        users: indices, shape (m,).
        counts: how many examples each must have, shape (m,), each at least 1.
        note: told of the users with examples that cannot be loaded or are invalid.

    Guarantees:
        What one user's examples are does not depend on another's. Users are loaded together only by
        data sets that promise as many examples as they count (`Dataset.counts_are_exact`), and one
        by one where that fails.
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
            features, labels = structure.zeros(owned, device)
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


@jit_reassoc
def _not_finite(values: Any, row: Any) -> Any:
    """0, or NaN where a number of a row is not finite."""
    total = np.float32(0)
    for i in range(values.shape[1]):
        total += values[row, i] * np.float32(0)
    return total


@compiled("boolean(float32[:,::1], int64[::1])")
def _finite(values: Any, rows: Any) -> Any:
    total = np.float32(0)
    for row in rows:
        total += _not_finite(values, row)
    return total == 0


def rows_in_place(
    dataset: Dataset, structure: ExampleStructure, users: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """The rows of users' examples in a data set in memory, if all of them are as they must be.

    Args:
        dataset: of the examples.
        structure: what one example must look like.
        users: indices, shape (m,).

    Returns:
        None where they are not, which `load_examples` tells more about, or where examples are not
        real numbers in one array of a processor's memory.
    """
    if type(dataset) is not InMemoryDataset or not isinstance(dataset.features, Tensor):
        return None
    rows = dataset.rows(users)
    values = dataset.features
    declared = structure.features
    if not isinstance(declared, TensorStructure) or declared.bound is not None:
        return None
    kinds = (declared.dtype, values.dtype, values.device.type)
    if values.shape[1:] != declared.shape or kinds != (torch.float32, torch.float32, "cpu"):
        return None
    if not values.is_contiguous() or len(values) != len(dataset.labels):
        return None
    if not rows.size or rows.min() < 0 or rows.max() >= len(values):
        return None
    try:
        structure.labels.check(
            "labels", dataset.labels[torch.from_numpy(rows)], rows.size, values.device
        )
    except (TypeError, ValueError):
        return None
    return rows if _finite(values.detach().numpy().reshape(len(values), -1), rows) else None
