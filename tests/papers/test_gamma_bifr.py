"""γ-BIFR ("Beyond Square Roots"): its lemmas, checked on numbers.

The paper's text has lost its formulas; where a lemma names the inequality that it follows from,
that is what is checked here, and the page of the paper says so.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gamma as gamma_function
from scipy.special import gammaln
from support.oracles import ltt, scalar_sensitivity

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.closed_forms import bifr, bisr, cgd
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

GAMMAS = (0.1, 0.35, 0.5, 0.8, 0.99)
N = 400


def powers(exponent: float, count: int) -> np.ndarray:
    """Coefficients of (1 − x)^{−γ} by the recursion r_j = r_{j−1}(j − 1 + γ)/j."""
    j = np.arange(1.0, count)
    return np.concatenate([[1.0], np.cumprod((j - 1.0 + exponent) / j)])


def column(C: Factorization) -> np.ndarray:
    """The first column of C."""
    return C.columns([0])[:, 0]


@pytest.mark.parametrize("gamma", GAMMAS)
def test_definition_2_is_the_truncated_power(gamma: float) -> None:
    """The inverse's first p coefficients are those of (1 − x)^γ, for p = n its γ-th power of the
    inverse.
    """
    series = powers(-gamma, N)
    for p in (2, 5, N):
        inverse = bifr(gamma, p, N).noising_coefs
        np.testing.assert_allclose(inverse[:p], series[:p], rtol=1e-12)
        assert not np.any(inverse[p:])
    whole = ltt(powers(gamma, 20), 20)
    np.testing.assert_allclose(bifr(gamma, 20, 20).materialize(), whole, atol=1e-12)
    np.testing.assert_allclose(whole @ ltt(powers(1.0 - gamma, 20), 20), np.tril(np.ones((20, 20))))


@pytest.mark.parametrize("gamma", GAMMAS)
def test_lemmas_3_and_4_and_corollary_1_coefficients(gamma: float) -> None:
    """r_j = Γ(j + γ)/(Γ(γ) j!) and its bounds by Gautschi; |c_j| too; prefix sums of c are r of 1 −
    γ.
    """
    j = np.arange(1.0, N)
    r = powers(gamma, N)
    c = bifr(gamma, N, N).noising_coefs
    np.testing.assert_allclose(r[1:], np.exp(gammaln(j + gamma) - gammaln(gamma) - gammaln(j + 1)))
    assert (r[1:] <= j ** (gamma - 1) / gamma_function(gamma)).all()
    assert (r[1:] >= (j + 1) ** (gamma - 1) / gamma_function(gamma)).all()
    assert c[0] == 1.0
    assert (c[1:] < 0).all()
    scale = gamma / gamma_function(1.0 - gamma)
    assert (-c[1:] >= scale * j ** (-1.0 - gamma) * (1 - 1e-12)).all()
    assert (-c[2:] <= scale * (j[1:] - 1.0) ** -gamma / j[1:]).all()
    np.testing.assert_allclose(np.cumsum(c), powers(1.0 - gamma, N), rtol=1e-9)


@pytest.mark.parametrize(("n", "k", "b"), [(12, 3, 4), (16, 4, 4), (30, 2, 15), (64, 8, 8)])
def test_lemma_2_sensitivity_by_operator_norms(n: int, k: int, b: int) -> None:
    """sens² ≤ k‖c‖₂² + (k/b)‖c‖₁², what the steps of its proof give, for falling c ≥ 0."""
    rng = np.random.default_rng(n)
    drawn = [np.sort(rng.exponential(size=n))[::-1] for _ in range(5)]
    for c in [*drawn, *(column(bifr(g, 4, n)) for g in GAMMAS), np.ones(n)]:
        square = k * float(c @ c) + k / b * float(c.sum()) ** 2
        exact = (
            scalar_sensitivity(ltt(c, n), k, b)
            if n <= 16
            else np.linalg.norm(sum(np.append(np.zeros(j * b), c[: n - j * b]) for j in range(k)))
        )
        assert exact**2 <= square * (1 + 1e-12)


@pytest.mark.parametrize(("n", "k", "p"), [(256, 4, 4), (1024, 8, 2)])
def test_theorem_3_no_worse_than_bisr_and_cgd(n: int, k: int, p: int) -> None:
    """What the theorem says of bounds holds of the errors: the best γ beats BISR(p) and the best
    DP-λCGD.
    """
    contract = Participation(n, k, n // k)

    def rmse(C: Factorization) -> float:
        return errors(C, prefix(n), sensitivity_of(C, contract)).rmse

    grid = np.linspace(0.02, 0.98, 25)
    best = min(rmse(bifr(float(gamma), p, n)) for gamma in grid)
    assert best <= rmse(bisr(p, n)) * (1 + 1e-3)
    assert best <= min(rmse(cgd(float(decay), n)) for decay in grid) * (1 + 1e-12)
