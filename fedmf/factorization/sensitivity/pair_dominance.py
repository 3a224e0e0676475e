"""A bound on the sensitivity of Toeplitz C from pairs of rounds, exact wherever the earliest pattern wins.

With a = |c| and R_m(g) = Σ_l a_l a_{l+g} over l < n − mb and l + g < n, two rounds g ≥ hb apart of which the
later is the m-th of its pattern (m = 0 … k−1, hence not before round mb) have |[CᵀC]_{ij}| ≤ R_m(g). So

    sens_{k,b}(C)² ≤ Σ_m R_m(0) + 2·Σ_m Σ_{h=1..m} max_{g ≥ hb} R_m(g).

The earliest pattern {0, b, 2b, …} attains this where c ≥ 0 and every maximum lies at g = hb. This asks less
than non-increasing coefficients: only sums of products over lags of at least b are compared.
"""

from __future__ import annotations

import numpy as np

from fedmf.factorization.algebra import fft_size
from fedmf.factorization.sensitivity.separated import comb_sum
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
