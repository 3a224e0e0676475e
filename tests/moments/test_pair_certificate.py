"""The lower bound for pairs, confirmed by solvers of another kind over all lower-triangular C₁ and C₂."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedmf.factorization import UserRange
from fedmf.factorization.bounds import certified_pair_bound
from fedmf.factorization.sensitivity import pattern_layers
from fedmf.moments.pair_design import Goal, joint_design
from fedmf.participation import Adjacency, Participation
from fedmf.workload.toeplitz import ToeplitzWorkload, average, exponential, prefix, window

Array = NDArray[np.float64]


def pairs_of(x: Array, n: int) -> tuple[Array, Array]:
    """Two lower-triangular matrices with positive diagonals."""
    made = []
    for half in np.split(x, 2):
        C = np.zeros((n, n))
        C[np.tril_indices(n)] = half
        np.fill_diagonal(C, np.exp(np.diagonal(C)))
        made.append(C)
    return made[0], made[1]


def start(n: int, seed: int) -> Array:
    """Of the parameters of `pairs_of`."""
    return 0.1 * np.random.default_rng(seed).normal(size=n * (n + 1))


def squared(queries: tuple[Array, Array], pair: tuple[Array, Array]) -> float:
    """Σ ‖W_mC_m⁻¹‖²."""
    return sum(float((np.linalg.solve(C.T, W.T) ** 2).sum()) for W, C in zip(queries, pair, strict=True))


def least_single(queries: tuple[Array, Array], users: UserRange) -> float:
    """k = 1: columns of both divided so that every round moves them by 1; unconstrained descent."""
    n = len(queries[0])

    def error(x: Array) -> float:
        first, second = pairs_of(x, n)
        moved = np.sqrt(users.reach((first**2).sum(0), (second**2).sum(0), 1.0))
        return float(np.log(squared(queries, (first / moved, second / moved))))

    found = minimize(error, start(n, 0), method="L-BFGS-B", options={"maxiter": 400, "ftol": 1e-13})
    return float(np.exp(found.fun))


def least_separated(queries: tuple[Array, Array], participation: Participation) -> float:
    """Zero-out: SLSQP with one constraint for every pattern and all signs on it."""
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    users = []
    for layer in pattern_layers(n, k, b):
        for pattern, signs in itertools.product(layer, itertools.product((1, -1), repeat=layer.shape[1] - 1)):
            user = np.zeros(n)
            user[pattern] = (1, *signs)
            users.append(user)
    people = np.array(users).T

    def room(x: Array) -> Array:
        return 1.0 - sum(np.asarray(((C @ people) ** 2).sum(0)) for C in pairs_of(x, n))

    found = minimize(
        lambda x: np.log(squared(queries, pairs_of(x, n))), start(n, 0) - 1.0,
        method="SLSQP", constraints={"type": "ineq", "fun": room}, options={"maxiter": 400, "ftol": 1e-12},
    )  # fmt: skip
    assert room(found.x).min() > -1e-9
    return float(np.exp(found.fun))


def priced(first: ToeplitzWorkload, second: ToeplitzWorkload, price: float) -> tuple[Array, Array]:
    return first.materialize(), np.sqrt(price) * second.materialize()


SINGLE: list[tuple[ToeplitzWorkload, ToeplitzWorkload, float, Adjacency, int]] = [
    (prefix(6), average(6), 2.0, "zero-out", 2),
    (prefix(8), average(8), 0.1, "zero-out", 2),
    (prefix(5), prefix(5), 3.0, "zero-out", 2),
    (average(6), window(3, 6), 1.0, "zero-out", 1),
    (exponential(0.5, 7), prefix(7), 0.5, "zero-out", 3),
    (prefix(6), average(6), 2.0, "replace-one", 2),
    (prefix(5), exponential(0.9, 5), 20.0, "replace-one", 3),
    (average(6), prefix(6), 0.3, "replace-one", 2),
]


@pytest.mark.parametrize("case", range(len(SINGLE)))
def test_single_participation_is_certified(case: int) -> None:
    """Bound, `dense` pair and another solver's optimum agree to 1e-5."""
    first, second, price, adjacency, dimension = SINGLE[case]
    participation, users = Participation(first.rounds, 1, first.rounds), UserRange(1.0, dimension, adjacency)
    queries = priced(first, second, price)
    least = least_single(queries, users)
    assert certified_pair_bound(participation, users, queries).value == pytest.approx(least, rel=1e-5)
    made = joint_design(participation, users, 1.0, Goal(first, 1), Goal(second, 1, price), "dense")
    assert made.error == pytest.approx(least, rel=1e-5)
    assert made.certificate == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("n", "k", "b"), [(4, 2, 2), (5, 2, 3), (5, 3, 2)])
def test_several_participations_are_bounded(n: int, k: int, b: int) -> None:
    """Below the optimum of another solver, by less than 1 %; the certificate of `dense` covers the rest."""
    participation, users, queries = (
        Participation(n, k, b),
        UserRange(1.0, 2),
        priced(prefix(n), average(n), 2.0),
    )
    least = least_separated(queries, participation)
    bound = certified_pair_bound(participation, users, queries, steps=80).value
    assert 0.99 * least < bound <= least * (1 + 1e-7)
    made = joint_design(participation, users, 1.0, Goal(prefix(n), 1), Goal(average(n), 1, 2.0), "dense")
    assert least * (1 - 1e-7) <= made.error <= made.certificate * least * (1 + 1e-9)


def test_one_dimension_has_a_kink_and_a_bound_all_the_same() -> None:
    users, queries = UserRange(1.0, 1, "replace-one"), priced(prefix(4), average(4), 2.0)
    bound = certified_pair_bound(Participation(4, 1, 4), users, queries).value
    least = least_single(queries, users)
    assert 0.99 * least < bound <= least * (1 + 1e-7)


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_worst_user_reaches_the_movement(dimension: int) -> None:
    """φ(p, q) is p and q times its numbers, and nowhere below: they are a tangent of a convex function."""
    users = UserRange(1.0, dimension, "replace-one")
    p, q = np.array([1.0, 1.0, 2.0, 1.0]), np.array([0.2, 1.0, 9.0, 40.0])
    a, e = users.worst(p, q)
    np.testing.assert_allclose(a * p + e * q, users.reach(p, q, 1.0), rtol=1e-12)
    for ratio in np.geomspace(1e-3, 1e3, 200):
        assert (a + e * ratio <= users.reach(np.ones(4), np.full(4, ratio), 1.0) * (1 + 1e-12)).all()
