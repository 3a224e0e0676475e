"""Mechanisms with free parameters that minimise the amplified error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from fedmf.accounting.monte_carlo import NegativeEntriesError
from fedmf.accounting.sampling import (
    AmplifiedNoise,
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
_ACCURACY = 0.02
_ACCURATE_SAMPLES = 2**17


def amplified_mechanism(
    choice: MechanismChoice,
    participation: Participation,
    workload: ToeplitzWorkload,
    sampling: str,
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
    trail, judged, similar = Trail(), dict[tuple[tuple[str, float], ...], float](), None

    def error(candidate: MechanismChoice) -> float:
        """With approximate noise; the search begins at the noise of the last candidate."""
        nonlocal similar
        key = tuple(sorted(candidate.params.items()))
        if key not in judged:
            try:
                C = candidate.build(contract, workload, objective).factorization
                similar = approximate_noise_of(sampling, C, participation, epsilon, delta, similar)
                size = math.sqrt(objective.squared_error(query_variances(C, workload)))
                judged[key] = size * similar.noise_std
            # Negative entries are what 1/i + c has for c < −1/p.
            except (NegativeEntriesError, NotRepresentable):
                judged[key] = math.inf
        return judged[key]

    def completed(candidate: MechanismChoice, accuracy: Accuracy) -> tuple[MechanismChoice, float]:
        """The real parameters chosen one after the other, and the error."""
        least, request = math.inf, DesignRequest(contract, workload, objective)
        real = [free for free in candidate.free if not free.parameter.integer]
        for free in real:
            fixing, symbol = candidate.fixing, free.symbol
            # Where this parameter was best with other bands is where to look first.
            there = replace(accuracy, trail=trail if len(real) == 1 else None)
            value, least = chosen(
                free,
                request,
                candidate.params,
                lambda value, _=math.inf, fixing=fixing, symbol=symbol: error(fixing({symbol: value})),
                there,
            )
            candidate = candidate.fixing({free.symbol: value})
        return candidate, least if real else error(candidate)

    if any(free.symbol == "bands" for free in choice.free):
        bands = _best_bands(lambda p: completed(choice.fixing({"bands": p}), _COARSE_SEARCH)[1], widest)
        choice = choice.fixing({"bands": bands})
    if choice.free:
        choice, _ = completed(choice, _SEARCH)
    mechanism = choice.build(contract, workload, objective)
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
