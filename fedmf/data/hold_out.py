"""Which examples of a table are held out for central evaluation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["hold_out_examples", "hold_out_users"]


def hold_out_examples(
    owner: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """A random share of all examples, but never the last one of an owner.

    Args:
        owner: who owns each example, shape (examples,).
        fraction: of all examples, in (0, 1).
        rng: decides which.

    Returns:
        The mask of held-out examples, shape (examples,).

    Raises:
        ValueError: no example would be held out, or every owner would have to give its last one.

    >>> hold_out_examples(np.array([0, 0, 0, 1]), 0.5, np.random.default_rng(0)).sum()
    np.int64(2)
    """
    order = rng.permutation(owner.size)
    last = np.zeros(owner.size, dtype=bool)
    last[order[np.unique(owner[order], return_index=True)[1]]] = True
    spare = order[~last[order]]
    wanted = round(fraction * owner.size)
    if not 1 <= wanted <= spare.size:
        raise ValueError(
            f"test_fraction must hold out between 1 and {spare.size} of {owner.size} examples, so that every "
            f"user keeps one; got {fraction}, which is {wanted}."
        )
    mask = np.zeros(owner.size, dtype=bool)
    mask[spare[:wanted]] = True
    return mask


def hold_out_users(owner: NDArray[np.int64], fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """All examples of a random share of the owners 0..U − 1.

    Raises:
        ValueError: no owner would be held out, or all of them.

    >>> hold_out_users(np.array([0, 0, 1, 1, 1]), 0.5, np.random.default_rng(0)).sum() in (2, 3)
    True
    """
    users = int(owner.max()) + 1
    wanted = round(fraction * users)
    if not 1 <= wanted < users:
        raise ValueError(
            f"test_fraction must hold out between 1 and {users - 1} of {users} users; got {fraction}, "
            f"which is {wanted}."
        )
    return np.isin(owner, rng.permutation(users)[:wanted])
