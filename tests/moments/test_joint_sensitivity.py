"""The joint sensitivity against brute force over one user's contributions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support import oracles

from fedmf.matrices.factorization import Dense, Factorization
from fedmf.matrices.joint_sensitivity import (
    FREE_LINE,
    FREE_PLANE,
    UserRange,
    free_weight,
    joint_diameter_square,
    joint_sensitivity,
)
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import identity, square_root
from fedmf.participation import Participation

Array = NDArray[np.float64]


def spread(C1: Array, C2: Array, weight: float, X: Array, Y: Array) -> float:
    """‖C₁(X−Y)‖² + λ‖C₂(X•X − Y•Y)‖², from the definition."""
    second = np.einsum("ti,tj->tij", X, X) - np.einsum("ti,tj->tij", Y, Y)
    return float(
        np.sum((C1 @ (X - Y)) ** 2) + weight * np.sum((C2 @ second.reshape(len(X), -1)) ** 2)
    )


def worst_user(
    C1: Array,
    C2: Array,
    participation: Participation,
    weight: float,
    zeta: float,
    d: int,
    adjacency: str,
) -> float:
    """The largest spread found over users: every one is tried for real, so this is a lower bound on
    s².

    Starts are users with the same (x, y) in all rounds, on a grid, and random ones; from each
    projected gradient ascent with its own step. All patterns of one size are done at once.
    """
    rng = np.random.default_rng(5)
    found = oracles.patterns(
        len(C1), participation.max_participations, participation.min_separation
    )
    best = 0.0
    for size in range(1, participation.max_participations + 1):
        layer = np.array([pattern for pattern in found if len(pattern) == size], dtype=int)
        if not len(layer):
            break
        G1, G2 = ((C.T @ C)[layer[:, :, None], layer[:, None, :]][:, None] for C in (C1, C2))
        same = np.repeat(grid_of_users(d, adjacency)[:, :, None], size, axis=2)
        drawn = rng.normal(size=(24, 2, size, d))
        users = zeta * onto_ball(np.concatenate([same, drawn]), 1.0)
        x, y = (np.repeat(users[None, :, side], len(layer), axis=0) for side in (0, 1))
        best = max(best, float(value(G1, G2, weight, x, y * (adjacency == "replace-one")).max()))
        x = x[:, -30:]
        y = y[:, -30:]
        scale = np.abs(G1).sum((-1, -2), keepdims=True) + weight * zeta**2 * np.abs(G2).sum(
            (-1, -2), keepdims=True
        )
        step = np.geomspace(0.1, 6.0, 30)[None, :, None, None] / scale
        for _ in range(60):
            y = y * (adjacency == "replace-one")
            inner = G1 @ (x - y)
            xx = x @ x.mT
            xy = x @ y.mT
            yy = y @ y.mT
            up_x = inner + 2 * weight * ((G2 * xx) @ x - (G2 * xy) @ y)
            up_y = -inner + 2 * weight * ((G2 * yy) @ y - (G2 * xy.mT) @ x)
            x = onto_ball(x + step * up_x, zeta)
            y = onto_ball(y + step * up_y, zeta)
        best = max(best, float(value(G1, G2, weight, x, y * (adjacency == "replace-one")).max()))
    return best


def value(G1: Array, G2: Array, weight: float, x: Array, y: Array) -> Array:
    """The spread written with Gram matrices; `test_value_is_the_spread` compares it with the
    definition.
    """
    distance = (x - y) @ (x - y).mT
    squares = (x @ x.mT) ** 2 + (y @ y.mT) ** 2 - (x @ y.mT) ** 2 - (y @ x.mT) ** 2
    return (G1 * distance + weight * G2 * squares).sum((-1, -2))


def grid_of_users(d: int, adjacency: str) -> Array:
    """(x, y) in the unit ball: x on the first axis with norm 1, y anywhere in the first plane."""
    norms = np.linspace(0, 1, 401 if d == 1 else 5)
    angles = [0.0, np.pi] if d == 1 else np.linspace(0, np.pi, 1001)
    y = np.array(
        [[r * np.cos(a), r * np.sin(a)][:d] + [0.0] * (d - 2) for r in norms for a in angles]
    )
    return np.stack([np.eye(1, d) + np.zeros_like(y), y * (adjacency == "replace-one")], axis=1)


def onto_ball(x: Array, zeta: float) -> Array:
    return x * (zeta / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), zeta))


def test_value_is_the_spread() -> None:
    rng = np.random.default_rng(1)
    C1, C2, X, Y = (rng.normal(size=shape) for shape in ((5, 5), (5, 5), (5, 2), (5, 2)))
    assert value(C1.T @ C1, C2.T @ C2, 0.7, X, Y) == pytest.approx(
        spread(C1, C2, 0.7, X, Y), rel=1e-12
    )


@pytest.mark.parametrize("d", [1, 2, 3])
def test_diameter_equals_brute_force(d: int) -> None:
    """50 values of ν against a grid over norms and the angle between x and y (d = 1: over both
    numbers).
    """
    norms = np.linspace(0, 1, 81)
    cosines = np.array([-1.0, 1.0]) if d == 1 else np.linspace(-1, 1, 201)
    a, b, c = np.meshgrid(norms, norms, cosines, indexing="ij")
    first = a**2 + b**2 - 2 * a * b * c
    second = a**4 + b**4 - 2 * (a * b * c) ** 2
    weights = np.concatenate([np.linspace(0.02, 3, 40), np.geomspace(3.5, 100, 10)])
    for weight in weights:
        brute = float((first + weight * second).max())
        stated = float(joint_diameter_square(weight, d))
        assert brute <= stated * (1 + 1e-12)
        assert brute >= stated * (1 - 1e-3)


def test_free_weights_are_the_largest() -> None:
    for d, free in ((1, FREE_LINE), (2, FREE_PLANE)):
        assert free_weight(d) == free
        assert joint_diameter_square(free, d) == 4.0
        assert joint_diameter_square(free * 1.05, d) > 4.0


SMALL: list[tuple[Factorization, Factorization]] = [
    (identity(6), identity(6)),
    (square_root(6), Toeplitz([1.0, 0.9, 0.81, 0.7], 6)),
    (Dense(np.tril(np.arange(1.0, 37.0).reshape(6, 6) % 7 + 1)), square_root(6)),
    (Toeplitz([1.0, 0.2, 0.6], 6), Toeplitz([1.0, 0.0, 0.9], 6)),
    (Toeplitz([1.0, -0.6, 0.3], 6), square_root(6)),
]


def test_no_user_exceeds_the_stated_sensitivity() -> None:
    for pair in range(len(SMALL)):
        for d in [1, 2]:
            for adjacency in ["zero-out", "replace-one"]:
                C1, C2 = SMALL[pair]
                for k, b in ((1, 6), (3, 2), (2, 4)):
                    participation = Participation(6, k, b)
                    for zeta, weight in ((0.5, 2.0), (2.0, 1.5)):
                        found = joint_sensitivity(
                            C1, C2, participation, weight, UserRange(zeta, d, adjacency)
                        )
                        worst = worst_user(
                            C1.materialize(),
                            C2.materialize(),
                            participation,
                            weight,
                            zeta,
                            d,
                            adjacency,
                        )
                        assert worst <= found.value**2 * (1 + 1e-9)
                        if found.kind == "exact":
                            assert worst >= found.value**2 * (1 - 1e-4)


def test_bound_is_tight_for_equal_matrices_and_close_otherwise() -> None:
    participation = Participation(6, 3, 2)
    C1 = square_root(6)
    C2 = Toeplitz(0.9 ** np.arange(6), 6)
    users = UserRange(1.0, 2, "replace-one")
    same = joint_sensitivity(C1, C1, participation, 2.0, users)
    assert same.kind == "exact"
    different = joint_sensitivity(C1, C2, participation, 2.0, users)
    assert different.kind == "upper_bound"
    worst = worst_user(
        C1.materialize(), C2.materialize(), participation, 2.0, 1.0, 2, "replace-one"
    )
    assert worst >= different.value**2 * 0.99


def test_second_moment_is_free_for_equal_matrices() -> None:
    """λ = 1/(2ζ²): s = 2ζ·sens(C), what the first moment alone needs, for any (k, b)."""
    for k, b in ((1, 50), (5, 10), (10, 4)):
        participation = Participation(50, k, b)
        zeta = 3.0
        C = square_root(50)
        found = joint_sensitivity(
            C, C, participation, 1 / (2 * zeta**2), UserRange(zeta, 2, "replace-one")
        )
        assert found.kind == "exact"
        assert found.value == pytest.approx(
            2 * zeta * sensitivity_of(C, participation).value, rel=1e-12
        )


def test_bad_input_is_refused() -> None:
    C = identity(4)
    with pytest.raises(ValueError, match="lambda"):
        joint_sensitivity(C, C, Participation(4, 1, 4), -1.0, UserRange(1.0, 2))
    with pytest.raises(ValueError, match="must agree"):
        joint_sensitivity(C, identity(5), Participation(4, 1, 4), 1.0, UserRange(1.0, 2))
    with pytest.raises(ValueError, match="zeta"):
        UserRange(0.0, 2)
    with pytest.raises(ValueError, match="adjacency"):
        UserRange(1.0, 2, "add-one")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nu"):
        joint_diameter_square(-1.0, 2)
