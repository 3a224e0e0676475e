"""Amplified privacy of integer noise, from that of the ideal process.

Releases made of integers are as private as a composition of the ideal process τN + CΔ, (ε, δ) for
secret cohorts, with a Gaussian mechanism of sensitivity W (docs/theory/noise.md, "Amplified runs").
With δ₁ = δ_{W/τ}(ε₁) they are

    (ε + ε₁, max(e^{ε₁}·δ + δ₁, δ + e^ε·δ₁))           against the world without the user,
    (ε + 2ε₁, e^{ε₁}·δ + (1 + e^{ε + ε₁})·δ₁)          where cohorts are drawn in both worlds.
"""

from __future__ import annotations

import math
from typing import Final

from fedmf.accounting.gaussian import adjacency_factor, gaussian_epsilon

#: The part of δ that is left to W.
_SHARE: Final = 1e-6


def ideal_budget(epsilon: float, delta: float, adjacency: str, ratio: float) -> tuple[float, float]:
    """Return the (ε', δ') of the ideal process with which integer releases are (ε, δ)-private.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).
        adjacency: "zero-out" or "replace-one", where both worlds draw cohorts with the user.
        ratio: W/τ.

    Raises:
        ValueError: W is too large to leave anything.
    """
    if ratio == 0:
        return epsilon, delta
    delta_1 = delta * _SHARE * math.exp(-epsilon)
    epsilon_1 = gaussian_epsilon(1 / ratio, delta_1)
    ideal_epsilon = epsilon - adjacency_factor(adjacency) * epsilon_1
    if ideal_epsilon <= 0:
        raise ValueError(
            f"W/tau (rounding to integers) must leave something of epsilon = {epsilon:g}; "
            f"got {ratio:.3g}. Use fewer parameters or rounds, or no amplification."
        )
    ideal_delta = delta * (1 - 3 * _SHARE) / math.exp(epsilon_1)
    return ideal_epsilon, ideal_delta
