"""Buffered linear Toeplitz (BLT) strategy matrices: sums of m exponentials, streamed with m vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization.algebra import frozen_vector, reciprocal
from fedmf.factorization.matrices.scaled_toeplitz import ScaledToeplitz
from fedmf.factorization.streaming import StateSpace
from fedmf.typing import Vector


@dataclass(frozen=True, eq=False)
class BufferedToeplitz(ScaledToeplitz):
    """C = LTT(c) with c_0 = 1 and c_j = Σ_i ω_i θ_i^{j−1}.

    As a power series c(x) = 1 + Σ_i ω_i x/(1 − θ_i x) = N(x)/D(x), two polynomials of degree m. So C⁻¹ is
    of the same kind: its first column is 1 − Σ_i ω̂_i θ̂_i^{j−1} (`inverse_pair`).

    Args:
        decays: θ, shape (m,), in (0, 1).
        weights: ω, shape (m,), positive.
        rounds: n, the horizon.

    Raises:
        ValueError: θ or ω is out of range or their lengths differ.

    References:
        Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024), "Efficient and near-optimal noise generation
        for streaming differential privacy"; McMahan, Xu & Zhang (2024), arXiv:2408.08868.

    >>> BufferedToeplitz([0.5], [0.25], 4).strategy
    array([1.    , 0.25  , 0.125 , 0.0625])
    """

    decays: Vector
    weights: Vector
    rounds: int

    def __post_init__(self) -> None:
        decays = frozen_vector(self.decays, "theta", "buffer decays")
        weights = frozen_vector(self.weights, "omega", "buffer weights")
        if weights.size != decays.size:
            raise ValueError(
                f"omega (buffer weights) must have m={decays.size} entries like theta; got {weights.size}."
            )
        if not ((decays > 0) & (decays < 1)).all():
            at = int(np.flatnonzero(~((decays > 0) & (decays < 1)))[0])
            raise ValueError(f"theta (buffer decays) must be in (0, 1); got {decays[at]} at index {at}.")
        if not (weights > 0).all():
            at = int(np.flatnonzero(weights <= 0)[0])
            raise ValueError(f"omega (buffer weights) must be positive; got {weights[at]} at index {at}.")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(f"n (rounds) must be an integer of at least 1; got {self.rounds!r}.")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "weights", weights)

    def _strategy(self) -> Vector:
        powers = self.decays ** np.arange(self.rounds - 1)[:, None]
        return np.concatenate([[1.0], powers @ self.weights])

    def _correlation(self) -> Vector:
        return reciprocal(self.strategy, self.rounds)

    def polynomials(self) -> tuple[Vector, Vector]:
        """N and D with c(x) = N(x)/D(x), coefficients of x^0 … x^m.

        >>> BufferedToeplitz([0.5], [0.25], 4).polynomials()
        (array([ 1.  , -0.25]), array([ 1. , -0.5]))
        """
        denominator = _with_roots(self.decays)
        numerator = denominator.copy()
        for i, weight in enumerate(self.weights):
            numerator[1:] += weight * _with_roots(np.delete(self.decays, i))
        return numerator, denominator

    def inverse_pair(self) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """θ̂, ω̂ with [C⁻¹]_{j,0} = −Σ_i ω̂_i θ̂_i^{j−1}, j ≥ 1; θ̂_i are the roots of x^m·N(1/x).

        All θ are different here. Between two neighbouring θ lies one θ̂, the last lies below all θ and may be
        negative, and all ω̂ are positive.

        >>> theta, omega = BufferedToeplitz([0.5], [0.25], 4).inverse_pair()
        >>> theta.real, omega.real
        (array([0.25]), array([0.25]))
        """
        numerator, denominator = self.polynomials()
        roots = np.roots(numerator).astype(np.complex128)
        # D(x)/N(x) has the residue −ω̂_i at θ̂_i; with y = 1/x both become monic polynomials of y.
        slopes = np.polyval(np.polyder(numerator), roots)
        return roots, -np.polyval(denominator, roots) / slopes

    def recurrence(self) -> StateSpace:
        """C y = z solved forward with θ and ω themselves: keeps m sums of past outputs, draws no z again."""
        return StateSpace(self.decays, self.weights, self.scale)

    def leading(self, rounds: int) -> BufferedToeplitz:
        """The same θ and ω at the horizon T."""
        if not 1 <= rounds <= self.rounds:
            raise ValueError(f"T (leading rounds) must be between 1 and n={self.rounds}; got {rounds}.")
        return BufferedToeplitz(self.decays, self.weights, rounds)

    def to_dict(self) -> dict[str, Any]:
        """{"type": "buffered-toeplitz", "rounds", "decays", "weights"}."""
        return {
            "type": "buffered-toeplitz",
            "rounds": self.rounds,
            "decays": self.decays.tolist(),
            "weights": self.weights.tolist(),
        }


def _with_roots(decays: Vector) -> Vector:
    """Π_i (1 − θ_i x), shape (m + 1,)."""
    product = np.ones(1)
    for decay in decays:
        product = np.append(product, 0.0) - decay * np.append(0.0, product)
    return product
