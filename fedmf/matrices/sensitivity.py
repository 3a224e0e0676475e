"""How far one user can move the mechanism: sens_{k,b}(C), exact or bounded, and always called what
it is.

One user's contributions are vectors u_i of norm at most ζ in the rounds i of a pattern π (at most k
rounds, any two at least b apart). With ζ = 1,

    sens_{k,b}(C)² = max over π and ‖u_i‖ ≤ 1 of Σ_{i,j∈π} G_ij ⟨u_i, u_j⟩,   G = CᵀC.

It is at most max_π Σ_{i,j∈π} |G_ij|, with equality wherever signs s_i = ±1 make s_i s_j G_ij ≥ 0 on
the best pattern; in particular where G ≥ 0.

Every value here is a proven upper bound, computed by one of six methods. It is *exact* when the
method is always attained, or when a pattern was found that attains it up to 1e-12 (relative), the
rounding error of the sums. No other tolerance is used: "non-increasing" is never tested, but
replaced by a monotone envelope that lies above the coefficients, and the bracket decides.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb
from typing import Final, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.series import fft_size, padded
from fedmf.participation import Participation

Kind = Literal["exact", "upper_bound"]
ROUNDING: Final = 1e-12
# A share of the largest coefficient that counts for nothing even if all were so large.
_NOTHING = 1e-22
_LARGEST_ENUMERATED = 2048
_LARGEST_GRAM = 10_240
_MOST_PAIRED = 512
# Of the balancing of pairs: entries, sweeps, and the relative fall of the bound that is worth
# another sweep.
_MOST_BALANCED = 2_000_000
_MOST_SWEEPS = 50
_LEAST_FALL = 1e-4
# How many sizes of patterns are told apart.
_SIZES = 4
# Rows of the dynamic program that fit a processor's cache.
_CHUNK_ENTRIES = 100_000
# What was found for a C that is still in use.
_BY_PATTERNS: WeakKeyDictionary[Factorization, dict[Participation, Sensitivity]] = (
    WeakKeyDictionary()
)


class SensitivityNotExact(ValueError):
    """The exact sensitivity is not known for this factorization and participation; a bound may
    be.
    """


@dataclass(frozen=True)
class Sensitivity:
    """sens_{k,b}(C) for clip norm 1.

    Args:
        value: the sensitivity, or a bound above it.
        kind: whether the value is attained by some user.
        case: which theorem or algorithm gave it.
    """

    value: float
    kind: Kind
    case: str


def earliest_pattern(max_participations: int, min_separation: int) -> NDArray[np.int64]:
    """The pattern {0, b, 2b, …, (k−1)b}."""
    return np.arange(max_participations, dtype=np.int64) * min_separation


def monotone_envelope(column: Array) -> Array:
    """The least non-increasing sequence above a column ≥ 0: ĉ_j = max_{l ≥ j} c_l.

    >>> monotone_envelope(np.array([1.0, 0.2, 0.4, 0.1]))
    array([1. , 0.4, 0.4, 0.1])
    """
    return np.maximum.accumulate(column[::-1])[::-1]


def comb_sum(column: Array, max_participations: int, min_separation: int) -> Array:
    """Σ_{l<k} of the column shifted down by l·b: the sum of the earliest columns of LTT(column),
    shape (n,).

    >>> comb_sum(np.array([4.0, 2.0, 1.0, 0.5, 0.25]), 2, 2)
    array([4.  , 2.  , 5.  , 2.5 , 1.25])
    """
    n = column.size
    b = min_separation
    blocks = -(-n // b)
    sums = np.cumsum(padded(column, blocks * b).reshape(blocks, b), axis=0)
    if max_participations < blocks:
        window = sums.copy()
        window[max_participations:] -= sums[:-max_participations]
        sums = window
    return sums.reshape(-1)[:n]


def pair_bound_square(c: Vector, max_participations: int, min_separation: int) -> float:
    """The bound on sens_{k,b}(LTT(c))² of this module, in O(k·n log n).

    Args:
        c: first column of C, shape (n,), of either sign.
        max_participations: k.
        min_separation: b.

    References:
        Kalinin, McKenna, Pagh & Lampert (2026), Lemma 8, uses the same comparison for one
        normalised family.

    >>> pair_bound_square(np.array([1.0, 0.5, 0.25, 0.125]), 2, 2)
    3.203125
    """
    n = c.size
    k = max_participations
    b = min_separation
    a = np.abs(c)
    a = a[: int(np.flatnonzero(a > _NOTHING * a.max())[-1]) + 1]
    total = 0.0
    square = 0.0
    head = np.zeros(0)
    largest_from = np.zeros(0)
    for m in range(min(k, -(-n // b))):
        if head.size != min(a.size, n - m * b):
            head = a[: n - m * b]
            size = fft_size(2 * a.size)
            products = np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(head, size).conj(), size)[
                : a.size
            ]
            largest_from = np.maximum.accumulate(products[::-1])[::-1]
            square = float(head @ head)
        total += square + 2.0 * float(largest_from[b : m * b + 1 : b].sum())
    return total


def best_separated_sum(values: Array, max_participations: int, min_separation: int) -> Array:
    """max over patterns π of Σ_{i∈π} v_i along the last axis, at most k picks at least b apart.

    With F_m(i) the best of at most m picks from positions ≤ i:
    F_m(i) = max(F_m(i−1), v_i + F_{m−1}(i−b)).

    Args:
        values: v ≥ 0, shape (…, n).
        max_participations: k ≥ 0.
        min_separation: b ≥ 1.

    Returns:
        Shape (…).

    >>> best_separated_sum(np.array([1.0, 3.0, 2.5, 2.0]), 2, 2)
    array(5.)
    """
    if values.ndim == 1 and not (values[1:] > values[:-1]).any():
        # The m-th pick lies at mb or later, so the earliest picks are the largest.
        return np.asarray(values[::min_separation][:max_participations].sum())
    *_, best = _separated_sums(values, max_participations, min_separation)
    return best


def _separated_sums(values: Array, max_participations: int, min_separation: int) -> Iterator[Array]:
    """The best sums of at most 0, 1, … picks, until no more fit."""
    n = values.shape[-1]
    # best[…, b + i] is F_m(i). Floats ≥ 0 are ordered like their bits, and integers are compared in
    # a quarter of the time.
    best = np.zeros((*values.shape[:-1], n + min_separation))
    taken = np.empty(values.shape)
    later = best[..., min_separation:].view(np.int64)
    bits = taken.view(np.int64)
    yield best[..., -1].copy()
    for _ in range(min(max_participations, -(-n // min_separation))):
        np.add(values, best[..., :n], out=taken)
        np.maximum.accumulate(bits, axis=-1, out=later)
        yield best[..., -1].copy()


def count_patterns(rounds: int, max_participations: int, min_separation: int) -> int:
    """How many non-empty patterns there are: Σ_{m ≤ k} binom(n − (m−1)(b−1), m).

    >>> count_patterns(4, 2, 2)
    7
    """
    sizes = range(1, max_participations + 1)
    return sum(comb(max(0, rounds - (m - 1) * (min_separation - 1)), m) for m in sizes)


def pattern_layers(
    rounds: int, max_participations: int, min_separation: int
) -> Iterator[NDArray[np.int64]]:
    """All patterns of one size after the other, each layer of shape (patterns, size), entries
    increasing.

    >>> [layer.tolist() for layer in pattern_layers(3, 2, 2)]
    [[[0], [1], [2]], [[0, 2]]]
    """
    layer = np.arange(rounds, dtype=np.int64)[:, None]
    for size in range(1, max_participations + 1):
        if size > 1:
            parents, last = _continued(layer, rounds, min_separation)
            layer = np.concatenate([layer[parents], last[:, None]], axis=1)
        if not len(layer):
            return
        yield layer


def heaviest_pattern(
    gram: Array, max_participations: int, min_separation: int
) -> tuple[float, NDArray[np.int64]]:
    """max_π Σ_{i,j∈π} W_ij over every pattern, each sum made from the pattern without its last
    round.

    Args:
        gram: W, symmetric, shape (n, n).
        max_participations: k.
        min_separation: b.

    Returns:
        The sum and the first pattern that has it.

    >>> heaviest_pattern(np.array([[1.0, 0.0, 0.9], [0.0, 2.0, 0.0], [0.9, 0.0, 1.0]]), 2, 2)
    (3.8, array([0, 2]))
    """
    n = len(gram)
    own = gram.diagonal()
    layer = np.arange(n, dtype=np.int64)[:, None]
    sums = own
    best = float(sums.max()), layer[sums.argmax()]
    for _ in range(1, max_participations):
        parents, last = _continued(layer, n, min_separation)
        if not last.size:
            break
        layer = layer[parents]
        sums = sums[parents] + own[last]
        for earlier in layer.T:
            sums += 2.0 * gram[earlier, last]
        layer = np.concatenate([layer, last[:, None]], axis=1)
        at = int(sums.argmax())
        if sums[at] > best[0]:
            best = float(sums[at]), layer[at]
    return best


def _continued(
    layer: NDArray[np.int64], rounds: int, min_separation: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every pattern with one more round: which pattern it continues, and that round."""
    choices = np.maximum(rounds - layer[:, -1] - min_separation, 0)
    parents = np.repeat(np.arange(len(layer)), choices)
    within = np.arange(choices.sum()) - np.repeat(np.cumsum(choices) - choices, choices)
    return parents, layer[parents, -1] + min_separation + within


def row_weights(gram: Array, k: int, b: int) -> Array:
    """w_i = max_{π∋i} Σ_{j∈π} W_ij, or a little more, over patterns of at most k, k − 1, … rounds.

    Args:
        gram: W ≥ 0, shape (n, n).
        k: most rounds.
        b: least distance.

    Returns:
        Shape (s, n), s ≤ 4 sizes.

    References:
        Choquette-Choo et al. (2023), Theorem 2.
    """
    n = len(gram)
    sizes = range(k - 1, max(-1, k - 1 - _SIZES), -1)
    weights = np.empty((len(sizes), n))
    step = max(1, _CHUNK_ENTRIES // (n + b))
    for start in range(0, n, step):
        rows = gram[start : start + step].copy()
        for i, row in enumerate(rows, start):
            # Rounds closer than b to i cannot join it; those on its two sides are then 2b apart.
            row[max(0, i - b + 1) : i + b] = 0.0
        sums = list(_separated_sums(rows, k - 1, b))
        weights[:, start : start + step] = [sums[min(size, len(sums) - 1)] for size in sizes]
    return weights + gram.diagonal()


def pairwise_bound(gram: Array, k: int, b: int) -> float:
    """At least max_π Σ_{i,j∈π} W_ij over the patterns of exactly k rounds, by balancing pairs of
    rounds.

    The l-th round is lb + x_l with 0 ≤ x_1 ≤ … ≤ x_k < n − (k−1)b, so that the sum is Σ_l u_l(x_l)
    + Σ_{l<m} p_lm(x_l, x_m), and at most Σ_l max u_l once every p_lm ≤ 0. A step moves u_l, u_m
    into p_lm and as much as p_lm allows back, half through x_l first. It changes no sum and lets
    the bound fall.

    Args:
        gram: W ≥ 0, shape (n, n).
        k: rounds of a pattern, kb − b < n.
        b: least distance.

    References:
        Globerson & Jaakkola (2007), "Fixing Max-Product: Convergent Message Passing Algorithms for
        MAP".

    >>> pairwise_bound(np.array([[1.0, 0.0, 0.9], [0.0, 2.0, 0.0], [0.9, 0.0, 1.0]]), 2, 2)
    3.80...
    """
    offsets = np.arange(len(gram) - (k - 1) * b)
    single = [gram.diagonal()[start + offsets] for start in range(0, k * b, b)]
    forbidden = -4.0 * k * gram.sum(axis=1).max()
    pairs = {
        (i, j): np.where(
            offsets >= offsets[:, None],
            2.0 * gram[i * b + offsets[:, None], j * b + offsets],
            forbidden,
        )
        for i, j in combinations(range(k), 2)
    }
    bound = math.inf
    for _ in range(_MOST_SWEEPS):
        for (i, j), pair in pairs.items():
            pair += single[i][:, None]
            pair += single[j]
            half = pair.max(axis=1) / 2
            pair -= half[:, None]
            single[j] = pair.max(axis=0)
            pair -= single[j]
            rest = pair.max(axis=1)
            pair -= rest[:, None]
            single[i] = half + rest
        previous = bound
        bound = float(sum(values.max() for values in single))
        if previous - bound < _LEAST_FALL * bound:
            break
    return bound * (1 + ROUNDING)


class SensitivityProblem(ABC):
    """A release, with the distance by which one user within (n, k, b) can move it."""

    #: (n, k, b).
    participation: Participation
    #: What `case` says after the name of the dynamic program.
    source: str
    #: What it is called in refusals, and what to use instead where it is too long.
    called: str
    instead: str
    #: How many patterns are enumerated at most.
    most_patterns = 200_000

    @property
    @abstractmethod
    def bands(self) -> int:
        """Participations at least so many rounds apart move orthogonal parts."""

    @property
    @abstractmethod
    def enveloped(self) -> bool:
        """Whether `by_structure` bounds it at every horizon."""

    @abstractmethod
    def squares(self) -> Vector:
        """The squared movement of one participation in each round, shape (n,)."""

    @abstractmethod
    def by_structure(self) -> Iterator[Sensitivity]:
        """Bounds from the form of the matrices, without a Gram matrix."""

    @abstractmethod
    def by_enumeration(self) -> Sensitivity:
        """The bound over every pattern."""

    @abstractmethod
    def by_rows(self) -> Sensitivity:
        """A bound from the Gram matrix where there are too many patterns."""


def methods(released: SensitivityProblem) -> Iterator[Sensitivity]:
    """The methods that apply, cheapest first; later ones run only if they are asked for.

    Raises:
        SensitivityNotExact: no further method takes a horizon this long, and none before bounded
            it.
    """
    contract = released.participation
    n = contract.rounds
    k = contract.max_participations
    b = contract.min_separation
    if k == 1 or released.bands <= b:
        value = float(np.sqrt(best_separated_sum(released.squares(), k, b)))
        reason = "single participation" if k == 1 else "columns b apart orthogonal (p <= b)"
        yield Sensitivity(value, "exact", f"{reason}: dynamic program{released.source}")
        return
    yield from released.by_structure()
    if n <= _LARGEST_ENUMERATED and count_patterns(n, k, b) <= released.most_patterns:
        yield released.by_enumeration()
    elif n <= _LARGEST_GRAM:
        yield released.by_rows()
    elif not released.enveloped:
        raise SensitivityNotExact(
            f"n (rounds) must be at most {_LARGEST_GRAM} to bound the {released.called}; got {n}. "
            f"Use {released.instead}."
        )


def tightest(released: SensitivityProblem) -> Sensitivity:
    """The first exact value, else the smallest of the bounds."""
    bounds: list[Sensitivity] = []
    for bound in methods(released):
        if bound.kind == "exact":
            return bound
        bounds.append(bound)
    return min(bounds, key=lambda bound: bound.value)


def kind_of(upper: float, attained: float) -> Kind:
    """Exact if some user attains the bound up to the rounding of the sums."""
    return "exact" if upper <= attained * (1 + ROUNDING) else "upper_bound"


def over_patterns(
    weigh: Callable[[NDArray[np.int64]], NDArray[np.float64]], participation: Participation
) -> list[tuple[float, NDArray[np.int64]]]:
    """The largest of several quantities over every pattern, each with the first pattern that has
    it.

    Args:
        weigh: for patterns of one size, shape (patterns, size), the quantities, shape (quantities,
            patterns).
        participation: (n, k, b).

    >>> over_patterns(lambda layer: layer.sum(axis=1)[None, :].astype(float), Participation(4, 2, 2))
    [(4.0, array([1, 3]))]
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    largest: list[tuple[float, NDArray[np.int64]]] = []
    for layer in pattern_layers(n, k, b):
        weights = weigh(layer)
        tops = [
            (float(row[at]), layer[at])
            for row, at in zip(weights, weights.argmax(axis=1), strict=True)
        ]
        largest = [
            max(pair, key=lambda top: top[0]) for pair in zip(largest or tops, tops, strict=True)
        ]
    return largest


def sensitivity_of(factorization: Factorization, participation: Participation) -> Sensitivity:
    """The exact sensitivity where it is known, else the smallest of the upper bounds, labelled as
    such.

    Raises:
        ValueError: the horizons differ.
    """
    if factorization.rounds != participation.rounds:
        raise ValueError(
            f"n (rounds) must be the same for C and the participation; got {factorization.rounds}"
            f" and {participation.rounds}. Use C.leading(T) for a shorter run."
        )
    return tightest(StrategyProblem(factorization, participation))


@dataclass(frozen=True, eq=False)
class StrategyProblem(SensitivityProblem):
    """C, of which one user moves the rows by Σ_{i∈π} C_{:,i} u_i."""

    factorization: Factorization
    participation: Participation

    source = ", Choquette-Choo et al. 2023"
    called = "sensitivity of this C"
    instead = "a Toeplitz or banded C (p <= b)"
    most_patterns = 2_000_000

    @property
    def bands(self) -> int:
        return self.factorization.bands

    @cached_property
    def toeplitz_bound(self) -> tuple[Vector, Vector] | None:
        return self.factorization.toeplitz_bound()

    @property
    def enveloped(self) -> bool:
        return self.toeplitz_bound is not None

    def squares(self) -> Vector:
        return self.factorization.gram_diagonal(0)

    def by_structure(self) -> Iterator[Sensitivity]:
        k = self.participation.max_participations
        b = self.participation.min_separation
        if self.toeplitz_bound is not None:
            yield _by_envelope(self.factorization, *self.toeplitz_bound, k, b)
        column = self.factorization.toeplitz_column()
        if column is not None and k <= _MOST_PAIRED:
            value = float(np.sqrt(pair_bound_square(column, k, b)))
            earliest = float(np.linalg.norm(comb_sum(column, k, b)))
            case = "Toeplitz, lags of at least b compared pair by pair"
            yield Sensitivity(value, kind_of(value, earliest), case)

    def by_enumeration(self) -> Sensitivity:
        """max_π Σ |G_ij| over every pattern; exact if signs ±1 attain it on the pattern that is
        best.
        """

        def enumerated(gram: Array, k: int, b: int) -> Sensitivity:
            square, worst = heaviest_pattern(np.abs(gram), k, b)
            if _signs_attain(gram[np.ix_(worst, worst)]):
                case = "every pattern enumerated (Choquette-Choo et al. 2023, App. E)"
                return Sensitivity(square**0.5, "exact", case)
            return Sensitivity(
                square**0.5, "upper_bound", "every pattern enumerated, |C^T C| of mixed signs"
            )

        return self._once(enumerated)

    def by_rows(self) -> Sensitivity:
        """For patterns of k, k − 1, … rounds the row bound, or the bound of pairs where there are
        few, until no smaller ones can have more.
        """

        def bounded(gram: Array, k: int, b: int) -> Sensitivity:
            size = np.abs(gram)
            square = 0.0
            case = ""
            weights = row_weights(size, k, b)
            for most, weight in zip(range(k, 0, -1), weights, strict=False):
                by_rows = by_pairs = float(best_separated_sum(weight, most, b))
                if by_rows <= square:
                    break
                entries = comb(most, 2) * (len(gram) - (most - 1) * b) ** 2
                if k - most + 1 < len(weights) and entries <= _MOST_BALANCED:
                    by_pairs = pairwise_bound(size, most, b)
                if square < min(by_rows, by_pairs):
                    square = min(by_rows, by_pairs)
                    case = (
                        "row-wise dynamic program (Choquette-Choo et al. 2023, Theorem 2)"
                        if by_rows <= by_pairs
                        else "pairs of rounds balanced (Globerson & Jaakkola 2007)"
                    )
            attained = float(np.linalg.norm(self.factorization.column_sum(earliest_pattern(k, b))))
            return Sensitivity(square**0.5, kind_of(square**0.5, attained), case)

        return self._once(bounded)

    def _once(self, method: Callable[[Array, int, int], Sensitivity]) -> Sensitivity:
        """A search over parameters and the row of its best C ask the same; one method fits a
        contract.
        """
        known = _BY_PATTERNS.setdefault(self.factorization, {})
        contract = self.participation
        if contract not in known:
            gram = _dense_gram(self.factorization)
            known[contract] = method(gram, contract.max_participations, contract.min_separation)
        return known[contract]


def _by_envelope(C: Factorization, size: Vector, scale: Vector, k: int, b: int) -> Sensitivity:
    """Compare with the pairs of rounds of the earliest pattern, for |C_{ij}| ≤ a_{i−j}/s_j, s not
    rising.

    With ĉ_j = max_{l ≥ j} a_l, an entry |[CᵀC]_{j−g,j}| is at most E_{j−g,j} = Σ_l a_l
    ĉ_{l+g}/(s_{j−g} s_j) over l < n − j. For fixed j this falls as g grows, since ĉ_{l+g} falls and
    s_{j−g} rises. The m-th and (m+h)-th round of a pattern are at least hb apart and the m-th is at
    least mb, hence their entry is at most max_{i ≥ mb} E_{i,i+hb}. So coefficients may rise before
    lag b at no loss. Without scaling, ‖Σ_{m<k} Ĉ_{:,mb}‖ for Ĉ = LTT(ĉ) is a bound in O(n). The
    earliest pattern of C itself gives the lower end.
    """
    envelope = monotone_envelope(size)
    scaled = bool((scale != scale[0]).any())
    if scaled:
        upper = _scaled_pairs_square(size, envelope, scale, k, b) ** 0.5
    else:
        upper = float(np.linalg.norm(comb_sum(envelope, k, b)) / scale[0])
    lower = float(np.linalg.norm(C.column_sum(earliest_pattern(k, b))))
    if kind_of(upper, lower) == "upper_bound":
        return Sensitivity(upper, "upper_bound", "monotone envelope of the coefficients")
    if scaled:
        return Sensitivity(
            upper, "exact", "earliest pattern dominates every pair (Kalinin et al. 2026, Lemma 8)"
        )
    return Sensitivity(
        upper, "exact", "Toeplitz, non-negative non-increasing (Kalinin & Lampert 2024)"
    )


def _scaled_pairs_square(size: Vector, envelope: Vector, scale: Vector, k: int, b: int) -> float:
    """Σ_{m,m'<k} max_{i ≥ mb} E_{i,i+|m−m'|b}, one diagonal after the other; of squares a_l² for m
    = m'.
    """
    n = size.size
    total = 0.0
    for h in range(k):
        gap = h * b
        length = n - h * b
        later = envelope[gap:] if h else size
        diagonal = np.cumsum(size[:length] * later)[::-1] / (scale[:length] * scale[gap:])
        largest_from = np.maximum.accumulate(diagonal[::-1])[::-1]
        total += float(largest_from[: (k - 1 - h) * b + 1 : b].sum()) * (1 if h == 0 else 2)
    return total


def _dense_gram(C: Factorization) -> NDArray[np.float64]:
    column = C.toeplitz_column()
    if column is not None:
        # The sums of below in the same order, a row at a time: G_ij = G_{i+1,j+1} + c_{n−1−i}
        # c_{n−1−j}.
        gram = np.outer(column[::-1], column[::-1])
        for i in range(C.rounds - 2, -1, -1):
            gram[i, :-1] += gram[i + 1, 1:]
        return gram
    return C.gram()


def _signs_attain(part: NDArray[np.float64]) -> bool:
    """Whether signs s_i = ±1 make s_i s_j G_ij ≥ 0 for all pairs."""
    signs = np.where(part[0] < 0, -1.0, 1.0)
    return float(signs @ part @ signs) >= float(np.abs(part).sum()) * (1 - ROUNDING)
