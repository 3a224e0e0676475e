"""Rectangular batches from the examples of users.

Users of one width are trained together: this module forms such groups, and lays out which examples
each user takes at each step, in an order of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.noise.jit import compiled, jit_inline


def user_orders(seed: int, t: int, user_id: str, examples: int, epochs: int) -> NDArray[np.int64]:
    """The orders in which a user takes its examples in round t, wherever it is trained.

    Args:
        seed: public seed of the run.
        t: 0-based round.
        user_id: the user's stable name.
        examples: n_u, how many examples it owns.
        epochs: how often it goes through them.

    Returns:
        Permutations of 0 … n_u − 1, shape (epochs, n_u): Fisher–Yates from a SplitMix64 generator
        that starts at a hash of the arguments. Choices are uniform up to n_u·2⁻⁶⁴.

    References:
        Steele, Lea, Flood (2014), "Fast Splittable Pseudorandom Number Generators", figure 15.

    >>> user_orders(0, 0, "alice", examples=5, epochs=2).shape
    (2, 5)
    """
    orders = np.empty((epochs, examples), dtype=np.int64)
    shuffle(np.uint64(user_seed(seed, t, user_id)), orders)
    return orders


def user_seed(seed: int, t: int, user_id: str) -> int:
    """The 64 bits from which one user's shuffling in one round starts."""
    digest = hashlib.sha256(f"fedmf local shuffle|{seed}|{t}|{user_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


@jit_inline
def _shuffle(state, orders):
    """Fill each row of ``orders``, shape (epochs, examples), int64, with a permutation."""
    for epoch in range(orders.shape[0]):
        order = orders[epoch]
        for i in range(order.size):
            order[i] = i
        for i in range(order.size - 1, 0, -1):
            state += np.uint64(0x9E3779B97F4A7C15)
            z = state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            j = np.int64(z % np.uint64(i + 1))
            order[i], order[j] = order[j], order[i]


@compiled("void(uint64, int64[:,::1])")
def shuffle(state, orders):
    """Fill each row of ``orders``, shape (epochs, examples), int64, with a permutation."""
    _shuffle(state, orders)


@dataclass(frozen=True, order=True)
class Shape:
    """The size of one user's local training, or of a group's.

    Args:
        width: examples in a step, padding included.
        steps: number of steps.
    """

    width: int
    steps: int


def shape_of(examples: int, batch_size: int, epochs: int) -> Shape:
    """The shape of a user's training, from the number of its examples alone.

    A user with fewer examples than a batch is padded to the next power of 2, so that there are few
    widths.
    """
    width = min(batch_size, 1 << (examples - 1).bit_length())
    return Shape(width, epochs * -(-examples // batch_size))


def widths_of(batch_size: int) -> list[int]:
    """All widths that users can have, in ascending order.

    >>> widths_of(10)
    [1, 2, 4, 8, 10]
    """
    powers = 1 << np.arange(batch_size.bit_length() + 1)
    return np.unique(np.minimum(batch_size, powers)).tolist()


def groups_of(
    sizes: NDArray[np.int64],
    batch_size: int,
    epochs: int,
    most: int,
    multiple: int = 1,
) -> Iterator[tuple[Shape, NDArray[np.int64]]]:
    """Form groups of users of one width and similar numbers of steps.

    Args:
        sizes: examples of each user.
        batch_size: examples in a full step.
        epochs: passes over the examples.
        most: most users in a group.
        multiple: the number of groups of one width is a multiple of this, if there are enough
            users.

    Yields:
        The width of the group with the largest number of steps in it, and the users' positions in
        ``sizes``, those with most steps first. Groups with much work come first.
    """
    different, of_user = np.unique(sizes, return_inverse=True)
    shapes = [astuple(shape_of(int(size), batch_size, epochs)) for size in different]
    widths, steps = np.array(shapes, dtype=np.int64).reshape(-1, 2)[of_user].T
    for width in np.unique(widths)[::-1]:
        members = np.flatnonzero(widths == width)
        members = members[np.argsort(-steps[members], kind="stable")]
        for part in even_parts(members, most, multiple):
            yield Shape(int(width), int(steps[part[0]])), part


def even_parts(members: NDArray[np.int64], most: int, multiple: int) -> Iterator[NDArray[np.int64]]:
    """Consecutive parts of at most ``most`` members, of equal length up to one."""
    parts = min(-(-len(members) // (most * multiple)) * multiple, len(members))
    for i in range(parts):
        yield members[i * len(members) // parts : (i + 1) * len(members) // parts]


@dataclass(frozen=True, eq=False)
class StepRows:
    """The examples of a group, step by step.

    Args:
        rows: indices into the group's examples, shape (steps, users, width), int64.
        weights: shape (steps, users, width), float32: 1/(examples in the step), 0 for padding.
        active: how many users still train at each step; they come first. Shape (steps,).
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float32]
    active: NDArray[np.int64]


def step_rows(
    seeds: NDArray[np.uint64], sizes: NDArray[np.int64], batch_size: int, epochs: int, shape: Shape
) -> StepRows:
    """Shuffle the users' examples and lay them out as steps.

    Padding repeats the user's own first example at weight zero. The group's examples are its
    users', one after the other.

    Args:
        seeds: of the users' shuffling (`user_seed`).
        sizes: examples of each user, those with most steps first.
        batch_size: examples in a full step.
        epochs: passes over the examples.
        shape: width and number of steps of the group.
    """
    rows = np.empty((shape.steps, sizes.size, shape.width), dtype=np.int64)
    weights = np.zeros((shape.steps, sizes.size, shape.width), dtype=np.float32)
    _fill(seeds, sizes, batch_size, epochs, rows, weights)
    steps = epochs * -(-sizes // batch_size)
    active = (steps[None, :] > np.arange(shape.steps)[:, None]).sum(axis=1)
    return StepRows(rows, weights, active)


@compiled("void(uint64[::1], int64[::1], int64, int64, int64[:,:,::1], float32[:,:,::1])")
def _fill(seeds, sizes, batch_size, epochs, rows, weights):
    start = 0
    for u in range(sizes.size):
        size = sizes[u]
        rows[:, u] = start
        orders = np.empty((epochs, size), dtype=np.int64)
        _shuffle(seeds[u], orders)
        step = 0
        for epoch in range(epochs):
            for first in range(0, size, batch_size):
                taken = min(batch_size, size - first)
                for i in range(taken):
                    rows[step, u, i] = start + orders[epoch, first + i]
                    weights[step, u, i] = np.float32(1.0) / np.float32(taken)
                step += 1
        start += size
