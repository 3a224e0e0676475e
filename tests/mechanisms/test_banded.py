from __future__ import annotations

import numpy as np
import pytest
from support.oracles import scalar_sensitivity

from fedmf.matrices.factorization import normalized
from fedmf.matrices.sensitivity import Sensitivity, sensitivity_of
from fedmf.mechanisms.banded_family import (
    Banded,
    banded,
)
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.query_variances import toeplitz_query_variances
from fedmf.mechanisms.workload import prefix, window
from fedmf.participation import Participation

# McKenna (2024), Appendix B.1: the optimal 3-banded C for n = 9, by columns from the diagonal down.
PUBLISHED = [
    [0.740, 0.500, 0.450],
    [0.822, 0.492, 0.286],
    [0.876, 0.395, 0.278],
    [0.821, 0.462, 0.335],
    [0.855, 0.442, 0.272],
    [0.882, 0.403, 0.243],
    [0.892, 0.409, 0.194],
    [0.936, 0.353, 0.0],
    [1.000, 0.0, 0.0],
]


def test_published_matrix_to_its_printed_digits():
    best = banded(3, Participation(9, 3, 3), equal_norms=True)
    assert np.abs(best.band - PUBLISHED).max() <= 0.0006
    error = toeplitz_query_variances(best, np.ones(9)).sum()
    published = toeplitz_query_variances(Banded(PUBLISHED), np.ones(9)).sum()
    assert error <= published * np.linalg.norm(PUBLISHED, axis=1).max() ** 2


def test_no_worse_than_the_normalized_toeplitz_matrix_and_than_neighbors():
    contract = Participation(96, 4, 24)
    ones = np.ones(96)
    toeplitz = normalized(banded_toeplitz(12, contract))
    best = banded(12, contract, equal_norms=True)
    error = toeplitz_query_variances(best, ones).sum()
    assert error < toeplitz_query_variances(toeplitz, ones).sum()
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        moved = best.band * (1 + size * rng.normal(size=best.band.shape))
        other = Banded(moved / np.linalg.norm(moved, axis=1, keepdims=True))
        assert error < toeplitz_query_variances(other, ones).sum()


@pytest.mark.parametrize(("k", "b"), [(1, 9), (2, 3), (2, 5), (3, 3), (3, 4)])
def test_sensitivity_is_exact_and_falling_norms_pay(k, b):
    contract = Participation(9, k, b)
    equal = banded(3, contract, equal_norms=True)
    falling = banded(3, contract)
    stated: list[Sensitivity] = []
    rmse: list[float] = []
    for C in (equal, falling):
        sensitivity = sensitivity_of(C, contract)
        truth = scalar_sensitivity(C.materialize(), k, b)
        assert sensitivity.kind == "exact"
        assert sensitivity.value == pytest.approx(truth, rel=1e-12)
        stated.append(sensitivity)
        rmse.append(errors(C, prefix(9), sensitivity).rmse)
    assert stated[0].value == pytest.approx(np.sqrt(k), rel=1e-12)
    squares = falling.gram_diagonal(0)
    blocks = squares[: k * b : b]
    assert np.allclose(squares, blocks[np.minimum(np.arange(9) // b, k - 1)], rtol=1e-12)
    assert stated[1].value == pytest.approx(np.sqrt(blocks.sum()), rel=1e-12)
    if k == 1:
        assert rmse[1] == pytest.approx(rmse[0], rel=1e-9)
    else:
        assert rmse[1] < rmse[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Banded([[1.0, 1.0]]), "1 <= p <= n; got"),
        (lambda: Banded([[1.0, np.nan], [1.0, 0.0]]), "finite; got nan at column 0, diagonal 1"),
        (lambda: Banded([[1.0, 1.0], [0.0, 0.0]]), "positive; got 0.0 at j=1"),
        (lambda: Banded([[1.0, 1.0], [1.0, 2.0]]), "end at row n=2; got 2.0 at row 2"),
        (
            lambda: banded(2, Participation(2049, 1, 9), window(3, 2049)),
            "at most 2048 .* Use banded-toeplitz",
        ),
    ],
)
def test_bad_values_are_rejected_on_one_line(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)
