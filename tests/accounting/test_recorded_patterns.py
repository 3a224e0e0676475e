"""Recorded patterns against dense columns."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import contracts, patterns, vector_sensitivity

from fedmf.matrices.factorization import normalized
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import bisr, cgd
from fedmf.participation import Participation
from fedmf.statements.recorded_patterns import pattern_sensitivity

N = 8
NON_NEGATIVE = [cgd(0.8, N), bisr(3, N), normalized(bisr(3, N)), Toeplitz([1.0, 0.2, 0.7], N)]


def test_every_pattern_is_the_norm_of_its_columns():
    for released in [None, 5, 8]:
        for C in NON_NEGATIVE:
            rows = released or N
            dense = C.materialize()[:rows, :rows]
            recorded = [pi for pi in patterns(N, N, 1) if max(pi) < rows]
            expected = [np.linalg.norm(dense[:, pi].sum(axis=1)) for pi in recorded]
            assert np.allclose(
                [pattern_sensitivity(C, pi, released) for pi in recorded], expected, rtol=1e-12
            )


@pytest.mark.parametrize("C", [*NON_NEGATIVE, Toeplitz([1.0, -0.6, 0.5, 0.3], N)])
def test_no_recorded_pattern_exceeds_the_contract(C):
    for k, b in contracts(N)[::5]:
        worst = max(pattern_sensitivity(C, pi) for pi in patterns(N, k, b))
        assert worst <= sensitivity_of(C, Participation(N, k, b)).value * (1 + 1e-12)


def test_signed_columns_are_bounded_and_not_just_added_up():
    """The columns cancel in their sum, but a user may contribute opposite vectors."""
    C = Toeplitz([1.0, -0.9], 2)
    dense = C.materialize()
    added = float(np.linalg.norm(dense.sum(axis=1)))
    opposite = float(np.linalg.norm(dense @ [1.0, -1.0]))
    assert added < opposite == pytest.approx(pattern_sensitivity(C, [0, 1]), rel=1e-12)
    frustrated = Toeplitz([1.0, -0.6, -0.5], 3)
    assert pattern_sensitivity(frustrated, [0, 1, 2]) >= vector_sensitivity(
        frustrated.materialize(), 3, 1
    )


def test_a_stopped_run_spends_less_and_never_more_than_its_leading_block():
    C = normalized(bisr(4, N))
    values = [pattern_sensitivity(C, [0, 3], released_rounds=T) for T in range(4, N + 1)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(pattern_sensitivity(C.leading(4), [0, 3]))


@pytest.mark.parametrize(
    ("pattern", "released", "message"),
    [
        ([8], None, "below T=8; got 8"),
        ([-1], None, "got -1"),
        ([5], 5, "below T=5; got 5"),
        ([1, 1], None, "not repeat a round; got 1 twice"),
        ([0.5], None, "integer rounds"),
        ([0], 9, "between 1 and n=8"),
    ],
)
def test_bad_histories_are_rejected(pattern, released, message):
    with pytest.raises(ValueError, match=message):
        pattern_sensitivity(cgd(0.5, N), pattern, released)
