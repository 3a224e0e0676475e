"""The order in which a user goes through its examples: a keyed function, like the noise, but public."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedmf.compiled import compiled


def user_orders(seed: int, t: int, user_id: str, examples: int, epochs: int) -> NDArray[np.int64]:
    """The orders in which a user takes its examples in round t; the same wherever the user is trained.

    Args:
        seed: public seed of the run.
        t: 0-based round.
        user_id: the user's stable name.
        examples: n_u, how many examples it owns.
        epochs: how often it goes through them.

    Returns:
        Permutations of 0 … n_u − 1, shape (epochs, n_u): Fisher–Yates from a SplitMix64 generator that starts
        at a hash of the arguments. Choices are uniform up to n_u·2⁻⁶⁴.

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


@compiled
def shuffle(state, orders):
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
