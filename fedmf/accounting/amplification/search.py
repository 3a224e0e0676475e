"""Mechanisms whose free parameters minimise the amplified error."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedmf.accounting.amplification.sampling import AmplifiedNoise, Sampling, amplified_noise_of
from fedmf.factorization.catalogue import Mechanism, accepted_parameters, build
from fedmf.factorization.error import query_variances
from fedmf.factorization.families import FAMILIES
from fedmf.factorization.search import minimize_on_interval
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload

__all__ = ["amplified_mechanism"]

# A search compares noise levels with the same random numbers, so their common error cancels.
_SEARCH_ERROR = 0.15
_SEARCH_SAMPLES = 2**13
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

    Bands are tried as powers of two and b while the error falls. Parameters with a few integer values, and
    the coefficients of optimised strategies, are chosen as without amplification: for one participation with
    cyclic Poisson and b-min-sep sampling, for the contract with Balls-in-Bins.

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

    def noise(mechanism: Mechanism, error: float, samples: int) -> AmplifiedNoise:
        return amplified_noise_of(
            sampling, mechanism.factorization, participation, epsilon, delta, error, samples
        )

    def error(own: Mapping[str, float | int]) -> float:
        mechanism = make(own)
        variance = float(query_variances(mechanism.factorization, workload).mean())
        return math.sqrt(variance) * noise(mechanism, _SEARCH_ERROR, _SEARCH_SAMPLES).noise_std

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
        best = math.inf
        for p in sorted({*(2**i for i in range(widest.bit_length())), min(widest, n)}):
            found, candidate = best_value({"bands": p}, 10 * _TOLERANCE)
            if found >= best:
                break
            best, own = found, {"bands": candidate["bands"]}
    if any(symbol not in (*params, "bands") for symbol in accepted):
        own = best_value(own, _TOLERANCE)[1]
    mechanism = make(own)
    return mechanism, noise(mechanism, _ACCURACY, _ACCURATE_SAMPLES)
