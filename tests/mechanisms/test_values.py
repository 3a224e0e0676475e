"""One suite that every factorization must pass, against dense linear algebra."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.oracles import ltt, prefix_sums, query_variances

from fedmf.matrices.banded import Banded
from fedmf.matrices.factorization import Dense, Stamped, factorization_from_dict, normalized
from fedmf.matrices.streaming_inverse import Recurrence
from fedmf.matrices.toeplitz import (
    ColumnScaled,
    Diagonal,
    InverseToeplitz,
    NotRepresentable,
    Toeplitz,
)
from fedmf.mechanisms.query_variances import toeplitz_query_variances
from fedmf.mechanisms.registry import build, names
from fedmf.participation import Participation

N = 13
# Sums of at most N terms of order 1 in float64.
EXACT = 1e-12

FIXED = {
    "cgd": {"lambda": 0.8},
    "nu-ftrl": {"nu": 0.1},
    "bifr": {"gamma": 0.6},
    "bfr": {"gamma": 0.4},
}
FIXED["one-parameter"] = FIXED["shifted-root"] = {"c": -0.05}


def _mechanism(name: str):
    base = name.removeprefix("normalized-")
    takes_bands = base in {
        "bsr",
        "bisr",
        "bifr",
        "bfr",
        "one-parameter",
        "shifted-root",
        "banded-toeplitz",
        "banded",
    }
    bands = 4 if takes_bands else None
    return build(name, Participation(N, 3, 5), bands=bands, params=FIXED.get(base)).factorization


VALUES = {name: _mechanism(name) for name in names()}
VALUES |= {
    "signed": Toeplitz([2.0, -1.0, 0.5, 0.0], N),
    "signed inverse": InverseToeplitz([0.5, 0.3, -0.1], N),
    "stamped": Stamped(Toeplitz([2.0, -1.0, 0.5], 5), N),
    "stamped inverse": Stamped(InverseToeplitz([0.5, 0.3, -0.1, 0.2], 4), N),
    "stamped scaled": Stamped(normalized(Toeplitz([1.0, 0.5, 0.7], 6)), N),
    "stamped once": Stamped(Toeplitz([1.0, 0.5], 20), N),
    "full": Toeplitz(1.0 / np.arange(1, N + 1), N),
    "wild diagonal": Diagonal(np.arange(1, N + 1) ** 0.7),
    "scaled by hand": ColumnScaled(Toeplitz([1.0, 0.5, 0.7], N), np.linspace(0.5, 2, N)),
    "banded by hand": Banded(
        [[1.0 + 0.1 * j, -0.4 * (j < N - 1), 0.5 * (j < N - 2)] for j in range(N)]
    ),
    "dense by hand": Dense(
        np.tril(0.3 * np.cos(np.arange(N * N)).reshape(N, N), -1) + np.diag(np.linspace(1, 2, N))
    ),
    "scaled twice": normalized(ColumnScaled(Toeplitz([1.0, -0.5, 0.7], N), np.linspace(0.5, 2, N))),
}

every = pytest.mark.parametrize("C", VALUES.values(), ids=list(VALUES))


def check_columns_and_their_gram_matrix(C):
    dense = C.materialize()
    assert np.array_equal(dense, np.tril(dense))
    assert np.allclose(C.columns([2, 0, N - 1]), dense[:, [2, 0, N - 1]], rtol=0, atol=0)
    assert np.allclose(
        C.column_sum([0, 3, 7]), dense[:, [0, 3, 7]].sum(axis=1), rtol=EXACT, atol=EXACT
    )
    gram = dense.T @ dense
    for gap in range(N):
        assert np.allclose(C.gram_diagonal(gap), np.diagonal(gram, gap), rtol=EXACT, atol=EXACT)


def check_bands_is_the_last_nonzero_diagonal(C):
    dense = C.materialize()
    assert any(np.diagonal(dense, 1 - C.bands))
    assert not np.tril(dense, -C.bands).any()


def check_recurrence_streams_the_inverse(C):
    z = np.random.default_rng(1).normal(size=(N, 3))
    expected = np.linalg.solve(C.materialize(), z)
    scale = np.abs(expected).max()
    assert np.abs(C.streaming_inverse().apply(z) - expected).max() <= EXACT * scale
    assert np.abs(C.streaming_inverse().apply(z[:5]) - expected[:5]).max() <= EXACT * scale
    assert np.abs(C.streaming_inverse().apply(z[:, 0]) - expected[:, 0]).max() <= EXACT * scale


def check_variances(C):
    dense = C.materialize()
    inverse = np.linalg.inv(dense)
    assert np.allclose(C.noise_row_variances(), np.diag(inverse @ inverse.T), rtol=1e-10)
    assert np.allclose(
        toeplitz_query_variances(C, np.ones(N)), query_variances(prefix_sums(N), dense), rtol=1e-10
    )
    decaying = 0.9 ** np.arange(N)
    assert np.allclose(
        toeplitz_query_variances(C, decaying), query_variances(ltt(decaying, N), dense), rtol=1e-10
    )


def check_leading_block(C):
    for rounds in (1, 2, 6, N):
        block = C.leading(rounds)
        assert block.rounds == rounds
        assert np.allclose(
            block.materialize(), C.materialize()[:rounds, :rounds], rtol=EXACT, atol=EXACT
        )
        z = np.random.default_rng(2).normal(size=rounds)
        assert np.allclose(
            block.streaming_inverse().apply(z),
            C.streaming_inverse().apply(z),
            rtol=EXACT,
            atol=EXACT,
        )


def check_description_survives_json_exactly(C):
    read = factorization_from_dict(json.loads(json.dumps(C.to_dict())))
    assert type(read) is type(C)
    assert np.array_equal(read.materialize(), C.materialize())
    assert read.to_dict() == C.to_dict()


def check_values_cannot_be_changed(C):
    recurrence = C.streaming_inverse()
    own = [value for value in vars(C).values() if isinstance(value, np.ndarray)]
    held = [value for value in vars(recurrence).values() if isinstance(value, np.ndarray)]
    assert len(held) >= 2
    for vector in (*own, *(values for values in held if values.size)):
        with pytest.raises(ValueError, match="read-only"):
            vector[0] = 7.0


def test_normalized_columns_have_norm_one():
    for name in names():
        if name.startswith("normalized-"):
            norms = np.linalg.norm(VALUES[name].materialize(), axis=0)
            assert np.allclose(norms, 1.0, rtol=EXACT)


def check_columns_divided_by_any_factors_and_by_their_norms(C):
    dense = C.materialize()
    for factors in (np.linspace(0.5, 2.0, N), np.linalg.norm(dense, axis=0), np.full(N, 3.0)):
        scaled = C.columns_divided_by(factors)
        assert np.allclose(scaled.materialize(), dense / factors, rtol=EXACT, atol=EXACT)
        z = np.random.default_rng(3).normal(size=N)
        expected = factors * np.linalg.solve(dense, z)
        assert (
            np.abs(scaled.streaming_inverse().apply(z) - expected).max()
            <= EXACT * np.abs(expected).max()
        )
        assert np.allclose(
            toeplitz_query_variances(scaled, np.ones(N)),
            query_variances(prefix_sums(N) * factors, dense),
            rtol=1e-10,
        )
        assert scaled.leading(4).rounds == 4
        again = factorization_from_dict(json.loads(json.dumps(scaled.to_dict())))
        assert np.array_equal(again.materialize(), scaled.materialize())
    assert np.allclose(np.linalg.norm(normalized(C).materialize(), axis=0), 1.0, rtol=EXACT)
    for bad in (np.ones(N - 1), np.zeros(N), np.full(N, np.nan)):
        with pytest.raises(ValueError, match=r"s \(column scale\)"):
            C.columns_divided_by(bad)


@every
def test_every_property_of_every_form(C):
    for check in (
        check_columns_and_their_gram_matrix,
        check_bands_is_the_last_nonzero_diagonal,
        check_recurrence_streams_the_inverse,
        check_variances,
        check_leading_block,
        check_description_survives_json_exactly,
        check_values_cannot_be_changed,
        check_columns_divided_by_any_factors_and_by_their_norms,
    ):
        check(C)


def test_stamps_keep_their_form_where_all_blocks_are_divided_alike():
    C = Stamped(Toeplitz([1.0, 0.5], 4), 12)
    assert isinstance(normalized(C), Stamped)
    assert isinstance(C.columns_divided_by(np.arange(1.0, 13.0)), Dense)
    with pytest.raises(ValueError, match=r"at most 4096 for column scales that differ .* got 8001"):
        normalized(Stamped(Toeplitz([1.0, 0.5], 4), 8001))
    assert normalized(Stamped(Toeplitz([1.0, 0.5], 4), 8000)).rounds == 8000


def test_recurrence_stops_at_the_horizon():
    with pytest.raises(ValueError, match="at most n=4 rows"):
        Toeplitz([1.0, 0.5], 4).streaming_inverse().apply(np.ones(5))


def test_bad_values_are_rejected_on_one_line():
    for make, message in [
        (lambda: Toeplitz([0.0, 1.0], 3), "c_0"),
        (lambda: Toeplitz([1.0, np.nan], 3), "finite; got nan at index 1"),
        (lambda: Toeplitz([1.0] * 4, 3), "at most n=3"),
        (lambda: Toeplitz([1.0], 0), "n .rounds."),
        (lambda: InverseToeplitz([-1.0], 3), "h_0"),
        (lambda: Diagonal([1.0, 0.0]), "positive; got 0.0 at index 1"),
        (lambda: ColumnScaled(Toeplitz([1.0], 3), [1.0, 1.0]), "n=3 entries"),
        (lambda: factorization_from_dict({"type": "magic"}), "magic"),
        (lambda: factorization_from_dict({"type": "toeplitz"}), "with its fields"),
        (lambda: Recurrence([], [], [1.0]), "feedforward"),
        (lambda: Recurrence([[1.0]], [], [1.0, 1.0]), r"n=2 non-empty rows; got \(1, 1\)"),
        (lambda: Recurrence([1.0], [[0.0], [np.inf]], [1.0, 1.0]), r"got inf at index \(1, 0\)"),
    ]:
        with pytest.raises(ValueError, match=message) as raised:
            make()
        assert "\n" not in str(raised.value)


def test_an_overflowing_inverse_is_rejected_not_returned():
    growing = Toeplitz([1.0, 3.0], 2000)
    with pytest.raises(NotRepresentable, match="1e140"):
        growing.noise_row_variances()
