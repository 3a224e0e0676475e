from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fedmf.matrices.series import multiply, reciprocal
from fedmf.mechanisms.power_series import binomial_series


def _exact_reciprocal(c: list[Fraction], terms: int) -> list[Fraction]:
    inverse = [1 / c[0]]
    for t in range(1, terms):
        inverse.append(-sum(c[j] * inverse[t - j] for j in range(1, min(t + 1, len(c)))) / c[0])
    return inverse


@pytest.mark.parametrize("exponent", [0.5, -0.5, 0.9, -0.3, 1.0, -1.0])
def test_binomial_series_against_rational_arithmetic(exponent):
    expected = [Fraction(1)]
    for j in range(1, 60):
        expected.append(expected[-1] * (j - 1 - Fraction(exponent)) / j)
    assert np.allclose(
        binomial_series(exponent, 60), [float(x) for x in expected], rtol=1e-14, atol=0
    )


def test_reciprocal_against_rational_arithmetic():
    for c in [[1.0], [2.0, -1.0], [1.0, 0.5, 0.0, -0.25], [1.0, -0.5, -0.125, -0.0625]]:
        for terms in [1, 2, 3, 37, 64, 100]:
            expected = [float(x) for x in _exact_reciprocal([Fraction(x) for x in c], terms)]
            assert np.allclose(reciprocal(np.array(c), terms), expected, rtol=1e-13, atol=1e-15)


def test_reciprocal_of_long_series_keeps_twelve_digits():
    """(1 − x)^{1/2} and (1 − x)^{−1/2} are reciprocal; 10 000 terms take the FFT."""
    for a in (0.5, -0.5, 0.8):
        inverse = reciprocal(binomial_series(a, 10_000), 10_000)
        assert np.abs(inverse - binomial_series(-a, 10_000)).max() < 1e-12


def test_product_by_fft_equals_direct_product():
    rng = np.random.default_rng(0)
    left = rng.normal(size=2500)
    right = rng.normal(size=2500)
    assert left.size * right.size > 4_000_000
    assert np.allclose(
        multiply(left, right, 3000), np.convolve(left, right)[:3000], rtol=0, atol=1e-11
    )
