"""A limit on δ of Q against P from the bulk of a convex privacy loss, by Ehrhard's inequality."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri

from fedmf.typing import Vector

_PILOT = 0.1
_LOW, _HIGH = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1), (0.3, 0.5, 0.7, 0.9)
_ROUNDING = 1e-9


def convex_add_limit(losses: Vector, epsilon: float, failure: float) -> float:
    """A number that is below E(1 − e^{ε+L})₊ with probability at most `failure`, for a convex L.

    For a convex function L of standard normals, H(x) = Φ⁻¹(P(L ≤ x)) is concave (Ehrhard's inequality). So
    the line through (x₁, h₁) and (x₂, h₂) with h₁ ≥ H(x₁), h₂ ≤ H(x₂) lies above H on x ≤ x₁, and
    E(1 − e^{ε+L})₊ = ∫_{x ≤ −ε} e^{ε+x} P(L ≤ x) dx is at most that of a normal L whose distribution function
    is this line's. x₁ and x₂ are quantiles of the first tenth of the draws, h₁ and h₂ come from limits of
    Clopper and Pearson for the others, with half of the failure probability each.

    Args:
        losses: L at independent standard normals, shape (N,), N ≥ 200.
        epsilon: ε ≥ 0.
        failure: β in (0, 1).

    Raises:
        ValueError: fewer than 200 draws, or β outside (0, 1).

    References:
        Ehrhard (1983), "Symétrisation dans l'espace de Gauss". Borell (2003), "The Ehrhard inequality".

    >>> losses = 0.1 * np.random.default_rng(0).standard_normal(20_000) - 0.005
    >>> 4.44e-5 < convex_add_limit(losses, 0.3, 1e-6) < 1e-4  # it is 4.435e-5
    True
    """
    if losses.size < 200:
        raise ValueError(f"losses (draws) must be at least 200; got {losses.size}.")
    if not 0 < failure < 1:
        raise ValueError(f"beta (failure probability) must lie strictly between 0 and 1; got {failure!r}.")
    pilot, rest = np.split(losses, [max(100, int(_PILOT * losses.size))])
    candidates = [
        (max(float(np.quantile(pilot, low)), -epsilon), float(np.quantile(pilot, high)))
        for low in _LOW
        for high in _HIGH
    ]
    # What the limits would be if the others were distributed as the pilot is; none of it is used below.
    shares = [[float((pilot <= x).mean()) for x in pair] for pair in candidates]
    hoped = [
        _by_line(pair, (share[0] * rest.size, share[1] * rest.size), rest.size, epsilon, failure)
        for pair, share in zip(candidates, shares, strict=True)
    ]
    chosen = candidates[int(np.argmin(hoped))]
    counts = (float((rest <= chosen[0]).sum()), float((rest <= chosen[1]).sum()))
    return _by_line(chosen, counts, rest.size, epsilon, failure)


def _by_line(
    points: tuple[float, float], counts: tuple[float, float], size: int, epsilon: float, failure: float
) -> float:
    """The bound from how many of the draws were at most x₁ and at most x₂."""
    (low, high), (few, many) = points, counts
    if not (low < high and few < size and many > 0):
        return 1.0
    above = float(ndtri(betaincinv(few + 1.0, size - few, 1.0 - failure / 2)))
    below = float(ndtri(betaincinv(many, size - many + 1.0, failure / 2)))
    slope = (below - above) / (high - low)
    if slope <= 0.0:
        return 1.0
    return _normal_add(low - above / slope, 1.0 / slope, epsilon)


def _normal_add(mean: float, spread: float, epsilon: float) -> float:
    """E(1 − e^{ε+L})₊ for a normal L, rounded up."""
    z = -(epsilon + mean) / spread
    tilted = math.exp(min(epsilon + mean + spread**2 / 2, 700.0)) * float(ndtr(z - spread))
    # The difference of nearly equal numbers, with an error relative to them.
    return min(max(float(ndtr(z)) - tilted, 0.0) + _ROUNDING * float(ndtr(z)), 1.0)
