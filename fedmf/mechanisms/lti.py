"""Toeplitz noise for the last iterate on a quadratic, by its spectrum.

The noise C⁻¹z with C⁻¹ = LTT(β) has the spectrum |B(ω)|², where B(z) = Σ_t β_t z^t and z = e^{iω}.
The best spectrum is known in closed form; `minimum_phase` turns it into coefficients β. Quadrature
over frequencies gives errors, here and in strongly_convex.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.series import check_count, fft_size, frozen_vector
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.mechanisms.query_variances import toeplitz_query_variances
from fedmf.mechanisms.registry import (
    DesignRequest,
    MechanismFamily,
    Parameter,
    SearchedParameter,
    Values,
    register,
    without_search,
)

#: A function of frequencies ω in [0, π], shape (m,) to shape (m,), even in ω.
Spectrum = Callable[[Vector], Vector]

_LARGEST_GRID = 1 << 24
_TOLERANCE = 1e-12
_PANEL_NODES = 24
_WIDEST_PANEL = np.pi / 8


def minimum_phase(log_power: Spectrum, rounds: int, distance: float) -> Vector:
    """The causal β with β_0 = 1, |B(ω)|² ∝ exp(log_power(ω)) and 1/B causal as well.

    By the cepstrum: if log|B|² = Σ_m c_m e^{imω}, then log B = c_0/2 + Σ_{m>0} c_m z^m. A grid of N
    frequencies folds coefficients N apart onto each other; N is doubled until β no longer changes.

    Args:
        log_power: log|B|² up to a constant, finite on [0, π].
        rounds: n, the number of coefficients.
        distance: roughly the distance of the nearest singularity of log|B|² from the unit circle,
            for the size of the first grid.

    Returns:
        Shape (n,), float64, accurate to about 1e-12.

    Raises:
        ValueError: more than 2^24 frequencies would be needed.

    >>> minimum_phase(lambda w: np.log(1.25 - np.cos(w)), 3, 0.5).round(6) + 0.0
    array([ 1. , -0.5,  0. ])
    """
    size = _grid_size(rounds, distance)
    coefficients = _folded(log_power, size)[:rounds]
    while size < _LARGEST_GRID:
        size *= 2
        previous = coefficients
        coefficients = _folded(log_power, size)[:rounds]
        if np.abs(coefficients - previous).max() <= _TOLERANCE:
            return coefficients
    raise _too_fine(rounds, distance)


def mean_power(coefficients: Vector, spectrum: Spectrum, distance: float) -> float:
    """(1/2π)∫_{−π}^{π} |B(ω)|² f(ω) dω for the polynomial B with these coefficients and an even f.

    The trapezoidal rule; its error falls like e^{−N·distance}.

    Args:
        coefficients: β, shape (n,).
        spectrum: f.
        distance: the distance from the unit circle within which f is analytic.

    Raises:
        ValueError: more than 2^24 frequencies would be needed.

    >>> round(mean_power(np.array([1.0, -1.0]), lambda w: 1.0 - np.cos(w), 1.0), 9)
    3.0
    """
    size = _grid_size(coefficients.size, distance)
    weights = np.full(size // 2 + 1, 2.0 / size)
    weights[[0, -1]] = 1.0 / size
    power = np.abs(np.fft.rfft(coefficients, size)) ** 2
    return float(weights @ (power * spectrum(np.linspace(0.0, np.pi, weights.size))))


def graded_quadrature(distance: float) -> tuple[Vector, Vector]:
    """Nodes ω in (0, π) and weights w with Σ w_i f(ω_i) = (1/2π)∫_{−π}^{π} f dω for even f.

    Gauss–Legendre on panels that double in width away from both ends up to π/8, so that a few
    hundred nodes do where a uniform grid takes 1/distance.

    Args:
        distance: the distance from z = 1 and z = −1 of the singularities of f near the circle.

    >>> w, weights = graded_quadrature(1e-3)
    >>> mean = weights @ (1 / np.abs(1 - 0.999 * np.exp(1j * w)) ** 2)
    >>> bool(abs(mean * (1 - 0.999**2) - 1) < 1e-12)
    True
    """
    halvings = max(0, int(np.ceil(np.log2(_WIDEST_PANEL / distance))) + 1)
    small = _WIDEST_PANEL * 0.5 ** np.arange(halvings, -1, -1.0)
    middle = np.arange(2, 7) * _WIDEST_PANEL
    edges = np.concatenate([[0.0], small, middle, np.pi - small[::-1], [np.pi]])
    nodes, weights = np.polynomial.legendre.leggauss(_PANEL_NODES)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (nodes + 1)).ravel(), (half * weights).ravel() / np.pi


def _folded(log_power: Spectrum, size: int) -> Vector:
    cepstrum = np.fft.irfft(log_power(np.linspace(0.0, np.pi, size // 2 + 1)), size)
    cepstrum[0] = 0.0
    cepstrum[size // 2 :] = 0.0
    return np.fft.irfft(np.exp(np.fft.rfft(cepstrum)), size)


def _grid_size(rounds: int, distance: float) -> int:
    # The folded coefficients fall like e^{-N*distance}.
    size = fft_size(max(1024, 4 * rounds, int(28 / distance)))
    if size > _LARGEST_GRID:
        raise _too_fine(rounds, distance)
    return size


def _too_fine(rounds: int, distance: float) -> ValueError:
    return ValueError(
        "eta*lambda_min (learning rate times smallest curvature), or 2 - eta*lambda_max, must"
        f" leave a spectrum that {_LARGEST_GRID} frequencies resolve; got {distance:.3g} with"
        f" n={rounds}. 4e-6 is large enough."
    )


# The error of an eigenvalue settles after a few times 1/(ηλ) rounds; spectra are resolved down to
# ηλ = 4e-6.
_SETTLING_TIMES = 12.0
_SMALLEST_STEP = 1e-5


def quadratic_lti(rounds: int, eigenvalues: ArrayLike, learning_rate: float) -> InverseToeplitz:
    """The Toeplitz C of least asymptotic suboptimality on a quadratic with these curvatures.

    C⁻¹ = LTT(β). With D = 1 − e^{iω} and h(ω) = Σ_j λ_j / |D − ηλ_j|² that suboptimality is
    ½(ηζσ)² · γ²(B) · (1/2π)∫|B|² h dω, where γ²(B) = (1/2π)∫|B|⁻² dω is the squared sensitivity of
    a user who takes part once. By Cauchy–Schwarz it is least at |B|² ∝ h^{−1/2}, where it is
    ½(ηζσ)²·((1/2π)∫√h dω)².

    β does not depend on n: the coefficients for fewer rounds are the first ones.

    Args:
        rounds: n.
        eigenvalues: λ of the Hessian, shape (d,), positive, in any order; may repeat.
        learning_rate: η, 0 < η < 2/λ_max (gradient descent converges).

    Guarantees:
        One eigenvalue with ηλ ≤ 1 gives `nu_ftrl` with ν = ηλ. No Toeplitz C has a lower asymptotic
        suboptimality at equal sensitivity.

    Raises:
        ValueError: an eigenvalue or η is out of range, n < 1, or η·λ_min is below about 4e-6.

    References:
        Choquette-Choo, Dvijotham, Pillutla, Ganesh, Steinke & Thakurta (2024), arXiv:2310.06771,
        §2.1 (one eigenvalue) and eqs. (20), (21); the optimum for several follows in the same way.

    >>> quadratic_lti(3, [1.0], 0.5).noising_coefs.round(6)
    array([ 1.     , -0.25   , -0.03125])
    >>> quadratic_lti(3, [1.0, 0.1, 0.01], 0.5).noising_coefs.round(4)
    array([ 1.    , -0.309 , -0.0681])
    """
    curvatures, counts = _spectrum(eigenvalues, learning_rate)
    check_count(rounds, "n (rounds)")
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
        eigenvalues: the number of curvatures.

    Raises:
        ValueError: μ > L, or as `quadratic_lti`.
    """
    if smallest > largest:
        raise ValueError(
            f"mu (smallest curvature) must be at most smoothness={largest}; got {smallest}."
        )
    return quadratic_lti(rounds, np.geomspace(smallest, largest, eigenvalues), learning_rate)


def settling_curvature(rounds: int, learning_rate: float, largest: float) -> float:
    """The smallest curvature, at most the largest, for which the error settles within n rounds."""
    return min(max(_SETTLING_TIMES / rounds, _SMALLEST_STEP) / learning_rate, largest)


def quadratic_suboptimality(
    factorization: Factorization, eigenvalues: ArrayLike, learning_rate: float
) -> float:
    """The suboptimality E[F(θ_n) − F*] = ½ Σ_j λ_j Var(θ_n,j) of noise C⁻¹z on a quadratic.

    θ_{t+1} = θ_t − η(∇F(θ_t) + [C⁻¹z]_t) from the optimum, with z of unit variance: multiply by
    (ζ·σ·sens(C))² for a mechanism. Exact for every C; near its limit once n is several times
    1/(ηλ_min).

    Args:
        factorization: C.
        eigenvalues: λ of the Hessian, shape (d,), positive.
        learning_rate: η, 0 < η < 2/λ_max.

    Raises:
        ValueError: an eigenvalue or η is out of range.

    References:
        Choquette-Choo et al. (2024), arXiv:2310.06771, eq. (20), without the sampling noise of the
        gradients.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> quadratic_suboptimality(identity(200), [1.0], 0.5) - 0.5 * 0.5**2 / (0.5 * (2 - 0.5))
    0.0
    """
    curvatures, counts = _spectrum(eigenvalues, learning_rate)
    rounds = np.arange(factorization.rounds)
    variances = np.zeros(curvatures.size)
    for i, curvature in enumerate(curvatures):
        powers = (1.0 - learning_rate * curvature) ** rounds
        variances[i] = toeplitz_query_variances(factorization, powers)[-1]
    return float(0.5 * learning_rate**2 * (counts * curvatures) @ variances)


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


def _curvature(
    symbol: str, meaning: str, rule: Callable[[DesignRequest, Values], float]
) -> SearchedParameter:
    return SearchedParameter(Parameter(symbol, meaning, above=0.0), without_search(rule))


def _default_smoothness(request: DesignRequest, values: Values) -> float:
    """L = 1, or a larger μ that is given: a given curvature belongs to the spectrum."""
    return max(1.0, values.get("mu", 1.0))


def _default_rate(request: DesignRequest, values: Values) -> float:
    return 0.5 / values["smoothness"]


def _default_mu(request: DesignRequest, values: Values) -> float:
    return settling_curvature(request.rounds, values["eta"], values["smoothness"])


SEARCHED_SPECTRUM = (
    _curvature("smoothness", "largest curvature of the objective", _default_smoothness),
    _curvature("eta", "learning rate of gradient descent", _default_rate),
    _curvature("mu", "smallest curvature of the objective", _default_mu),
)
_EIGENVALUES = Parameter(
    "eigenvalues", "number of curvatures, in geometric steps", integer=True, highest=4096
)

register(
    MechanismFamily(
        "quadratic-lti",
        "the best Toeplitz C for the last iterate on a quadratic",
        lambda request, values: geometric_lti(
            request.rounds,
            values["mu"],
            values["smoothness"],
            values["eta"],
            values["eigenvalues"],
        ),
        (
            *SEARCHED_SPECTRUM,
            SearchedParameter(_EIGENVALUES, without_search(lambda request, values: 16)),
        ),
        max_rounds=1_000_000,
        max_rounds_compared=0,
    )
)
