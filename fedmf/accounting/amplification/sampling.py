"""Which accountant goes with which sampling, and the noise that it asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedmf.accounting.amplification.bins import BallsInBinsPair
from fedmf.accounting.amplification.min_separated import MinSeparatedPair
from fedmf.accounting.amplification.monte_carlo import MixturePair
from fedmf.accounting.amplification.noise_level import amplified_noise, approximate_noise
from fedmf.accounting.amplification.poisson import poisson_noise_multiplier
from fedmf.accounting.gaussian import adjacency_factor
from fedmf.mechanisms.matrix import Factorization
from fedmf.participation import Participation

_SEARCH_DRAWS = 1536

Sampling = Literal["none", "cyclic-poisson", "balls-in-bins", "b-min-sep"]


@dataclass(frozen=True)
class AmplifiedNoise:
    """The noise for a mechanism, a budget and a sampling.

    Args:
        noise_std: standard deviation of each entry of z per unit clip norm.
        standard_error: of noise_std; 0 where the accountant is not a Monte Carlo one.
        sensitivity: the most that one user moves C·G by, per unit clip norm: in one participation for cyclic
            Poisson (the largest column norm), in all of them otherwise.
    """

    noise_std: float
    standard_error: float
    sensitivity: float

    @property
    def noise_multiplier(self) -> float:
        """σ = noise_std/sensitivity."""
        return self.noise_std / self.sensitivity


def check_sampling(sampling: str) -> None:
    """Refuse an unknown sampling.

    Raises:
        ValueError: as above.
    """
    if sampling not in get_args(Sampling):
        raise ValueError(
            f"sampling (assumption) must be one of {', '.join(get_args(Sampling))}; got {sampling!r}."
        )


def zero_out_budget(adjacency: str, epsilon: float, delta: float) -> tuple[float, float]:
    """(ε', δ') under zero-out that gives (ε, δ) under this adjacency.

    A user who is replaced is taken away and another one added: P ≤ e^{ε/2} Q + δ' and Q ≤ e^{ε/2} P' + δ'
    give P ≤ e^ε P' + (1 + e^{ε/2}) δ'. Hence (ε/2, δ/(1 + e^{ε/2})) for replace-one.

    Raises:
        ValueError: an unknown adjacency.

    >>> zero_out_budget("replace-one", 2.0, 1e-5)
    (1.0, 2.689...e-06)
    """
    if adjacency_factor(adjacency) == 1:
        return epsilon, delta
    return epsilon / 2, delta / (1.0 + math.exp(epsilon / 2))


def cyclic_poisson_terms(factorization: Factorization, participation: Participation) -> tuple[float, int]:
    """(q, T) of cyclic Poisson sampling with the period p, the number of bands: q = p·k/n, T = ⌈n/p⌉.

    k is the expected number of a user's participations here.

    Raises:
        ValueError: p·k > n, so that the groups would have to take part more often than their turns come.
    """
    n, k, p = participation.rounds, participation.max_participations, factorization.bands
    if p * k > n:
        raise ValueError(
            f"p (bands) must be at most n/k={n / k:g} for cyclic Poisson sampling; got {p}. "
            "Its accountant covers banded strategies only."
        )
    return p * k / n, -(-n // p)


def monte_carlo_pair(
    sampling: Sampling, factorization: Factorization, participation: Participation
) -> MixturePair:
    """The dominating pair of Balls-in-Bins or b-min-sep sampling.

    Raises:
        ValueError: the accountant does not cover the mechanism.
    """
    if sampling == "balls-in-bins":
        return BallsInBinsPair.of(factorization, participation)
    return MinSeparatedPair.of(factorization, participation)


def amplified_noise_of(
    sampling: Sampling,
    factorization: Factorization,
    participation: Participation,
    epsilon: float,
    delta: float,
    relative_error: float = 0.02,
    max_samples: int = 2**18,
) -> AmplifiedNoise:
    """The noise that gives (ε, δ) under zero-out adjacency when users come to rounds by this sampling.

    Args:
        sampling: "cyclic-poisson", "balls-in-bins" or "b-min-sep".
        factorization: C.
        participation: (n, k, b). Balls-in-Bins has b bins; the others k expected participations.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        relative_error: standard error of δ relative to δ, where it is estimated.
        max_samples: per side, where it is estimated.

    Raises:
        ValueError: the accountant does not cover the mechanism, or a value is out of range.
    """
    if sampling == "cyclic-poisson":
        q, steps = cyclic_poisson_terms(factorization, participation)
        longest = math.sqrt(float(np.max(factorization.gram_diagonal(0))))
        return AmplifiedNoise(longest * poisson_noise_multiplier(epsilon, delta, q, steps), 0.0, longest)
    pair = monte_carlo_pair(sampling, factorization, participation)
    calibrated = amplified_noise(pair, epsilon, delta, relative_error, max_samples)
    return AmplifiedNoise(calibrated.value, calibrated.standard_error, pair.largest_norm)


def approximate_noise_of(
    sampling: Sampling,
    factorization: Factorization,
    participation: Participation,
    epsilon: float,
    delta: float,
    similar: AmplifiedNoise | None = None,
    enough: float = math.inf,
) -> AmplifiedNoise:
    """As `amplified_noise_of` from few draws, for searches; they are never those of its final estimate.

    Similar strategies get the same draws, so much of the error is common to all that are compared.

    Args:
        sampling: "cyclic-poisson", "balls-in-bins" or "b-min-sep".
        factorization: C.
        participation: (n, k, b).
        epsilon: ε > 0.
        delta: δ in (0, 1).
        similar: the noise of a similar strategy, from whose multiplier the search begins.
        enough: noise that is too large to matter: where a bound without draws lies above, it is returned.

    Raises:
        ValueError: as `amplified_noise_of`.
    """
    if sampling == "cyclic-poisson":
        return amplified_noise_of(sampling, factorization, participation, epsilon, delta)
    pair = monte_carlo_pair(sampling, factorization, participation)
    norm = pair.largest_norm
    if enough < math.inf and (least := pair.least_noise(epsilon, delta)) > enough:
        return AmplifiedNoise(least, 0.0, norm)
    start = None if similar is None else similar.noise_multiplier * norm
    return AmplifiedNoise(approximate_noise(pair, epsilon, delta, _SEARCH_DRAWS, start=start), 0.0, norm)
