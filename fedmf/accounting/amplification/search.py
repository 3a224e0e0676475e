"""Mechanisms whose free parameters minimise the amplified error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fedmf.accounting.amplification.domain import NegativeEntriesError
from fedmf.accounting.amplification.sampling import (
    AmplifiedNoise,
    Sampling,
    amplified_noise_of,
    approximate_noise_std,
)
from fedmf.factorization import (
    FAMILIES,
    Mechanism,
    accepted_parameters,
    build,
    minimize_on_interval,
    query_variances,
)
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload

__all__ = ["amplified_mechanism"]

_GRID = 6
_TOLERANCE = 0.05
_ACCURACY = 0.02
_ACCURATE_SAMPLES = 2**17


def amplified_mechanism(
    name: str,
    participation: Participation,
    workload: ToeplitzWorkload,
    sampling: Sampling,
    epsilon: float,
    delta: float,
    params: Mapping[str, float | int],
) -> tuple[Mechanism, AmplifiedNoise]:
    """The mechanism and its noise; bands and the real parameters lambda, gamma, nu and c are searched.

    Bands are powers of two or the most that the sampling allows, wider or narrower while the error falls.
    Parameters with a few integer values, and the coefficients of optimised strategies, are chosen as without
    amplification: for one participation with cyclic Poisson and b-min-sep sampling, for the contract with
    Balls-in-Bins.

    Args:
        name: of the mechanism.
        participation: (n, k, b).
        workload: A of n rounds.
        sampling: how users come to rounds.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        params: those not to be searched.

    Raises:
        ValueError: the accountant does not cover the mechanism, or a parameter is wrong.
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    contract = participation if sampling == "balls-in-bins" else Participation(n, 1, n)

    def make(own: Mapping[str, float | int]) -> Mechanism:
        return build(name, contract, workload, params={**params, **own})

    last: float | None = None

    def error(own: Mapping[str, float | int]) -> float:
        nonlocal last
        strategy = make(own).factorization
        try:
            last = approximate_noise_std(sampling, strategy, participation, epsilon, delta, last)
        except NegativeEntriesError:  # as 1/i + c has for c < −1/p
            return math.inf
        return math.sqrt(float(query_variances(strategy, workload).mean())) * last

    def best_value(own: dict[str, float | int], tolerance: float) -> tuple[float, dict[str, float | int]]:
        parameter = FAMILIES[name.removeprefix("normalized-")].parameter
        if parameter is None or parameter.choices or parameter.symbol in params:
            return error(own), own
        p = int(own.get("bands", params.get("bands", 1)))
        low, high = parameter.interval(n, p)
        if low == high:
            return error(own), own

        def at(u: float) -> dict[str, float | int]:
            return {**own, parameter.symbol: parameter.value(u, p)}

        u, found = minimize_on_interval(lambda u: error(at(u)), low, high, _GRID, tolerance)
        return found, at(u)

    accepted = accepted_parameters(name)
    widest = b if sampling == "balls-in-bins" else n // k
    own: dict[str, float | int] = {}
    if "bands" in accepted and "bands" not in params:
        own = {"bands": _best_bands(lambda p: best_value({"bands": p}, 10 * _TOLERANCE)[0], min(widest, n))}
    if any(symbol not in (*params, "bands") for symbol in accepted):
        own = best_value(own, _TOLERANCE)[1]
    mechanism = make(own)
    found = amplified_noise_of(
        sampling, mechanism.factorization, participation, epsilon, delta, _ACCURACY, _ACCURATE_SAMPLES
    )
    return mechanism, found


def _best_bands(error: Callable[[int], float], widest: int) -> int:
    """Powers of two and the widest: uphill from the middle while the error falls, else downhill."""
    choices = sorted({*(2**i for i in range(widest.bit_length())), widest})
    at = len(choices) // 2
    best = error(choices[at])
    for step in (1, -1):
        moved = False
        while 0 <= at + step < len(choices) and (found := error(choices[at + step])) < best:
            at, best, moved = at + step, found, True
        if moved:
            break
    return choices[at]
