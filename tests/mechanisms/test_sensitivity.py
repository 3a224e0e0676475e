"""Sensitivity against enumeration of every pattern, and its labels against the truth."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import (
    contracts,
    earliest_norm,
    ltt,
    patterns,
    scalar_sensitivity,
    vector_sensitivity,
)

from fedmf.matrices.factorization import Dense, Factorization, normalized
from fedmf.matrices.sensitivity import (
    Sensitivity,
    best_separated_sum,
    count_patterns,
    earliest_pattern,
    pattern_layers,
    row_weights,
    sensitivity_of,
)
from fedmf.matrices.toeplitz import Diagonal, InverseToeplitz, Toeplitz
from fedmf.mechanisms.closed_forms import cgd, inverse_power, square_root
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

# Two float64 summation orders of fewer than 100 terms.
EXACT = 1e-11


def exactly(C: Factorization, contract: Participation) -> Sensitivity:
    stated = sensitivity_of(C, contract)
    assert stated.kind == "exact"
    return stated


def test_sign_frustrated_gram_is_called_a_bound_and_vectors_beat_scalars():
    """No signs align three columns of pairwise negative products; spread vectors do better."""
    C = Toeplitz([1.0, -0.6, -0.5], 3)
    contract = Participation(3, 3, 1)
    dense = C.materialize()
    gram = dense.T @ dense
    assert gram[0, 1] * gram[1, 2] * gram[0, 2] < 0
    stated = sensitivity_of(C, contract)
    assert stated.kind == "upper_bound"
    assert stated.value == pytest.approx(np.sqrt(np.abs(gram).sum()), rel=EXACT)
    scalar = scalar_sensitivity(dense, 3, 1)
    vector = vector_sensitivity(dense, 3, 1)
    assert scalar * 1.0005 < vector <= stated.value


@pytest.mark.parametrize("n", [8])
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.999])
def test_normalized_cgd_is_exact_for_every_contract(n, decay):
    """The worst pattern is the earliest, for every (k, b) that fits and not only n = kb."""
    C = normalized(cgd(decay, n))
    for k, b in contracts(n):
        stated = exactly(C, Participation(n, k, b))
        assert stated.value == pytest.approx(scalar_sensitivity(C.materialize(), k, b), rel=EXACT)
        assert stated.value == pytest.approx(earliest_norm(C.materialize(), k, b), rel=EXACT)


def test_cgd_closed_form():
    for decay, k, b in ((0.975, 10, 390), (0.5, 4, 3), (0.9, 1, 50)):
        j = np.arange(1, k + 1)
        square = (
            (1 - decay ** (2 * b))
            / ((1 - decay**2) * (1 - decay**b) ** 2)
            * ((1 - decay ** (b * j)) ** 2).sum()
        )
        sensitivity = exactly(cgd(decay, k * b), Participation(k * b, k, b))
        assert sensitivity.value == pytest.approx(np.sqrt(square), rel=1e-12)


def test_rounding_wiggles_stay_exact_and_sound_but_real_bumps_do_not():
    n = 400
    contract = Participation(400, 20, 20)
    c = 0.8 ** np.arange(n)
    wiggled = c + 1e-17 * np.random.default_rng(0).normal(size=n)
    assert not (np.diff(wiggled) <= 0).all()
    assert wiggled.min() < 0
    stated = sensitivity_of(Toeplitz(wiggled, n), contract)
    assert stated.kind == "exact"
    assert stated.value >= earliest_norm(ltt(wiggled, n), 20, 20) * (1 - 1e-14)
    bumped = c.copy()
    bumped[200] += 0.1
    sensitivity = sensitivity_of(Toeplitz(bumped, n), contract)
    assert sensitivity.kind == "upper_bound"
    assert sensitivity.value > earliest_norm(ltt(c, n), 20, 20) * 1.01


def test_orthogonal_columns_take_the_best_and_not_the_first():
    rng = np.random.default_rng(11)
    entries = rng.random(9) + 0.1
    for k, b in contracts(9):
        sensitivity = exactly(Diagonal(entries), Participation(9, k, b))
        truth = scalar_sensitivity(np.diag(entries), k, b)
        assert sensitivity.value == pytest.approx(truth, rel=EXACT)


@pytest.mark.parametrize("n", [10_240, 10_241, 65_537])
def test_a_normalized_banded_inverse_is_exact_at_long_horizons(n):
    """Its coefficients rise around lag p; from 10,241 rounds on no Gram matrix is formed."""
    contract = Participation(n, 5, n // 10)
    C = normalized(inverse_toeplitz_with_a_bump(n))
    assert (np.diff(C.strategy_coefs[: n // 10]) > 0).any()
    sensitivity = sensitivity_of(C, contract)
    assert sensitivity.kind == "exact"
    assert sensitivity.value == pytest.approx(
        np.linalg.norm(C.column_sum(earliest_pattern(5, n // 10))), rel=EXACT
    )


def inverse_toeplitz_with_a_bump(n):
    """C⁻¹ of 16 coefficients, those of the square root summed into the last."""
    h = inverse_power(prefix(n), 0.5, 16).noising_coefs[:16].copy()
    h[-1] -= 0.9 * h.sum()
    return InverseToeplitz(h, n)


def test_three_rounds_at_scale_against_every_pattern():
    """Enumeration of 1.5 million patterns against one loop over the middle round."""
    n = 220
    b = 7
    rng = np.random.default_rng(3)
    C = np.tril(rng.random((n, n)))
    gram = C.T @ C
    own = gram.diagonal()
    truth = 0.0
    for middle in range(b, n - b):
        first = slice(0, middle - b + 1)
        last = slice(middle + b, n)
        pairs = 2 * gram[first, last] + (own[first] + 2 * gram[first, middle])[:, None]
        truth = max(truth, own[middle] + float((pairs + own[last] + 2 * gram[middle, last]).max()))
    sensitivity = exactly(Dense(C), Participation(n, 3, b))
    assert sensitivity.value == pytest.approx(np.sqrt(truth), rel=EXACT)


@pytest.mark.parametrize(
    ("n", "k", "b", "case"), [(160, 40, 4, "pairs of rounds"), (300, 90, 1, "row-wise")]
)
def test_a_bound_is_named_after_the_method_that_gave_it(n, k, b, case):
    """Too many patterns to enumerate; in the second case too many pairs to balance."""
    rng = np.random.default_rng(8)
    C = normalized(Toeplitz(np.array([1.0, *rng.random(30)]), n))
    stated = sensitivity_of(C, Participation(n, k, b))
    by_rows = np.sqrt(
        best_separated_sum(row_weights(C.materialize().T @ C.materialize(), k, b)[0], k, b)
    )
    assert stated.kind == "upper_bound"
    assert stated.case.startswith(case)
    if case == "pairs of rounds":
        assert stated.value < by_rows
    else:
        assert stated.value == pytest.approx(by_rows)


def test_large_horizons_are_answered():
    n = 20_000
    stated = sensitivity_of(Toeplitz([1.0, -0.5, 0.25, 0.3], n), Participation(n, 10, 2))
    assert stated.kind == "upper_bound"
    assert "pair by pair" in stated.case
    assert exactly(square_root(n), Participation(n, 10, 2000)).value > 0


def test_the_horizons_must_agree():
    with pytest.raises(ValueError, match="same for C and the participation; got 4 and 5"):
        sensitivity_of(Toeplitz([1.0], 4), Participation(5, 1, 1))


def test_separated_sums_against_enumeration():
    rng = np.random.default_rng(2)
    values = rng.random((3, 8))
    for k, b in contracts(8):
        best = [max(row[list(pi)].sum() for pi in patterns(8, k, b)) for row in values]
        assert np.allclose(best_separated_sum(values, k, b), best, rtol=1e-14)


def test_pattern_layers_list_every_pattern_once():
    for k, b in contracts(8):
        listed = [tuple(row) for layer in pattern_layers(8, k, b) for row in layer.tolist()]
        assert sorted(listed) == sorted(patterns(8, k, b))
        assert count_patterns(8, k, b) == len(listed)
