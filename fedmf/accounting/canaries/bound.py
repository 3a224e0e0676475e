"""From a number of coins guessed rightly to what a run leaks at least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

from fedmf.accounting.audit_bound import binomial_upper
from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.values import check_whole

#: With which lower bounds of statements hold.
CONFIDENCE: Final = 0.95
#: Relative; far above the errors of quantiles, and far below anything that matters.
_DOWNWARDS: Final = 1.0 - 1e-9


@dataclass(frozen=True)
class CanaryBound:
    """What canaries of one run show.

    Attributes:
        judged: m, canaries whose coins were guessed.
        guessed: N, how many of their coins were guessed rightly.
        mu: with the stated confidence the run's release is not of noise with μ' < mu; 0 says nothing.
        epsilon: ε(δ) of Gaussian noise of that μ, rounded down.
        confidence: of both.
    """

    judged: int
    guessed: int
    mu: float
    epsilon: float
    confidence: float


def canary_bound(guessed: int, judged: int, delta: float, confidence: float = CONFIDENCE) -> CanaryBound:
    """The largest μ that so many right guesses refute: N is stochastically at most Binomial(m, Φ(μ/2)).

    Args:
        guessed: N, coins guessed rightly.
        judged: m, coins guessed.
        delta: δ at which ε is stated.
        confidence: in (0, 1).

    Raises:
        ValueError: N above m, or a confidence outside (0, 1).

    Guarantees:
        If the noise of a run is Gaussian, independent of the coins, and its canaries are orthogonal, of at
        most μ, the bound is above μ with probability at most 1 − confidence (docs/canaries.md, Theorem 2).

    >>> found = canary_bound(guessed=90, judged=100, delta=1e-5)
    >>> round(found.mu, 3), round(found.epsilon, 2)
    (1.959, 9.74)
    >>> canary_bound(50, 100, 1e-5).epsilon
    0.0
    """
    check_whole("m (coins guessed)", judged, 0)
    check_whole("N (coins guessed rightly)", guessed, 0, judged)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence (of the bound) must lie strictly between 0 and 1; got {confidence!r}.")
    accuracy = 1.0 - binomial_upper(judged - guessed, judged, 1.0 - confidence)
    mu = 2.0 * float(ndtri(accuracy)) * _DOWNWARDS if accuracy > 0.5 else 0.0
    epsilon = gaussian_epsilon(1.0 / mu, delta) * _DOWNWARDS if mu > 0 else 0.0
    return CanaryBound(judged, guessed, mu, epsilon, confidence)


def canary_power(canaries: int, claimed: float, true: float, confidence: float = CONFIDENCE) -> float:
    """The probability that so many canaries refute a claimed μ where the true one is larger.

    No other users' updates are between: they make it smaller.

    >>> canary_power(150, 1.6, 2.4) > 0.9, canary_power(150, 1.6, 1.6) <= 0.05
    (True, True)
    """
    fewer = np.arange(canaries + 1)  # the claim is refuted by more right guesses than so many
    tails = bdtrc(fewer, canaries, ndtr(claimed / 2))
    return float(bdtrc(int(np.argmax(tails <= 1.0 - confidence)), canaries, ndtr(true / 2)))
