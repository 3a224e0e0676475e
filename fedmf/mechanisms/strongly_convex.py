"""Toeplitz noise for strongly convex functions: Theorem 3.1 of ν-DP-FTRL.

The functions need not be quadratic, and the error is a proven bound rather than exact.
`strongly_convex_lti` chooses C for the least bound; `strongly_convex_bound` computes the bound of
any Toeplitz C. Derivation:

F is μ-strongly convex and L-smooth with its optimum at 0, and θ_{t+1} = θ_t − η(∇F(θ_t) + ζ_t) is
stationary, ζ with spectrum S. Let u = ∇F(θ) − μθ and v = Lθ − ∇F(θ). Then u_t is a subgradient of
one convex function at v_t, so that E⟨u_t, v_t − v_{t−k}⟩ ≥ 0 for every k and E⟨u_t, v_t⟩ ≥ 0. Their
sum with weights λ_k ≥ 0, k ≠ 0, and λ_0 ≥ Σ_{k≠0} λ_k is a quadratic constraint at each frequency
with the multiplier Λ(ω) = λ_0 − Σ_{k≠0} λ_k e^{ikω}. With m = ημ, ℓ = ηL, D = 1 − e^{iω} and ηG =
DΘ − ηZ it becomes, after the 2×2 condition of the theorem is solved for its corner,

    E‖θ‖² ≤ η²·(1/2π)∫ ψ S dω,   ψ = ((ℓ − m)²|Λ|² + 2 Re Λ) / (2 Re[Λ (D* − m)(D − ℓ)] − 1)

wherever the denominator is positive; and E[F(θ) − F*] ≤ ½L·E‖θ‖². ψ is convex in λ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.series import check_count, reciprocal
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.mechanisms.design_cache import disk_cached, single_threaded
from fedmf.mechanisms.lti import SEARCHED_SPECTRUM, graded_quadrature, mean_power, minimum_phase
from fedmf.mechanisms.registry import (
    DesignRequest,
    MechanismFamily,
    Parameter,
    SearchedParameter,
    Values,
    register,
    without_search,
)

_ALTERNATIONS = 100
_MOST_LAGS = 32
# Where mu = L the best multiplier is infinite; this one is within 1e-9 of it.
_LARGEST_SCALE = 1e9


@dataclass(frozen=True)
class Multipliers:
    """A choice of multipliers, which proves a bound ψ for every function with these μ and L.

    Args:
        contraction: (m, ℓ) = (ημ, ηL), 0 < m ≤ ℓ < 2.
        values: λ_0, λ_1 … λ_K, λ_{−1} … λ_{−K}; λ_0 ≥ Σ of the others, which are ≥ 0.

    >>> Multipliers((0.5, 0.5), (1e9,)).bound(np.array([0.0, np.pi])).round(6)  # 1/|D - m|²
    array([4.      , 0.444444])
    """

    contraction: tuple[float, float]
    values: tuple[float, ...]

    def bound(self, omega: Vector) -> Vector:
        """The bound ψ(ω) > 0, shape of ω; infinite where nothing is proved."""
        multiplier = np.full(omega.shape, self.values[0], dtype=np.complex128)
        lags = len(self.values) // 2
        circle = np.exp(1j * omega)
        power = np.ones_like(circle)
        for later, earlier in zip(self.values[1 : 1 + lags], self.values[1 + lags :], strict=True):
            power *= circle
            multiplier -= later * power + earlier * power.conj()
        denominator = 2.0 * (multiplier * _plant(self.contraction, omega)).real - 1.0
        return _bound(self.contraction, multiplier, denominator)


def strongly_convex_lti(
    rounds: int,
    strong_convexity: float,
    smoothness: float,
    learning_rate: float,
    lags: int = 8,
    gradient_noise: float = 0.0,
) -> InverseToeplitz:
    """The Toeplitz C with the lowest bound for all functions with these μ and L, C⁻¹ = LTT(β).

    Alternates |B|² ∝ ψ^{−1/2}, the best B for a bound ψ, and the convex program for ψ given B,
    until the bound falls by less than 1e-9 of itself. Neither half can raise it; the end is a local
    optimum of the two. Without lags (K = 0) the optimum is a `nu_ftrl`, with ν from μ, L and η.

    Args:
        rounds: n.
        strong_convexity: μ > 0.
        smoothness: L ≥ μ.
        learning_rate: η, 0 < η < 2/L.
        lags: K, 0 to 32, multipliers on each side; more give a tighter bound, the gain falls with
            K.
        gradient_noise: s ≥ 0, variance per coordinate of the stochastic gradients, relative to z,
            and C is scaled to sensitivity 1.

    Guarantees:
        β does not depend on n: the coefficients for fewer rounds are the first ones.

    Raises:
        ValueError: an argument is out of range, or ημ or 2 − ηL is below about 4e-6.

    References:
        Choquette-Choo et al. (2024), arXiv:2310.06771, Theorem 3.1 and Appendix E, with the sign of
        the multipliers corrected (see the errata).

    >>> strongly_convex_lti(4, 0.1, 1.0, 0.5).noising_coefs.round(2)
    array([ 1.  , -0.45, -0.1 , -0.04])
    """
    contraction = _contraction(strong_convexity, smoothness, learning_rate, lags, gradient_noise)
    check_count(rounds, "n (rounds)")
    multipliers = _alternate(contraction, lags, gradient_noise)

    def log_power(omega: Vector) -> Vector:
        return -0.5 * np.log(multipliers.bound(omega))

    distance = min(contraction[0], 2.0 - contraction[1])
    return InverseToeplitz(minimum_phase(log_power, rounds, distance), rounds)


def strongly_convex_bound(
    factorization: Factorization,
    strong_convexity: float,
    smoothness: float,
    learning_rate: float,
    lags: int = 8,
    gradient_noise: float = 0.0,
) -> float:
    """An upper bound on E[F(θ) − F*] per dimension, for every F with these μ and L.

    It is ½Lη²·(1/2π)∫ ψ(|B|² + s) dω under Toeplitz noise C⁻¹z, at multipliers chosen for C, with z
    of unit variance: multiply by d·(ζ·σ·sens(C))² for a mechanism. It holds for the average over
    many rounds. B is the polynomial of the n coefficients of C⁻¹.

    Args:
        factorization: C, Toeplitz.
        strong_convexity: μ > 0.
        smoothness: L ≥ μ.
        learning_rate: η, 0 < η < 2/L.
        lags: K, 0 to 32, multipliers on each side; more tighten the bound.
        gradient_noise: s ≥ 0, variance per coordinate of the stochastic gradients, relative to z.

    Raises:
        ValueError: C is not Toeplitz, or an argument is out of range, or ημ or 2 − ηL is below
            about 4e-6.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> round(strongly_convex_bound(identity(1), 1.0, 1.0, 0.5), 6)  # exact where mu = L
    0.166667
    """
    contraction = _contraction(strong_convexity, smoothness, learning_rate, lags, gradient_noise)
    column = factorization.toeplitz_column()
    if column is None:
        raise ValueError(
            "C (factorization) must be Toeplitz; got one with columns that are not shifts."
        )
    coefficients = reciprocal(column, column.size)
    distance = min(contraction[0], 2.0 - contraction[1])
    multipliers = _best_for(contraction, lags, coefficients, gradient_noise)
    integral = mean_power(coefficients, multipliers.bound, distance)
    if gradient_noise:
        integral += gradient_noise * mean_power(np.ones(1), multipliers.bound, distance)
    return 0.5 * smoothness * learning_rate**2 * integral


@dataclass(frozen=True, eq=False)
class _Program:
    """The convex program over multipliers: minimize Σ_i w_i S_i ψ_i for a spectrum S.

    λ_k = e^{x_0}·x_k with x_k ≥ 0, and λ_0 = e^{x_0}(1 + Σ x_k), at most 1e9 times what any bound
    needs. Λ and the denominator of ψ are linear maps of λ.

    Args:
        contraction: (m, ℓ).
        weights: w, quadrature weights of the frequencies, shape (m,).
        multiplier: the map from λ to Λ, shape (m, 2K + 1).
        denominator: the map from λ to the denominator plus 1, shape (m, 2K + 1).
    """

    contraction: tuple[float, float]
    weights: Vector
    multiplier: NDArray[np.complex128]
    denominator: NDArray[np.float64]

    @classmethod
    def of(cls, contraction: tuple[float, float], lags: int) -> _Program:
        omega, weights = graded_quadrature(min(contraction[0], 2.0 - contraction[1]))
        shifts = np.concatenate([np.arange(lags + 1), -np.arange(1, lags + 1)])
        signs = np.where(shifts == 0, 1.0, -1.0)
        multiplier = signs * np.exp(1j * np.outer(omega, shifts))
        denominator = 2.0 * (multiplier * _plant(contraction, omega)[:, None]).real
        return cls(contraction, weights, multiplier, denominator)

    def psi(self, values: Vector) -> Vector:
        return _bound(self.contraction, self.multiplier @ values, self.denominator @ values - 1.0)

    def start(self) -> Vector:
        """Strictly feasible λ: λ_0 with small equal λ_k, so that the denominator is at least 1."""
        size = self.denominator.shape[1]
        values = np.full(size, 0.01 / size)
        values[0] = 1.0
        while not (self.denominator @ values > 0).all():
            values[1:] *= 0.1
        return values * 2.0 / (self.denominator @ values).min()

    def minimized(self, spectrum: Vector, start: Vector) -> Vector:
        """The best λ for a spectrum, shape (2K + 1,)."""
        import torch

        from fedmf.mechanisms.optimize import optimize

        weights = torch.tensor(self.weights * spectrum)
        denominator = torch.tensor(self.denominator)
        real = torch.tensor(self.multiplier.real.copy())
        imaginary = torch.tensor(self.multiplier.imag.copy())
        spread = (self.contraction[1] - self.contraction[0]) ** 2

        def loss(x: Any) -> Any:
            values = torch.exp(x[0]) * torch.cat([1.0 + x[1:].sum()[None], x[1:]])
            left = denominator @ values - 1.0
            along = real @ values
            if not bool((left > 0).all()):
                return torch.tensor(float("inf"), dtype=torch.float64)
            size = along**2 + (imaginary @ values) ** 2
            return torch.log((weights * (spread * size + 2.0 * along) / left).sum())

        shifts = start.size - 1
        largest = _LARGEST_SCALE / self.denominator[:, 0].min()
        scale = max(start[0] - start[1:].sum(), 1e-9 * start[0])
        x = optimize(
            loss,
            np.append(np.log(scale), start[1:] / scale),
            np.append(-np.inf, np.zeros(shifts)),
            np.append(np.log(largest), np.full(shifts, np.inf)),
        )
        return np.exp(x[0]) * np.append(1.0 + x[1:].sum(), x[1:])


@single_threaded
def _best_for(
    contraction: tuple[float, float], lags: int, coefficients: Vector, gradient_noise: float
) -> Multipliers:
    """Multipliers for a given C⁻¹."""
    program = _Program.of(contraction, lags)
    omega, _ = graded_quadrature(min(contraction[0], 2.0 - contraction[1]))
    powers = np.exp(1j * np.outer(omega, np.arange(coefficients.size)))
    spectrum = np.abs(powers @ coefficients) ** 2 + gradient_noise
    values = program.minimized(spectrum, program.start())
    return Multipliers(contraction, tuple(values.tolist()))


def _alternate(contraction: tuple[float, float], lags: int, gradient_noise: float) -> Multipliers:
    """Multipliers for the best C⁻¹, by turns of the best spectrum and the best multipliers."""
    program = _Program.of(contraction, lags)
    values = program.start()
    previous = math.inf
    for _ in range(_ALTERNATIONS):
        psi = program.psi(values)
        mean = program.weights @ np.sqrt(psi)
        bound = mean**2 + gradient_noise * (program.weights @ psi)
        if bound > previous * (1.0 - 1e-9):
            break
        previous = bound
        values = program.minimized(mean / np.sqrt(psi) + gradient_noise, values)
    return Multipliers(contraction, tuple(values.tolist()))


def _bound(
    contraction: tuple[float, float], multiplier: NDArray[np.complex128], left: Vector
) -> Vector:
    """The bound ψ, infinite where the denominator ``left`` is not positive."""
    spread = (contraction[1] - contraction[0]) ** 2
    numerator = spread * np.abs(multiplier) ** 2 + 2.0 * multiplier.real
    return np.divide(numerator, left, out=np.full(left.shape, np.inf), where=left > 0)


def _plant(contraction: tuple[float, float], omega: Vector) -> NDArray[np.complex128]:
    """The factor (D* − m)(D − ℓ) of Λ in the denominator."""
    difference = -2j * np.sin(omega / 2) * np.exp(0.5j * omega)
    return (difference.conj() - contraction[0]) * (difference - contraction[1])


def _contraction(
    strong_convexity: float,
    smoothness: float,
    learning_rate: float,
    lags: int,
    gradient_noise: float,
) -> tuple[float, float]:
    """The pair (ημ, ηL), with all arguments checked."""
    if isinstance(lags, bool) or not isinstance(lags, int) or not 0 <= lags <= _MOST_LAGS:
        raise ValueError(f"K (lags) must be an integer between 0 and {_MOST_LAGS}; got {lags!r}.")
    if not 0 <= gradient_noise < math.inf:
        raise ValueError(f"s (gradient_noise) must be finite and at least 0; got {gradient_noise}.")
    if not 0 < strong_convexity < math.inf:
        raise ValueError(
            f"mu (strong_convexity) must be positive and finite; got {strong_convexity}."
        )
    if not strong_convexity <= smoothness < math.inf:
        raise ValueError(
            f"L (smoothness) must be finite and at least mu={strong_convexity}; got {smoothness}."
        )
    if not 0 < learning_rate < 2.0 / smoothness:
        raise ValueError(
            f"eta (learning_rate) must be between 0 and 2/L={2.0 / smoothness:.6g}, both excluded; "
            f"got {learning_rate}."
        )
    return learning_rate * strong_convexity, learning_rate * smoothness


_strongly_convex = disk_cached(strongly_convex_lti, version=2)

_LAGS = Parameter("lags", "multipliers on each side", integer=True, lowest=0, highest=32)
_VARIANCE = Parameter("variance", "of the stochastic gradients, where that of the noise is 1")


def _from_request(request: DesignRequest, values: Values) -> Factorization:
    return _strongly_convex(
        request.rounds,
        values["mu"],
        values["smoothness"],
        values["eta"],
        values["lags"],
        values["variance"],
    )


register(
    MechanismFamily(
        "strongly-convex-lti",
        "the Toeplitz C with the least bound for the last iterate on strongly convex functions",
        _from_request,
        (
            *SEARCHED_SPECTRUM,
            SearchedParameter(_LAGS, without_search(lambda request, values: 8)),
            SearchedParameter(_VARIANCE, without_search(lambda request, values: 0)),
        ),
        max_rounds=1_000_000,
        max_rounds_compared=0,
        optimized=True,
    )
)
