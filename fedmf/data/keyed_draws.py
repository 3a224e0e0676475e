"""Public random numbers that are a pure function of a seed, a user and a counter."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LEVELS = 1 << 16


class KeyedDraws:
    """Words of 64 random bits, addressed by user and counter.

    Only integers are computed, so that every machine draws the same bits for any set of users at once.
    These are not secret and never make noise for privacy.

    Args:
        seed: public seed.
        purpose: separates the draws of one seed.

    References:
        Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators": the mixing function.

    >>> draws = KeyedDraws(seed=3, purpose="example")
    >>> together = draws.words(np.array([8, 5]), np.arange(2)[None, :].repeat(2, axis=0))
    >>> bool((together[1] == draws.words(np.array([5]), np.arange(2)[None, :])).all())
    True
    """

    def __init__(self, seed: int, purpose: str) -> None:
        digest = hashlib.sha256(f"fedmf data|{purpose}|{seed}".encode()).digest()
        self._key = np.frombuffer(digest[:8], dtype="<u8")[0]

    def words(self, users: NDArray[np.int64], counters: NDArray[np.int64]) -> NDArray[np.uint64]:
        """One word for each counter; row i of ``counters``, shape (m, …), belongs to ``users[i]``."""
        starts = _mixed(_mixed(users.astype(np.uint64) * _GOLDEN + self._key) + self._key)
        offsets = counters.astype(np.uint64)
        offsets *= _GOLDEN
        offsets += starts.reshape(-1, *(1,) * (counters.ndim - 1))
        return _mixed(offsets)


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64, in place."""
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return word


def sixteen_bits(words: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Four 16-bit numbers from each word, along the last axis."""
    return np.ascontiguousarray(words, dtype="<u8").view("<u2")


def quantile_levels() -> NDArray[np.float64]:
    """The 65,536 midpoint levels (i + ½)/2¹⁶ at which tables of quantiles are taken."""
    return (np.arange(_LEVELS) + 0.5) / _LEVELS


@cache
def _normal_quantiles() -> NDArray[np.float32]:
    return ndtri(quantile_levels()).astype(np.float32)


def normals(words: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Four standard normal numbers from each word, along the last axis.

    They take the 65,536 midpoint quantiles of the normal law: good for data, |z| ≤ 4.33, variance 0.99997.
    """
    return np.take(_normal_quantiles(), sixteen_bits(words))
