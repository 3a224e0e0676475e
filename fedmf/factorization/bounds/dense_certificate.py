"""How good can a dense C be? A certified lower bound on the RMSE of every C under (k, b)-min-separation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.sensitivity import earliest_pattern
from fedmf.participation import Participation
from fedmf.typing import Array, Vector
from fedmf.workload import ToeplitzWorkload, prefix


def pattern_users(patterns: list[NDArray[np.int64]], participation: Participation) -> Array:
    """The 0/1 vectors of patterns as columns, shape (n, number of patterns).

    Raises:
        ValueError: a pattern is not one of (n, k, b).

    >>> pattern_users([np.array([0, 2])], Participation(3, 2, 2)).T
    array([[1., 0., 1.]])
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    users = np.zeros((n, len(patterns)))
    for column, rounds in enumerate(patterns):
        if not 0 < len(rounds) <= k or rounds[0] < 0 or rounds[-1] >= n or (np.diff(rounds) < b).any():
            raise ValueError(
                f"pi (pattern {column}) must be at most k={k} rounds of 0 … {n - 1}, at least b={b} apart; "
                f"got {rounds.tolist()}. Drop it."
            )
        users[rounds, column] = 1.0
    return users


def heavier_users(gram: Array, participation: Participation, starts: list[Array]) -> Array:
    """Signs on patterns with a large uᵀX u, from each start by moving one round or one sign at a time.

    Args:
        gram: X, shape (n, n).
        participation: (n, k, b).
        starts: vectors whose non-zero rounds are patterns.

    Returns:
        Shape (n, number of starts), the first sign of each positive.
    """
    n, b = participation.rounds, participation.min_separation
    size, users = np.abs(gram), np.zeros((participation.rounds, len(starts)))
    for column, start in enumerate(starts):
        at, before = np.flatnonzero(start), -1.0
        while (now := float(size[np.ix_(at, at)].sum())) > before * (1 + 1e-9):
            before = now
            for i in range(len(at)):
                low = at[i - 1] + b if i else 0
                high = at[i + 1] - b if i + 1 < len(at) else n - 1
                others = np.delete(at, i)
                gain = 2 * size[others, low : high + 1].sum(0) + size.diagonal()[low : high + 1]
                at[i] = low + int(gain.argmax())
        part = gram[np.ix_(at, at)]
        signs = np.where(part[0] < 0, -1.0, 1.0)
        for _ in range(4 * len(at)):
            pulls = signs * (part @ signs - part.diagonal() * signs)
            if pulls.min() >= 0:
                break
            signs[pulls.argmin()] *= -1
        users[at, column] = signs * signs[0]
    return users


def dense_bound(users: Array, weights: Array, workload: ToeplitzWorkload) -> float:
    """No C has a smaller RMSE than this, whatever its form: tr (A M Aᵀ)^{½} / √n.

    Args:
        users: the vectors u, shape (n, m), each on the rounds of one pattern, entries in [−1, 1].
        weights: μ ≥ 0, shape (m,), of any positive sum.
        workload: A.

    References:
        Li et al. (2015), "The matrix mechanism"; Choquette-Choo et al. (2023), "Multi-Epoch Matrix
        Factorization", for the dual problem.

    >>> from fedmf.workload import prefix
    >>> round(dense_bound(np.eye(2), np.array([0.6, 0.4]), prefix(2)), 4)
    1.1357
    """
    scaled = users * np.sqrt(weights / weights.sum())
    singular = np.linalg.svd(workload.materialize() @ scaled, compute_uv=False)
    return float(singular.sum() / np.sqrt(len(users)))


def banded_inverse_bound(filters: Array, users: Array, weights: Array, workload: ToeplitzWorkload) -> float:
    """No C⁻¹ = LTT(h) with p coefficients has a smaller RMSE than this; any sign, any shape of h.

    C⁻¹C⁻ᵀ = Y(D) := Σ_l Z^l D Z^{lᵀ} with Z the shift and D = h hᵀ, and Y(D) is linear in D, as is the error:
    tr(W̃ D) with W̃ = Tᵀ diag(S) T, T_{ti} = a_{t−i} and S_t = Σ_{i ≥ t} r_i². Take any D₀ ⪰ 0 and write
    Y₀ = Y(D₀), g₀ = tr(M Y₀⁻¹), and N for the matrix with tr(N D) = tr(Y₀⁻¹M Y₀⁻¹ Y(D)). By convexity
    tr(M Y⁻¹) ≥ 2s·g₀ − s²·tr(N D) for all s, so at the best s it is at least g₀²/tr(N D). With λ the largest
    number for which W̃ ⪰ λN, the squared error times sensitivity is at least

        tr(W̃ D) · g₀²/tr(N D) ≥ λ·g₀²      for all D ⪰ 0, in particular for all h hᵀ.

    Args:
        filters: F with D₀ = F Fᵀ, shape (p, r), first row not zero: the closer to the best h, the better
            the bound.
        users: as in `dense_bound`.
        weights: μ.
        workload: A = diag(r)·LTT(a) with n rounds, without column weights.

    Raises:
        ValueError: the workload has column weights.

    >>> from fedmf.workload import prefix
    >>> h = np.array([[1.0], [-0.5], [-0.125]])
    >>> round(banded_inverse_bound(h, np.eye(3), np.array([0.5, 0.3, 0.2]), prefix(3)), 3)
    1.175
    """
    from scipy.linalg import cho_solve_banded, cholesky_banded, eigh

    if workload.column_weights is not None:
        raise ValueError(
            f"A (workload) must have no column weights; got {workload.name!r}. Use dense_bound for it."
        )
    n, p = len(users), len(filters)
    mixture = weights / weights.sum()
    solved = cho_solve_banded((cholesky_banded(covariance_bands(filters, n), lower=True), True), users)
    reached = float(mixture @ np.einsum("ij,ij->j", users, solved))
    pull = np.zeros((p, p))
    for column, share in zip(solved.T, mixture, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(np.append(column, np.zeros(p)), p)[:n]
        pull += share * (windows.T @ windows)
    smallest = eigh(filter_errors(workload, p), pull, eigvals_only=True, subset_by_index=[0, 0])[0]
    return float(reached * np.sqrt(max(smallest, 0.0) / n))


def covariance_bands(filters: Array, rounds: int) -> Array:
    """The diagonals of Y(F Fᵀ), the noise covariance of these filters, in LAPACK's lower banded form."""
    product, p = filters @ filters.T, len(filters)
    bands = np.zeros((p, rounds))
    for gap in range(p):
        sums = np.cumsum(np.diagonal(product, gap))
        bands[gap, : p - gap] = sums
        bands[gap, p - gap : rounds - gap] = sums[-1]
    return bands


def filter_errors(workload: ToeplitzWorkload, bands: int) -> Array:
    """W̃ with ‖A·LTT(h)‖_F² = hᵀ W̃ h for h ∈ R^p."""
    n = workload.rounds
    rows = np.ones(n) if workload.row_weights is None else workload.row_weights**2
    after = np.cumsum(rows[::-1])[::-1]
    shifted = np.zeros((n, bands))
    for i in range(bands):
        shifted[i:, i] = workload.coefficients[: n - i]
    return shifted.T @ (after[:, None] * shifted)


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
    n = participation.rounds
    if n > _LARGEST:
        raise ValueError(
            f"n (rounds) must be at most {_LARGEST} for a certificate; got {n}. Use fewer rounds."
        )
    queries = prefix(n) if workload is None else workload
    A, rng = queries.materialize(), np.random.default_rng(0)
    users, weights = first_users(participation)
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
            starts = later_users(users, weights, participation, rng)
            candidates = heavier_users(gram, participation, starts)
            candidates = candidates[:, np.einsum("ij,ij->j", candidates, gram @ candidates) > roots.sum()]
            users, weights = joined_users(users, weights, candidates)
    return dense_bound(*best, queries)


def later_users(
    users: Array, weights: Vector, participation: Participation, rng: np.random.Generator
) -> list[Array]:
    """Where the search for heavier users begins: 40 patterns drawn at random and 40 by the weights."""
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    size = _most(n, k, b)
    drawn = [np.sort(rng.integers(0, n - _reach(n, k, b), size)) for _ in range(40)]
    chosen = rng.choice(weights.size, 40, p=weights / weights.sum())
    return [_shifted(offsets, size, b, n) for offsets in drawn] + list(users[:, chosen].T)


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


def first_users(participation: Participation) -> tuple[Array, Vector]:
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


def joined_users(users: Array, weights: Vector, candidates: Array) -> tuple[Array, Vector]:
    """The users and those candidates that are not among them, which share 3 % of the weight."""
    fresh = np.unique(candidates, axis=1)
    known = {column.tobytes() for column in np.ascontiguousarray(users.T)}
    new = [column for column in np.ascontiguousarray(fresh.T) if column.tobytes() not in known]
    if not new:
        return users, weights
    share = np.full(len(new), _NEW_SHARE / len(new))
    return np.column_stack([users, *new]), np.append(weights * (1 - _NEW_SHARE), share)
