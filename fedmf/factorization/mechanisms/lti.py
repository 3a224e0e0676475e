"""The Toeplitz noise with the least stationary suboptimality of gradient descent on a quadratic.

On F(θ) = ½ Σ_j λ_j θ_j² the iteration θ ← θ − η(∇F(θ) + noise) is one linear filter per eigenvalue, so the
error of the last iterate is known exactly for every C, and the best Toeplitz C up to a Fourier transform.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedmf.factorization.algebra import frozen_vector, minimum_phase
from fedmf.factorization.matrices import Factorization, InverseToeplitz
from fedmf.typing import Vector

# The error of an eigenvalue settles after a few times 1/(ηλ) rounds; spectra are resolved down to ηλ = 4e-6.
_SETTLING_TIMES, _SMALLEST_STEP = 12.0, 1e-5


def quadratic_lti(rounds: int, eigenvalues: ArrayLike, learning_rate: float) -> InverseToeplitz:
    """The Toeplitz C of least asymptotic suboptimality on a quadratic with these curvatures, C⁻¹ = LTT(β).

    With D = 1 − e^{iω} and h(ω) = Σ_j λ_j / |D − ηλ_j|² that suboptimality is
    ½(ηζσ)² · γ²(B) · (1/2π)∫|B|² h dω, where γ²(B) = (1/2π)∫|B|⁻² dω is the squared sensitivity of a user who
    takes part once. By Cauchy–Schwarz it is least at |B|² ∝ h^{−1/2}, where it is ½(ηζσ)²·((1/2π)∫√h dω)².

    β does not depend on n: the coefficients for fewer rounds are the first ones.

    Args:
        rounds: n.
        eigenvalues: λ of the Hessian, shape (d,), positive; repeat or order them as you like.
        learning_rate: η, 0 < η < 2/λ_max (gradient descent converges).

    Guarantees:
        One eigenvalue with ηλ ≤ 1 gives `nu_ftrl` with ν = ηλ. No Toeplitz C has a lower asymptotic
        suboptimality at equal sensitivity.

    Raises:
        ValueError: an eigenvalue or η is out of range, n < 1, or η·λ_min is below about 4e-6.

    References:
        Choquette-Choo, Dvijotham, Pillutla, Ganesh, Steinke & Thakurta (2024), arXiv:2310.06771, §2.1 (one
        eigenvalue) and eqs. (20), (21); the optimum for several follows in the same way.

    >>> quadratic_lti(3, [1.0], 0.5).correlation.round(6)
    array([ 1.     , -0.25   , -0.03125])
    >>> quadratic_lti(3, [1.0, 0.1, 0.01], 0.5).correlation.round(4)
    array([ 1.    , -0.309 , -0.0681])
    """
    curvatures, counts = _spectrum(eigenvalues, learning_rate)
    _horizon(rounds)
    damping = learning_rate * curvatures

    def log_power(omega: Vector) -> Vector:
        # |D - eta*lambda|^2 without cancellation near omega = 0, where |D|^2 = 4 sin(omega/2)^2.
        square = 4.0 * np.sin(omega / 2) ** 2
        h = np.zeros(omega.size)
        for step, curvature, count in zip(damping, curvatures, counts, strict=True):
            h += count * curvature / (step**2 + (1.0 - step) * square)
        return -0.5 * np.log(h)

    nearest = float(np.minimum(damping, 2.0 - damping).min())
    return InverseToeplitz(minimum_phase(log_power, rounds, nearest), rounds)


def geometric_lti(
    rounds: int, smallest: float, largest: float, learning_rate: float, eigenvalues: int
) -> InverseToeplitz:
    """`quadratic_lti` for curvatures in geometric steps.

    Args:
        rounds: n.
        smallest: μ.
        largest: L ≥ μ.
        learning_rate: η.
        eigenvalues: how many.

    Raises:
        ValueError: μ > L, or as `quadratic_lti`.
    """
    if smallest > largest:
        raise ValueError(f"mu (smallest curvature) must be at most smoothness={largest}; got {smallest}.")
    return quadratic_lti(rounds, np.geomspace(smallest, largest, eigenvalues), learning_rate)


def settling_curvature(rounds: int, learning_rate: float, largest: float) -> float:
    """The smallest curvature, at most the largest, whose error settles within n rounds."""
    return min(max(_SETTLING_TIMES / rounds, _SMALLEST_STEP) / learning_rate, largest)


def quadratic_suboptimality(
    factorization: Factorization, eigenvalues: ArrayLike, learning_rate: float
) -> float:
    """E[F(θ_n) − F*] = ½ Σ_j λ_j Var(θ_n,j) that the noise C⁻¹z of n rounds leaves on a quadratic.

    θ_{t+1} = θ_t − η(∇F(θ_t) + [C⁻¹z]_t) from the optimum, with z of unit variance: multiply by
    (ζ·σ·sens(C))² for a mechanism. Exact for every C; near its limit once n is several times 1/(ηλ_min).

    Args:
        factorization: C.
        eigenvalues: λ of the Hessian, shape (d,), positive.
        learning_rate: η, 0 < η < 2/λ_max.

    Raises:
        ValueError: an eigenvalue or η is out of range.

    References:
        Choquette-Choo et al. (2024), arXiv:2310.06771, eq. (20), without the sampling noise of the gradients.

    >>> from fedmf.factorization import identity
    >>> quadratic_suboptimality(identity(200), [1.0], 0.5) - 0.5 * 0.5**2 / (0.5 * (2 - 0.5))
    0.0
    """
    curvatures, counts = _spectrum(eigenvalues, learning_rate)
    rounds = np.arange(factorization.rounds)
    variances = [
        factorization.query_variances((1.0 - learning_rate * curvature) ** rounds)[-1]
        for curvature in curvatures
    ]
    return float(0.5 * learning_rate**2 * (counts * curvatures) @ np.array(variances))


def _spectrum(eigenvalues: ArrayLike, learning_rate: float) -> tuple[Vector, Vector]:
    """The distinct eigenvalues and how often each occurs."""
    values = frozen_vector(eigenvalues, "lambda", "eigenvalues")
    if not (values > 0).all():
        at = int(np.flatnonzero(values <= 0)[0])
        raise ValueError(f"lambda (eigenvalues) must be positive; got {values[at]} at index {at}.")
    largest = 2.0 / float(values.max())
    if not 0 < learning_rate < largest:
        raise ValueError(
            f"eta (learning_rate) must be between 0 and 2/lambda_max={largest:.6g}, both excluded; "
            f"got {learning_rate}."
        )
    distinct, counts = np.unique(values, return_counts=True)
    return distinct, counts.astype(np.float64)


def _horizon(rounds: int) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"n (rounds) must be an integer of at least 1; got {rounds!r}.")
