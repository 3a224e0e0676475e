"""Slow and obvious reference implementations: dense matrices and enumeration. Imports nothing from
fedmf.
"""

from __future__ import annotations

from functools import cache
from itertools import chain, combinations, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def ltt(first_column: Any, rounds: int) -> Array:
    """LTT(c), the lower-triangular Toeplitz matrix with this first column, padded with zeros."""
    matrix = np.zeros((rounds, rounds))
    for lag, value in enumerate(first_column):
        matrix += value * np.eye(rounds, k=-lag)
    return matrix


def prefix_sums(rounds: int) -> Array:
    return np.tril(np.ones((rounds, rounds)))


def patterns(rounds: int, max_participations: int, min_separation: int) -> list[tuple[int, ...]]:
    """Every non-empty participation pattern, by trying every choice of at most k rounds."""
    sizes = range(1, min(max_participations, rounds) + 1)
    chosen = chain.from_iterable(combinations(range(rounds), size) for size in sizes)
    return [
        rows
        for rows in chosen
        if all(later - earlier >= min_separation for earlier, later in pairwise(rows))
    ]


def scalar_sensitivity(C: Array, max_participations: int, min_separation: int) -> float:
    """max over patterns and signs ±1 of ‖Σ s_i C_{:,i}‖: users that contribute multiples of one
    vector.
    """
    best = 0.0
    for pattern in patterns(len(C), max_participations, min_separation):
        columns = C[:, pattern]
        for signs in product((1.0, -1.0), repeat=len(pattern) - 1):
            best = max(best, float(np.linalg.norm(columns @ np.array([1.0, *signs]))))
    return best


def vector_sensitivity(
    C: Array, max_participations: int, min_separation: int, seed: int = 0
) -> float:
    """max over patterns of ‖Σ C_{:,i} u_iᵀ‖_F over unit vectors u_i, by coordinate ascent from
    random starts.

    Every value tried is reached by some user, so this is a lower bound on the sensitivity.
    """
    rng = np.random.default_rng(seed)
    best = scalar_sensitivity(C, max_participations, min_separation)
    for pattern in patterns(len(C), max_participations, min_separation):
        gram = C[:, pattern].T @ C[:, pattern]
        off_diagonal = gram - np.diag(np.diag(gram))
        for _ in range(3):
            u = rng.normal(size=(len(pattern), max(2, len(pattern))))
            u /= np.linalg.norm(u, axis=1, keepdims=True)
            for _ in range(60):
                for i in range(len(pattern)):
                    pull = off_diagonal[i] @ u
                    if np.linalg.norm(pull) > 1e-12:
                        u[i] = pull / np.linalg.norm(pull)
            best = max(best, float(np.sqrt(np.sum(gram * (u @ u.T)))))
    return best


@cache
def supports(rounds: int, max_participations: int, min_separation: int) -> Array:
    """A row of zeros and ones for every pattern, shape (m, n)."""
    listed = patterns(rounds, max_participations, min_separation)
    found = np.zeros((len(listed), rounds))
    for row, pattern in zip(found, listed, strict=True):
        row[list(pattern)] = 1.0
    return found


@cache
def signed_patterns(rounds: int, max_participations: int, min_separation: int) -> Array:
    """Every s in {−1, 0, 1}^n whose support is a pattern, up to s ↦ −s, shape (m, n)."""
    listed = patterns(rounds, max_participations, min_separation)
    layers = []
    for size in {len(pattern) for pattern in listed}:
        support = np.array([pattern for pattern in listed if len(pattern) == size])
        signs = np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=size - 1)])
        layer = np.zeros((len(support), len(signs), rounds))
        np.put_along_axis(
            layer, np.repeat(support[:, None], len(signs), axis=1), signs[None], axis=2
        )
        layers.append(layer.reshape(-1, rounds))
    return np.concatenate(layers)


def enumerated_sensitivities(
    matrices: Array, max_participations: int, min_separation: int
) -> Array:
    """max ‖C s‖ over every pattern and every choice of signs, for each C of shape (n, n) in a
    stack.

    Where all C ≥ 0, |C s| ≤ C|s|, so that equal signs are enough.
    """
    every = supports if (matrices >= 0).all() else signed_patterns
    users = every(matrices.shape[-1], max_participations, min_separation)
    moved = users @ matrices.swapaxes(-1, -2)
    return np.sqrt(np.einsum("...ui,...ui->...u", moved, moved).max(axis=-1))


def ascended_sensitivities(
    matrices: Array, max_participations: int, min_separation: int, dimension: int, seed: int = 0
) -> Array:
    """max ‖C X‖_F over X with rows in the unit ball of R^d and zero outside a pattern, ascended.

    From a random X for each pattern, conditional gradient: ‖C X‖_F² is convex, so to maximize its
    linearisation, which points each row along that of CᵀC X, never lowers it. Each value is reached
    by some user. Shape of the stack.
    """
    n = matrices.shape[-1]
    support = supports(n, max_participations, min_separation).T[:, :, None]
    gram = matrices.swapaxes(-1, -2) @ matrices
    shape = (*matrices.shape[:-2], n, support.shape[1], dimension)
    X = np.random.default_rng(seed).normal(size=shape) * support
    for _ in range(10):
        pull = (gram @ X.reshape(*shape[:-2], -1)).reshape(shape)
        length = np.sqrt(np.einsum("...d,...d->...", pull, pull))
        X = pull * (support[..., 0] / np.maximum(length, 1e-300))[..., None]
    moved = (matrices @ X.reshape(*shape[:-2], -1)).reshape(shape)
    return np.sqrt(np.einsum("...ipd,...ipd->...p", moved, moved).max(axis=-1))


def earliest_norm(C: Array, max_participations: int, min_separation: int) -> float:
    """‖Σ_{l<k} C_{:,lb}‖."""
    return float(
        np.linalg.norm(
            C[:, : (max_participations - 1) * min_separation + 1 : min_separation].sum(axis=1)
        )
    )


def query_variances(A: Array, C: Array) -> Array:
    """‖(A C⁻¹)_{t,:}‖²."""
    return np.sum((A @ np.linalg.inv(C)) ** 2, axis=1)


def rmse(A: Array, C: Array, sensitivity: float) -> float:
    """(1/√n)·‖A C⁻¹‖_F·sens."""
    return float(np.sqrt(query_variances(A, C).mean())) * sensitivity


def contracts(rounds: int) -> list[tuple[int, int]]:
    """Every (k, b) that fits the horizon."""
    return [
        (k, b)
        for b in range(1, rounds + 1)
        for k in range(1, rounds + 1)
        if (k - 1) * b + 1 <= rounds
    ]


def objective_by_definition(objective: Any, variances: Any) -> float:
    """The largest, last, mean or weighted mean of squared errors, from the definition, in plain
    Python.
    """
    n = len(variances)
    if objective.kind == "max":
        return max(variances)
    if objective.kind == "last":
        return variances[-1]
    w = (
        [1.0] * n
        if objective.kind == "rmse"
        else [objective.weights[t * len(objective.weights) // n] for t in range(n)]
    )
    return sum(x * v for x, v in zip(w, variances, strict=True)) / sum(w)
