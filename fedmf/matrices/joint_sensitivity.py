"""The joint sensitivity s of two moments under (k, b)-min-separation.

It bounds how far one user can move both at once; docs/theory/moments.md has the proofs. One user
contributes x_i with ‖x_i‖ ≤ ζ in the rounds i of a pattern π; its neighbor contributes y_i
(replace-one) or nothing (zero-out). With D_i = x_i − y_i, E_i = x_i⊗x_i − y_i⊗y_i and
G_m = C_mᵀC_m,

    s² = sup over π, x, y of Σ_{i,j∈π} [G_1]_ij ⟨D_i, D_j⟩ + λ Σ_{i,j∈π} [G_2]_ij ⟨E_i, E_j⟩.

Bounding inner products by norms and 2ab ≤ a² + b², with r_{m,i} = Σ_{j∈π} |[G_m]_ij| and ν = λζ²,

    s² ≤ ζ² max_π Σ_{i∈π} φ(r_{1,i}, r_{2,i}),   φ(p, q) = p·r_d(ν q/p) (replace-one), p + ν q
    (zero-out),

since the i-th summand depends on (x_i, y_i) alone. φ is a supremum of linear functions with
non-negative coefficients: convex, homogeneous and non-decreasing. A user with the same (x_i, y_i)
in all rounds reaches ζ² φ(Σ_i r_{1,i}, Σ_i r_{2,i}) where both Gram matrices are non-negative; a
bound equal to it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import (
    Sensitivity,
    SensitivityProblem,
    best_separated_sum,
    comb_sum,
    earliest_pattern,
    kind_of,
    monotone_envelope,
    over_patterns,
    row_weights,
    tightest,
)
from fedmf.participation import Adjacency, Participation

FREE_LINE: Final = (11 + 5 * math.sqrt(5)) / 8
"""Largest ν with r_1(ν) = 4: in one dimension the second moment is free up to it."""

FREE_PLANE: Final = 0.5
"""Largest ν with r_d(ν) = 4 for d ≥ 2."""


def free_weight(dimension: int) -> float:
    """The largest ν at which r_d(ν) is still 4, the value of the first moment alone.

    >>> free_weight(2), round(free_weight(1), 4)
    (0.5, 2.7725)
    """
    if _checked(dimension) == 1:
        return FREE_LINE
    return FREE_PLANE


def joint_diameter_square(weight: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """r_d(ν) = max over ‖x‖, ‖y‖ ≤ 1 of ‖x − y‖² + ν‖x⊗x − y⊗y‖².

    Args:
        weight: ν ≥ 0, any shape; infinity is allowed and gives infinity.
        dimension: d ≥ 1; all d ≥ 2 agree.

    Returns:
        r_d(ν), the shape of ν. Convex and non-decreasing, at least 4, and at most 4 + 2ν (d ≥ 2).

    Raises:
        ValueError: a weight is negative or NaN, or d < 1.

    References:
        Kalinin, Upadhyay and Lampert (2025), Theorems A.1 and A.2.

    >>> joint_diameter_square([0.5, 1.0], 2)
    array([4. , 4.5])
    """
    nu = np.asarray(weight, dtype=np.float64)
    if not (nu >= 0).all():
        raise ValueError(f"nu (weight of the second moment) must be at least 0; got {nu.min()}.")
    if _checked(dimension) == 1:
        beyond = np.maximum(nu, FREE_LINE)
        tau = np.sqrt(1 - 2 / beyond)
        return np.where(nu > FREE_LINE, (3 - tau) ** 2 * (beyond * tau + 1 + beyond) / 8, 4.0)
    beyond = np.maximum(nu, FREE_PLANE)
    return np.where(nu > FREE_PLANE, 2 + 2 * beyond + 1 / (2 * beyond), 4.0)


def _checked(dimension: int) -> int:
    if dimension < 1:
        raise ValueError(f"d (dimension) must be at least 1; got {dimension}.")
    return dimension


@dataclass(frozen=True)
class UserRange:
    """The contributions of one user to one round, and those of its neighbor.

    Args:
        norm_bound: ζ > 0, the largest ‖x_i‖.
        dimension: 1 where only r_1 is needed (scalars, or the total energy of a vector), else 2 or
            more.
        adjacency: "replace-one" or "zero-out".

    Raises:
        ValueError: a value is out of range.

    >>> UserRange(1.0, 3, "zero-out").reach(np.array([1.0]), np.array([1.0]), 0.5)
    array([1.5])
    """

    norm_bound: float
    dimension: int
    adjacency: Adjacency = "zero-out"

    def __post_init__(self) -> None:
        if not 0 < self.norm_bound < np.inf:
            raise ValueError(
                f"zeta (norm bound) must be positive and finite; got {self.norm_bound}."
            )
        if self.dimension < 1:
            raise ValueError(f"d (dimension) must be at least 1; got {self.dimension}.")
        if self.adjacency not in ("zero-out", "replace-one"):
            raise ValueError(
                "adjacency (neighboring relation) must be 'zero-out' or 'replace-one'; "
                f"got {self.adjacency!r}."
            )

    def reach(self, first: Vector, second: Vector, weight: float) -> Vector:
        """φ(p, q) for ν = `weight`, elementwise over p > 0 and q ≥ 0."""
        if self.adjacency == "zero-out":
            return first + weight * second
        return first * joint_diameter_square(weight * second / first, self.dimension)


def joint_sensitivity(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    weight: float,
    users: UserRange,
) -> Sensitivity:
    """s, the joint sensitivity of (C₁X, √λ·C₂(X•X)), exact or marked as an upper bound.

    It holds for every second moment that is a contraction of x⊗x (the diagonal, energies of
    disjoint blocks, a fixed projection) and for sums over any number of users in a round.

    Args:
        first: C₁, n rounds.
        second: C₂, n rounds.
        participation: (n, k, b).
        weight: λ ≥ 0, the weight of the second moment (units of 1/x²).
        users: ζ, the dimension class and the adjacency.

    Raises:
        ValueError: the horizons differ or λ is negative.
        SensitivityNotExact: n > 10,240 and these matrices have no monotone envelope.

    References:
        Kalinin, Upadhyay and Lampert (2025), Lemma 3.5, for k = 1; docs/theory/moments.md proves
        the rest.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> C = identity(4)
    >>> joint_sensitivity(C, C, Participation(4, 1, 4), 0.5, UserRange(1.0, 2, "replace-one")).value
    2.0
    """
    n = participation.rounds
    if first.rounds != n or second.rounds != n:
        raise ValueError(
            f"n (rounds) must agree; got {first.rounds} (C_1), {second.rounds} (C_2), {n}"
            " (participation)."
        )
    nu = weight * users.norm_bound**2
    if not 0 <= nu < np.inf:
        raise ValueError(
            f"lambda (weight of the second moment) must be finite and >= 0; got {weight}."
        )
    sensitivity = tightest(_Pair(first, second, participation, nu, users))
    return replace(sensitivity, value=users.norm_bound * sensitivity.value)


@dataclass(frozen=True, eq=False)
class _Pair(SensitivityProblem):
    """The two matrices and φ, for ζ = 1."""

    first: Factorization
    second: Factorization
    participation: Participation
    nu: float
    users: UserRange

    source = ""
    label = "joint sensitivity of these C"
    remedy = "Toeplitz C_1 and C_2, or banded ones with p <= b"

    @property
    def bands(self) -> int:
        return max(self.first.bands, self.second.bands)

    @cached_property
    def envelopes(self) -> tuple[Vector, Vector] | None:
        first = _toeplitz_envelope(self.first)
        second = _toeplitz_envelope(self.second)
        if first is None or second is None:
            return None
        return first, second

    @property
    def enveloped(self) -> bool:
        return self.envelopes is not None

    def squares(self) -> Vector:
        return self.reach(self.first.gram_diagonal(0), self.second.gram_diagonal(0))

    def by_structure(self) -> Iterator[Sensitivity]:
        if self.envelopes is None:
            return
        k = self.participation.max_participations
        b = self.participation.min_separation
        first = _earliest_rows(self.envelopes[0], k, b)
        second = _earliest_rows(self.envelopes[1], k, b)
        upper = float(self.reach(first, second).sum())
        lower = self.attained(earliest_pattern(k, b))
        yield self.stated(upper, lower, "earliest pattern dominates every pair")

    def by_enumeration(self) -> Sensitivity:
        """max_π Σ_i φ(r_{1,i}, r_{2,i}), and the most that equal contributions attain."""
        gram_1 = _gram(self.first)
        gram_2 = _gram(self.second)
        signed = bool((gram_1 < 0).any() or (gram_2 < 0).any())
        sizes_1 = np.abs(gram_1)
        sizes_2 = np.abs(gram_2)

        def weigh(layer: NDArray[np.int64]) -> NDArray[np.float64]:
            first = _row_sums(sizes_1, layer)
            second = _row_sums(sizes_2, layer)
            upper = self.reach(first, second).sum(axis=1)
            attained = np.zeros(len(layer))
            if not signed:
                attained = self.reach(first.sum(axis=1), second.sum(axis=1))
            return np.stack([upper, attained])

        (upper, _), (lower, _) = over_patterns(weigh, self.participation)
        return self.stated(upper, lower, "every pattern enumerated")

    def by_rows(self) -> Sensitivity:
        k = self.participation.max_participations
        b = self.participation.min_separation
        first = row_weights(np.abs(_gram(self.first)), k, b)[0]
        second = row_weights(np.abs(_gram(self.second)), k, b)[0]
        bound = float(best_separated_sum(self.reach(first, second), k, b))
        return self.stated(bound, 0.0, "row-wise dynamic program over patterns")

    def reach(self, first: Vector, second: Vector) -> Vector:
        return self.users.reach(first, second, self.nu)

    def stated(self, upper_square: float, lower_square: float, case: str) -> Sensitivity:
        return Sensitivity(float(np.sqrt(upper_square)), kind_of(upper_square, lower_square), case)

    def attained(self, pattern: NDArray[np.int64]) -> float:
        """s² of the user who contributes the same (x, y) in every round of the pattern."""
        first = np.sum(self.first.column_sum(pattern) ** 2)
        second = np.sum(self.second.column_sum(pattern) ** 2)
        return float(self.reach(np.array([first]), np.array([second]))[0])


def _row_sums(sizes: NDArray[np.float64], layer: NDArray[np.int64]) -> NDArray[np.float64]:
    """r_i = Σ_{j∈π} |G_ij| of each round i of the patterns in a layer, shape (patterns, size)."""
    sums = np.zeros(layer.shape)
    for j in range(layer.shape[1]):
        sums += sizes[layer, layer[:, j : j + 1]]
    return sums


def _toeplitz_envelope(C: Factorization) -> Vector | None:
    """ĉ non-increasing with |C| ≤ LTT(ĉ), or None."""
    bound = C.toeplitz_bound()
    if bound is None or (bound[1] != bound[1][0]).any():
        return None
    return monotone_envelope(bound[0]) / bound[1][0]


def _earliest_rows(column: Vector, k: int, b: int) -> Vector:
    """r_m = Σ_{l<k} [ĈᵀĈ]_{mb, lb} for m = 0 … k−1.

    [ĈᵀĈ]_{i,j} = Σ_l ĉ_l ĉ_{l+|i−j|} over l < n − max(i, j) falls in the gap and in the later
    round, so that the m-th row of any pattern is at most this one.
    """
    total = comb_sum(column, k, b)
    n = column.size
    rows = np.empty(k)
    for m in range(k):
        rows[m] = column[: n - m * b] @ total[m * b :]
    return rows


def _gram(C: Factorization) -> NDArray[np.float64]:
    columns = C.materialize()
    return columns.T @ columns
