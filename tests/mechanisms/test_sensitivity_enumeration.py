"""Stated sensitivities of every kind of C against enumeration and numerical maximization.

For each kind 465 matrices are drawn with n up to 10, three for every (k, b) that fits into any n,
of every bandwidth, non-negative and (where the kind has any) of mixed signs. For each of them no
scalar user exceeds the stated value, no user with contributions in the unit ball of R² or R³ does,
and a value called exact is that of the worst scalar user. The oracles see only the dense C.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.oracles import ascended_sensitivities, contracts, enumerated_sensitivities

from fedmf.matrices.banded import Banded
from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Dense, Factorization, Stamped, normalized
from fedmf.matrices.sensitivity import (
    _BY_PATTERNS,
    Sensitivity,
    StrategyProblem,
    best_separated_sum,
    methods,
    row_weights,
    sensitivity_of,
)
from fedmf.matrices.toeplitz import ColumnScaled, Diagonal, InverseToeplitz, Toeplitz
from fedmf.mechanisms.quick_sensitivity import quick_upper_bound
from fedmf.mechanisms.tree_families import kary_tree, tree
from fedmf.participation import Participation

# Sums of fewer than 200 float64 terms in another order, and the slack 2e-12 of the search.
EXACT = 1e-11
CONTRACTS = [(n, k, b) for n in range(1, 11) for k, b in contracts(n)]
PER_CONTRACT = 3
Make = Callable[[np.random.Generator, int, bool], Factorization]


def _numbers(rng: np.random.Generator, shape: int | tuple[int, int], signed: bool) -> np.ndarray:
    if signed:
        return rng.normal(size=shape)
    return rng.random(shape)


def _coefficients(rng: np.random.Generator, n: int, signed: bool) -> np.ndarray:
    c = _numbers(rng, int(rng.integers(1, n + 1)), signed)
    if rng.random() < 0.2:
        c = np.sort(np.abs(c))[::-1]
    return np.array([abs(c[0]) + 0.2, *c[1:]])


def _toeplitz(rng: np.random.Generator, n: int, signed: bool) -> Toeplitz:
    return Toeplitz(_coefficients(rng, n, signed), n)


def _inverse(rng: np.random.Generator, n: int, signed: bool) -> InverseToeplitz:
    h = _coefficients(rng, n, signed)
    if not signed:
        h[1:] = -h[1:]
    return InverseToeplitz(h, n)


def _diagonal(rng: np.random.Generator, n: int, signed: bool) -> Diagonal:
    return Diagonal(rng.random(n) + 0.1)


def _buffered(rng: np.random.Generator, n: int, signed: bool) -> BufferedToeplitz:
    m = int(rng.integers(1, 4))
    return BufferedToeplitz(rng.random(m) * 0.9 + 0.05, 2.0 * rng.random(m) + 0.01, n)


def _column_scaled(rng: np.random.Generator, n: int, signed: bool) -> Factorization:
    makes: list[Make] = [_toeplitz, _inverse]
    if not signed:
        makes += [_diagonal, _buffered]
    base = makes[int(rng.integers(len(makes)))](rng, n, signed)
    if rng.random() < 0.5:
        return normalized(base)
    return ColumnScaled(base, rng.random(n) + 0.2)


def _entries(rng: np.random.Generator, n: int, signed: bool) -> np.ndarray:
    entries = np.tril(_numbers(rng, (n, n), signed))
    if not signed:
        entries = entries ** int(rng.integers(1, 5))
    np.fill_diagonal(entries, rng.random(n) + 0.1)
    return entries


def _dense(rng: np.random.Generator, n: int, signed: bool) -> Dense:
    return Dense(_entries(rng, n, signed))


def _banded(rng: np.random.Generator, n: int, signed: bool) -> Banded:
    p = int(rng.integers(1, n + 1))
    entries = _entries(rng, n, signed)
    band = np.zeros((n, p))
    for j in range(n):
        column = entries[j : j + p, j]
        band[j, : column.size] = column
    return Banded(band)


def _tree(rng: np.random.Generator, n: int, signed: bool) -> Factorization:
    """A tree of any kind for n or more rounds, plain, normalized or with learning rates."""
    larger = n + int(rng.integers(0, 7))
    whole = (tree(larger, True), tree(larger, False), kary_tree(int(rng.integers(2, 5)), larger))
    C = whole[int(rng.integers(3))].leading(n)
    return (C, normalized(C), C.columns_divided_by(rng.random(n) + 0.2))[int(rng.integers(3))]


def _stamped(rng: np.random.Generator, n: int, signed: bool) -> Stamped:
    makes: list[Make] = [_toeplitz, _inverse, _column_scaled, _dense, _banded]
    if not signed:
        makes += [_diagonal, _buffered, _tree]
    make = makes[int(rng.integers(len(makes)))]
    return Stamped(make(rng, int(rng.integers(1, n + 1)), signed), n)


MIXED: dict[str, Make] = {
    "toeplitz": _toeplitz,
    "inverse toeplitz": _inverse,
    "column scaled": _column_scaled,
    "banded": _banded,
    "dense": _dense,
    "stamped": _stamped,
}
ALL = set(range(1, 11))
#: Bandwidths at n = 10: random inverses and entries leave no diagonal empty.
BANDWIDTHS = {
    "toeplitz": ALL,
    "inverse toeplitz": {1, 10},
    "column scaled": ALL,
    "banded": ALL,
    "dense": {10},
    "stamped": ALL,
    "diagonal": {1},
    "buffered": {10},
    "trees": {8, 9, 10},
}
NON_NEGATIVE: dict[str, Make] = MIXED | {
    "diagonal": _diagonal,
    "buffered": _buffered,
    "trees": _tree,
}


def _drawn(make: Make, seed: int, signed: bool) -> list[tuple[Participation, list[Factorization]]]:
    """A few matrices for each contract."""
    rng = np.random.default_rng(seed)
    drawn: list[tuple[Participation, list[Factorization]]] = []
    for n, k, b in CONTRACTS:
        matrices = [make(rng, n, signed) for _ in range(PER_CONTRACT)]
        drawn.append((Participation(n, k, b), matrices))
    assert len(drawn) * PER_CONTRACT == 465
    return drawn


def _check_each_method(C: Factorization, contract: Participation, truth: float) -> None:
    """All methods are at or above the worst scalar user, even if an earlier one is exact."""
    k = contract.max_participations
    b = contract.min_separation
    size = np.abs(C.materialize().T @ C.materialize())
    strategy = StrategyProblem(C, contract)
    by_rows = best_separated_sum(row_weights(size, k, b)[0], k, b)
    stated = [
        *methods(strategy),
        strategy.by_enumeration(),
        Sensitivity(float(by_rows) ** 0.5, "upper_bound", "row-wise dynamic program"),
    ]
    assert quick_upper_bound(C, contract) == stated[0].value
    _BY_PATTERNS.pop(C, None)  # which stores the value of one method for a contract
    stated.append(strategy.by_rows())
    for sensitivity in stated:
        assert sensitivity.value >= truth * (1 - EXACT), sensitivity.case
        if sensitivity.kind != "upper_bound":
            assert sensitivity.value <= truth * (1 + EXACT), sensitivity.case


@pytest.mark.parametrize("kind", NON_NEGATIVE)
def test_stated_values_against_all_users_for_non_negative_entries(kind: str) -> None:
    exact, beyond_scalars = _compared_with_users(kind, NON_NEGATIVE[kind], signed=False)
    assert exact == 465
    assert beyond_scalars < 4


@pytest.mark.parametrize("kind", MIXED)
def test_stated_values_against_all_users_for_mixed_signs(kind: str) -> None:
    exact, beyond_scalars = _compared_with_users(kind, MIXED[kind], signed=True)
    assert exact > 250
    # The ascent is a real one: some vector users exceed the worst scalar user.
    assert beyond_scalars >= 4


def _compared_with_users(kind: str, make: Make, signed: bool) -> tuple[int, int]:
    """The numbers of exact values, and of matrices that vector users move further than scalars."""
    exact = 0
    reached_truth = 0
    beyond_scalars = 0
    bandwidths: set[int] = set()
    for contract, matrices in _drawn(make, 11, signed):
        k = contract.max_participations
        b = contract.min_separation
        dense = np.stack([C.materialize() for C in matrices])
        truth = enumerated_sensitivities(dense, k, b)
        sensitivities = [sensitivity_of(C, contract) for C in matrices]
        stated = np.array([sensitivity.value for sensitivity in sensitivities])
        called_exact = np.array([sensitivity.kind == "exact" for sensitivity in sensitivities])
        vector = ascended_sensitivities(dense, k, b, dimension=2 + k % 2)
        assert (truth <= stated * (1 + EXACT)).all()
        assert (vector <= stated * (1 + EXACT)).all()
        np.testing.assert_allclose(stated[called_exact], truth[called_exact], rtol=EXACT)
        _check_each_method(matrices[0], contract, truth[0])
        exact += int(called_exact.sum())
        reached_truth += int((vector >= truth * (1 - 1e-3)).sum())
        beyond_scalars += int((vector > truth * (1 + 1e-6)).sum())
        if contract.rounds == 10:
            bandwidths.update(C.bands for C in matrices)
    assert bandwidths >= BANDWIDTHS[kind]
    # Ten steps of the ascent mostly reach the worst scalar user.
    assert reached_truth > 0.85 * 465
    return exact, beyond_scalars
