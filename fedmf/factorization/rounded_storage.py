"""How far rounding the vectors that a stream keeps can lower its noise: a proved bound."""

from __future__ import annotations

import numpy as np

from fedmf.factorization.banded_covariance import inverse_row_norms
from fedmf.factorization.base import Recurrence, Vector
from fedmf.factorization.inverse import StreamingInverse
from fedmf.factorization.state_space import StateSpace

__all__ = ["rounding_loss"]

# A loss of more than this would rather be paid in memory.
_LARGEST_LOSS = 0.5


def rounding_loss(inverse: StreamingInverse, unit_roundoff: float) -> float:
    """η with sd(v·(z + e)) ≥ 1 − η for every unit v, where e is what rounding of kept vectors adds to z.

    What is released is C⁻¹(z + e) exactly. For a ring of outputs ŷ_t = y_t + ρ_t with |ρ_t| ≤ u|y_t|, hence
    |ρ_t| ≤ u'|ŷ_t| with u' = u/(1 − u), and e_t = ρ_t/f_t. By Minkowski's inequality sd(v·e) is at most

        η = (Σ_t E e_t²)^{1/2} ≤ u'(1 + η)·a,    a² = Σ_t ‖row t of ŷ's filter‖²/f_t²,

    because ŷ is that filter applied to z + e. For decaying sums e = −Σ_i ω_i T_i ρ_i with T_i the sum that
    belongs to θ_i, and |ρ_i| ≤ u'|Ŝ_i| in the same way. No assumption about the distribution or the
    independence of rounding errors is made.

    Args:
        inverse: a `Recurrence` with one feedforward coefficient, or a `StateSpace`.
        unit_roundoff: u, the relative error of rounding to nearest in the kept type.

    Returns:
        η; the noise scale is to be multiplied by 1/(1 − η), so that the covariance is not below the stated.

    Raises:
        ValueError: this form must be kept in float64, or η would exceed 1/2.

    >>> from fedmf.factorization import Toeplitz
    >>> rounding_loss(Toeplitz([1.0, 0.5], 100).recurrence(), 2.0**-24) < 1e-6
    True
    """
    u = unit_roundoff / (1.0 - unit_roundoff)
    match inverse:
        case Recurrence() if inverse.feedforward.shape[-1] == 1:
            first_order = u * _ring_sum(inverse)
        case StateSpace():
            first_order = _state_sum(inverse, u)
        case _:
            raise ValueError(
                f"buffer_dtype must be float64 for this form of C^-1; got a narrower one for "
                f"{type(inverse).__name__}."
            )
    # η ≤ (1 + η)·a.
    loss = first_order / (1.0 - first_order) if first_order < 1 else np.inf
    if not loss <= _LARGEST_LOSS:
        raise ValueError(
            f"buffer_dtype must keep the loss of noise below {_LARGEST_LOSS}; got a bound of {loss:.2g} over "
            f"n={inverse.rounds} rounds. Use a wider type."
        )
    return float(loss)


def _ring_sum(inverse: Recurrence) -> float:
    """(Σ_t ‖row t of M⁻¹‖²/f_t²)^{1/2} for M ŷ = z + e, that is M_tt = 1/f_t and M_{t,t−j} = g_tj/f_t."""
    n = inverse.rounds
    f = np.broadcast_to(inverse.feedforward.reshape(-1, 1)[:, 0], (n,))
    if inverse.feedforward.ndim == 1 and inverse.feedback.ndim == 1:
        norms = np.cumsum(_impulse(inverse) ** 2)
    else:
        r = min(inverse.memory_vectors, n - 1)
        band = np.zeros((n, r + 1))
        band[:, 0] = 1.0 / f
        g = np.broadcast_to(inverse.feedback, (n, inverse.memory_vectors))
        for lag in range(1, r + 1):
            band[: n - lag, lag] = g[lag:, lag - 1] / f[lag:]
        norms = inverse_row_norms(band)
    return float(np.sqrt(np.sum(norms / f**2)))


def _impulse(inverse: Recurrence) -> Vector:
    from scipy.signal import lfilter

    impulse = np.eye(1, inverse.rounds)[0]
    return np.asarray(lfilter(inverse.feedforward, np.append(1.0, inverse.feedback), impulse))


def _state_sum(inverse: StateSpace, u: float) -> float:
    """Σ_i |ω_i|·τ_i·u·A_i/(1 − u·τ_i), with τ_i ≥ ‖T_i‖₂ and A_i² = Σ_t E S_i(t)² for unit z."""
    from scipy.signal import lfilter

    period = inverse.rounds if inverse.period is None else min(inverse.period, inverse.rounds)
    repeats = -(-inverse.rounds // period)
    h = inverse.rows_scaled(1.0 / inverse.row_scale).apply(np.eye(1, inverse.rounds)[0])[:period]
    total = 0.0
    for theta, omega in zip(inverse.decays, inverse.output_weights, strict=True):
        response = np.asarray(lfilter([1.0], [1.0, -theta], h))
        size = float(np.sqrt(repeats * np.cumsum(response**2).sum()))
        reach = float((np.abs(theta) ** np.arange(period)).sum())
        if u * reach >= 1:
            return np.inf
        total += abs(omega) * reach * u * size / (1.0 - u * reach)
    return total
