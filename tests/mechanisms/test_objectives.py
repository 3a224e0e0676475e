"""Objectives: the errors themselves, their power means, and gradients."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import (
    ltt,
    objective_by_definition,
    query_variances,
    scalar_sensitivity,
)

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import rated_power
from fedmf.mechanisms.objective import LAST, MAX, RMSE, Objective, QuickError, errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import parse_workload, prefix, weighted
from fedmf.participation import Participation

WEIGHTS = Objective("weights", (1.0, 0.2, 3.0))


def test_every_mechanism_is_judged_by_the_definition():
    for name in ["bsr", "bisr", "normalized-cgd", "banded", "dense", "tree"]:
        for text in ["prefix", "average", "momentum:0.5*linear"]:
            for objective in [RMSE, MAX, LAST, WEIGHTS]:
                contract = Participation(9, 2, 4)
                A = parse_workload(text, 9)
                C = build(name, contract, A).factorization
                stated = sensitivity_of(C, contract)
                computed = errors(C, A, stated, 0.7, objective)
                variances = query_variances(A.materialize(), C.materialize())
                expected = (
                    0.7
                    * stated.value
                    * np.sqrt(objective_by_definition(objective, list(variances)))
                )
                assert computed.objective == pytest.approx(expected, rel=1e-9)
                if isinstance(C, Toeplitz) or name == "bisr":
                    assert QuickError(contract, A, objective)(C) == pytest.approx(
                        computed.objective / 0.7, rel=1e-9
                    )


def test_text_is_read_back_and_nonsense_is_rejected():
    for objective in (RMSE, MAX, LAST, WEIGHTS):
        assert Objective.parse(objective.text) == objective
    assert WEIGHTS.label == "weighted RMSE"
    for text, message in [
        ("mse", "must be rmse, max, last or weights"),
        ("weights", "must be given"),
        ("max:1", "must be given"),
        ("weights:1,x", "Separate them by commas"),
        ("weights:0,0", "not all zero"),
        ("weights:1,-1", "non-negative"),
        ("weights:inf", "finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            Objective.parse(text)
    with pytest.raises(ValueError, match="at most n=2; got 3"):
        WEIGHTS.spread(2)


def test_the_largest_error_of_a_toeplitz_matrix_is_the_last():
    """Without weights; with them it need not be."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        C = ltt(rng.normal(size=7) + np.array([3, 0, 0, 0, 0, 0, 0]), 7)
        A = ltt(rng.normal(size=7), 7)
        v = query_variances(A, C)
        assert (np.diff(v) >= -1e-12).all()
    falling = parse_workload("prefix*linear", 7)
    assert MAX.for_toeplitz(prefix(7)) == LAST
    assert MAX.for_toeplitz(falling) is MAX
    assert np.argmax(query_variances(falling.materialize(), ltt(np.array([1.0, 0.9]), 7))) != 6


def test_the_earliest_pattern_is_the_worst_of_falling_columns():
    """The theorem of docs/theory/mechanisms.md, by enumeration; wider than the separation too."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        n = 9
        k = int(rng.integers(1, 5))
        b = int(rng.integers(1, 5))
        contract = Participation(n, min(k, -(-n // b)), b)
        rates = np.sort(rng.random(n) + 0.05)[::-1]
        A = weighted(prefix(n), columns=rates)
        C = rated_power(A, rng.uniform(0.1, 1), int(rng.integers(1, n + 1)), rng.uniform(0, 2))
        stated = sensitivity_of(C, contract)
        truth = scalar_sensitivity(C.materialize(), contract.max_participations, b)
        earliest = C.materialize()[:, np.arange(0, n, b)[: contract.max_participations]].sum(1)
        assert stated.value == pytest.approx(truth, rel=1e-12)
        assert np.linalg.norm(earliest) == pytest.approx(truth, rel=1e-12)
        assert stated.kind == "exact"
