"""δ(ε) of integer releases between two worlds, with every innovation of a few rounds enumerated.

The rows come from the code under test, given as a function; the probabilities, the other world and
δ do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

EPSILONS = np.array([0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
#: Standard deviations that are enumerated; what lies outside is counted as lost.
REACH = 8.5


class Walk(Protocol):
    """Rows of one world, round after round; every outcome has its own."""

    def past(self) -> Integers:
        """R_t of the next round, shape (outcomes, d)."""
        ...

    def advance(self, k: Integers) -> Integers:
        """Take the innovations of the next round and return X_t."""
        ...


#: A walk for so many outcomes of so many entries.
Start = Callable[[int, int], Walk]

#: G_t of both worlds, shape (outcomes, d), as a function of t, the releases before t and R_t in
#: both worlds.
Sums = Callable[[int, Sequence[Integers], tuple[Integers, Integers]], tuple[Integers, Integers]]


@dataclass(frozen=True, eq=False)
class Worlds:
    """Probabilities of all enumerated releases in two worlds.

    Args:
        first: of a release in the world whose innovations were enumerated.
        second: of the same release in the other.
        differences: G of the other world less G, shape (outcomes, n, d).
        movements: κ, by how much the innovations that explain a release differ.
    """

    first: Array
    second: Array
    differences: Integers
    movements: Integers

    @property
    def lost(self) -> float:
        """The probability outside of what was enumerated, in the worse world."""
        return max(1 - self.first.sum(), 1 - self.second.sum(), 0.0)

    def deltas(self) -> Array:
        """δ at EPSILONS, the larger of both directions."""
        return np.maximum(*directed(self.first, self.second))

    def sensitivity(self, strategy: Array) -> float:
        """The largest ‖CΔ‖_F over all outcomes."""
        return largest_norm(strategy, self.differences)

    def movement(self, strategy: Array) -> float:
        """The largest ‖Dκ‖_F over all outcomes."""
        return largest_norm(np.diag(np.diag(strategy)), self.movements)


def directed(first: Array, second: Array) -> tuple[Array, Array]:
    """δ at EPSILONS of the first law over the second, and of the second over the first."""
    over = [np.maximum(first - np.exp(epsilon) * second, 0).sum() for epsilon in EPSILONS]
    under = [np.maximum(second - np.exp(epsilon) * first, 0).sum() for epsilon in EPSILONS]
    return np.array(over), np.array(under)


def largest_norm(matrix: Array, rows: Integers) -> float:
    """Of matrix·rows[m] over m."""
    products = np.einsum("ts,msd->mtd", matrix, rows.astype(np.float64))
    return float(np.sqrt((products**2).sum(axis=(1, 2)).max()))


def gaussian_deltas(mu: float, epsilons: Array = EPSILONS) -> Array:
    """δ of the Gaussian mechanism."""
    return norm.cdf(-epsilons / mu + mu / 2) - np.exp(epsilons) * norm.cdf(-epsilons / mu - mu / 2)


def innovations(scales: Sequence[float], d: int) -> Integers:
    """All k within reach, shape (outcomes, n, d)."""
    axes = []
    for scale in scales:
        far = int(REACH * scale) + 2
        axes += [np.arange(-far, far + 1)] * d
    grid = np.meshgrid(*axes, indexing="ij")
    return np.stack([axis.ravel() for axis in grid], axis=-1).reshape(-1, len(scales), d)


def probabilities(k: Integers, scales: Sequence[float]) -> Array:
    """P(k) of roundings of independent normals, k of shape (outcomes, n, d)."""
    std = np.asarray(scales)[None, :, None]
    # Differences of tails, so that far integers keep their digits.
    size = np.abs(k)
    each = norm.sf((size - 0.5) / std) - norm.sf((size + 0.5) / std)
    return each.prod(axis=(1, 2))


def enumerate_worlds(start: Start, scales: Sequence[float], d: int, sums: Sums) -> Worlds:
    """Run both worlds on every innovation of the first.

    Args:
        start: how rows are made.
        scales: ρ_t.
        d: entries of a row.
        sums: G of both worlds.
    """
    k = innovations(scales, d)
    walk = start(len(k), d)
    other_walk = start(len(k), d)
    releases: list[Integers] = []
    differences: list[Integers] = []
    explaining: list[Integers] = []
    for t in range(len(scales)):
        pasts = walk.past(), other_walk.past()
        total, other_total = sums(t, releases, pasts)
        x = walk.advance(k[:, t])
        assert np.array_equal(x, k[:, t] - pasts[0])
        releases.append(total + x)
        other_x = releases[t] - other_total
        explaining.append(other_x + pasts[1])
        assert np.array_equal(other_walk.advance(explaining[t]), other_x)
        differences.append(other_total - total)
    other_k = np.stack(explaining, axis=1)
    return Worlds(
        first=probabilities(k, scales),
        second=probabilities(other_k, scales),
        differences=np.stack(differences, axis=1),
        movements=other_k - k,
    )


def deltas_of_laws(
    release: Callable[[Integers, int], Array | Integers], scales: Sequence[float], d: int
) -> Array:
    """δ at EPSILONS of any release, by the law of each world: several innovations may lead to one
    release.

    Args:
        release: innovations (outcomes, n, d) and the world, 0 or 1, to what is released, same
            shape.
        scales: ρ_t.
        d: entries of a row.
    """
    k = innovations(scales, d)
    each = probabilities(k, scales)
    both = np.concatenate([np.asarray(release(k, world)).reshape(len(k), -1) for world in (0, 1)])
    _, place = np.unique(both, axis=0, return_inverse=True)
    place = place.reshape(-1)
    count = place.max() + 1
    first = np.bincount(place[: len(k)], each, count)
    second = np.bincount(place[len(k) :], each, count)
    return np.maximum(*directed(first, second))


def fixed(first: Integers, second: Integers) -> Sums:
    """Sums that do not depend on releases; shape (n, d) each."""

    def sums(t: int, releases: Sequence[Integers], pasts: tuple[Integers, Integers]):
        zero = np.zeros_like(pasts[0])
        return zero + first[t], zero + second[t]

    return sums


def adaptive(first: Integers, second: Integers, seed: int) -> Sums:
    """Each world's sum of a later round is its row times −1, 0 or 1, a hash of what was
    released.
    """

    def sums(t: int, releases: Sequence[Integers], pasts: tuple[Integers, Integers]):
        hashed = np.full(len(pasts[0]), seed)
        for s, release in enumerate(releases):
            hashed = hashed + release.sum(axis=-1) * 7919 * (s + 1)
        sign = (hashed // 3 % 3 - 1)[:, None] if t else np.ones((len(pasts[0]), 1), np.int64)
        zero = np.zeros_like(pasts[0])
        return zero + sign * first[t], zero + sign * second[t]

    return sums


def greedy(size: int) -> Sums:
    """The other world holds ±size, whichever moves the innovation farther."""

    def sums(t: int, releases: Sequence[Integers], pasts: tuple[Integers, Integers]):
        past, other_past = pasts
        zero = np.zeros_like(past)
        return zero, np.where(other_past > past, -size, size)

    return sums


def mixture(start: Start, scales: Sequence[float], size: int) -> tuple[Array, Array]:
    """Laws of releases without a user, and with one who takes part in one round, drawn in secret; d
    = 1.
    """
    n = len(scales)
    second: Array | float = 0.0
    for taken in range(n):
        row = np.zeros((n, 1), np.int64)
        row[taken] = size
        worlds = enumerate_worlds(start, scales, 1, fixed(np.zeros_like(row), row))
        second = second + worlds.second / n
    return worlds.first, np.asarray(second)


def ideal_mixture(
    strategy: Array, std: float, size: int, step: float = 0.08
) -> tuple[Array, Array]:
    """The same for real noise of standard deviation std: cells of a grid over C·(release)."""
    n = len(strategy)
    axis = np.arange(-REACH, REACH, step)
    points = np.array(list(itertools.product(axis, repeat=n)))

    def density(shift: Array | float) -> Array:
        return np.exp(-((points - shift) ** 2).sum(axis=-1) / 2)

    first = density(0.0)
    second = sum(density(strategy[:, taken] * size / std) for taken in range(n)) / n
    return first / first.sum(), second / first.sum()
