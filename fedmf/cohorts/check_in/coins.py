"""Coins that belong to one user: no draw depends on which other users there are."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIXERS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def uniform(
    seed: int, purpose: int, time: int | NDArray[np.int64], users: NDArray[np.integer]
) -> NDArray[np.float64]:
    """A number in [0, 1) for each user: a hash of seed, purpose, time and the user's own index.

    Two rounds of SplitMix64's finaliser, the second with time and seed. The seed is public: the coins protect
    nothing.

    Args:
        seed: 0 ≤ seed < 2⁶³.
        purpose: what the coin is for; other purposes have other coins.
        time: a round or day, one for all or one each; may be negative.
        users: indices.

    >>> both, alone = uniform(1, 0, 5, np.array([3, 8])), uniform(1, 0, 5, np.array([8]))
    >>> bool(both[1] == alone[0])
    True
    """
    at = np.asarray(time, dtype=np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        word = _mixed(np.asarray(users).astype(np.uint64) + np.uint64(purpose * _GOLDEN % 2**64))
        word = _mixed(word ^ _mixed(at + np.uint64((seed + 1) * _GOLDEN % 2**64)))
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(word: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    mixed = np.asarray(word, dtype=np.uint64) + np.uint64(_GOLDEN)
    for shift, factor in _MIXERS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
