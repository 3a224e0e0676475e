"""Mechanisms with free parameters that minimise the amplified error."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedmf.accounting.monte_carlo import NegativeEntriesError
from fedmf.matrices.factorization import BuiltMechanism
from fedmf.matrices.toeplitz import NotRepresentable
from fedmf.mechanisms.amplified_noise import (
    AmplifiedNoise,
    amplified_noise_of,
    approximate_noise_of,
)
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.mechanisms.objective import RMSE, Objective, query_variances
from fedmf.mechanisms.registry import DesignRequest, Values, search
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.participation import Participation

# The searched noise is approximate, and so are the parameters.
_TOLERANCE = 0.02
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
) -> tuple[BuiltMechanism, AmplifiedNoise]:
    """The mechanism and its noise; bands and the real parameters that are not given are searched.

    Bands are powers of two or the most that the sampling allows, wider or narrower while the error
    falls. Other integer parameters, and the coefficients of optimised strategies, are chosen as
    without amplification: for one participation with cyclic Poisson and b-min-sep sampling, for the
    contract with Balls-in-Bins.

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
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    contract = participation if sampling == "balls-in-bins" else Participation(n, 1, n)
    widest = min(b if sampling == "balls-in-bins" else n // k, n)
    request = DesignRequest(contract, workload, objective, _TOLERANCE)
    real = [free for free in choice.searched if not free.parameter.integer]
    judged: dict[tuple[tuple[str, float], ...], float] = {}
    similar: AmplifiedNoise | None = None

    def error(values: Values) -> float:
        """With approximate noise; its search begins at the noise of the last candidate."""
        nonlocal similar
        key = tuple(values.items())
        if key not in judged:
            try:
                C = choice.fixing(values).build(contract, workload, objective).factorization
                similar = approximate_noise_of(sampling, C, participation, epsilon, delta, similar)
                size = math.sqrt(objective.squared_error(query_variances(C, workload)))
                judged[key] = size * similar.noise_std
            # Negative entries are what 1/i + c has for c < −1/p.
            except (NegativeEntriesError, NotRepresentable):
                judged[key] = math.inf
        return judged[key]

    def completed(values: Values) -> Values:
        return search(real, request, values, error)

    values = choice.params
    if any(free.symbol == "bands" for free in choice.searched):
        bands = _best_bands(lambda p: error(completed({**values, "bands": p})), widest)
        values = {**values, "bands": bands}
    mechanism = choice.fixing(completed(values)).build(contract, workload, objective)
    noise = amplified_noise_of(
        sampling,
        mechanism.factorization,
        participation,
        epsilon,
        delta,
        _ACCURACY,
        _ACCURATE_SAMPLES,
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
            at = at + step
            least = next_error
            moved = True
        if moved:
            break
    return choices[at]
