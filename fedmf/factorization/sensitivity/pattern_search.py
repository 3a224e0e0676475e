"""The participation pattern of the largest Gram sum: max over π of Σ_{i,j∈π} W_ij for W ≥ 0, exactly.

The l-th round of a pattern of m rounds is the label of a variable, so that the maximum is that of a sum over
pairs of m variables, rounds in order and b apart. Its linear-programming dual bound is lowered pair by pair
(block-coordinate descent); labels that cannot be part of a pattern better than the best one known are
removed; what remains is searched depth first with the same bound. Every bound is valid at every moment, hence
a search that reaches its work limit still ends with an upper bound.

Patterns of fewer than k rounds count only where no round can be added, which limits their labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.sensitivity.separated import best_separated_sum
from fedmf.typing import Array

Rounds = NDArray[np.int64]

# Sums of at most a few thousand float64 products, and messages of a few hundred additions.
_ROUNDING = 1e-12
_MOST_ENTRIES = 64_000_000
_MOST_VARIABLES = 200
_MOST_SWEEPS = 400
# Rows of the dynamic program that fit a processor's cache.
_CHUNK_ENTRIES = 100_000
_CHUNK_NODES = 512
_LEAST_SEARCH = 2e7


@dataclass(frozen=True)
class Search:
    """What a search found.

    Args:
        value: the largest sum found; attained by ``pattern``.
        bound: no pattern has a larger sum; equal to value, up to 2e-12 (relative), if the search finished.
        pattern: 0-based rounds.
        by_rows: whether the bound is `row_bound`, because the search was too large or ended above it.
    """

    value: float
    bound: float
    pattern: Rounds
    by_rows: bool = False

    @property
    def finished(self) -> bool:
        """Whether the value is the maximum."""
        return self.bound <= self.value * (1 + 3 * _ROUNDING)


def heaviest_pattern(gram: Array, k: int, b: int, work: float = 1e9) -> Search:
    """Search for the pattern of at most k rounds, b apart, that maximises Σ_{i,j∈π} W_ij.

    Args:
        gram: W, symmetric and entrywise non-negative, shape (n, n).
        k: most rounds.
        b: least distance.
        work: how many table entries to visit before the search gives up.

    Guarantees:
        No pattern exceeds ``bound``; ``pattern`` attains ``value``.

    >>> found = heaviest_pattern(np.array([[1.0, 0.0, 0.9], [0.0, 2.0, 0.0], [0.9, 0.0, 1.0]]), 2, 2)
    >>> found.pattern.tolist(), found.value, found.finished
    ([0, 2], 3.8, True)
    """
    state = _State(gram, b, work)
    state.offer(np.arange(k, dtype=np.int64) * b)
    bound = _of_size(state, k, k)
    for size in range(k - 1, _smallest_maximal(len(gram), b) - 1, -1):
        if bound > state.target:
            break
        fewer = row_bound(gram, size, b)
        if fewer <= state.target:
            break
        bound = max(bound, min(fewer, _of_size(state, size, k)))
    rows = np.inf
    if bound > state.target:
        # Without a bound on the patterns of k rounds those of fewer need none either.
        fewer = row_bound(gram, k - 1, b) if np.isfinite(bound) else np.inf
        bound, rows = max(bound, fewer), row_bound(gram, k, b)
    return Search(state.value, max(min(bound, rows), state.value), state.pattern, by_rows=rows <= bound)


def row_bound(gram: Array, k: int, b: int) -> float:
    """max_π Σ_{i∈π} w_i ≥ max_π Σ_{i,j∈π} W_ij with w_i = max_{π∋i} Σ_{j∈π} W_ij, by dynamic programs.

    Args:
        gram: W ≥ 0, shape (n, n).
        k: most rounds.
        b: least distance.

    References:
        Choquette-Choo et al. (2023), Theorem 2.
    """
    return float(best_separated_sum(row_weights(gram, k, b), k, b))


def row_weights(gram: Array, k: int, b: int) -> Array:
    """w_i = max_{π∋i} Σ_{j∈π} W_ij, or a little more, shape (n,); the arguments are those of `row_bound`."""
    n = len(gram)
    weights = np.empty(n)
    step = max(1, _CHUNK_ENTRIES // (n + b))
    for start in range(0, n, step):
        rows = gram[start : start + step].copy()
        for i, row in enumerate(rows, start):
            # Rounds closer than b to i cannot join it; those on its two sides are then 2b apart.
            row[max(0, i - b + 1) : i + b] = 0.0
        diagonal = gram.diagonal()[start : start + step]
        weights[start : start + step] = diagonal + best_separated_sum(rows, k - 1, b)
    return weights


class _State:
    """The best pattern so far and the work left."""

    def __init__(self, gram: Array, b: int, work: float) -> None:
        self.gram, self.b, self.work = gram, b, work
        self.value, self.pattern = 0.0, np.zeros(0, dtype=np.int64)

    @property
    def target(self) -> float:
        """What a pattern must exceed to matter."""
        return self.value * (1 + _ROUNDING)

    def offer(self, pattern: Rounds) -> None:
        """Improve a pattern round by round and keep it if it is the best."""
        pattern = pattern.copy()
        value = float(self.gram[np.ix_(pattern, pattern)].sum())
        for _ in range(50):
            before = value
            for at in range(len(pattern)):
                others = np.delete(pattern, at)
                low = pattern[at - 1] + self.b if at else 0
                high = pattern[at + 1] - self.b if at + 1 < len(pattern) else len(self.gram) - 1
                gains = 2 * self.gram[others, low : high + 1].sum(0) + self.gram.diagonal()[low : high + 1]
                pattern[at] = low + int(gains.argmax())
            value = float(self.gram[np.ix_(pattern, pattern)].sum())
            if value <= before * (1 + _ROUNDING):
                break
        if value > self.value:
            self.value, self.pattern = value, pattern


def _smallest_maximal(n: int, b: int) -> int:
    """The fewest rounds of a pattern to which none can be added: first < b, gaps < 2b, last ≥ n − b."""
    return 1 + max(0, -(-(n - 2 * b + 1) // (2 * b - 1)))


def _windows(n: int, size: int, b: int, maximal: bool) -> list[Rounds]:
    """The rounds that the l-th of ``size`` may take."""
    windows = []
    for at in range(size):
        after = size - 1 - at
        low, high = at * b, n - 1 - after * b
        if maximal:
            low, high = max(low, n - b - after * (2 * b - 1)), min(high, b - 1 + at * (2 * b - 1))
        windows.append(np.arange(low, high + 1))
    return windows


def _of_size(state: _State, size: int, k: int) -> float:
    """A bound on the sums of all patterns of this size (if size < k: that no round can be added to)."""
    labels = _windows(len(state.gram), size, state.b, maximal=size < k)
    counts = np.array([len(rounds) for rounds in labels], dtype=float)
    if not counts.all():
        return 0.0
    if counts.max() == 1:
        state.offer(np.concatenate(labels))
        return state.target
    if size > _MOST_VARIABLES or (counts.sum() ** 2 - (counts**2).sum()) / 2 > _MOST_ENTRIES:
        return float(np.inf)
    pairs = _Pairs(state, labels)
    bound = pairs.descend()
    return bound if bound <= state.target else pairs.search(bound)


class _Pairs:
    """unary[l][x] + Σ pair[l, l'][x, x'] ≥ the sum of a pattern, kept equal to it by every change."""

    def __init__(self, state: _State, labels: list[Rounds]) -> None:
        self.state, self.labels, b = state, labels, state.b
        size, gram = len(labels), state.gram
        self.unary = [gram.diagonal()[rounds] for rounds in labels]
        self.pair: dict[tuple[int, int], Array] = {}
        # Finite, so that messages stay finite; larger than any sum, so that it forbids.
        self.forbidden = -4.0 * (sum(float(values.max()) for values in self.unary) * size + 1.0)
        for i in range(size):
            for j in range(i + 1, size):
                first, second = labels[i], labels[j]
                table = 2.0 * gram[first[0] : first[-1] + 1, second[0] : second[-1] + 1]
                close = second[None, :] - first[:, None] < (j - i) * b
                table[close] = self.forbidden
                self.pair[i, j] = table

    @property
    def bound(self) -> float:
        """Σ max unary; the pair tables are at most 0 once each has been visited."""
        return sum(float(values.max()) for values in self.unary)

    def descend(self) -> float:
        """Sweeps over all pairs until the bound meets the best pattern or stops falling."""
        best = float(np.inf)
        for sweep in range(_MOST_SWEEPS):
            for edge in self.pair:
                self._balance(*edge)
            self.state.work -= 4 * sum(table.size for table in self.pair.values())
            bound = self.bound
            if bound <= self.state.target:
                return bound
            if sweep % 4 == 0:
                self.state.offer(self._decoded())
                if not self._prune():
                    return self.state.target
            slow = best - bound <= 1e-4 * (bound - self.state.value)
            best = min(best, bound)
            if slow or self.state.work < 0:
                break
        return best

    def _balance(self, i: int, j: int) -> None:
        """Move the unaries into the pair and back, so that the pair ends ≤ 0 with maxima of 0 everywhere."""
        table = self.pair[i, j]
        table += self.unary[i][:, None]
        table += self.unary[j]
        first = table.max(1) / 2
        table -= first[:, None]
        second = table.max(0)
        table -= second
        rest = table.max(1)
        table -= rest[:, None]
        self.unary[i], self.unary[j] = first + rest, second

    def _prune(self) -> bool:
        """Remove labels that no better pattern uses; whether each variable has one left."""
        slack = self.state.target - self.bound
        keep = [values - values.max() > slack for values in self.unary]
        if not all(mask.any() for mask in keep):
            return False
        if all(mask.all() for mask in keep):
            return True
        self.unary = [values[mask] for values, mask in zip(self.unary, keep, strict=True)]
        self.labels = [rounds[mask] for rounds, mask in zip(self.labels, keep, strict=True)]
        for (i, j), table in self.pair.items():
            self.pair[i, j] = np.ascontiguousarray(table[np.ix_(keep[i], keep[j])])
        return True

    def _decoded(self) -> Rounds:
        """The pattern that follows the best labels from left to right, always feasible."""
        pattern = np.zeros(len(self.labels), dtype=np.int64)
        ahead = [values.copy() for values in self.unary]
        n, b = len(self.state.gram), self.state.b
        for i, rounds in enumerate(self.labels):
            choice = int(ahead[i].argmax())
            earliest = pattern[i - 1] + b if i else 0
            latest = n - 1 - (len(self.labels) - 1 - i) * b
            pattern[i] = min(max(int(rounds[choice]), earliest), latest)
            for j in range(i + 1, len(self.labels)):
                ahead[j] += self.pair[i, j][choice]
        return pattern

    def search(self, bound: float) -> float:
        """Depth-first over the labels that are left; the bound again if the work runs out."""
        state, size = self.state, len(self.labels)
        state.work = max(state.work, _LEAST_SEARCH)
        stack = [(np.zeros((1, 0), dtype=np.int64), np.zeros(1), [values[None] for values in self.unary])]
        while stack:
            chosen, score, ahead = stack.pop()
            depth = chosen.shape[1]
            rest = sum((values.max(1) for values in ahead[1:]), np.zeros(len(score)))
            optimistic = score[:, None] + ahead[0] + rest[:, None]
            node, label = np.nonzero(optimistic > state.target)
            order = np.argsort(optimistic[node, label], kind="stable")
            if depth + 1 == size:
                if len(order):
                    at = order[-1]
                    best = [*chosen[node[at]], label[at]]
                    state.offer(np.array([rounds[x] for rounds, x in zip(self.labels, best, strict=True)]))
                continue
            for start in range(0, len(order), _CHUNK_NODES):
                part = order[start : start + _CHUNK_NODES]
                rows, x = node[part], label[part]
                following = [
                    values[rows] + self.pair[depth, j][x] for j, values in enumerate(ahead[1:], depth + 1)
                ]
                state.work -= 10 * sum(values.size for values in following)
                total = score[rows] + ahead[0][rows, x]
                alive = total + sum((values.max(1) for values in following), np.zeros(len(x))) > state.target
                if alive.any():
                    path = np.column_stack([chosen[rows], x])[alive]
                    stack.append((path, total[alive], [values[alive] for values in following]))
            if state.work < 0:
                return bound
        return state.target
