"""Privacy of releasing the best of randomly many trials; docs/theory/composition.md has the theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fedmf.accounting.composition.trials import DRAWING, NegativeBinomialTrials, Trials
from fedmf.accounting.gaussian import gaussian_delta, gaussian_epsilon

_PROFILE: Final = "privacy profile (docs/composition.md, theorem 4)"
_RENYI_NB: Final = "Rényi divergences (Papernot, Steinke 2022, Theorem 2)"
_RENYI_POISSON: Final = "Rényi divergences (Papernot, Steinke 2022, Theorem 6)"
#: Relative, of values that numerical searches return; every point of a search is a bound by itself.
_ROUNDING: Final = 1e-9
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class SelectionPrivacy:
    """What the best of randomly many trials costs.

    Attributes:
        epsilon: ε, an upper bound.
        delta: δ.
        theorem: that gives it.
    """

    epsilon: float
    delta: float
    theorem: str


def selection_epsilon(trials: Trials, mu: float, delta: float) -> SelectionPrivacy:
    """ε of releasing the best of K trials, each μ-GDP with its score, K and all others kept secret.

    Args:
        trials: law of K.
        mu: μ > 0 of one trial: of the largest candidate, where candidates are drawn at random.
        delta: δ in (0, 1).

    Raises:
        ValueError: μ or δ is out of range.

    Guarantees:
        The smallest of the bounds that are proved for this law, the error of drawing K included.

    >>> one = selection_epsilon(NegativeBinomialTrials(mean=10.0, shape=0.0), 0.5, 1e-5)
    >>> round(one.epsilon, 2), round(gaussian_epsilon(2.0, 1e-5), 2)
    (3.3, 1.99)
    """
    if not 0 < mu < math.inf:
        raise ValueError(f"μ (of one trial) must be positive and finite; got {mu!r}.")
    if not 0 < delta < 1:
        raise ValueError(f"δ (failure probability) must lie strictly between 0 and 1; got {delta!r}.")
    kept = delta * (1 - _ROUNDING)
    bounds = [_renyi(trials, mu, kept)]
    if isinstance(trials, NegativeBinomialTrials):
        bounds.append((_profile(trials, mu, kept), _PROFILE))
    epsilon, theorem = min(bounds)
    # What is drawn is not quite K, which adds (1 + e^ε)·DRAWING to δ.
    drawn = epsilon < 600 and DRAWING * (1 + math.exp(epsilon)) <= delta - kept
    return SelectionPrivacy(epsilon * (1 + _ROUNDING) if drawn else math.inf, delta, theorem)


def _profile(trials: NegativeBinomialTrials, mu: float, delta: float) -> float:
    """ε_Q(δ/E[K]) + (η + 1)·min over ε₁ of ln(e^ε₁ + (1 − γ)/γ·δ_Q(ε₁))."""
    sigma, odds = 1 / mu, (1 - trials.gamma) / trials.gamma

    def growth(first: float) -> float:
        profile = gaussian_delta(sigma, first) * (1 + _ROUNDING)
        return math.log(math.exp(first) + odds * profile)

    most = min(gaussian_epsilon(sigma, min(0.5, 1e-12 / odds)), 600.0)
    factor = (trials.shape + 1) * _minimum(growth, 0.0, most)
    return gaussian_epsilon(sigma, delta / trials.mean) + factor


def _renyi(trials: Trials, mu: float, delta: float) -> tuple[float, str]:
    """The smallest ε that the Rényi divergences of all orders give."""
    if isinstance(trials, NegativeBinomialTrials):
        theorem, divergence = _RENYI_NB, _repeated(trials, mu)
    else:
        theorem, divergence = _RENYI_POISSON, _repeated_poisson(trials.mean, mu)

    def epsilon(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        conversion = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        return divergence(order) + conversion

    return max(0.0, _minimum(epsilon, -8.0, 12.0)), theorem


def _repeated(trials: NegativeBinomialTrials, mu: float) -> Callable[[float], float]:
    """The divergence of each order, where that of one trial is order·μ²/2."""
    # min over λ̂ ≥ 1 of (λ̂ − 1)μ²/2 + ln(1/γ)/λ̂
    log_gamma, log_mean = -math.log(trials.gamma), math.log(trials.mean)
    other = max(1.0, math.sqrt(2 * log_gamma) / mu)
    extra = (1 + trials.shape) * ((other - 1) * mu**2 / 2 + log_gamma / other)
    return lambda order: order * mu**2 / 2 + extra + log_mean / (order - 1)


def _repeated_poisson(mean: float, mu: float) -> Callable[[float], float]:
    """The same for a Poisson number of trials; e^−mean is what no trial at all adds."""

    def divergence(order: float) -> float:
        shift = mean * gaussian_delta(1 / mu, math.log1p(1 / (order - 1))) * (1 + _ROUNDING)
        power = math.log(mean) + (order - 1) * (order * mu**2 / 2 + shift)
        return (max(power, -mean) + math.log1p(math.exp(-abs(power + mean)))) / (order - 1)

    return divergence


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """The smallest value found on a grid and by golden section around its best point."""
    points = [low + (high - low) * i / 64 for i in range(65)]
    values = [function(x) for x in points]
    best = min(range(65), key=values.__getitem__)
    a, b, found = points[max(0, best - 1)], points[min(64, best + 1)], values[best]
    for _ in range(60):
        x, y = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
        fx, fy = function(x), function(y)
        a, b = (a, y) if fx < fy else (x, b)
        found = min(found, fx, fy)
    return found
