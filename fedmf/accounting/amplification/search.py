"""Mechanisms whose free parameters minimise the amplified error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fedmf.accounting.amplification.monte_carlo import NegativeEntriesError
from fedmf.accounting.amplification.sampling import (
    AmplifiedNoise,
    Sampling,
    amplified_noise_of,
    approximate_noise_of,
)
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.mechanisms.errors import RMSE, Objective, query_variances
from fedmf.mechanisms.registry import Accuracy, DesignRequest, Mechanism, Trail, chosen
from fedmf.mechanisms.toeplitz import NotRepresentable
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.participation import Participation

_SEARCH, _COARSE_SEARCH = Accuracy(6, 0.02), Accuracy(6, 0.5)
# A bound so much above the least estimate rules a candidate out, errors of the estimate included.
_CLEARLY = 1.05
_ACCURACY = 0.02
_ACCURATE_SAMPLES = 2**17


def amplified_mechanism(
    choice: MechanismChoice,
    participation: Participation,
    workload: ToeplitzWorkload,
    sampling: Sampling,
    epsilon: float,
    delta: float,
    objective: Objective = RMSE,
) -> tuple[Mechanism, AmplifiedNoise]:
    """The mechanism and its noise; bands and the real parameters that are not given are searched.

    Bands are powers of two or the most that the sampling allows, wider or narrower while the error falls.
    Other integer parameters, and the coefficients of optimised strategies, are chosen as without
    amplification: for one participation with cyclic Poisson and b-min-sep sampling, for the contract with
    Balls-in-Bins.

    Args:
        choice: of the mechanism, with the parameters that are not to be searched.
        participation: (n, k, b).
        workload: A of n rounds.
        sampling: how users come to rounds.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        objective: which error is minimised, noise included.

    Raises:
        ValueError: the accountant does not cover the mechanism, or a parameter is wrong.
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    contract = participation if sampling == "balls-in-bins" else Participation(n, 1, n)
    widest = min(b if sampling == "balls-in-bins" else n // k, n)
    judge = _Judge(contract, participation, workload, sampling, epsilon, delta, objective)
    trail = Trail()

    def completed(candidate: MechanismChoice, accuracy: Accuracy) -> tuple[MechanismChoice, float]:
        """The real parameters chosen one after the other, and the error."""
        least, request = math.inf, DesignRequest(contract, workload, objective)
        real = [free for free in candidate.free if not free.parameter.integer]
        for free in real:

            def judged(
                value: float,
                _limit: float = math.inf,
                /,
                base: MechanismChoice = candidate,
                symbol: str = free.symbol,
            ) -> float:
                return judge(base.fixing({symbol: value}))

            # Where this parameter was best with other bands is where to look first.
            there = replace(accuracy, trail=trail if len(real) == 1 else None)
            value, least = chosen(free, request, candidate.params, judged, there)
            candidate = candidate.fixing({free.symbol: value})
        return candidate, least if real else judge(candidate)

    if any(free.symbol == "bands" for free in choice.free):
        choice = choice.fixing(
            {
                "bands": _best_bands(
                    lambda p: completed(choice.fixing({"bands": p}), _COARSE_SEARCH)[1], widest
                )
            }
        )
    if choice.free:
        choice, _ = completed(choice, _SEARCH)
    mechanism = choice.build(contract, workload, objective)
    noise = amplified_noise_of(
        sampling, mechanism.factorization, participation, epsilon, delta, _ACCURACY, _ACCURATE_SAMPLES
    )
    return mechanism, noise


@dataclass(eq=False)
class _Judge:
    """The error with the approximate noise; above the least so far perhaps a bound that proves no more.

    Args:
        contract: what strategies are built for.
        participation: (n, k, b).
        workload: A.
        sampling: how users come to rounds.
        epsilon: ε.
        delta: δ.
        objective: which error.
    """

    contract: Participation
    participation: Participation
    workload: ToeplitzWorkload
    sampling: Sampling
    epsilon: float
    delta: float
    objective: Objective

    def __post_init__(self) -> None:
        self._least, self._noise = math.inf, None
        self._judged: dict[tuple[tuple[str, float], ...], float] = {}

    def __call__(self, candidate: MechanismChoice) -> float:
        key = tuple(sorted(candidate.params.items()))
        if key not in self._judged:
            self._judged[key] = self._error(candidate)
        return self._judged[key]

    def _error(self, candidate: MechanismChoice) -> float:
        strategy = candidate.build(self.contract, self.workload, self.objective).factorization
        try:
            size = math.sqrt(self.objective.squared_error(query_variances(strategy, self.workload)))
            self._noise = approximate_noise_of(
                self.sampling,
                strategy,
                self.participation,
                self.epsilon,
                self.delta,
                self._noise,
                _CLEARLY * self._least / size,
            )
        # Negative entries are what 1/i + c has for c < −1/p.
        except (NegativeEntriesError, NotRepresentable):
            return math.inf
        error = size * self._noise.noise_std
        self._least = min(self._least, error)
        return error


def _best_bands(error: Callable[[int], float], widest: int) -> int:
    """Powers of two and the widest: uphill from the middle while the error falls, else downhill."""
    choices = sorted({*(2**i for i in range(widest.bit_length())), widest})
    at = len(choices) // 2
    least = error(choices[at])
    for step in (1, -1):
        moved = False
        while 0 <= at + step < len(choices) and (next_error := error(choices[at + step])) < least:
            at, least, moved = at + step, next_error, True
        if moved:
            break
    return choices[at]
