"""How good can a dense C be? A certified lower bound on the RMSE of every C under (k, b)-min-separation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.bounds.duality import dense_bound, heavier_users
from fedmf.factorization.sensitivity import earliest_pattern
from fedmf.participation import Participation
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload, prefix

_LARGEST = 2048
# μ ← μ·(q/v)^η; η = 1 never lowers the bound, 1.7 takes fewer steps.
_ETA = 1.7
_STEPS_PER_CUT, _NEW_SHARE, _PLAIN_SHARE = 4, 0.03, 0.7
_LEAST_WEIGHT, _REGULAR = 1e-7, 1e-9


def certified_dense_bound(
    participation: Participation, workload: ToeplitzWorkload | None = None, steps: int = 120
) -> float:
    """No C whatsoever has a smaller RMSE (sensitivity included, noise multiplier left out) than this.

    Ascends tr(A M Aᵀ)^{½} over mixtures M of users (`dense_bound`). X = Aᵀ(A M Aᵀ)^{−½}A is the best C for
    the mixture; users whom it serves worse than the average (q_u = uᵀX u above v = tr(A M Aᵀ)^{½}) gain
    weight, and users found by local search over patterns and signs join every fourth step. Stopped at any
    time, the bound holds.

    Args:
        participation: (n, k, b), n ≤ 2048.
        workload: A; prefix sums by default.
        steps: each an eigenvalue decomposition of n by n.

    Raises:
        ValueError: n > 2048.

    Guarantees:
        At most the RMSE of any C with its exact sensitivity, up to rounding.

    References:
        Choquette-Choo et al. (2023), "Multi-Epoch Matrix Factorization", for the dual problem.

    >>> round(certified_dense_bound(Participation(2, 1, 2)), 3)
    1.144
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    if n > _LARGEST:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST} for a certificate; got {n}. Use fewer rounds."
        )
    queries = prefix(n) if workload is None else workload
    A, rng = queries.materialize(), np.random.default_rng(0)
    users, weights = _first_users(participation)
    best, best_value = (users, weights), -np.inf
    for step in range(steps):
        mixture = (users * weights) @ users.T * (1 - _REGULAR) + _REGULAR / n * np.eye(n)
        values, vectors = np.linalg.eigh(A @ mixture @ A.T)
        roots = np.sqrt(np.maximum(values, values[-1] * 1e-15))
        if roots.sum() > best_value:
            best, best_value = (users, weights), roots.sum()
        half = (A.T @ vectors) / np.sqrt(roots)
        gram = half @ half.T
        squares = np.einsum("ij,ij->j", users, gram @ users)
        weights = weights * (squares / roots.sum()) ** _ETA
        weights /= weights.sum()
        if step % _STEPS_PER_CUT == _STEPS_PER_CUT - 1:
            heavy = weights > _LEAST_WEIGHT / weights.size
            users, weights = users[:, heavy], weights[heavy]
            starts = [
                _shifted(np.sort(rng.integers(0, n - _reach(n, k, b), size)), size, b, n)
                for size in [_most(n, k, b)] * 40
            ]
            starts += list(users[:, rng.choice(weights.size, 40, p=weights / weights.sum())].T)
            candidates = heavier_users(gram, participation, starts)
            candidates = candidates[:, np.einsum("ij,ij->j", candidates, gram @ candidates) > roots.sum()]
            users, weights = _joined(users, weights, candidates)
    return dense_bound(*best, queries)


def _most(n: int, k: int, b: int) -> int:
    """The most rounds a pattern can have."""
    return min(k, -(-n // b))


def _reach(n: int, k: int, b: int) -> int:
    """Rounds between the first and the last of the earliest pattern."""
    return (_most(n, k, b) - 1) * b


def _shifted(offsets: NDArray[np.int64], size: int, b: int, n: int) -> Vector:
    user = np.zeros(n)
    user[offsets + earliest_pattern(size, b)] = 1.0
    return user


def _first_users(participation: Participation) -> tuple[Array, Vector]:
    """The patterns {i, i + b, …} with all signs equal and with signs that make rounds uncorrelated."""
    from scipy.linalg import hadamard

    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    size = _most(n, k, b)
    signs = hadamard(1 << (size - 1).bit_length()).astype(np.float64)
    columns, weights = [], []
    for first in range(min(n, max(b, n - _reach(n, k, b)))):
        at = np.arange(first, n, b)[:k]
        for row in signs:
            user = np.zeros(n)
            user[at] = row[: at.size]
            columns.append(user)
            plain = bool((row[: at.size] > 0).all())
            weights.append(_PLAIN_SHARE if plain else (1 - _PLAIN_SHARE) / max(1, len(signs) - 1))
    return np.column_stack(columns), np.array(weights) / np.sum(weights)


def _joined(users: Array, weights: Vector, candidates: Array) -> tuple[Array, Vector]:
    """The users and those candidates that are not among them, which share 3 % of the weight."""
    fresh = np.unique(candidates, axis=1)
    known = {column.tobytes() for column in np.ascontiguousarray(users.T)}
    new = [column for column in np.ascontiguousarray(fresh.T) if column.tobytes() not in known]
    if not new:
        return users, weights
    share = np.full(len(new), _NEW_SHARE / len(new))
    return np.column_stack([users, *new]), np.append(weights * (1 - _NEW_SHARE), share)
