"""DP-λCGD (arXiv:2601.22334): its lemmas, checked on numbers."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import prefix_sums, scalar_sensitivity

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.closed_forms import cgd, identity, workload_diagonal
from fedmf.mechanisms.objective import errors, query_variances
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation


def squares(decay: float, contract: Participation) -> tuple[float, float]:
    """(‖A C⁻¹‖²_{2→∞}, sens²) of DP-λCGD by (15) and (14), in a power series near λ^b = 1."""
    n = contract.rounds
    k = contract.max_participations
    b = contract.min_separation
    rows = 1.0 + (1.0 - decay) ** 2 * (n - 1)
    geometric = (1.0 - decay ** (2 * b)) / ((1.0 - decay**2) * (1.0 - decay**b) ** 2)
    return rows, float(geometric * np.sum((1.0 - decay ** (b * np.arange(1, k + 1))) ** 2))


@pytest.mark.parametrize(("n", "k", "b"), [(12, 3, 4), (20, 5, 4), (9, 1, 9)])
@pytest.mark.parametrize("decay", [0.3, 0.9])
def test_equations_14_and_15(n: int, k: int, b: int, decay: float) -> None:
    contract = Participation(n, k, b)
    C = cgd(decay, n)
    rows, sensitivity = squares(decay, contract)
    assert query_variances(C, prefix(n)).max() == pytest.approx(rows, rel=1e-12)
    assert scalar_sensitivity(C.materialize(), k, b) == pytest.approx(sensitivity**0.5, rel=1e-9)


def best_max_error(contract: Participation) -> float:
    """The least MaxSE over λ."""
    grid = 1.0 - np.geomspace(1.0, 1e-6, 61)[1:]
    return float(min(np.prod(squares(decay, contract)) for decay in grid)) ** 0.5


def test_lemma_2_max_error_stays_within_a_constant() -> None:
    """MaxSE over k + √k·n^{1/4} from n = 2⁶ to 2²⁰ and k from 1 to n: between two constants."""
    ratios = [
        best_max_error(Participation(2**m, 2**i, 2 ** (m - i)))
        / (2**i + 2 ** (i / 2) * 2 ** (m / 4))
        for m in (6, 12, 20)
        for i in range(0, min(m, 13), 3)
    ]
    assert min(ratios) > 0.5
    assert max(ratios) < 1.5


@pytest.mark.parametrize("n", [2, 5, 40])
def test_theorem_4_full_batches(n: int) -> None:
    contract = Participation(n, n, 1)
    queries = prefix(n)
    plain = errors(identity(n), queries, sensitivity_of(identity(n), contract)).rmse
    weighted = workload_diagonal(prefix(n))
    diagonal = errors(weighted, queries, sensitivity_of(weighted, contract)).rmse
    assert plain == pytest.approx((n * (n + 1) / 2) ** 0.5, rel=1e-12)
    assert diagonal == pytest.approx(np.sqrt(np.arange(1, n + 1)).sum() / n**0.5, rel=1e-12)
    least = ((n + 1) * (2 * n + 1) / 6) ** 0.5
    assert least <= diagonal <= plain
    if n == 40:
        assert plain / diagonal == pytest.approx(3 / (2 * 2**0.5), rel=0.01)
    # No C of any signs is below (11): the sensitivity is at least ‖Ce‖.
    rng = np.random.default_rng(n)
    for _ in range(20):
        C = np.tril(rng.normal(size=(n, n))) + 3.0 * np.eye(n)
        noise = np.linalg.norm(prefix_sums(n) @ np.linalg.inv(C))
        assert noise / n**0.5 * np.linalg.norm(C.sum(axis=1)) >= least * (1 - 1e-12)
