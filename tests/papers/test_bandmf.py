"""Scaling up BandMF (McKenna): Algorithm 5, trees of any size, Propositions E.1 and E.2, Appendix I."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.oracles import ltt

from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.blt import blt
from fedmf.mechanisms.closed_forms import bisr, bsr
from fedmf.mechanisms.errors import query_variances, streamed_query_variances
from fedmf.mechanisms.matrix import Factorization, normalized
from fedmf.mechanisms.streaming import Stream
from fedmf.mechanisms.trees import kary_tree, tree
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation
from fedmf.typing import Array

FOLDER = Path(__file__).parents[2] / "simulations" / "design"
sys.path.insert(0, str(FOLDER))
large_trees = importlib.import_module("large_trees")
sys.path.remove(str(FOLDER))

N = 11
STRATEGIES: dict[str, Callable[[], Factorization]] = {
    "banded": lambda: bsr(3, N), "banded inverse": lambda: bisr(4, N),
    "buffered": lambda: blt(2, Participation(N, 1, N)),
    "scaled": lambda: normalized(bsr(N, N)), "tree": lambda: tree(N), "k-ary tree": lambda: kary_tree(3, N),
}  # fmt: skip


def heavy_ball(beta: float, rates: Array) -> Stream:
    """Momentum with falling rates, two buffers: θ_t = Σ_{s≤t} rate_s·v_s, v_s = β·v_{s−1} + x_s."""

    def step(state: tuple[Array, Array], t: int, x: Array) -> tuple[Array, tuple[Array, Array]]:
        velocity = beta * state[0] + x
        position = state[1] + rates[t] * velocity
        return position, (velocity, position)

    return Stream(lambda shape: (np.zeros(shape), np.zeros(shape)), step)


def test_algorithm_5_is_the_dense_product() -> None:
    rates = np.linspace(1.0, 0.1, N)
    A = np.tril(np.ones((N, N))) @ np.diag(rates) @ ltt(0.9 ** np.arange(N), N)
    for make in STRATEGIES.values():
        C = make()
        expected = ((A @ np.linalg.inv(C.materialize())) ** 2).sum(1)
        np.testing.assert_allclose(streamed_query_variances(C, heavy_ball(0.9, rates)), expected, rtol=1e-10)


def product(C: Factorization) -> float:
    """‖C‖_{1→2}·‖A C⁻¹‖_F."""
    return float(np.sqrt(C.gram_diagonal(0).max() * query_variances(C, prefix(C.rounds)).sum()))


def test_propositions_e1_and_e2() -> None:
    """Banded square roots of b ≤ √n bands: RMSE over √(n log b/b) within a constant; the optimum is below it.

    The text has ‖C‖·‖A C⁻¹‖_F = O(√(n log b/b)); that is the order of ‖A C⁻¹‖_F/√n, the RMSE, instead.
    """
    ratios = []
    for n in (256, 1024, 4096):
        for b in (4, 8, 16):
            ratios.append(product(bsr(b, n)) / n**0.5 / math.sqrt(n * math.log(b) / b))
            best = banded_toeplitz(b, Participation(n, 1, n))
            assert product(best) <= product(bsr(b, n)) * (1 + 1e-9)
    assert max(ratios) / min(ratios) < 1.5
