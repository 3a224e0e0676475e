"""Exact conversion between ε, δ and the noise multiplier of the Gaussian mechanism.

Everything here is for one release f(D) + N(0, σ²I) of sensitivity 1. A correlated-noise run is such
a release: C·G has sensitivity sens(C) in units of the clip norm, and applying A·C⁻¹ to the noisy
C·G is post-processing.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from hashlib import sha256
from importlib.metadata import version
from typing import Final

import numpy as np

from fedmf.accounting.disk_cache import DiskCache, cache_directory
from fedmf.accounting.rounding import double_at_least, least_accepted

_ULP: Final = 2.0**-52
_LOG_SQRT_2PI: Final = 0.5 * math.log(2.0 * math.pi)
_LOG_SQRT_HALF_PI: Final = 0.5 * math.log(0.5 * math.pi)
_SQRT_HALF: Final = math.sqrt(0.5)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_FACTORS: Final = {"zero-out": 1, "replace-one": 2}
# The relative distance by which a noise multiplier is enlarged after the search. It dwarfs the
# rounding error of the search (about 1e-14) and stays far below the documented accuracy of 1e-10.
_SIGMA_NUDGE: Final = 4e-12
# Two independent accountants may differ by this much before a privacy statement is refused.
_AGREEMENT: Final = 1e-6
# Where ε approaches 0 it is ill-conditioned in δ, so a relative comparison alone would be
# meaningless.
_AGREEMENT_ABSOLUTE: Final = 1e-9
#: Beyond it dp_accounting's search leaves the range of floats.
_LARGEST_EPSILON: Final = 1e100


def log_delta(mu: float, epsilon: float) -> float:
    """log δ, without the cancellation of Φ(a) against e^ε Φ(b).

    With φ(a) = e^ε φ(b) and Mills' ratio R(x) = Φ(−x)/φ(x), δ = Φ(a) − φ(a)·R(−b), and −b = −a + μ.
    """
    # SciPy loads as much as all the rest of a comparison without a budget.
    from scipy.special import log_ndtr

    a = mu / 2 - epsilon / mu
    log_density = -0.5 * a * a - _LOG_SQRT_2PI
    if mu <= 1.0:
        # δ = φ(a)·∫₀^μ −R'(−a + s) ds: no difference of nearly equal numbers is left for small μ.
        integral = 0.5 * mu * float(_WEIGHTS @ mills_slope(-a + 0.5 * mu * (_NODES + 1.0)))
        if not integral > 0:
            return -math.inf
        return log_density + math.log(integral)
    log_first = float(log_ndtr(a))
    log_ratio = log_density + _log_mills(mu - a) - log_first
    if log_first == -math.inf or not log_ratio < 0:  # NaN included
        return -math.inf
    return log_first + math.log1p(-math.exp(log_ratio))


def log_delta_upper(mu: float, epsilon: float) -> float:
    """log δ plus a bound on its rounding error: a search over it errs on the private side."""
    value = log_delta(mu, epsilon)
    if math.isinf(value):
        return value
    # −a²/2 carries |a| times the rounding of a, whose two terms are each correct to a few ulp (μ is
    # itself rounded); a difference of Mills' ratios costs another factor of |a|; log δ and the
    # logarithm it is compared with are rounded relative to their size.
    a = mu / 2 - epsilon / mu
    return value + _ULP * (16.0 + abs(a) * (mu + 2 * epsilon / mu + 4.0) + 2.0 * abs(value))


def _log_mills(x: float) -> float:
    """log R(x) for x > 0."""
    from scipy.special import erfcx

    ratio = float(erfcx(x * _SQRT_HALF))
    if not ratio > 0:
        return -math.inf
    return math.log(ratio) + _LOG_SQRT_HALF_PI


def mills_slope(x: np.ndarray) -> np.ndarray:
    """−R'(x) = 1 − x·R(x) > 0, by its asymptotic series where the difference would cancel."""
    from scipy.special import erfcx

    inverse_square = 1.0 / np.clip(x, 50.0, 1e150) ** 2
    series = np.ones_like(x)
    for odd in (9.0, 7.0, 5.0, 3.0):
        series = 1.0 - odd * inverse_square * series
    near = np.minimum(x, 50.0)
    direct = 1.0 - near * math.sqrt(math.pi / 2) * erfcx(near * _SQRT_HALF)
    return np.where(x > 50.0, inverse_square * series, direct)


def adjacency_factor(adjacency: str) -> int:
    """The distance, in clip norms, by which one user can move the sum of one round.

    It is 1 for "zero-out" and 2 for "replace-one".

    Zero-out (add/remove of a user under a fixed denominator) replaces one user's updates by zeros,
    replace-one replaces them by any other clipped updates.

    Raises:
        ValueError: any other name.

    >>> adjacency_factor("zero-out"), adjacency_factor("replace-one")
    (1, 2)
    """
    try:
        return _FACTORS[adjacency]
    except (KeyError, TypeError):
        raise ValueError(
            "adjacency (neighboring relation) must be 'zero-out' or 'replace-one'; got"
            f" {adjacency!r}."
        ) from None


def gaussian_mu(sigma: float) -> float:
    """The GDP parameter μ = 1/σ of a sensitivity-1 Gaussian release, rounded up.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Theorem 1.

    >>> gaussian_mu(0.5)
    2.0
    """
    return double_at_least(1 / Fraction(_positive("σ (noise multiplier)", sigma)))


def gaussian_rho(sigma: float) -> float:
    """The zero-concentrated privacy ρ = 1/(2σ²) of a sensitivity-1 Gaussian release, rounded up.

    References:
        Bun, Steinke (2016), "Concentrated Differential Privacy", Proposition 6.

    >>> gaussian_rho(0.5)
    2.0
    """
    return double_at_least(1 / (2 * Fraction(_positive("σ (noise multiplier)", sigma)) ** 2))


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """The smallest δ for which noise σ gives (ε, δ) at sensitivity 1.

    δ = Φ(a) − e^ε Φ(b) with a = μ/2 − ε/μ, b = −μ/2 − ε/μ and μ = 1/σ.

    Args:
        sigma: σ > 0, noise standard deviation per unit sensitivity.
        epsilon: ε ≥ 0.

    Returns:
        δ in [0, 1); 0.0 if it is below the smallest positive float.

    Raises:
        ValueError: σ is not a positive finite number or ε is not a non-negative finite number.

    Guarantees:
        Relative error at most 1e-10 wherever δ ≥ 1e-15 and 1e-6 ≤ ε ≤ 1e3.

    References:
        Balle, Wang (2018), "Improving the Gaussian Mechanism", Theorem 8.

    >>> round(gaussian_delta(0.60023, 8.0), 8)
    1e-05
    """
    mu = gaussian_mu(sigma)
    epsilon = _finite("ε (epsilon)", epsilon)
    if epsilon < 0:
        raise ValueError(f"ε (epsilon) must be non-negative; got {epsilon!r}.")
    return math.exp(log_delta(mu, epsilon))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier σ for (ε, δ) at sensitivity 1.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).

    Returns:
        σ, rounded up; ``math.inf`` if it exceeds the largest float.

    Raises:
        ValueError: ε is not a positive finite number or δ is not inside (0, 1).

    Guarantees:
        σ is never too small: ``gaussian_epsilon(gaussian_sigma(epsilon, delta), delta) <=
        epsilon``, and the exact δ at (σ, ε) is at most the argument. σ exceeds the exact value by a
        relative 1e-10 at most (ε from 1e-6 to 1e3, δ from 1e-15 to 0.5).

    References:
        Balle, Wang (2018), "Improving the Gaussian Mechanism", Algorithm 1.

    >>> round(gaussian_sigma(8.0, 1e-5), 5)
    0.60023
    """
    epsilon = _positive("ε (epsilon)", epsilon)
    log_target = math.log(_probability("δ (delta)", delta))

    def private(sigma: float) -> bool:
        return log_delta_upper(1.0 / sigma, epsilon) <= log_target

    return least_accepted(private) * (1.0 + _SIGMA_NUDGE)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The smallest ε for which noise σ gives (ε, δ) at sensitivity 1.

    Args:
        sigma: σ > 0, noise standard deviation per unit sensitivity.
        delta: δ in (0, 1).

    Returns:
        ε, rounded up; 0.0 if the noise gives (0, δ), ``math.inf`` if ε exceeds the largest float.

    Raises:
        ValueError: σ is not a positive finite number or δ is not inside (0, 1).

    Guarantees:
        Not below the exact value, and above it by at most 1e-10·ε + 1e-13 (δ from 1e-15 to 0.5).
        The absolute part is needed near ε = 0, where ε depends on δ through a difference of nearly
        equal numbers.

    References:
        Balle, Wang (2018), "Improving the Gaussian Mechanism", Theorem 8.

    >>> round(gaussian_epsilon(0.60023, 1e-5), 3)
    8.0
    """
    mu = gaussian_mu(sigma)
    log_target = math.log(_probability("δ (delta)", delta))

    def private(epsilon: float) -> bool:
        return log_delta_upper(mu, epsilon) <= log_target

    if private(0.0):
        return 0.0
    return least_accepted(private)


def certified_epsilon(sigma: float, delta: float, requested: float | None = None) -> float:
    """ε from two independent accountants, for use in a privacy statement.

    Args:
        sigma: σ > 0, noise standard deviation per unit sensitivity.
        delta: δ in (0, 1).
        requested: the ε that σ was calibrated for, if any; searches end close to it.

    Returns:
        The larger of :func:`gaussian_epsilon` and the value of the ``dp_accounting`` library, or
        ``requested`` if that is smaller and its own δ, rounding errors added, is at most δ.

    Raises:
        ValueError: as :func:`gaussian_epsilon`.
        RuntimeError: the two differ by more than a relative 1e-6. Nothing may be stated then.

    >>> round(certified_epsilon(0.60023, 1e-5), 3)
    8.0
    """
    epsilon = gaussian_epsilon(sigma, delta)
    agreed = _agreed("ε", epsilon, _by_dp_accounting("get_epsilon_gaussian", sigma, delta))
    if requested is None or not requested < agreed:
        return agreed
    if log_delta_upper(gaussian_mu(sigma), requested) <= math.log(delta):
        return requested
    return agreed


def certified_sigma(epsilon: float, delta: float) -> float:
    """σ from two independent accountants, for use in a run that makes a privacy statement.

    Returns:
        The larger of :func:`gaussian_sigma` and the value of the ``dp_accounting`` library.

    Raises:
        ValueError: as :func:`gaussian_sigma`.
        RuntimeError: the two differ by more than a relative 1e-6.

    >>> round(certified_sigma(8.0, 1e-5), 5)
    0.60023
    """
    sigma = gaussian_sigma(epsilon, delta)
    if epsilon > _LARGEST_EPSILON:
        raise ValueError(
            f"ε (epsilon) must be at most {_LARGEST_EPSILON}; got {epsilon!r}. Such a budget"
            " gives no privacy."
        )
    return _agreed("σ", sigma, _by_dp_accounting("get_sigma_gaussian", epsilon, delta))


def _by_dp_accounting(function: str, *numbers: float) -> float:
    """The value of a function of the library, remembered on disk.

    The library takes most of a second to import. A stored number is compared like a computed one,
    so it can raise the reported value, never lower it.
    """
    root = cache_directory()
    if root is None:
        return _computed_by_dp_accounting(function, *numbers)
    files = DiskCache(root, "accountants", 64, 2**20)
    call = [function, version("dp-accounting"), *(float(number).hex() for number in numbers)]
    name = sha256(json.dumps(call).encode()).hexdigest()
    content = files.read(name)
    if content is not None:
        return float.fromhex(content.decode())
    value = _computed_by_dp_accounting(function, *numbers)
    files.write(name, value.hex().encode())
    return value


def _computed_by_dp_accounting(function: str, *numbers: float) -> float:
    import dp_accounting

    with np.errstate(divide="ignore"):  # log δ is −∞ for a σ that it tries at a very large ε
        return float(getattr(dp_accounting, function)(*numbers))


def _agreed(symbol: str, fedmf_value: float, other: float) -> float:
    """The larger of two values that must agree."""
    if not abs(fedmf_value - other) <= _AGREEMENT * abs(other) + _AGREEMENT_ABSOLUTE:
        raise RuntimeError(
            f"The two accountants disagree on {symbol}: fedmf computes {fedmf_value!r}, "
            f"dp_accounting {other!r}. No privacy statement can be made from either."
        )
    return max(fedmf_value, other)


def _finite(label: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{label} must be a number; got {value!r}.")
    if not math.isfinite(value):
        raise ValueError(f"{label} must be finite; got {value!r}.")
    return float(value)


def _positive(label: str, value: float) -> float:
    value = _finite(label, value)
    if value <= 0:
        raise ValueError(f"{label} must be positive; got {value!r}.")
    return value


def _probability(label: str, value: float) -> float:
    value = _finite(label, value)
    if not 0 < value < 1:
        raise ValueError(f"{label} must lie strictly between 0 and 1; got {value!r}.")
    return value
