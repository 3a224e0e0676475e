"""Mechanisms whose free parameters minimise the amplified error."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedmf.accounting.amplification.domain import NegativeEntriesError
from fedmf.accounting.amplification.sampling import (
    AmplifiedNoise,
    Sampling,
    amplified_noise_of,
    approximate_noise_std,
)
from fedmf.factorization import Accuracy, DesignRequest, Mechanism, MechanismChoice, chosen, query_variances
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload

__all__ = ["amplified_mechanism"]

_SEARCH, _COARSE_SEARCH = Accuracy(6, 0.05), Accuracy(6, 0.5)
_ACCURACY = 0.02
_ACCURATE_SAMPLES = 2**17


def amplified_mechanism(
    choice: MechanismChoice,
    participation: Participation,
    workload: ToeplitzWorkload,
    sampling: Sampling,
    epsilon: float,
    delta: float,
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

    Raises:
        ValueError: the accountant does not cover the mechanism, or a parameter is wrong.
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    contract = participation if sampling == "balls-in-bins" else Participation(n, 1, n)
    widest = min(b if sampling == "balls-in-bins" else n // k, n)
    latest: float | None = None

    def error(candidate: MechanismChoice) -> float:
        nonlocal latest
        strategy = candidate.build(contract, workload).factorization
        try:
            latest = approximate_noise_std(sampling, strategy, participation, epsilon, delta, latest)
        except NegativeEntriesError:  # as 1/i + c has for c < −1/p
            return math.inf
        return math.sqrt(float(query_variances(strategy, workload).mean())) * latest

    def completed(candidate: MechanismChoice, accuracy: Accuracy) -> tuple[MechanismChoice, float]:
        """The real parameters chosen one after the other, and the error."""
        least, request = math.inf, DesignRequest(contract, workload)
        real = [free for free in candidate.free if not free.parameter.integer]
        for free in real:

            def judged(value: float, base: MechanismChoice = candidate, symbol: str = free.symbol) -> float:
                return error(base.fixing({symbol: value}))

            value, least = chosen(free, request, candidate.params, judged, accuracy)
            candidate = candidate.fixing({free.symbol: value})
        return candidate, least if real else error(candidate)

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
    mechanism = choice.build(contract, workload)
    noise = amplified_noise_of(
        sampling, mechanism.factorization, participation, epsilon, delta, _ACCURACY, _ACCURATE_SAMPLES
    )
    return mechanism, noise


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
