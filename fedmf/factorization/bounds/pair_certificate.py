"""How good can two strategy matrices be together? A certified lower bound for the moments of one stream.

Let W₁ and W₂ be the queries, each with the root of its price, and X_m = C_mᵀC_m with λζ² taken into X₂. A
user u (signs on a pattern) that contributes the same pair in its rounds moves both releases, squared, by
a·uᵀX₁u + e·uᵀX₂u with (a, e) = (‖x − y‖², ‖x⊗x − y⊗y‖²). For any mixture μ of such users, V₁ = Σ μ a uuᵀ and
V₂ = Σ μ e uuᵀ,

    s² ≥ tr(V₁X₁) + tr(V₂X₂),   tr(V X)·tr(W X⁻¹Wᵀ) ≥ (tr(W V Wᵀ)^{½})²,

so that by Cauchy's inequality s²·(tr W₁X₁⁻¹W₁ᵀ + tr W₂X₂⁻¹W₂ᵀ) is at least the square of
tr(W₁V₁W₁ᵀ)^{½} + tr(W₂V₂W₂ᵀ)^{½}, whatever the matrices. For k = 1 the best mixture attains it:
X_m = W_mᵀ(W_mV_mW_mᵀ)^{−½}W_m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmf.factorization.bounds.dense_certificate import (
    first_users,
    heavier_users,
    joined_users,
    later_users,
)
from fedmf.factorization.sensitivity import UserRange
from fedmf.participation import Participation
from fedmf.typing import Array, Vector

_GAP, _WORK, _STEPS_PER_CUT = 1e-8, 4e9, 4
_LEAST_WEIGHT, _REGULAR, _KEPT = 1e-7, 1e-9, 1e-9


@dataclass(frozen=True, eq=False)
class PairBound:
    """What no pair of matrices is below, and the pair that the bound points at.

    Args:
        value: below s²·(tr W₁X₁⁻¹W₁ᵀ + tr W₂X₂⁻¹W₂ᵀ) for ζ = 1 and λ = 1 of every pair, up to rounding.
        grams: X₁ and X₂ for the mixture found, scaled so that no single round moves them by more than 1.
    """

    value: float
    grams: tuple[Array, Array]


def certified_pair_bound(
    participation: Participation, users: UserRange, queries: tuple[Array, Array], steps: int | None = None
) -> PairBound:
    """No C₁ and C₂ whatsoever have a smaller joint squared error than this.

    Ascends over mixtures of users: those who move the best pair for the mixture more than the average gain
    weight, and for k > 1 others found by local search join. Stopped at any time, the bound holds.

    Args:
        participation: (n, k, b).
        users: dimension class and adjacency; ζ is left to the queries.
        queries: W₁ and W₂, each A times the root of its price, shape (n, n).
        steps: each two eigenvalue decompositions of n by n; by default 12 to 200, fewer for larger n.

    >>> pair = certified_pair_bound(Participation(1, 1, 1), UserRange(1.0, 2), (np.eye(1), 2 * np.eye(1)))
    >>> round(pair.value, 6)
    9.0
    """
    n, single = participation.rounds, participation.max_participations == 1
    most = int(np.clip(_WORK / n**3, 12, 200)) if steps is None else steps
    people, weights = (np.eye(n), np.full(n, 1.0 / n)) if single else first_users(participation)
    # Beyond the kink of r_1, so that both releases count from the beginning.
    start = np.array(users.worst(np.ones(1), np.full(1, 4.0)))
    moves = np.repeat(start, weights.size, axis=1)
    rng, best, best_value = np.random.default_rng(0), (people, weights, moves), -np.inf
    grams = (np.eye(n), np.eye(n))
    for step in range(most):
        parts = [_best_gram(W, people, weights * share) for W, share in zip(queries, moves, strict=True)]
        total = parts[0][1] + parts[1][1]
        X = parts[0][0], parts[1][0]
        squares = [np.einsum("ij,ij->j", people, gram @ people) for gram in X]
        reached = users.reach(squares[0], squares[1], 1.0)
        if total > best_value:
            best, best_value, grams = (people, weights, moves), total, X
        if single and reached.max() <= total * (1 + _GAP):
            break
        weights = weights * (reached / total) ** 2
        weights /= weights.sum()
        turn = min(0.5, 4 / (step + 4))
        worst = np.array(users.worst(squares[0], squares[1]))
        moves = (1 - turn) * moves + turn * ((1 - _KEPT) * worst + _KEPT * start)
        if not single and step % _STEPS_PER_CUT == _STEPS_PER_CUT - 1:
            people, weights, moves = _with_heavier(
                X, people, weights, moves, participation, users, rng, total
            )
    return PairBound(_mixture_bound(queries, *best), _unit_rounds(grams, users))


def _best_gram(queries: Array, people: Array, weights: Vector) -> tuple[Array, float]:
    """X = Wᵀ(W V Wᵀ)^{−½}W and tr(W V Wᵀ)^{½} for V = Σ μ uuᵀ and a little of every round."""
    n = len(people)
    mixture = (people * weights) @ people.T + _REGULAR * weights.sum() / n * np.eye(n)
    values, vectors = np.linalg.eigh(queries @ mixture @ queries.T)
    roots = np.sqrt(np.maximum(values, values[-1] * 1e-15))
    half = (queries.T @ vectors) / np.sqrt(roots)
    return half @ half.T, float(roots.sum())


def _with_heavier(
    grams: tuple[Array, Array],
    people: Array,
    weights: Vector,
    moves: Array,
    participation: Participation,
    users: UserRange,
    rng: np.random.Generator,
    total: float,
) -> tuple[Array, Vector, Array]:
    """Without users of no weight, and with others who move the pair more than the average."""
    heavy = weights > _LEAST_WEIGHT / weights.size
    people, weights, moves = people[:, heavy], weights[heavy], moves[:, heavy]
    mean = moves @ weights / weights.sum()
    starts = later_users(people, weights, participation, rng)
    found = heavier_users(mean[0] * grams[0] + mean[1] * grams[1], participation, starts)
    squares = [np.einsum("ij,ij->j", found, gram @ found) for gram in grams]
    found = found[:, users.reach(squares[0], squares[1], 1.0) > total]
    joined, shares = joined_users(people, weights, found)
    new = joined[:, weights.size :]
    fresh = users.worst(*(np.einsum("ij,ij->j", new, gram @ new) for gram in grams))
    return joined, shares / shares.sum(), np.hstack([moves, np.array(fresh)])


def _mixture_bound(queries: Sequence[Array], people: Array, weights: Vector, moves: Array) -> float:
    """(Σ_m tr(W_m V_m W_mᵀ)^{½})² / Σμ by singular values."""
    roots = [
        np.linalg.svd(W @ (people * np.sqrt(weights * share)), compute_uv=False).sum()
        for W, share in zip(queries, moves, strict=True)
    ]
    return float(sum(roots)) ** 2 / float(weights.sum())


def _unit_rounds(grams: tuple[Array, Array], users: UserRange) -> tuple[Array, Array]:
    """Both scaled by one diagonal matrix so that one participation in any round moves them by 1."""
    norms = np.sqrt(users.reach(np.diagonal(grams[0]), np.diagonal(grams[1]), 1.0))
    scale = np.outer(norms, norms)
    return grams[0] / scale, grams[1] / scale
