"""Banded coefficients chosen through an accountant: tapered optimal ones, and bent powers.

Both searches compare candidates by the approximate noise, which uses common draws; the noise of the
chosen one is estimated anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from fedmf.matrices.arrays import Vector
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.amplified_noise import Sampling, approximate_noise_of
from fedmf.mechanisms.closed_forms import bfr
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

__all__ = ["bent_powers", "tapered_bands"]

Found = tuple[Factorization, Mapping[str, float]]
_KNOTS = 5
_EVALUATIONS = 200


def tapered_bands(
    contract: Participation, sampling: Sampling, epsilon: float, delta: float
) -> Found:
    """BandMF's coefficients brought linearly to 0 from b₀ to p (BandMF, Appendix H); p and b₀
    searched.
    """

    def candidates() -> Iterator[Found]:
        for p in (2**i for i in range(5, int(math.log2(contract.min_separation)) + 1)):
            for share in (0.0, 0.25, 0.5):
                params = {"bands": p, "taper": int(share * p)}
                yield build("banded-toeplitz", contract, params=params).factorization, params

    return min(candidates(), key=lambda found: _error(found[0], contract, sampling, epsilon, delta))


def bent_powers(
    contract: Participation,
    sampling: Sampling,
    epsilon: float,
    delta: float,
    start: Mapping[str, float],
) -> Found:
    """The γ-BFR of this cell times e^{h(log(1+i))}, h linear between knots; its heights by
    Nelder–Mead.

    It stands for optimized coefficients: the directions in which they are smooth on a logarithmic
    scale.
    """
    from scipy.optimize import minimize

    p = int(start["bands"])
    powers = bfr(start["gamma"], p, contract.rounds).coefficients
    places = np.log1p(np.arange(powers.size))
    knots = np.linspace(0.0, places[-1], _KNOTS + 1)

    def strategy(heights: Vector) -> Toeplitz:
        bent = np.interp(places, knots, np.append(0.0, heights))
        return Toeplitz(powers * np.exp(bent), contract.rounds)

    found = minimize(
        lambda heights: _error(strategy(heights), contract, sampling, epsilon, delta),
        np.zeros(_KNOTS),
        method="Nelder-Mead",
        options={
            "maxfev": _EVALUATIONS,
            "initial_simplex": np.concatenate([np.zeros((1, _KNOTS)), 0.15 * np.eye(_KNOTS)]),
        },
    ).x
    heights = {f"h{at + 1}": round(float(height), 3) for at, height in enumerate(found)}
    return strategy(found), {"bands": p, "gamma": start["gamma"], **heights}


def _error(
    strategy: Factorization,
    contract: Participation,
    sampling: Sampling,
    epsilon: float,
    delta: float,
) -> float:
    scale = math.sqrt(float(query_variances(strategy, prefix(contract.rounds)).mean()))
    return scale * approximate_noise_of(sampling, strategy, contract, epsilon, delta).noise_std
