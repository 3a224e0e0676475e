"""Between spectra and coefficients: minimum-phase factors and quadrature over frequencies.

A series B(z) = Σ_t β_t z^t is seen on the unit circle, z = e^{iω}; |B(ω)|² is the spectrum of the noise it
makes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmf.factorization.algebra.series import fft_size
from fedmf.typing import Vector

#: A function of frequencies ω in [0, π], shape (m,) to shape (m,), even in ω.
Spectrum = Callable[[Vector], Vector]

_LARGEST_GRID = 1 << 24
_TOLERANCE = 1e-12
_PANEL_NODES, _WIDEST_PANEL = 24, np.pi / 8


def minimum_phase(log_power: Spectrum, rounds: int, distance: float) -> Vector:
    """The causal β with β_0 = 1, |B(ω)|² ∝ exp(log_power(ω)) and 1/B causal as well.

    By the cepstrum: if log|B|² = Σ_m c_m e^{imω}, then log B = c_0/2 + Σ_{m>0} c_m z^m. A grid of N
    frequencies folds coefficients N apart onto each other; N is doubled until β no longer changes.

    Args:
        log_power: log|B|² up to a constant, finite on [0, π].
        rounds: n, how many coefficients.
        distance: about how far from the unit circle the nearest singularity of log|B|² lies; where to start.

    Returns:
        Shape (n,), float64, right to about 1e-12.

    Raises:
        ValueError: more than 2^24 frequencies would be needed.

    >>> minimum_phase(lambda w: np.log(1.25 - np.cos(w)), 3, 0.5).round(6) + 0.0
    array([ 1. , -0.5,  0. ])
    """
    size = _grid_size(rounds, distance)
    coefficients = _folded(log_power, size)[:rounds]
    while size < _LARGEST_GRID:
        size *= 2
        previous, coefficients = coefficients, _folded(log_power, size)[:rounds]
        if np.abs(coefficients - previous).max() <= _TOLERANCE:
            return coefficients
    raise _too_fine(rounds, distance)


def mean_power(coefficients: Vector, spectrum: Spectrum, distance: float) -> float:
    """(1/2π)∫_{−π}^{π} |B(ω)|² f(ω) dω for the polynomial B with these coefficients and an even f.

    The trapezoidal rule, whose error falls like e^{−N·distance}.

    Args:
        coefficients: β, shape (n,).
        spectrum: f.
        distance: how far from the unit circle f is analytic.

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

    Gauss–Legendre on panels that double in width away from both ends up to π/8, so that a few hundred nodes
    do where a uniform grid takes 1/distance.

    Args:
        distance: how far from z = 1 and z = −1 the singularities of f lie, where they are near the circle.

    >>> w, weights = graded_quadrature(1e-3)
    >>> bool(abs(weights @ (1 / np.abs(1 - 0.999 * np.exp(1j * w)) ** 2) * (1 - 0.999**2) - 1) < 1e-12)
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
    # What is folded falls like e^{-N*distance}.
    if (size := fft_size(max(1024, 4 * rounds, int(28 / distance)))) > _LARGEST_GRID:
        raise _too_fine(rounds, distance)
    return size


def _too_fine(rounds: int, distance: float) -> ValueError:
    return ValueError(
        f"eta*lambda_min (learning rate times smallest curvature), or 2 - eta*lambda_max, must leave a "
        f"spectrum that {_LARGEST_GRID} frequencies resolve; got {distance:.3g} with n={rounds}. "
        "4e-6 is large enough."
    )
