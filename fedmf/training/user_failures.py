"""Groups of users whose failures stay with them.

A group has its users' examples, loaded such that a user that fails is replaced by zeros and changes
nothing of the others. `Failures` collects which users failed and why; errors of a task's own code
are described in one line.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
    each,
    joined,
    named,
)
from fedmf.errors import pass_interrupt
from fedmf.noise.jit import compiled, jit_reassoc
from fedmf.training.batches import StepRows

#: Characters of a recorded text, and of an error's message.
_RECORDED_CHARACTERS: Final = 500
_MESSAGE_CHARACTERS: Final = 300
#: Packages whose frames are not the task's own.
_LIBRARIES: Final = frozenset({"fedmf", "functorch", "numpy", "torch", *sys.stdlib_module_names})


@dataclass(frozen=True)
class UserFailure:
    """A user that contributed the zero vector to a round, or 0 to a client metric.

    It depends on data: it is as secret as the ledger.

    Args:
        user: the user's id; empty if a reply names no user.
        stage: "sizes", "loading", "training", "update", "held-out", "metric", "reply" or
            "quarantine".
        reason: why, in one line.
        fault: the reason without text that users or their code chose, which logs may show; empty
            if there is none.
    """

    user: str
    stage: str
    reason: str
    fault: str = ""

    def to_dict(self) -> dict[str, str]:
        """The failure for JSON; long texts are cut."""
        return {
            "user": self.user[:_RECORDED_CHARACTERS],
            "stage": self.stage[:_RECORDED_CHARACTERS],
            "reason": self.reason[:_RECORDED_CHARACTERS],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> UserFailure:
        """Read a failure that `to_dict` wrote, or anything that a client sends instead."""
        return cls(
            user=_recorded_text(values, "user"),
            stage=_recorded_text(values, "stage"),
            reason=_recorded_text(values, "reason"),
        )


def _recorded_text(values: Mapping[str, object], name: str) -> str:
    return str(values.get(name, ""))[:_RECORDED_CHARACTERS]


class Failures:
    """The failures among users, who are known by their places; several threads may note some."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[str, str]] = {}

    def note(self, place: int, stage: str, reason: str) -> None:
        """Note a user's failure; the first one counts."""
        self._at.setdefault(place, (stage, reason))

    def note_infinite(self, places: NDArray[np.int64], finite: Tensor) -> None:
        """Note the users whose updates are not finite.

        Args:
            places: the users, shape (users,).
            finite: whether each update is finite, shape (users,), bool.
        """
        for place in places[~finite.cpu().numpy()].tolist():
            self.note(place, "update", "update holds NaN or infinity (learning rate too large?)")

    def named(self, user_ids: Sequence[str]) -> list[UserFailure]:
        """The failures in the order of the users."""
        return [UserFailure(str(user_ids[place]), *self._at[place]) for place in sorted(self._at)]


def described(error: BaseException) -> str:
    """Type, message and the deepest place in the task's own code, if it passed through any.

    >>> described(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    message = " ".join(_text(error).split())[:_MESSAGE_CHARACTERS].rstrip(".")
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _LIBRARIES:
            return f"{type(error).__name__}: {message} ({frame.f_code.co_filename}:{line})"
    return f"{type(error).__name__}: {message}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:  # an exception class of the task may fail at anything
        pass_interrupt(another)
        return "no message"


@contextmanager
def silent() -> Iterator[None]:
    """Suppress Python's warnings: they would depend on a user's data, for example on overflow."""
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
        seeds: of the random numbers that the model draws for each user (`draw_seed`), shape
            (users,).
        absent: users that failed and stay where they start; 0 is the first of the group.
        load: makes the same group with examples of its own, where features and labels are a whole
            data set's; None where they are the group's.
    """

    positions: NDArray[np.int64]
    width: int
    edges: NDArray[np.int64]
    features: Features
    labels: Tensor
    steps: StepRows
    seeds: NDArray[np.uint64]
    absent: frozenset[int] = frozenset()
    load: Callable[[], Group] | None = None

    def __len__(self) -> int:
        return self.positions.size

    def examples(self, rows: Tensor) -> tuple[Features, Tensor]:
        """Features and labels of these examples."""
        return each(lambda values: values[rows], self.features), self.labels[rows]

    def part(self, first: int, last: int) -> Group:
        """The users first … last − 1, with the examples of all."""
        active = np.clip(self.steps.active - first, 0, last - first)
        taking = np.flatnonzero(active)
        steps = StepRows(
            self.steps.rows[taking, first:last],
            self.steps.weights[taking, first:last],
            active[taking],
        )
        load = None
        if self.load is not None:
            load = partial(_loaded_part, self.load, first, last)
        return replace(
            self,
            positions=self.positions[first:last],
            edges=self.edges[first : last + 1],
            steps=steps,
            seeds=self.seeds[first:last],
            absent=frozenset(user - first for user in self.absent if first <= user < last),
            load=load,
        )

    def parts(self, users: int) -> Iterator[Group]:
        """All users in parts of equal size up to one, with at most ``users`` each."""
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
        """The group with zeros for these users' examples.

        No shape changes, and neither does a bit of the other users.
        """
        features = each(lambda values: values.clone(), self.features)
        labels = self.labels.clone()
        failed = frozenset(users)
        for user in failed:
            owned = slice(int(self.edges[user]), int(self.edges[user + 1]))
            for values in (*named(features).values(), labels):
                values[owned] = 0
        return replace(self, features=features, labels=labels, absent=self.absent | failed)


def _loaded_part(load: Callable[[], Group], first: int, last: int) -> Group:
    return load().part(first, last)


#: Called with the place of a user and why it failed.
Note = Callable[[int, str], None]


def _ignore(place: int, reason: str) -> None:
    """Note nothing about a user that failed."""
    del place, reason


def example_counts(
    dataset: Dataset, users: NDArray[np.int64], note: Note = _ignore
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
    note: Note = _ignore,
) -> tuple[Features, Tensor]:
    """All examples of some users, one user after the other; zeros in place of those that fail.

    Args:
        dataset: the users' examples.
        structure: how one example must look.
        users: indices, shape (m,).
        counts: how many examples each must have, shape (m,), each at least 1.
        note: called for each user with examples that cannot be loaded or are invalid.

    Guarantees:
        A user's examples do not depend on another user's. Users are loaded together only by data
        sets that promise as many examples as they count (`Dataset.counts_are_exact`), and one by
        one where that fails.
    """
    loader = _Loader(dataset, structure, users, counts, note)
    parts: list[tuple[Features, Tensor]] = []
    if dataset.counts_are_exact:
        parts = loader.load(0, users.size)
    else:
        for place in range(users.size):
            parts += loader.load(place, place + 1)
    if len(parts) == 1:
        return parts[0]
    all_features, all_labels = zip(*parts, strict=True)
    return joined(all_features), torch.cat(all_labels)


@dataclass(frozen=True, eq=False)
class _Loader:
    """Loads examples of users by halves until each user that fails is alone.

    Args: those of `load_examples`.
    """

    dataset: Dataset
    structure: ExampleStructure
    users: NDArray[np.int64]
    counts: NDArray[np.int64]
    note: Note

    def load(self, first: int, last: int) -> list[tuple[Features, Tensor]]:
        """The examples of the users first … last − 1 in some parts, in their order."""
        try:
            return [self._load_together(first, last)]
        except BaseException as error:
            pass_interrupt(error)
            if last - first == 1:
                self.note(first, described(error))
                return [self.structure.zeros(int(self.counts[first]), self._device)]
        middle = (first + last) // 2
        return self.load(first, middle) + self.load(middle, last)

    def _load_together(self, first: int, last: int) -> tuple[Features, Tensor]:
        features, labels = self.dataset.examples(self.users[first:last])
        expected = int(self.counts[first:last].sum())
        self.structure.features.check("features", features, expected, self._device)
        self.structure.labels.check("labels", labels, expected, self._device)
        return features, labels

    @property
    def _device(self) -> torch.device:
        return self.dataset.test_labels.device


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
    """The rows of users' examples in a data set in memory, if all of them are valid.

    Args:
        dataset: the users' examples.
        structure: how one example must look.
        users: indices, shape (m,).

    Returns:
        None where an example is not valid, for which `load_examples` finds the reason, or where
        examples are not real numbers in one array of a processor's memory.
    """
    if type(dataset) is not InMemoryDataset or not isinstance(dataset.features, Tensor):
        return None
    rows = dataset.rows(users)
    values = dataset.features
    declared = structure.features
    if not isinstance(declared, TensorStructure) or declared.bound is not None:
        return None
    if declared.dtype != torch.float32 or values.dtype != torch.float32:
        return None
    if values.device.type != "cpu" or values.shape[1:] != declared.shape:
        return None
    if not values.is_contiguous() or len(values) != len(dataset.labels):
        return None
    if not rows.size or rows.min() < 0 or rows.max() >= len(values):
        return None
    labels = dataset.labels[torch.from_numpy(rows)]
    try:
        structure.labels.check("labels", labels, rows.size, values.device)
    except (TypeError, ValueError):
        return None
    if not _finite(values.detach().numpy().reshape(len(values), -1), rows):
        return None
    return rows
