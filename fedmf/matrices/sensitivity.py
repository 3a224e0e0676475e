"""How far one user can move the mechanism: sens_{k,b}(C), exact or marked as a bound.

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
# The number of sizes of patterns that have bounds of their own.
_SIZES = 4
# Rows of the dynamic program that fit a processor's cache.
_CHUNK_ENTRIES = 100_000
# Sensitivities from Gram matrices, for each C that is still in use.
_BY_PATTERNS: WeakKeyDictionary[Factorization, dict[Participation, Sensitivity]] = (
    WeakKeyDictionary()
)


class SensitivityNotExact(ValueError):
    """No method bounds the sensitivity of this factorization at so long a horizon."""


@dataclass(frozen=True)
class Sensitivity:
    """sens_{k,b}(C) for clip norm 1.

    Args:
        value: the sensitivity, or a bound above it.
        kind: "exact" if some user attains the value.
        case: the theorem or algorithm that gave it.
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
    """The sum of the earliest columns of LTT(column): Σ_{l<k} of the column shifted by l·b.

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
    """The bound on sens_{k,b}(LTT(c))² by pairs of rounds, in O(k·n log n).

    The m-th round of a pattern lies at mb or later and the (m+h)-th hb or more behind it, so that
    their entry of |CᵀC| is at most the largest Σ_l |c_l c_{l+g}| over gaps g ≥ hb.

    Args:
        c: first column of C, shape (n,), of either sign.
        max_participations: k.
        min_separation: b.

    References:
        Kalinin, McKenna, Pagh & Lampert (2026), Lemma 8, uses the same comparison for one
        normalized family.

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
            spectrum = np.fft.rfft(a, size) * np.fft.rfft(head, size).conj()
            products = np.fft.irfft(spectrum, size)[: a.size]
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
    """The number of non-empty patterns, Σ_{m ≤ k} binom(n − (m−1)(b−1), m).

    >>> count_patterns(4, 2, 2)
    7
    """
    total = 0
    for m in range(1, max_participations + 1):
        total += comb(max(0, rounds - (m - 1) * (min_separation - 1)), m)
    return total


def pattern_layers(
    rounds: int, max_participations: int, min_separation: int
) -> Iterator[NDArray[np.int64]]:
    """All patterns, one size after the other: layers of shape (patterns, size), rows increasing.

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
    """max_π Σ_{i,j∈π} W_ij over every pattern; each sum extends that of a shorter pattern.

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
    """For every pattern with one more round: the index of the pattern it extends, and the round."""
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
    sizes = np.arange(k - 1, max(-1, k - 1 - _SIZES), -1)
    weights = np.empty((len(sizes), n))
    step = max(1, _CHUNK_ENTRIES // (n + b))
    for start in range(0, n, step):
        rows = gram[start : start + step].copy()
        for i, row in enumerate(rows, start):
            # Rounds closer than b to i cannot join it; those on its two sides are then 2b apart.
            row[max(0, i - b + 1) : i + b] = 0.0
        sums = np.array(list(_separated_sums(rows, k - 1, b)))
        weights[:, start : start + step] = sums[np.minimum(sizes, len(sums) - 1)]
    return weights + gram.diagonal()


def pairwise_bound(gram: Array, k: int, b: int) -> float:
    """A bound on max_π Σ_{i,j∈π} W_ij over patterns of exactly k rounds, by balancing pairs.

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
    ordered = offsets >= offsets[:, None]
    forbidden = -4.0 * k * gram.sum(axis=1).max()
    u = gram.diagonal()[np.arange(k)[:, None] * b + offsets]
    pairs: dict[tuple[int, int], Array] = {}
    for i, j in combinations(range(k), 2):
        twice = 2.0 * gram[i * b + offsets[:, None], j * b + offsets]
        pairs[i, j] = np.where(ordered, twice, forbidden)
    bound = math.inf
    for _ in range(_MOST_SWEEPS):
        for (i, j), p in pairs.items():
            p += u[i][:, None]
            p += u[j]
            half = p.max(axis=1) / 2
            p -= half[:, None]
            u[j] = p.max(axis=0)
            p -= u[j]
            rest = p.max(axis=1)
            p -= rest[:, None]
            u[i] = half + rest
        previous = bound
        bound = 0.0
        for values in u:
            bound += float(values.max())
        if previous - bound < _LEAST_FALL * bound:
            break
    return bound * (1 + ROUNDING)


class SensitivityProblem(ABC):
    """A release, with the distance by which one user within (n, k, b) can move it."""

    #: (n, k, b).
    participation: Participation
    #: The reference that `case` gives with the dynamic program.
    source: str
    #: The quantity's name in errors, and the forms of C that are bounded at every horizon.
    label: str
    remedy: str
    #: The largest number of patterns that are enumerated.
    most_patterns = 200_000

    @property
    @abstractmethod
    def bands(self) -> int:
        """Participations at least so many rounds apart move orthogonal parts."""

    @property
    @abstractmethod
    def enveloped(self) -> bool:
        """True if `by_structure` bounds it at every horizon."""

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


def methods(problem: SensitivityProblem) -> Iterator[Sensitivity]:
    """The bounds of all methods that apply, cheapest first; a method runs when its bound is read.

    Raises:
        SensitivityNotExact: no method takes a horizon this long.
    """
    n = problem.participation.rounds
    k = problem.participation.max_participations
    b = problem.participation.min_separation
    if k == 1 or problem.bands <= b:
        reason = "rounds of one user share no band of C (p <= b)"
        if k == 1:
            reason = "single participation"
        value = float(np.sqrt(best_separated_sum(problem.squares(), k, b)))
        yield Sensitivity(value, "exact", f"{reason}: dynamic program{problem.source}")
        return
    yield from problem.by_structure()
    if n <= _LARGEST_ENUMERATED and count_patterns(n, k, b) <= problem.most_patterns:
        yield problem.by_enumeration()
    elif n <= _LARGEST_GRAM:
        yield problem.by_rows()
    elif not problem.enveloped:
        raise SensitivityNotExact(
            f"n (rounds) must be at most {_LARGEST_GRAM} to bound the {problem.label}; got {n}. "
            f"Use {problem.remedy}."
        )


def tightest(problem: SensitivityProblem) -> Sensitivity:
    """The first exact value, else the smallest of the bounds."""
    bounds: list[Sensitivity] = []
    for bound in methods(problem):
        if bound.kind == "exact":
            return bound
        bounds.append(bound)
    return min(bounds, key=lambda bound: bound.value)


def kind_of(upper: float, attained: float) -> Kind:
    """Exact if some user attains the bound up to the rounding of the sums."""
    if upper <= attained * (1 + ROUNDING):
        return "exact"
    return "upper_bound"


def over_patterns(
    weigh: Callable[[NDArray[np.int64]], NDArray[np.float64]], participation: Participation
) -> list[tuple[float, NDArray[np.int64]]]:
    """The largest values of several quantities over every pattern, with a pattern for each.

    Args:
        weigh: for patterns of one size, shape (patterns, size), the quantities, shape (quantities,
            patterns).
        participation: (n, k, b).

    >>> def sum_of_rounds(layer):
    ...     return layer.sum(axis=1)[None, :].astype(float)
    >>> over_patterns(sum_of_rounds, Participation(4, 2, 2))
    [(4.0, array([1, 3]))]
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    largest: list[tuple[float, NDArray[np.int64]]] = []
    for layer in pattern_layers(n, k, b):
        for quantity, weights in enumerate(weigh(layer)):
            at = int(weights.argmax())
            top = float(weights[at]), layer[at]
            if quantity == len(largest):
                largest.append(top)
            elif top[0] > largest[quantity][0]:
                largest[quantity] = top
    return largest


def sensitivity_of(factorization: Factorization, participation: Participation) -> Sensitivity:
    """The exact sensitivity where it is known, else the smallest of the upper bounds.

    Raises:
        ValueError: the horizons differ.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization", Theorem 2 and
        Appendix E; Kalinin & Lampert (2024), Theorem 2; Kalinin, McKenna, Pagh & Lampert (2026),
        Lemma 8.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> sensitivity_of(Toeplitz([1.0, 0.5], 4), Participation(4, 2, 2))
    Sensitivity(value=1.5811388300841898, kind='exact', case='rounds of one user share no band of C
    (p <= b): ...')
    """
    if factorization.rounds != participation.rounds:
        raise ValueError(
            f"n (rounds) must be the same for C and the participation; got {factorization.rounds}"
            f" and {participation.rounds}. Use C.leading(T) for a shorter run."
        )
    return tightest(StrategyProblem(factorization, participation))


@dataclass(frozen=True, eq=False)
class StrategyProblem(SensitivityProblem):
    """C·G, whose rows one user moves by Σ_{i∈π} C_{:,i} u_i."""

    factorization: Factorization
    participation: Participation

    source = ", Choquette-Choo et al. 2023"
    label = "sensitivity of this C"
    remedy = "a Toeplitz or banded C (p <= b)"
    most_patterns = 2_000_000

    @property
    def bands(self) -> int:
        """p of C."""
        return self.factorization.bands

    @cached_property
    def _toeplitz_bound(self) -> tuple[Vector, Vector] | None:
        return self.factorization.toeplitz_bound()

    @property
    def enveloped(self) -> bool:
        """True if C has a Toeplitz bound."""
        return self._toeplitz_bound is not None

    def squares(self) -> Vector:
        """The squared column norms, shape (n,)."""
        return self.factorization.gram_diagonal(0)

    def by_structure(self) -> Iterator[Sensitivity]:
        """Bounds from the envelope of the coefficients and, for Toeplitz C, from pairs of lags."""
        k = self.participation.max_participations
        b = self.participation.min_separation
        if self._toeplitz_bound is not None:
            yield _by_envelope(self.factorization, *self._toeplitz_bound, k, b)
        column = self.factorization.toeplitz_column()
        if column is not None and k <= _MOST_PAIRED:
            value = float(np.sqrt(pair_bound_square(column, k, b)))
            earliest = float(np.linalg.norm(comb_sum(column, k, b)))
            case = "Toeplitz, lags of at least b compared pair by pair"
            yield Sensitivity(value, kind_of(value, earliest), case)

    def by_enumeration(self) -> Sensitivity:
        """max_π Σ |G_ij| over every pattern; exact if signs ±1 attain it on the best one."""
        return self._once(_by_enumeration)

    def by_rows(self) -> Sensitivity:
        """The row bound, or the bound of pairs for sizes of patterns with few pairs."""
        return self._once(_by_rows)

    def _once(self, method: Callable[[Factorization, Participation], Sensitivity]) -> Sensitivity:
        """Remember the value of a method that needs the Gram matrix; a contract has only one.

        A search over parameters and the row of its best C need the same values.
        """
        known = _BY_PATTERNS.setdefault(self.factorization, {})
        if self.participation not in known:
            known[self.participation] = method(self.factorization, self.participation)
        return known[self.participation]


def _by_enumeration(C: Factorization, participation: Participation) -> Sensitivity:
    gram = _dense_gram(C)
    square, worst = heaviest_pattern(
        np.abs(gram), participation.max_participations, participation.min_separation
    )
    if _signs_attain(gram[np.ix_(worst, worst)]):
        case = "every pattern enumerated (Choquette-Choo et al. 2023, App. E)"
        return Sensitivity(square**0.5, "exact", case)
    case = "every pattern enumerated, |C^T C| of mixed signs"
    return Sensitivity(square**0.5, "upper_bound", case)


def _by_rows(C: Factorization, participation: Participation) -> Sensitivity:
    """The largest bound over patterns of k, k − 1, … rounds, until no smaller ones can have more.

    The last size stands for all smaller ones, which the bound of pairs does not cover.
    """
    k = participation.max_participations
    b = participation.min_separation
    sizes = np.abs(_dense_gram(C))
    square = 0.0
    case = ""
    weights = row_weights(sizes, k, b)
    for rounds, weight in zip(range(k, 0, -1), weights, strict=False):
        by_rows = float(best_separated_sum(weight, rounds, b))
        if by_rows <= square:
            break
        by_pairs = by_rows
        entries = comb(rounds, 2) * (len(sizes) - (rounds - 1) * b) ** 2
        if k - rounds + 1 < len(weights) and entries <= _MOST_BALANCED:
            by_pairs = pairwise_bound(sizes, rounds, b)
        if square < min(by_rows, by_pairs):
            square = min(by_rows, by_pairs)
            case = "pairs of rounds balanced (Globerson & Jaakkola 2007)"
            if by_rows <= by_pairs:
                case = "row-wise dynamic program (Choquette-Choo et al. 2023, Theorem 2)"
    attained = float(np.linalg.norm(C.column_sum(earliest_pattern(k, b))))
    return Sensitivity(square**0.5, kind_of(square**0.5, attained), case)


def _by_envelope(C: Factorization, size: Vector, scale: Vector, k: int, b: int) -> Sensitivity:
    """Compare with the pairs of rounds of the earliest pattern, for |C_{ij}| ≤ a_{i−j}/s_j.

    Here s does not rise. With ĉ_j = max_{l ≥ j} a_l, an entry |[CᵀC]_{j−g,j}| is at most
    E_{j−g,j} = Σ_l a_l ĉ_{l+g}/(s_{j−g} s_j) over l < n − j. For fixed j this falls as g grows,
    since ĉ_{l+g} falls and s_{j−g} rises. The m-th and (m+h)-th round of a pattern are at least hb
    apart and the m-th is at least mb, hence their entry is at most max_{i ≥ mb} E_{i,i+hb}. So
    coefficients may rise before lag b at no loss. Without scaling, ‖Σ_{m<k} Ĉ_{:,mb}‖ for
    Ĉ = LTT(ĉ) is a bound in O(n). The earliest pattern of C itself gives the lower end.
    """
    envelope = monotone_envelope(size)
    if (scale != scale[0]).any():
        upper = _scaled_pairs_square(size, envelope, scale, k, b) ** 0.5
        case = "earliest pattern dominates every pair (Kalinin et al. 2026, Lemma 8)"
    else:
        upper = float(np.linalg.norm(comb_sum(envelope, k, b)) / scale[0])
        case = "Toeplitz, non-negative non-increasing (Kalinin & Lampert 2024)"
    lower = float(np.linalg.norm(C.column_sum(earliest_pattern(k, b))))
    if kind_of(upper, lower) == "upper_bound":
        case = "monotone envelope of the coefficients"
    return Sensitivity(upper, kind_of(upper, lower), case)


def _scaled_pairs_square(size: Vector, envelope: Vector, scale: Vector, k: int, b: int) -> float:
    """Σ_{m,m'<k} max_{i ≥ mb} E_{i,i+|m−m'|b}, one diagonal after the other.

    On the main diagonal E is of squares a_l².
    """
    n = size.size
    total = 0.0
    for h in range(k):
        gap = h * b
        length = n - gap
        later = envelope[gap:]
        count = 2
        if h == 0:
            later = size
            count = 1
        diagonal = np.cumsum(size[:length] * later)[::-1] / (scale[:length] * scale[gap:])
        largest_from = np.maximum.accumulate(diagonal[::-1])[::-1]
        total += float(largest_from[: (k - 1 - h) * b + 1 : b].sum()) * count
    return total


def _dense_gram(C: Factorization) -> NDArray[np.float64]:
    column = C.toeplitz_column()
    if column is not None:
        # The same sums as `gram` in the same order, a row at a time:
        # G_ij = G_{i+1,j+1} + c_{n−1−i} c_{n−1−j}.
        gram = np.outer(column[::-1], column[::-1])
        for i in range(C.rounds - 2, -1, -1):
            gram[i, :-1] += gram[i + 1, 1:]
        return gram
    return C.gram()


def _signs_attain(part: NDArray[np.float64]) -> bool:
    """Return whether signs s_i = ±1 make s_i s_j G_ij ≥ 0 for all pairs."""
    signs = np.where(part[0] < 0, -1.0, 1.0)
    return float(signs @ part @ signs) >= float(np.abs(part).sum()) * (1 - ROUNDING)
