"""The search of bands and real parameters for the least error under amplification by sampling.

The noise of a candidate is approximate and comes from a Monte Carlo accountant, so that the search
is coarse. Only the best candidate gets its noise certified.
"""

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

# The noise of candidates is approximate, and so are the parameters.
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

    Bands are powers of two or the most that the sampling allows, more or fewer while the error
    falls. Other integer parameters, and the coefficients of optimized strategies, are chosen as
    without amplification: for one participation with cyclic Poisson and b-min-sep sampling, for the
    contract with Balls-in-Bins.

    Args:
        choice: the mechanism, with the parameters that are not to be searched.
        participation: (n, k, b).
        workload: A of n rounds.
        sampling: how users are sampled.
        epsilon: ε > 0.
        delta: δ in (0, 1).
        objective: the error to minimize, noise included.

    Raises:
        ValueError: the accountant does not cover the mechanism, or a parameter is wrong.
    """
    n = participation.rounds
    k = participation.max_participations
    b = participation.min_separation
    if sampling == "balls-in-bins":
        contract = participation
        widest = min(b, n)
    else:
        contract = Participation(n, 1, n)
        widest = min(n // k, n)
    request = DesignRequest(contract, workload, objective, _TOLERANCE)
    real = [each for each in choice.searched if not each.parameter.integer]
    amplified_error = _AmplifiedError(choice, request, participation, sampling, epsilon, delta)

    def completed(values: Values) -> Values:
        return search(real, request, values, amplified_error)

    values = dict(choice.params)
    if any(each.symbol == "bands" for each in choice.searched):
        values["bands"] = _best_bands(
            lambda p: amplified_error(completed({**choice.params, "bands": p})), widest
        )
    best = choice.with_parameters(completed(values))
    mechanism = best.build(contract, workload, objective)
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


class _AmplifiedError:
    """The amplified error of a choice as a function of its parameters, with approximate noise."""

    def __init__(
        self,
        choice: MechanismChoice,
        request: DesignRequest,
        participation: Participation,
        sampling: str,
        epsilon: float,
        delta: float,
    ) -> None:
        self._choice = choice
        self._request = request
        self._participation = participation
        self._sampling = sampling
        self._epsilon = epsilon
        self._delta = delta
        self._errors: dict[tuple[tuple[str, float], ...], float] = {}
        # The search of a candidate's noise begins at the noise of the previous candidate.
        self._last_noise: AmplifiedNoise | None = None

    def __call__(self, values: Values) -> float:
        """The error; infinite for a C that the accountant does not cover."""
        key = tuple(values.items())
        if key not in self._errors:
            try:
                self._errors[key] = self._computed(values)
            # The coefficients 1/i + c are negative for c < −1/p.
            except (NegativeEntriesError, NotRepresentable):
                self._errors[key] = math.inf
        return self._errors[key]

    def _computed(self, values: Values) -> float:
        choice = self._choice.with_parameters(values)
        workload = self._request.workload
        objective = self._request.objective
        C = choice.build(self._request.participation, workload, objective).factorization
        self._last_noise = approximate_noise_of(
            self._sampling, C, self._participation, self._epsilon, self._delta, self._last_noise
        )
        squared_error = objective.squared_error(query_variances(C, workload))
        return math.sqrt(squared_error) * self._last_noise.noise_std


def _best_bands(error: Callable[[int], float], widest: int) -> int:
    """The best of the powers of two and the widest, by descent from the middle one.

    Wider bands are tried while the error falls, and narrower ones if the first step fails.
    """
    powers = [2**i for i in range(widest.bit_length())]
    candidates = sorted({*powers, widest})
    middle = len(candidates) // 2
    wider = candidates[middle + 1 :]
    narrower = candidates[:middle][::-1]
    best = candidates[middle]
    least = error(best)
    for direction in (wider, narrower):
        for bands in direction:
            candidate_error = error(bands)
            if not candidate_error < least:
                break
            best = bands
            least = candidate_error
        if best != candidates[middle]:
            break
    return best
