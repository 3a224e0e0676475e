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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.matrices import Factorization
from fedmf.factorization.sensitivity.pair_dominance import pair_bound_square
from fedmf.factorization.sensitivity.pattern_search import heaviest_pattern
from fedmf.factorization.sensitivity.separated import (
    best_separated_sum,
    comb_sum,
    count_patterns,
    earliest_pattern,
    pattern_layers,
)
from fedmf.participation import Participation
from fedmf.typing import Vector

__all__ = [
    "Sensitivity",
    "SensitivityNotExact",
    "exact_sensitivity",
    "quick_upper_bound",
    "stated_sensitivity",
]

_BY_ROWS = "row-wise dynamic program (Choquette-Choo et al. 2023, Theorem 2)"
_STOPPED = "search over patterns, stopped at its work limit"
_ROUNDING = 1e-12
_MOST_PATTERNS = 200_000
_MOST_PAIRED = 512
_LARGEST_ENUMERATED = 2048
_LARGEST_GRAM = 10_240


class SensitivityNotExact(ValueError):
    """The exact sensitivity is not known for this factorization and participation; a bound may be."""


@dataclass(frozen=True)
class Sensitivity:
    """sens_{k,b}(C) for clip norm 1.

    Args:
        value: the sensitivity, or a bound above it.
        kind: whether the value is attained by some user.
        case: which theorem or algorithm gave it.
    """

    value: float
    kind: Literal["exact", "upper_bound"]
    case: str


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
    found = stated_sensitivity(factorization, participation)
    if found.kind != "exact":
        raise SensitivityNotExact(
            f"sens_{{k,b}}(C) (sensitivity) must be known exactly; got only an upper bound "
            f"({found.case}). Use stated_sensitivity, or p <= b={participation.min_separation}."
        )
    return found


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
    best: Sensitivity | None = None
    for found in _methods(factorization, participation):
        if found.kind == "exact":
            return found
        if best is None or found.value < best.value:
            best = found
    assert best is not None
    return best


def quick_upper_bound(factorization: Factorization, participation: Participation) -> float:
    """The cheapest sound bound, exact or not: the objective of a parameter search, O(n·k) for Toeplitz C."""
    return next(_methods(factorization, participation)).value


def _methods(C: Factorization, participation: Participation) -> Iterator[Sensitivity]:
    """The methods that apply, cheapest first; later ones run only if the earlier were not exact."""
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    if C.bands <= b or k == 1:
        value = float(np.sqrt(best_separated_sum(C.gram_diagonal(0), k, b)))
        reason = "single participation" if k == 1 else "columns b apart orthogonal (p <= b)"
        yield Sensitivity(value, "exact", f"{reason}: dynamic program, Choquette-Choo et al. 2023")
        return
    envelope = C.monotone_envelope()
    if envelope is not None:
        yield _by_envelope(C, *envelope, k, b)
    column = C.toeplitz_column()
    if column is not None and k <= _MOST_PAIRED:
        yield _by_pairs(column, k, b)
    if n <= _LARGEST_ENUMERATED and count_patterns(n, k, b) <= _MOST_PATTERNS:
        yield _by_enumeration(C, k, b)
    elif n <= _LARGEST_GRAM:
        yield _by_search(C, k, b)
    elif envelope is None:
        raise SensitivityNotExact(
            f"n (rounds) must be at most {_LARGEST_GRAM} to bound the sensitivity of this C; got {n}. "
            "Use a Toeplitz or banded C (p <= b)."
        )


def _by_envelope(C: Factorization, envelope: Vector, scale: Vector, k: int, b: int) -> Sensitivity:
    """Compare with Ĉ = LTT(ĉ)·diag(s)⁻¹, ĉ and s non-increasing and |C| ≤ Ĉ, for which the earliest wins.

    [ĈᵀĈ]_{j−g,j} = Σ_l ĉ_l ĉ_{l+g} / (s_{j−g} s_j) over l < n − j: for fixed j it falls as g grows, since
    ĉ_{l+g} falls and s_{j−g} rises. The m-th and (m+h)-th round of a pattern are at least hb apart and the
    m-th is at least mb, hence their entry is at most max_{i ≥ mb} [ĈᵀĈ]_{i,i+hb}. Without scaling the maximum
    lies at i = mb and the bound is ‖Σ_{m<k} Ĉ_{:,mb}‖. The earliest pattern of C itself gives the lower end.
    """
    scaled = bool((scale != scale[0]).any())
    if scaled:
        upper = _scaled_envelope_square(envelope, scale, k, b) ** 0.5
    else:
        upper = float(np.linalg.norm(comb_sum(envelope, k, b)) / scale[0])
    lower = float(np.linalg.norm(C.column_sum(earliest_pattern(k, b))))
    attained = upper <= lower * (1 + _ROUNDING)
    if not attained:
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
    attained = value <= earliest * (1 + _ROUNDING)
    return Sensitivity(
        value, "exact" if attained else "upper_bound", "Toeplitz, lags of at least b compared pair by pair"
    )


def _scaled_envelope_square(envelope: Vector, scale: Vector, k: int, b: int) -> float:
    """Σ_{m,m'<k} max_{i ≥ mb} [ĈᵀĈ]_{i,i+|m−m'|b}, one diagonal of the Gram matrix after the other."""
    n, total = envelope.size, 0.0
    for h in range(k):
        gap, length = h * b, n - h * b
        diagonal = np.cumsum(envelope[:length] * envelope[gap:])[::-1] / (scale[:length] * scale[gap:])
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
    gram = np.zeros((C.rounds, C.rounds))
    flat, step = gram.reshape(-1), C.rounds + 1
    for gap in range(min(C.rounds, C.bands)):
        diagonal = C.gram_diagonal(gap)
        flat[gap : (C.rounds - gap) * C.rounds : step] = diagonal
        flat[gap * C.rounds :: step] = diagonal
    return gram


def _by_enumeration(C: Factorization, k: int, b: int) -> Sensitivity:
    """max_π Σ |G_ij| over every pattern; exact if signs ±1 attain it on the pattern that is best."""
    gram = _dense_gram(C)
    size = np.abs(gram)
    best, worst = 0.0, np.zeros(1, dtype=np.int64)
    for layer in pattern_layers(C.rounds, k, b):
        sums = np.zeros(len(layer))
        for i in range(layer.shape[1]):
            for j in range(layer.shape[1]):
                sums += size[layer[:, i], layer[:, j]]
        at = int(sums.argmax())
        if sums[at] > best:
            best, worst = float(sums[at]), layer[at]
    if _signs_attain(gram[np.ix_(worst, worst)]):
        return Sensitivity(
            best**0.5, "exact", "every pattern enumerated (Choquette-Choo et al. 2023, App. E)"
        )
    return Sensitivity(best**0.5, "upper_bound", "every pattern enumerated, |C^T C| of mixed signs")


def _signs_attain(part: NDArray[np.float64]) -> bool:
    """Whether signs s_i = ±1 make s_i s_j G_ij ≥ 0 for all pairs."""
    signs = np.where(part[0] < 0, -1.0, 1.0)
    return float(signs @ part @ signs) >= float(np.abs(part).sum()) * (1 - _ROUNDING)


def _by_search(C: Factorization, k: int, b: int) -> Sensitivity:
    """max_π Σ |G_ij| by branch and bound; exact if it finished and signs ±1 attain it on its pattern."""
    gram = _dense_gram(C)
    np.abs(gram, out=gram)
    found = heaviest_pattern(gram, k, b)
    value = float(np.sqrt(found.bound))
    if not found.finished:
        return Sensitivity(value, "upper_bound", _BY_ROWS if found.by_rows else _STOPPED)
    columns = C.columns(found.pattern)
    if _signs_attain(columns.T @ columns):
        return Sensitivity(value, "exact", "search over patterns, finished (branch and bound)")
    return Sensitivity(value, "upper_bound", "search over patterns, |C^T C| of mixed signs")
