"""The noise that a design needs where cohorts are sampled: a central estimate, for comparisons.

The noise of a run is never taken from here; `fedmf.accounting.sampling` certifies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from fedmf.accounting.noise_level import amplified_noise, root_of_both
from fedmf.accounting.poisson import poisson_noise_multiplier
from fedmf.accounting.sampling import CohortLaw
from fedmf.matrices.factorization import Factorization
from fedmf.participation import Participation

Sampling = Literal["none", "cyclic-poisson", "balls-in-bins", "b-min-sep"]
_SEARCH_DRAWS: Final = 1536


def check_sampling(sampling: str) -> None:
    """Refuse an unknown sampling.

    Raises:
        ValueError: as above.
    """
    if sampling not in get_args(Sampling):
        raise ValueError(
            f"sampling (assumption) must be one of {', '.join(get_args(Sampling))}; got"
            f" {sampling!r}."
        )


def law_of_design(
    sampling: str, factorization: Factorization, participation: Participation
) -> CohortLaw:
    """The law by which users join k rounds on average, each as often as the p bands allow.

    Balls-in-Bins has b bins. Otherwise turns are p rounds apart: q = p·k/n for cyclic Poisson
    sampling, q = 1/(n/k − p + 1) for b-min-sep.

    Raises:
        ValueError: p·k > n, so that users would have to take part more often than their turns come.
    """
    n = participation.rounds
    k = participation.max_participations
    p = factorization.bands
    if sampling == "balls-in-bins":
        return CohortLaw(sampling, participation, 1.0 / participation.min_separation)
    if p * k > n:
        raise ValueError(
            f"p (bands) must be at most n/k={n / k:g} for {sampling} sampling; got {p}. "
            "Its accountant covers banded strategies only."
        )
    if sampling == "cyclic-poisson":
        q = p * k / n
    else:
        q = 1.0 / (n / k - p + 1.0)
    return CohortLaw(sampling, Participation.as_many_as_fit(n, p), q)


@dataclass(frozen=True)
class AmplifiedNoise:
    """The noise for a mechanism, a budget and a sampling.

    Args:
        noise_std: standard deviation of each entry of z per unit clip norm.
        standard_error: of noise_std; 0 where the accountant is not a Monte Carlo one.
        sensitivity: the most that one user moves C·G by, per unit clip norm: in one participation
            for cyclic Poisson (the largest column norm), in all of them otherwise.
    """

    noise_std: float
    standard_error: float
    sensitivity: float

    @property
    def noise_multiplier(self) -> float:
        """σ = noise_std/sensitivity."""
        return self.noise_std / self.sensitivity


def amplified_noise_of(
    sampling: str,
    factorization: Factorization,
    participation: Participation,
    epsilon: float,
    delta: float,
    relative_error: float = 0.02,
    max_samples: int = 2**18,
) -> AmplifiedNoise:
    """The noise that gives (ε, δ) under zero-out adjacency when users come to rounds by this
    sampling.

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
    law = law_of_design(sampling, factorization, participation)
    if sampling == "cyclic-poisson":
        longest, steps = law.steps(factorization)
        sigma = poisson_noise_multiplier(epsilon, delta, law.probability, steps)
        return AmplifiedNoise(longest * sigma, 0.0, longest)
    pair = law.pair(factorization)
    calibrated = amplified_noise(pair, epsilon, delta, relative_error, max_samples)
    return AmplifiedNoise(calibrated.value, calibrated.standard_error, pair.largest_norm)


def approximate_noise_of(
    sampling: str,
    factorization: Factorization,
    participation: Participation,
    epsilon: float,
    delta: float,
    similar: AmplifiedNoise | None = None,
) -> AmplifiedNoise:
    """Estimate what `amplified_noise_of` computes from few draws, for searches.

    Similar strategies get the same draws, so much of the error is common to all that are compared.

    Args:
        sampling: "cyclic-poisson", "balls-in-bins" or "b-min-sep".
        factorization: C.
        participation: (n, k, b).
        epsilon: ε > 0.
        delta: δ in (0, 1).
        similar: the noise of a similar strategy; the search begins at its multiplier.

    Raises:
        ValueError: as `amplified_noise_of`.
    """
    if sampling == "cyclic-poisson":
        return amplified_noise_of(sampling, factorization, participation, epsilon, delta)
    pair = law_of_design(sampling, factorization, participation).pair(factorization)
    norm = pair.largest_norm
    start = None
    if similar is not None:
        start = similar.noise_multiplier * norm
    noise, _ = root_of_both(pair, epsilon, delta, _SEARCH_DRAWS, seed=0, start=start)
    return AmplifiedNoise(noise, 0.0, norm)
