"""How far one user can move the mechanism: sens_{k,b}(C), exact or bounded, and always called what it is.

One user's contributions are vectors u_i of norm at most ζ in the rounds i of a pattern π (at most k rounds,
any two at least b apart). With ζ = 1,

    sens_{k,b}(C)² = max over π and ‖u_i‖ ≤ 1 of Σ_{i,j∈π} G_ij ⟨u_i, u_j⟩,   G = CᵀC.

It is at most max_π Σ_{i,j∈π} |G_ij|, with equality wherever signs s_i = ±1 make s_i s_j G_ij ≥ 0 on the best
pattern; in particular where G ≥ 0.

Every value here is a proven upper bound, computed by one of six methods. It is *exact* when the method is
always attained, or when a pattern was found that attains it up to 1e-12 (relative), the rounding error of the
sums. No other tolerance is used: "non-increasing" is never tested, but replaced by a monotone envelope that
lies above the coefficients, and the bracket decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import fft_size
from fedmf.factorization.matrices import Factorization
from fedmf.factorization.sensitivity.methods import (
    ROUNDING,
    Released,
    Sensitivity,
    SensitivityNotExact,
    kind_of,
    methods,
    tightest,
)
from fedmf.factorization.sensitivity.separated import (
    comb_sum,
    earliest_pattern,
    heaviest_pattern,
    monotone_envelope,
    row_bound,
)
from fedmf.participation import Participation
from fedmf.typing import Vector

_ROUNDING = 1e-12


def autocorrelation(c: Vector) -> Vector:
    """Σ_l c_l c_{l+g} for g = 0 … n−1, shape (n,), by FFT.

    >>> autocorrelation(np.array([1.0, 0.5])).round(12)
    array([1.25, 0.5 ])
    """
    size = fft_size(2 * c.size)
    spectrum = np.fft.rfft(c, size)
    return np.fft.irfft(spectrum * spectrum.conj(), size)[: c.size]


def pair_bound_square(c: Vector, max_participations: int, min_separation: int) -> float:
    """The bound on sens_{k,b}(LTT(c))² of this module, in O(k·n log n).

    Args:
        c: first column of C, shape (n,), of either sign.
        max_participations: k.
        min_separation: b.

    References:
        Kalinin, McKenna, Pagh & Lampert (2026), Lemma 8, uses the same comparison for one normalised family.

    >>> pair_bound_square(np.array([1.0, 0.5, 0.25, 0.125]), 2, 2)
    3.203125
    """
    n, k, b = c.size, max_participations, min_separation
    size, a = fft_size(2 * n), np.abs(c)
    spectrum, total = np.fft.rfft(a, size), 0.0
    for m in range(min(k, -(-n // b))):
        head = a[: n - m * b]
        products = np.fft.irfft(spectrum * np.fft.rfft(head, size).conj(), size)[:n]
        largest_from = np.maximum.accumulate(products[::-1])[::-1]
        total += float(head @ head) + 2.0 * float(largest_from[b : m * b + 1 : b].sum())
    return total


def earliest_is_worst(c: Vector, max_participations: int, min_separation: int) -> bool:
    """Whether the pair bound proves that no pattern is worse than {0, b, 2b, …}, up to 1e-12 (relative).

    >>> earliest_is_worst(np.array([1.0, 0.2, 0.4, 0.1]), 2, 2)
    True
    >>> earliest_is_worst(np.array([1.0, 0.2, 0.1, 0.4]), 2, 2)
    False
    """
    earliest = comb_sum(c, max_participations, min_separation)
    bound = pair_bound_square(c, max_participations, min_separation)
    return bound <= float(earliest @ earliest) * (1 + _ROUNDING) ** 2


_BY_ROWS = "row-wise dynamic program (Choquette-Choo et al. 2023, Theorem 2)"
_MOST_PAIRED = 512
# What was found for a C that is still in use.
_BY_PATTERNS: WeakKeyDictionary[Factorization, dict[Participation, Sensitivity]] = WeakKeyDictionary()


def exact_sensitivity(factorization: Factorization, participation: Participation) -> Sensitivity:
    """The exact sensitivity, or a refusal.

    Args:
        factorization: C.
        participation: (n, k, b), with the n of C.

    Raises:
        SensitivityNotExact: only an upper bound is known.
        ValueError: the horizons differ.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization", Theorem 2 and Appendix E;
        Kalinin & Lampert (2024), Theorem 2; Kalinin, McKenna, Pagh & Lampert (2026), Lemma 8.

    >>> from fedmf.factorization import Toeplitz
    >>> exact_sensitivity(Toeplitz([1.0, 0.5], 4), Participation(4, 2, 2))
    Sensitivity(value=1.5811388300841898, kind='exact', case='columns b apart orthogonal (p <= b): ...')
    """
    sensitivity = stated_sensitivity(factorization, participation)
    if sensitivity.kind != "exact":
        raise SensitivityNotExact(
            f"sens_{{k,b}}(C) (sensitivity) must be known exactly; got only an upper bound "
            f"({sensitivity.case}). Use stated_sensitivity, or p <= b={participation.min_separation}."
        )
    return sensitivity


def stated_sensitivity(factorization: Factorization, participation: Participation) -> Sensitivity:
    """The exact sensitivity where it is known, else the smallest of the upper bounds, labelled as such.

    Raises:
        ValueError: the horizons differ.
    """
    if factorization.rounds != participation.rounds:
        raise ValueError(
            f"n (rounds) must be the same for C and the participation; got {factorization.rounds} and "
            f"{participation.rounds}. Use C.leading(T) for a shorter run."
        )
    return tightest(_Strategy(factorization, participation))


def quick_upper_bound(factorization: Factorization, participation: Participation) -> float:
    """The cheapest sound bound, exact or not: the objective of a parameter search, O(n·k) for Toeplitz C."""
    return next(methods(_Strategy(factorization, participation))).value


@dataclass(frozen=True, eq=False)
class _Strategy(Released):
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
        k, b = self.participation.max_participations, self.participation.min_separation
        if self.toeplitz_bound is not None:
            yield _by_envelope(self.factorization, *self.toeplitz_bound, k, b)
        column = self.factorization.toeplitz_column()
        if column is not None and k <= _MOST_PAIRED:
            yield _by_pairs(column, k, b)

    def by_enumeration(self) -> Sensitivity:
        """`_enumerated`, once for a C."""
        return self._once(self._enumerated)

    def by_rows(self) -> Sensitivity:
        """`row_bound`, once for a C."""
        return self._once(self._by_rows)

    def _once(self, method: Callable[[], Sensitivity]) -> Sensitivity:
        """A search over parameters and the row of its best C ask the same; one method fits a contract."""
        known = _BY_PATTERNS.setdefault(self.factorization, {})
        if self.participation not in known:
            known[self.participation] = method()
        return known[self.participation]

    def _enumerated(self) -> Sensitivity:
        """max_π Σ |G_ij| over every pattern; exact if signs ±1 attain it on the pattern that is best."""
        gram, contract = _dense_gram(self.factorization), self.participation
        square, worst = heaviest_pattern(np.abs(gram), contract.max_participations, contract.min_separation)
        if _signs_attain(gram[np.ix_(worst, worst)]):
            case = "every pattern enumerated (Choquette-Choo et al. 2023, App. E)"
            return Sensitivity(square**0.5, "exact", case)
        return Sensitivity(square**0.5, "upper_bound", "every pattern enumerated, |C^T C| of mixed signs")

    def _by_rows(self) -> Sensitivity:
        size = np.abs(_dense_gram(self.factorization))
        contract = self.participation
        k, b = contract.max_participations, contract.min_separation
        value = row_bound(size, k, b) ** 0.5
        attained = float(np.linalg.norm(self.factorization.column_sum(earliest_pattern(k, b))))
        return Sensitivity(value, kind_of(value, attained), _BY_ROWS)


def _by_envelope(C: Factorization, size: Vector, scale: Vector, k: int, b: int) -> Sensitivity:
    """Compare with the pairs of rounds of the earliest pattern, for |C_{ij}| ≤ a_{i−j}/s_j, s not rising.

    With ĉ_j = max_{l ≥ j} a_l, an entry |[CᵀC]_{j−g,j}| is at most E_{j−g,j} = Σ_l a_l ĉ_{l+g}/(s_{j−g} s_j)
    over l < n − j. For fixed j this falls as g grows, since ĉ_{l+g} falls and s_{j−g} rises. The m-th and
    (m+h)-th round of a pattern are at least hb apart and the m-th is at least mb, hence their entry is at
    most max_{i ≥ mb} E_{i,i+hb}. So coefficients may rise before lag b at no loss. Without scaling,
    ‖Σ_{m<k} Ĉ_{:,mb}‖ for Ĉ = LTT(ĉ) is a bound in O(n). The earliest pattern of C itself gives the lower
    end.
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
    return Sensitivity(upper, "exact", "Toeplitz, non-negative non-increasing (Kalinin & Lampert 2024)")


def _by_pairs(column: Vector, k: int, b: int) -> Sensitivity:
    """Toeplitz C: compare autocorrelations at lags of at least b only."""
    value = float(np.sqrt(pair_bound_square(column, k, b)))
    earliest = float(np.linalg.norm(comb_sum(column, k, b)))
    return Sensitivity(value, kind_of(value, earliest), "Toeplitz, lags of at least b compared pair by pair")


def _scaled_pairs_square(size: Vector, envelope: Vector, scale: Vector, k: int, b: int) -> float:
    """Σ_{m,m'<k} max_{i ≥ mb} E_{i,i+|m−m'|b}, one diagonal after the other; of squares a_l² for m = m'."""
    n, total = size.size, 0.0
    for h in range(k):
        gap, length = h * b, n - h * b
        later = envelope[gap:] if h else size
        diagonal = np.cumsum(size[:length] * later)[::-1] / (scale[:length] * scale[gap:])
        largest_from = np.maximum.accumulate(diagonal[::-1])[::-1]
        total += float(largest_from[: (k - 1 - h) * b + 1 : b].sum()) * (1 if h == 0 else 2)
    return total


def _dense_gram(C: Factorization) -> NDArray[np.float64]:
    column = C.toeplitz_column()
    if column is not None:
        # The sums of below in the same order, a row at a time: G_ij = G_{i+1,j+1} + c_{n−1−i} c_{n−1−j}.
        gram = np.outer(column[::-1], column[::-1])
        for i in range(C.rounds - 2, -1, -1):
            gram[i, :-1] += gram[i + 1, 1:]
        return gram
    return C.gram()


def _signs_attain(part: NDArray[np.float64]) -> bool:
    """Whether signs s_i = ±1 make s_i s_j G_ij ≥ 0 for all pairs."""
    signs = np.where(part[0] < 0, -1.0, 1.0)
    return float(signs @ part @ signs) >= float(np.abs(part).sum()) * (1 - ROUNDING)
