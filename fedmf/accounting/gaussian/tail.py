"""log δ of the Gaussian mechanism, accurate in its tails."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.special import erfcx, log_ndtr

_ULP: Final = 2.0**-52
_LOG_SQRT_2PI: Final = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF: Final = math.sqrt(0.5)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def log_delta(mu: float, epsilon: float) -> float:
    """log δ, without the cancellation of Φ(a) against e^ε Φ(b).

    With φ(a) = e^ε φ(b) and Mills' ratio R(x) = Φ(−x)/φ(x), δ = Φ(a) − φ(a)·R(−b), and −b = −a + μ.
    """
    a = mu / 2 - epsilon / mu
    log_density = -0.5 * a * a - _LOG_SQRT_2PI
    if mu <= 1.0:
        # δ = φ(a)·∫₀^μ −R'(−a + s) ds: no difference of nearly equal numbers is left for small μ.
        integral = 0.5 * mu * float(_WEIGHTS @ mills_slope(-a + 0.5 * mu * (_NODES + 1.0)))
        return log_density + math.log(integral) if integral > 0 else -math.inf
    log_first = float(log_ndtr(a))
    log_mills = _log_mills(mu - a)
    log_ratio = log_density + log_mills - log_first
    if math.isnan(log_ratio) or log_first == -math.inf:
        return -math.inf
    return log_first + math.log1p(-math.exp(log_ratio)) if log_ratio < 0 else -math.inf


def log_delta_upper(mu: float, epsilon: float) -> float:
    """log δ plus a bound on its own rounding error, so that a search over it errs on the private side."""
    a = mu / 2 - epsilon / mu
    value = log_delta(mu, epsilon)
    if math.isinf(value):
        return value
    # −a²/2 carries |a| times the rounding of a, whose two terms are each correct to a few ulp (μ is itself
    # rounded); a difference of Mills' ratios costs another factor of |a|; log δ and the logarithm it is
    # compared with are rounded relative to their size.
    rounding = 16.0 + abs(a) * (mu + 2 * epsilon / mu + 4.0) + 2.0 * abs(value)
    return value + _ULP * rounding


def _log_mills(x: float) -> float:
    """log R(x) for x > 0."""
    ratio = float(erfcx(x * _SQRT_HALF))
    return math.log(ratio) + 0.5 * math.log(math.pi / 2) if ratio > 0 else -math.inf


def mills_slope(x: np.ndarray) -> np.ndarray:
    """−R'(x) = 1 − x·R(x) > 0, by its asymptotic series where the difference would cancel."""
    inverse_square = 1.0 / np.clip(x, 50.0, 1e150) ** 2
    series = np.ones_like(x)
    for odd in (9.0, 7.0, 5.0, 3.0):
        series = 1.0 - odd * inverse_square * series
    near = np.minimum(x, 50.0)
    direct = 1.0 - near * math.sqrt(math.pi / 2) * erfcx(near * _SQRT_HALF)
    return np.where(x > 50.0, inverse_square * series, direct)
