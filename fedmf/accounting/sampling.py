"""The certified noise of runs with secret cohorts, and the check of a recorded claim.

`CohortLaw` names the law of `sampled_cohorts` that a run draws by; every claim that is recorded
here is recomputed before it is stated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np

from fedmf.accounting.balls_in_bins import BallsInBinsPair
from fedmf.accounting.equal_bins import BinOverlaps, deterministic_delta, deterministic_noise
from fedmf.accounting.gaussian import adjacency_factor, certified_sigma, gaussian_sigma
from fedmf.accounting.min_separated import MinSeparatedPair
from fedmf.accounting.monte_carlo import MixturePair, estimate
from fedmf.accounting.noise_level import certified_noise
from fedmf.accounting.poisson import poisson_delta, poisson_noise_multiplier
from fedmf.accounting.rounding import at_least
from fedmf.matrices.factorization import Factorization
from fedmf.participation import Participation

Method = Literal["numerical bound", "equal bins", "certified", "none needed"]
_METHODS: Final[Mapping[str, tuple[Method, ...]]] = {
    "cyclic-poisson": ("numerical bound",),
    "balls-in-bins": ("equal bins", "certified"),
    "b-min-sep": ("certified",),
}
# A theorem may need so much more noise than the draws.
_PRICE: Final = 1.03
_SAMPLES: Final = 2**17
_MOST_DRAWN: Final = 2**26
_FAILURE: Final = 0.01
# Relative tolerance of recomputed values.
_CLOSE: Final = 1e-6
_CHECK_SAMPLES: Final = 2**13
_CHECK_ERRORS: Final = 6.0
# An estimate below this share of δ may be one that misses where the loss is large.
_CHECK_SHARE = 0.25
_CHECK_STEP = 1.25
#: e^ε enters the accountants' sums.
_LARGEST_EPSILON: Final = 100.0


def zero_out_budget(adjacency: str, epsilon: float, delta: float) -> tuple[float, float]:
    """(ε', δ') under zero-out that gives (ε, δ) under this adjacency.

    A user who is replaced is taken away and another one added: P ≤ e^{ε/2} Q + δ' and Q ≤ e^{ε/2}
    P' + δ' give P ≤ e^ε P' + (1 + e^{ε/2}) δ'. Hence (ε/2, δ/(1 + e^{ε/2})) for replace-one.

    Raises:
        ValueError: an unknown adjacency, or ε > 100.

    >>> zero_out_budget("replace-one", 2.0, 1e-5)
    (1.0, 2.689...e-06)
    """
    if epsilon > _LARGEST_EPSILON:
        raise ValueError(
            f"ε (epsilon) must be at most {_LARGEST_EPSILON:g} with sampled cohorts; got"
            f" {epsilon!r}. Do without amplification."
        )
    if adjacency_factor(adjacency) == 1:
        return epsilon, delta
    return epsilon / 2, delta / (1.0 + math.exp(epsilon / 2))


@dataclass(frozen=True)
class CohortLaw:
    """The law of secret cohorts that an accountant assumes; `sampled_cohorts` draws by it.

    Args:
        accountant: "cyclic-poisson", "balls-in-bins" or "b-min-sep".
        participation: (n, k, b) with the schedule's b; k = ⌈n/b⌉ is used for Balls-in-Bins alone.
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
        n = self.participation.rounds
        b = self.participation.min_separation
        p = factorization.bands
        if p > b:
            raise ValueError(
                f"p (bands) must be at most b={b} (min_separation) for cyclic Poisson sampling; got"
                f" {p}. Its accountant covers banded strategies only."
            )
        return math.sqrt(float(np.max(factorization.gram_diagonal(0)))), -(-n // b)

    def pair(self, factorization: Factorization) -> MixturePair:
        """The dominating pair of Balls-in-Bins or b-min-sep sampling.

        Raises:
            ValueError: the accountant does not cover the mechanism.
        """
        if self.accountant == "balls-in-bins":
            return BallsInBinsPair.of(factorization, self.participation)
        return MinSeparatedPair.of(
            factorization, self.participation.min_separation, self.probability
        )


@dataclass(frozen=True)
class RunAmplification:
    """The record of an amplified calibration; δ and ε belong to the run.

    Args:
        accountant: name of the sampling.
        probability: q, with which a user joins when it may.
        method: the kind of bound on δ. "numerical bound", "equal bins": a theorem, no chance is
            involved (docs/theory/amplification.md for the second). "certified": a limit from draws
            that holds for every number of them. "none needed": the noise without amplification,
            which was no more.
        failure: β, the probability that the limit is wrong; δ includes it.
        delta_limit: the upper limit of δ(noise, ε) that the noise passed with; at most δ − β. Under
            replace-one it is for the accountant's own zero-out budget, (ε/2, δ/(1 + e^{ε/2})).
        seed: of the accountant's random numbers; None where there were none.
        rounding: W/τ at most, for which the calibration left room: see `integer_noise`.

    Raises:
        ValueError: a probability or W/τ outside [0, 1).
    """

    accountant: str
    probability: float
    method: Method
    failure: float
    delta_limit: float
    seed: int | None
    rounding: float = 0.0

    def __post_init__(self) -> None:
        values = {
            "β (failure)": self.failure,
            "δ (delta_limit)": self.delta_limit,
            "W/τ (rounding)": self.rounding,
        }
        for symbol, value in values.items():
            if not (isinstance(value, float) and 0 <= value < 1):
                raise ValueError(f"{symbol} of amplification must lie in [0, 1); got {value!r}.")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a record from its `to_dict`."""
        return cls(**values)


def amplified_run(
    law: CohortLaw,
    factorization: Factorization,
    sensitivity: float,
    adjacency: str,
    epsilon: float,
    delta: float,
    seed: int,
) -> tuple[float, RunAmplification]:
    """The noise of a run with secret cohorts that are drawn by this law.

    Args:
        law: of the cohorts.
        factorization: C.
        sensitivity: of C under the law's (n, k, b), per unit clip norm: for the noise without
            amplification.
        adjacency: "zero-out" or "replace-one", for which the accountant computes with half of ε.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        seed: of the accountant's random numbers, chosen before anything is known about them.

    Returns:
        Standard deviation of z per unit clip norm, never more than without amplification, and its
        record.

    Raises:
        ValueError: the accountant does not cover the mechanism.

    Guarantees:
        (ε, δ) under the adjacency for an observer of the releases, over the draws of cohorts, noise
        and accountant; no normal approximation is involved.
    """
    name = law.accountant
    q = law.probability
    plain = adjacency_factor(adjacency) * sensitivity * certified_sigma(epsilon, delta)
    whole = delta
    epsilon, delta = zero_out_budget(adjacency, epsilon, delta)
    if name == "cyclic-poisson":
        longest, steps = law.steps(factorization)
        noise = longest * poisson_noise_multiplier(epsilon, delta, q, steps)
        if noise < plain:
            reached = poisson_delta(noise / longest, q, steps, epsilon)
            return noise, RunAmplification(name, q, "numerical bound", 0.0, reached, None)
        return plain, RunAmplification(name, q, "none needed", 0.0, whole, None)
    pair = law.pair(factorization)
    failure = _FAILURE * delta
    samples = min(_SAMPLES, max(2**13, _MOST_DRAWN // pair.size))
    try:
        noise, limit = certified_noise(pair, epsilon, delta, failure, samples, seed)
    except (RuntimeError, ValueError):
        # No limit by draws: the noise of a theorem remains, or that without amplification.
        noise = math.inf
        limit = 1.0
    if name == "balls-in-bins":
        overlaps = BinOverlaps.of(factorization, law.participation)
        proved = deterministic_noise(overlaps, epsilon, delta, min(_PRICE * noise, plain))
        if proved is not None:
            noise, bound = proved
            return noise, RunAmplification(name, q, "equal bins", 0.0, bound, None)
    if noise < plain:
        return noise, RunAmplification(name, q, "certified", failure, limit, seed)
    return plain, RunAmplification(name, q, "none needed", 0.0, whole, None)


def check_run(
    claim: RunAmplification,
    law: CohortLaw,
    factorization: Factorization,
    noise: float,
    adjacency: str,
    epsilon: float,
    delta: float,
) -> None:
    """Recompute δ(noise, ε) and reject a run that was calibrated for other cohorts, C or noise.

    Cyclic Poisson and theorems are computed again. Where the limit came from draws there is a new,
    coarser estimate on draws of its own, which may exceed δ by six standard errors; more noise only
    lowers δ, so where the estimate says little those at larger noise count as well.

    Raises:
        ValueError: δ(noise, ε) exceeds δ, or the claim is none that such a calibration records.
    """
    if claim.method != "none needed" and claim.method not in _METHODS[law.accountant]:
        known = ", ".join((*_METHODS[law.accountant], "none needed"))
        raise ValueError(
            f"method (of {law.accountant}) must be one of {known}; got {claim.method!r}."
        )
    largest = delta
    epsilon, delta = zero_out_budget(adjacency, epsilon, delta)
    drawn = claim.method == "certified"
    failure = 0.0
    if drawn:
        failure = _FAILURE * delta
    if claim.method != "none needed":
        largest = delta - failure
    least = 0.0
    if claim.method == "numerical bound":
        longest, steps = law.steps(factorization)
        least = poisson_delta(noise / longest, law.probability, steps, epsilon) * (1.0 - _CLOSE)
    elif claim.method == "equal bins":
        overlaps = BinOverlaps.of(factorization, law.participation)
        stated = claim.delta_limit * (1.0 + _CLOSE)
        least = deterministic_delta(overlaps, noise, epsilon, stated) * (1.0 - _CLOSE)
    elif drawn:
        least = _surely_exceeded(law.pair(factorization), noise, epsilon, delta)
    if not least <= delta:
        raise ValueError(
            f"noise (per unit clip norm) must give delta={delta!r} at epsilon={epsilon!r} with"
            f" accountant {law.accountant!r}; got {noise!r}, which gives {at_least(least)} or more."
        )
    seeded = claim.seed is not None
    agrees = math.isclose(claim.failure, failure, rel_tol=_CLOSE) and seeded == drawn
    low = min(least, largest) * (1.0 - _CLOSE)
    high = largest * (1.0 + _CLOSE)
    if not (agrees and low <= claim.delta_limit <= high):
        seed = "a number" if drawn else "None"
        raise ValueError(
            f"failure, delta_limit and seed (of method {claim.method!r}) must be {failure!r}, at"
            f" most {largest!r} and {seed}; got {claim.failure!r}, {claim.delta_limit!r},"
            f" {claim.seed!r}."
        )


def _surely_exceeded(pair: MixturePair, noise: float, epsilon: float, delta: float) -> float:
    """A lower limit of δ(noise, ε): six standard errors below estimates at this noise and more.

    The search ends at a limit above the target, at a sharp estimate, or at the noise without
    amplification.
    """
    least = 0.0
    plain = pair.largest_norm * gaussian_sigma(epsilon, delta)
    while True:
        again = estimate(pair, noise, epsilon, 0.03, _CHECK_SAMPLES, seed=1)
        error = _CHECK_ERRORS * again.standard_error
        least = max(least, again.delta - error)
        sharp = again.delta >= _CHECK_SHARE * delta and error <= delta
        noise *= _CHECK_STEP
        if least > delta or sharp or noise >= plain:
            return least
