"""Buffered linear Toeplitz (BLT) strategy matrices.

Their coefficients are sums of m exponentials, so that m vectors of memory stream them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.series import check_count, check_leading, positive_vector
from fedmf.matrices.streaming_inverse import StateSpace
from fedmf.matrices.toeplitz import ScaledToeplitz


@dataclass(frozen=True, eq=False)
class BufferedToeplitz(ScaledToeplitz, kind="buffered-toeplitz"):
    """C = LTT(c) with c_0 = 1 and c_j = Σ_i ω_i θ_i^{j−1}.

    As a power series c(x) = 1 + Σ_i ω_i x/(1 − θ_i x) = N(x)/D(x), two polynomials of degree m. So
    C⁻¹ is of the same kind: its first column is 1 − Σ_i ω̂_i θ̂_i^{j−1} (`inverse_pair`).

    Args:
        decays: θ, shape (m,), in (0, 1).
        weights: ω, shape (m,), positive.
        rounds: n, the horizon.

    Raises:
        ValueError: θ or ω is out of range or their lengths differ.

    References:
        Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024), "Efficient and near-optimal noise
        generation for streaming differential privacy"; McMahan, Xu & Zhang (2024),
        arXiv:2408.08868.

    >>> BufferedToeplitz([0.5], [0.25], 4).strategy_coefs
    array([1.    , 0.25  , 0.125 , 0.0625])
    """

    decays: Vector
    weights: Vector
    rounds: int
    stored = ("decays", "weights", "rounds")

    def __post_init__(self) -> None:
        decays = positive_vector(self.decays, "theta", "buffer decays")
        weights = positive_vector(self.weights, "omega", "buffer weights")
        if weights.size != decays.size:
            raise ValueError(
                f"omega (buffer weights) must have m={decays.size} entries like theta; got"
                f" {weights.size}."
            )
        if not (decays < 1).all():
            at = int(np.flatnonzero(decays >= 1)[0])
            raise ValueError(
                f"theta (buffer decays) must be in (0, 1); got {decays[at]} at index {at}."
            )
        check_count(self.rounds, "n (rounds)")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "weights", weights)

    def _strategy_coefs(self) -> Vector:
        return np.append(1.0, exponential_sums(self.decays, self.weights, self.rounds - 1))

    def _noising_coefs(self) -> Vector:
        return np.append(1.0, -exponential_sums(*self.inverse_pair(), self.rounds - 1))

    def inverse_pair(self) -> tuple[Vector, Vector]:
        """θ̂, ω̂ with [C⁻¹]_{j,0} = −Σ_i ω̂_i θ̂_i^{j−1}, j ≥ 1.

        C keeps s ← Θs + 1·z and adds ωᵀs; its inverse keeps s ← (Θ − 1ωᵀ)s + 1·y and takes ωᵀs
        away. So entry j is −rᵀ(Θ − rrᵀ)^{j−1}r with r = √ω, and the eigenvalues of a symmetric
        matrix are well conditioned where decays are close to each other as well. Between two
        neighboring θ lies one θ̂, the last lies below all θ and may be negative, and all ω̂ are
        positive.

        >>> BufferedToeplitz([0.5], [0.25], 4).inverse_pair()
        (array([0.25]), array([0.25]))
        """
        root = np.sqrt(self.weights)
        decays, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(root, root))
        return decays, (vectors.T @ root) ** 2

    def streaming_inverse(self) -> StateSpace:
        """C y = z solved forward with θ and ω; it stores m sums and draws no z again."""
        return StateSpace(self.decays, self.weights, self.scale)

    def leading(self, rounds: int) -> BufferedToeplitz:
        """LTT(c) of these θ and ω at the horizon T."""
        check_leading(rounds, self.rounds)
        return BufferedToeplitz(self.decays, self.weights, rounds)


def exponential_sums(bases: Vector, weights: Vector, count: int) -> Vector:
    """Σ_i ω_i θ_i^j for j < count, in blocks; the first powers of each are computed one by one."""
    block = 1 << (count.bit_length() + 1) // 2
    fine = bases[:, None] ** np.arange(block)
    coarse = bases[:, None] ** (block * np.arange(-(-count // block)))
    return np.einsum("ib,ia->ba", coarse, weights[:, None] * fine).reshape(-1)[:count]
