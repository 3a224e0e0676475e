"""Stated sensitivities of every kind of C beside enumeration and numerical maximisation, n up to
10.

For each kind 465 matrices are drawn, some for every (k, b) that fits into any n ≤ 10, of every
bandwidth, non-negative and (where the kind has any) of mixed signs. Three things are asked of each:
no scalar user exceeds the stated value; no user with contributions in the unit ball of R² or R³
does; and a value called exact is that of the worst scalar user. The oracles know nothing but the
dense C.
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

# Two float64 summation orders of fewer than 200 terms, and the slack 2e-12 that the search allows
# itself.
EXACT = 1e-11
CONTRACTS = [(n, k, b) for n in range(1, 11) for k, b in contracts(n)]
PER_CONTRACT = 3
Make = Callable[[np.random.Generator, int, bool], Factorization]


def _coefficients(rng: np.random.Generator, n: int, signed: bool) -> np.ndarray:
    c = (
        rng.normal(size=int(rng.integers(1, n + 1)))
        if signed
        else rng.random(int(rng.integers(1, n + 1)))
    )
    if rng.random() < 0.2:
        c = np.sort(np.abs(c))[::-1]
    return np.array([abs(c[0]) + 0.2, *c[1:]])


def _toeplitz(rng: np.random.Generator, n: int, signed: bool) -> Toeplitz:
    return Toeplitz(_coefficients(rng, n, signed), n)


def _inverse(rng: np.random.Generator, n: int, signed: bool) -> InverseToeplitz:
    h = _coefficients(rng, n, signed)
    return InverseToeplitz(h if signed else np.array([h[0], *-h[1:]]), n)


def _diagonal(rng: np.random.Generator, n: int, signed: bool) -> Diagonal:
    return Diagonal(rng.random(n) + 0.1)


def _buffered(rng: np.random.Generator, n: int, signed: bool) -> BufferedToeplitz:
    m = int(rng.integers(1, 4))
    return BufferedToeplitz(rng.random(m) * 0.9 + 0.05, 2.0 * rng.random(m) + 0.01, n)


def _column_scaled(rng: np.random.Generator, n: int, signed: bool) -> Factorization:
    makes = (_toeplitz, _inverse) if signed else (_toeplitz, _inverse, _diagonal, _buffered)
    base = makes[int(rng.integers(len(makes)))](rng, n, signed)
    return normalized(base) if rng.random() < 0.5 else ColumnScaled(base, rng.random(n) + 0.2)


def _entries(rng: np.random.Generator, n: int, signed: bool) -> np.ndarray:
    entries = np.tril(
        rng.normal(size=(n, n)) if signed else rng.random((n, n)) ** int(rng.integers(1, 5))
    )
    np.fill_diagonal(entries, rng.random(n) + 0.1)
    return entries


def _dense(rng: np.random.Generator, n: int, signed: bool) -> Dense:
    return Dense(_entries(rng, n, signed))


def _banded(rng: np.random.Generator, n: int, signed: bool) -> Banded:
    p = int(rng.integers(1, n + 1))
    entries = _entries(rng, n, signed)
    return Banded([[entries[j + d, j] if j + d < n else 0.0 for d in range(p)] for j in range(n)])


def _tree(rng: np.random.Generator, n: int, signed: bool) -> Factorization:
    """Full, online and k-ary trees, those of a longer run cut at n, normalised or with learning
    rates.
    """
    larger = n + int(rng.integers(0, 7))
    whole = (tree(larger, True), tree(larger, False), kary_tree(int(rng.integers(2, 5)), larger))
    C = whole[int(rng.integers(3))].leading(n)
    return (C, normalized(C), C.columns_divided_by(rng.random(n) + 0.2))[int(rng.integers(3))]


def _stamped(rng: np.random.Generator, n: int, signed: bool) -> Stamped:
    makes = (_toeplitz, _inverse, _column_scaled, _dense, _banded)
    makes += () if signed else (_diagonal, _buffered, _tree)
    return Stamped(
        makes[int(rng.integers(len(makes)))](rng, int(rng.integers(1, n + 1)), signed), n
    )


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
    rng = np.random.default_rng(seed)
    drawn = [
        (Participation(n, k, b), [make(rng, n, signed) for _ in range(PER_CONTRACT)])
        for n, k, b in CONTRACTS
    ]
    assert sum(len(own) for _, own in drawn) == 465
    return drawn


def _check_each_method(C: Factorization, contract: Participation, truth: float) -> None:
    """Also those that are not asked once one is exact are above the worst scalar user, or equal to
    it.
    """
    k = contract.max_participations
    b = contract.min_separation
    size = np.abs(C.materialize().T @ C.materialize())
    strategy = StrategyProblem(C, contract)
    by_rows = best_separated_sum(row_weights(size, k, b)[0], k, b)
    asked = [
        *methods(strategy),
        strategy.by_enumeration(),
        Sensitivity(float(by_rows) ** 0.5, "upper_bound", "row-wise dynamic program"),
    ]
    assert quick_upper_bound(C, contract) == asked[0].value
    _BY_PATTERNS.pop(C, None)  # it keeps one method's value for a contract
    asked.append(strategy.by_rows())
    for found in asked:
        assert found.value >= truth * (1 - EXACT), found.case
        assert found.kind == "upper_bound" or found.value <= truth * (1 + EXACT), found.case


@pytest.mark.parametrize(
    ("kind", "signed"),
    [*((kind, False) for kind in NON_NEGATIVE), *((kind, True) for kind in MIXED)],
)
def test_the_stated_value_beside_every_scalar_user_and_ascended_vector_users(
    kind: str, signed: bool
) -> None:
    exact = 0
    reached_truth = 0
    spread = 0
    bandwidths = set()
    for contract, own in _drawn((MIXED if signed else NON_NEGATIVE)[kind], 11, signed):
        k = contract.max_participations
        b = contract.min_separation
        dense = np.stack([C.materialize() for C in own])
        truth = enumerated_sensitivities(dense, k, b)
        found = [sensitivity_of(C, contract) for C in own]
        stated = np.array([one.value for one in found])
        called_exact = np.array([one.kind == "exact" for one in found])
        vector = ascended_sensitivities(dense, k, b, dimension=2 + k % 2)
        assert (truth <= stated * (1 + EXACT)).all()
        assert (vector <= stated * (1 + EXACT)).all()
        np.testing.assert_allclose(stated[called_exact], truth[called_exact], rtol=EXACT)
        _check_each_method(own[0], contract, truth[0])
        exact += int(called_exact.sum())
        reached_truth += int((vector >= truth * (1 - 1e-3)).sum())
        spread += int((vector > truth * (1 + 1e-6)).sum())
        bandwidths |= {C.bands for C in own if contract.rounds == 10}
    assert bandwidths >= BANDWIDTHS[kind]
    # The ascent is a real one: ten steps mostly reach the worst scalar user, and some go beyond.
    assert reached_truth > 0.85 * 465
    assert (spread >= 4) == signed
    assert exact > 250 if signed else exact == 465
