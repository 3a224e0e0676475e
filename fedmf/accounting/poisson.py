"""Poisson sampling of independent noise, and cyclic Poisson sampling of banded correlated noise.

One participation is the Gaussian mechanism with a sampled user; dp_accounting's privacy loss
distributions compose them. Rounded pessimistically, so δ and ε are upper bounds, and both sides of
the adjacency are covered.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.accounting.rounding import least_near

_TOLERANCE = 2e-7


def poisson_delta(noise_multiplier: float, probability: float, steps: int, epsilon: float) -> float:
    """δ(ε) of `steps` sampled Gaussian mechanisms, an upper bound.

    Args:
        noise_multiplier: σ > 0, per unit sensitivity of one step.
        probability: q in (0, 1], of taking part in one step.
        steps: T ≥ 1.
        epsilon: ε ≥ 0.

    Raises:
        ValueError: a value is out of range.

    References:
        Koskela, Jälkö, Honkela (2020); Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022),
        "Connect the Dots".

    >>> round(poisson_delta(1.0, 0.01, 100, 1.0), 9)
    6.67e-07
    """
    return float(_composed(noise_multiplier, probability, steps).get_delta_for_epsilon(epsilon))


@lru_cache(maxsize=64)
def poisson_noise_multiplier(epsilon: float, delta: float, probability: float, steps: int) -> float:
    """The smallest σ for (ε, δ), rounded up by a relative 2e-7 at most.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).
        probability: q in (0, 1].
        steps: T ≥ 1.

    Raises:
        ValueError: a value is out of range.
    """

    def excess(noise_multiplier: float, coarser: float) -> float:
        composed = _composed(noise_multiplier, probability, steps, coarser)
        return math.log(max(float(composed.get_delta_for_epsilon(epsilon)), 1e-300) / delta)

    # Without sampling T steps are one Gaussian release of sensitivity √T, which needs most noise.
    high = gaussian_sigma(epsilon, delta) * math.sqrt(steps) * (1.0 + _TOLERANCE)
    if probability == 1.0:
        return high
    # The same search on a coarse grid first: it brackets the root at a hundredth of the price.
    rough = least_near(lambda noise: excess(noise, 10.0), high, 0.5, 1e-2)
    return least_near(lambda noise: excess(noise, 1.0), rough, 0.01, _TOLERANCE)


def _composed(noise_multiplier: float, probability: float, steps: int, coarser: float = 1.0) -> Any:
    _check(noise_multiplier, probability, steps)
    from dp_accounting.pld import privacy_loss_distribution

    # The grid must resolve the loss of one step, about q/σ.
    interval = coarser * min(max(0.05 * probability / noise_multiplier, 1e-5), 1e-3)
    single = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=interval, sampling_prob=probability
    )
    return single.self_compose(steps)


def _check(noise_multiplier: float, probability: float, steps: int) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(
            f"sigma (noise_multiplier) must be positive and finite; got {noise_multiplier!r}."
        )
    if not 0 < probability <= 1:
        raise ValueError(f"q (sampling probability) must be in (0, 1]; got {probability!r}.")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"T (steps) must be an integer of at least 1; got {steps!r}.")
