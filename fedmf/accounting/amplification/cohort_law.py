"""Amplification of a whole run: noise for the cohorts that its schedule draws, and a later check of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

import numpy as np

from fedmf.accounting.amplification.bins import BallsInBinsPair
from fedmf.accounting.amplification.min_separated import MinSeparatedPair
from fedmf.accounting.amplification.monte_carlo import SIDES, MixturePair, estimate
from fedmf.accounting.amplification.noise_level import (
    amplified_noise,
    certified_noise,
    confident_noise,
)
from fedmf.accounting.amplification.poisson import poisson_delta, poisson_noise_multiplier
from fedmf.accounting.deterministic import BinOverlaps, deterministic_delta, deterministic_noise
from fedmf.accounting.gaussian import certified_sigma
from fedmf.accounting.rounding import at_least
from fedmf.factorization import Factorization
from fedmf.participation import Participation

__all__ = ["CohortLaw", "RunAmplification", "amplified_run", "check_run"]

Method = Literal[
    "numerical bound", "equal bins", "conditional moments", "certified", "normal interval", "none needed"
]
_THEOREMS: Final = ("equal bins", "conditional moments")
# A theorem may ask for so much more noise than the draws.
_PRICE: Final = 1.03

_SAMPLES: Final = 2**17
_MOST_DRAWN: Final = 2**26
_CHECK_SAMPLES: Final = 2**13
_CHECK_ERRORS: Final = 6.0
# A limit that does without the normal approximation costs about this share of δ, or it is not used.
_AFFORDABLE: Final = 0.2


@dataclass(frozen=True)
class CohortLaw:
    """How the cohorts of a run are drawn, as its schedule draws them.

    Args:
        accountant: "cyclic-poisson", "balls-in-bins" or "b-min-sep".
        participation: (n, k, b) with the schedule's b; k = ⌈n/b⌉ is not used.
        probability: q, with which a user joins when it may; 1/b for Balls-in-Bins.
    """

    accountant: str
    participation: Participation
    probability: float

    def steps(self, factorization: Factorization) -> tuple[float, int]:
        """Cyclic Poisson: (largest column norm, T = ⌈n/b⌉ turns of a user's group).

        Columns b ≥ p apart have disjoint rows, so a user's turns are T sampled Gaussian mechanisms.

        Raises:
            ValueError: p > b.
        """
        n, b, p = self.participation.rounds, self.participation.min_separation, factorization.bands
        if p > b:
            raise ValueError(
                f"p (bands) must be at most b={b} (min_separation) for cyclic Poisson sampling; got {p}. "
                "Its accountant covers banded strategies only."
            )
        return math.sqrt(float(np.max(factorization.gram_diagonal(0)))), -(-n // b)

    def pair(self, factorization: Factorization) -> MixturePair:
        """The dominating pair of Balls-in-Bins or b-min-sep sampling.

        Raises:
            ValueError: the accountant does not cover the mechanism.
        """
        if self.accountant == "balls-in-bins":
            return BallsInBinsPair.of(factorization, self.participation)
        return MinSeparatedPair.sampled(factorization, self.participation.min_separation, self.probability)


@dataclass(frozen=True)
class RunAmplification:
    """What a run remembers of its amplified calibration; δ and ε are those of the run.

    Args:
        accountant: name of the sampling.
        probability: q, with which a user joins when it may.
        method: how δ was bounded. "numerical bound", "equal bins", "conditional moments": a theorem, no
            chance is involved (docs/deterministic.md for the last two). "certified": a limit that
            holds for every number of draws. "normal interval": the upper end of a normal confidence
            interval. "none needed": the noise is that without amplification, which was no more.
        failure: β, the probability that the limit is wrong; δ includes it.
        delta_limit: the upper limit of δ(noise, ε) that the noise passed with; at most δ − β.
        seed: of the accountant's random numbers; None where there were none.
    """

    accountant: str
    probability: float
    method: Method
    failure: float
    delta_limit: float
    seed: int | None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(**values)


def amplified_run(
    law: CohortLaw,
    factorization: Factorization,
    sensitivity: float,
    epsilon: float,
    delta: float,
    seed: int,
) -> tuple[float, RunAmplification]:
    """The noise of a run whose cohorts are drawn by this law and stay secret.

    Args:
        law: of the cohorts.
        factorization: C.
        sensitivity: of C under the law's (n, k, b), per unit clip norm: for the noise without amplification.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        seed: of the accountant's random numbers, chosen before anything is known about them.

    Returns:
        Standard deviation of z per unit clip norm, never more than without amplification, and its record.

    Raises:
        ValueError: the accountant does not cover the mechanism.
        RuntimeError: the limit on δ was not reached.

    Guarantees:
        (ε, δ) under zero-out adjacency for an observer of the releases, over the draws of cohorts, noise and
        accountant, if the method is not "normal interval"; with that, up to the normal approximation.
    """
    name, q = law.accountant, law.probability
    plain = sensitivity * certified_sigma(epsilon, delta)
    if name == "cyclic-poisson":
        longest, steps = law.steps(factorization)
        noise = longest * poisson_noise_multiplier(epsilon, delta, q, steps)
        if noise < plain:
            reached = poisson_delta(noise / longest, q, steps, epsilon)
            return noise, RunAmplification(name, q, "numerical bound", 0.0, reached, None)
        return plain, RunAmplification(name, q, "none needed", 0.0, delta, None)
    pair, failure = law.pair(factorization), 0.01 * delta
    samples = min(_SAMPLES, max(2**13, _MOST_DRAWN // pair.size))
    if _affordable(pair, epsilon, delta, failure, samples, seed):
        method: Method = "certified"
        noise, limit = certified_noise(pair, epsilon, delta, failure, samples, seed)
    else:
        method = "normal interval"
        noise, limit = confident_noise(pair, epsilon, delta, failure, 0.01, samples, seed)
    if name == "balls-in-bins":
        overlaps = BinOverlaps.of(factorization, law.participation)
        proved = deterministic_noise(overlaps, epsilon, delta, _PRICE * noise)
        if proved is not None and proved.theorem in _THEOREMS and proved.value < plain:
            theorem = cast(Method, proved.theorem)
            return proved.value, RunAmplification(name, q, theorem, 0.0, proved.delta, None)
    if noise < plain:
        return noise, RunAmplification(name, q, method, failure, limit, seed)
    return plain, RunAmplification(name, q, "none needed", 0.0, delta, None)


def _affordable(
    pair: MixturePair, epsilon: float, delta: float, failure: float, samples: int, seed: int
) -> bool:
    """Whether a limit for draws on [0, M] can come close to δ: it exceeds their mean by M·log(1/β)/N."""
    rough = amplified_noise(pair, epsilon, delta, 0.1, 2**13, seed).value
    bounds = [pair.proposal(rough, epsilon, side).log_bound for side in SIDES]
    bound = min(max(bounds), 1e2)
    return math.exp(bound) * math.log(1.0 / failure) / samples < _AFFORDABLE * delta


def check_run(
    claim: RunAmplification, law: CohortLaw, factorization: Factorization, noise: float, epsilon: float,
    delta: float,
) -> None:  # fmt: skip
    """Recompute δ(noise, ε) and refuse a run that was calibrated for other cohorts, C or noise.

    Cyclic Poisson and theorems are computed again; the others by a new, coarser estimate on draws of its
    own, which may exceed δ by six standard errors.

    Raises:
        ValueError: δ(noise, ε) exceeds δ.
    """
    if claim.method == "none needed":
        return
    if law.accountant == "cyclic-poisson":
        longest, steps = law.steps(factorization)
        low = reached = poisson_delta(noise / longest, law.probability, steps, epsilon)
        low *= 1.0 - 1e-6
    elif claim.method in _THEOREMS:
        overlaps = BinOverlaps.of(factorization, law.participation)
        low = reached = deterministic_delta(overlaps, noise, epsilon, delta)
        low *= 1.0 - 1e-6
    else:
        again = estimate(law.pair(factorization), noise, epsilon, 0.03, _CHECK_SAMPLES, seed=1)
        reached, low = again.delta, again.delta - _CHECK_ERRORS * again.standard_error
    if low > delta:
        raise ValueError(
            f"noise (per unit clip norm) must give delta={delta!r} at epsilon={epsilon!r} with accountant "
            f"{law.accountant!r}; got {noise!r}, which gives {at_least(reached)}."
        )
