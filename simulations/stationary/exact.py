"""What Noisy-FTRL leaves on a least-squares problem with Gaussian inputs, exactly and at every
step.

θ_{t+1} = θ_t − η((x_t x_tᵀ)θ_t − ξ_t x_t + Σ_τ β_τ w_{t−τ}), errors counted from the optimum, x ~
N(0, H), E ξ² = s², w ~ N(0, σ²I). In the eigenbasis of H the second moments S = diag(s_j) obey

    s_j ← (1 − 2ηλ_j + 2η²λ_j²) s_j + η²λ_j (Σ_l λ_l s_l + s²) + η²σ² N_j(t),
    N_j(t) = Σ_{τ, k ≤ t} β_τ β_k (1 − ηλ_j)^{|τ−k|},

since E[xxᵀ S xxᵀ] = 2HSH + Tr(HS)H and inputs are independent of earlier ones (eq. (83) of
arXiv:2310.06771 with the Gaussian fourth moment written out). The limit is one linear equation for
Tr(HS).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmf.matrices.arrays import Matrix, Vector
from fedmf.mechanisms.lti import graded_quadrature

__all__ = ["ANTI_PGD", "DAMPED", "WHITE", "Filter", "Regression", "trajectory"]


@dataclass(frozen=True)
class Filter:
    """B(x) = (1 − (1−ν)x)^e: white noise for e = 0, ν-FTRL for e = ½, anti-PGD for e = 1.

    Args:
        exponent: e.
        damping: ν in [0, 1].
    """

    exponent: float
    damping: float = 1.0

    def power(self, omega: Vector) -> Vector:
        """|B(e^{iω})|²."""
        nu = self.damping
        return (nu**2 + 4.0 * (1.0 - nu) * np.sin(omega / 2) ** 2) ** self.exponent

    def coefficients(self, steps: int) -> Vector:
        """β_0 … β_{T−1}."""
        return self._series(steps, -self.exponent)

    def sensitivity_square(self, steps: int | None = None) -> float:
        """γ_T², or its limit γ_∞²."""
        if steps is not None:
            return float((self._series(steps, self.exponent) ** 2).sum())
        if self.exponent == 0.0:
            return 1.0
        omega, weights = graded_quadrature(self.damping)
        return float(weights @ (1.0 / self.power(omega)))

    def _series(self, steps: int, exponent: float) -> Vector:
        k = np.arange(1.0, steps)
        return np.concatenate([[1.0], np.cumprod((k - 1.0 + exponent) / k * (1.0 - self.damping))])


WHITE = Filter(0.0)


def DAMPED(nu: float) -> Filter:
    """ν-FTRL."""
    return Filter(0.5, nu)


def ANTI_PGD(nu: float) -> Filter:
    """Anti-PGD with damping ν."""
    return Filter(1.0, nu)


@dataclass(frozen=True)
class Regression:
    """Least squares with inputs N(0, H) and stochastic gradients of one example.

    Args:
        eigenvalues: λ of H, the largest first.
        learning_rate: η, with ηλ_j < 1 and ½Σ ηλ_j/(1−ηλ_j) < 1, else second moments diverge.
        residual: s² = E ξ².
        rho: ρ of zCDP, at clip norm 1.
    """

    eigenvalues: tuple[float, ...]
    learning_rate: float
    residual: float = 0.0
    rho: float = 1.0

    @staticmethod
    def decaying(
        dimension: int, power: float, learning_rate: float, residual: float = 0.0
    ) -> Regression:
        """λ_k = k^{−power}."""
        values = np.arange(1.0, dimension + 1) ** -power
        return Regression(tuple(values.tolist()), learning_rate, residual)

    @property
    def spectrum(self) -> Vector:
        """λ as a vector."""
        return np.array(self.eigenvalues)

    @property
    def slowest(self) -> float:
        """ημ, the ν of the theory."""
        return self.learning_rate * min(self.eigenvalues)

    @property
    def effective_dimension(self) -> float:
        """Tr H/‖H‖₂."""
        return sum(self.eigenvalues) / max(self.eigenvalues)

    def limit(self, noise: Filter, variance: float | None = None) -> float:
        """F_∞ = ½Tr(HS) for noise of this variance, by default that of ρ-zCDP with γ_∞."""
        if variance is None:
            variance = noise.sensitivity_square() / (2.0 * self.rho)
        omega, weights = graded_quadrature(min(noise.damping, self.slowest))
        return self._solved(variance * (self._gains(omega) @ (weights * noise.power(omega))))

    def best_limit(self) -> float:
        """The least F_∞ of any Toeplitz noise: |B|² ∝ h^{−1/2} by Cauchy–Schwarz, h over all
        directions.
        """
        omega, weights = graded_quadrature(self.slowest)
        damped = 1.0 - self.learning_rate * self.spectrum
        h = (self._gains(omega) / damped[:, None]).sum(axis=0)
        product = float(weights @ np.sqrt(h)) ** 2 / (2.0 * self.rho)
        # Only the sum of N_j/(1 − ηλ_j) enters: spread it evenly.
        return self._solved(product * damped / damped.size)

    def _gains(self, omega: Vector) -> Matrix:
        """(1 − a_j²)/|1 − a_j e^{iω}|² with a_j = 1 − ηλ_j, shape (d, nodes)."""
        step = self.learning_rate * self.spectrum[:, None]
        return step * (2.0 - step) / (step**2 + 4.0 * (1.0 - step) * np.sin(omega / 2) ** 2)

    def _solved(self, noise: Vector) -> float:
        """½q with q = Σ λ_j s_j, from s_j = (ηλ_j(q + s²) + ησ²N_j)/(2λ_j(1 − ηλ_j))."""
        step = self.learning_rate * self.spectrum
        own = float((step / (1.0 - step)).sum()) / 2.0
        if own >= 1.0:
            raise ValueError(
                f"eta (learning_rate) must keep second moments finite; got {self.learning_rate}."
            )
        from_noise = float((self.learning_rate * noise / (1.0 - step)).sum()) / 2.0
        return 0.5 * (own * self.residual + from_noise) / (1.0 - own)


def trajectory(
    eigenvalues: Vector,
    rates: Vector,
    filters: list[Filter],
    variances: Vector,
    start: Vector,
    keep: list[int],
    residual: float = 0.0,
) -> Matrix:
    """E[F(θ_t) − F*] at the steps to keep, shape (runs, steps); run r has its own η, filter and
    variance.

    Args:
        eigenvalues: λ, shape (d,).
        rates: η of each run.
        filters: of each run.
        variances: σ² of each run.
        start: squared coordinates of θ_0 in the eigenbasis, shape (d,).
        keep: increasing steps.
        residual: s².
    """
    last = keep[-1]
    beta = np.stack([f.coefficients(last) for f in filters])
    step = rates[:, None] * eigenvalues
    decay = 1.0 - step
    own = 1.0 - 2.0 * step + 2.0 * step**2
    mixing = rates[:, None] * step
    scale = (rates**2 * variances)[:, None]
    s = np.tile(start, (rates.size, 1))
    gain = np.zeros_like(s)
    memory = np.zeros_like(s)
    kept = []
    wanted = set(keep)
    for t in range(last):
        now = beta[:, t : t + 1]
        gain += now * (now + 2.0 * memory)
        memory = decay * (memory + now)
        s = own * s + mixing * ((s @ eigenvalues)[:, None] + residual) + scale * gain
        if t + 1 in wanted:
            kept.append(0.5 * (s @ eigenvalues))
    return np.array(kept).T
