"""Scaling up BandMF (McKenna): trees of any size, Propositions E.1 and E.2, Appendix I."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import numpy as np

from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.closed_forms import bsr
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

FOLDER = Path(__file__).parents[2] / "simulations" / "design"
sys.path.insert(0, str(FOLDER))
large_trees = importlib.import_module("large_trees")
sys.path.remove(str(FOLDER))


def product(C: Factorization) -> float:
    """‖C‖_{1→2}·‖A C⁻¹‖_F."""
    return float(np.sqrt(C.gram_diagonal(0).max() * query_variances(C, prefix(C.rounds)).sum()))


def test_propositions_e1_and_e2() -> None:
    """Banded square roots of b ≤ √n bands: RMSE over √(n log b/b) within a constant; the optimum is
    below it.

    The text has ‖C‖·‖A C⁻¹‖_F = O(√(n log b/b)); that is the order of ‖A C⁻¹‖_F/√n, the RMSE,
    instead.
    """
    ratios = []
    for n in (256, 1024, 4096):
        for b in (4, 8, 16):
            ratios.append(product(bsr(b, n)) / n**0.5 / math.sqrt(n * math.log(b) / b))
            best = banded_toeplitz(b, Participation(n, 1, n))
            assert product(best) <= product(bsr(b, n)) * (1 + 1e-9)
    assert max(ratios) / min(ratios) < 1.5
