"""The best of randomly many trials, and runs chosen in sight of others: docs/theory/composition.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedmf.accounting.composition.trials import DRAWING, NegativeBinomialTrials, Trials
from fedmf.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_epsilons, gaussian_sigma
from fedmf.typing import Vector

#: V at which the odometer is tightest: a constant, since it must be fixed before anything is released.
_USUAL: Final = 1.0
#: What remains is rounded down to so many levels of μ²: a million users have few different budgets.
_LEVELS: Final = 1000
#: ε of μ is rounded up where it is found, by less than this.
_DOWN: Final = 1e-9


def odometer_epsilon(mu: Vector, delta: float) -> Vector:
    """What was lost at most, whoever chose what in sight of what.

    ε(V) = V/2 + √((V + r)(ln((V + r)/r) + 2 ln(1/δ))). V = μ² is the sum of the squared shifts, in standard
    deviations of the noise, that a user could cause so far; r is a constant.

    Args:
        mu: √V, shape (users,).
        delta: δ in (0, 1).

    Guarantees:
        However each release was chosen in sight of earlier ones, the privacy loss of a user exceeds this
        function of the user's V at some time with probability at most δ.

    References:
        Robbins (1970), normal mixture; Whitehouse, Ramdas, Rogers, Wu (2023), "Fully Adaptive Composition in
        Differential Privacy", whose odometers are made so; docs/theory/composition.md has the proof.

    >>> odometer_epsilon(np.array([0.0, 1.0]), 1e-5).round(3)
    array([0.   , 5.728])
    """
    if not 0 < delta < 1:
        raise ValueError(f"δ (failure probability) must lie strictly between 0 and 1; got {delta!r}.")
    V, rate = np.asarray(mu, dtype=np.float64) ** 2, 2 * math.log(1 / delta)
    r = _USUAL / (rate + math.log1p(rate))
    bound = V / 2 + np.sqrt((V + r) * (np.log((V + r) / r) + rate))
    return np.where(V > 0, bound * (1 + 2.0**-40), 0.0)


def remaining_epsilons(mu: Vector, epsilon: float, delta: float) -> Vector:
    """What of a total budget is left to users who spent μ: ε' with μ(ε')² + μ² ≤ μ(ε)², rounded down.

    Whatever is released under ε' then, chosen in sight of everything before, keeps the whole
    (ε, δ)-private: a Gaussian filter.

    Args:
        mu: spent so far, shape (users,).
        epsilon: the total, fixed before anything was released.
        delta: δ in (0, 1).

    Raises:
        ValueError: somebody spent more than the total.

    References:
        Smith, Thakurta (2022), "Fully Adaptive Composition for Gaussian Differential Privacy";
        Koskela, Tobaben, Honkela (2023), "Individual Privacy Accounting with Gaussian Differential Privacy",
        for each user's own; docs/theory/composition.md has the proof.

    >>> remaining_epsilons(np.array([0.0, 0.5]), 8.0, 1e-5).round(2)
    array([8.  , 7.55])
    """
    total = 1 / gaussian_sigma(epsilon, delta)
    spent = np.asarray(mu, dtype=np.float64)
    if (most := float(spent.max(initial=0.0))) > total:
        worst = gaussian_epsilon(1 / most, delta)
        raise ValueError(
            f"ε (total) must be at least what was spent; got {epsilon!r}, and somebody has {worst!r} behind "
            "them already."
        )
    level = np.floor(_LEVELS * (1 - (spent / total) ** 2) * (1 - 2.0**-50))
    level[spent == 0] = _LEVELS
    levels, which = np.unique(level, return_inverse=True)
    left = total * np.sqrt(levels / _LEVELS)
    epsilons = np.maximum(0.0, gaussian_epsilons(left, delta) * (1 - _DOWN) - _DOWN)
    return epsilons[which]


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
