"""Robust design: one Toeplitz C for separations that are only known by their distribution.

A run calibrates its noise after the fact, to the separation b that was really kept. The error is then
√(E(c)/n)·sens_{k,b}(C) for that b, and C should be good for all b that may occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedmf.factorization.algebra import frozen_vector, padded
from fedmf.factorization.matrices import Toeplitz, bsr
from fedmf.factorization.mechanisms.normalized_toeplitz import rated_banded_toeplitz
from fedmf.factorization.objectives import RMSE, Objective, StrategyError, errors
from fedmf.factorization.sensitivity import comb_sum, comb_sum_adjoint, stated_sensitivity
from fedmf.participation import Participation
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload, prefix

Criterion = Literal["expected", "worst"]

_OPTIONS = {"maxiter": 5000, "maxfun": 5000, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 30}
_MOST_SEPARATIONS = 17
# The largest of several values is approached by power means of these orders, each started from the last.
_ORDERS = (8.0, 64.0, 512.0, 4096.0, 32768.0)


@dataclass(frozen=True, eq=False)
class Scenarios:
    """Participation contracts that may turn out to hold, with their weights.

    Args:
        contracts: (n, k, b) each, of the same n.
        weights: π ≥ 0, shape (number of contracts,), not all zero: probabilities where the expected error
            counts. For the worst one they scale each error: with π_b one over the best error possible at b,
            the largest loss against knowing b is what counts.

    Raises:
        ValueError: there is no contract, the horizons differ, or the weights do not fit.

    >>> Scenarios.separations(2000, range(200, 401, 100), 5).contracts[0]
    Participation(rounds=2000, max_participations=5, min_separation=200)
    """

    contracts: tuple[Participation, ...]
    weights: Vector

    def __post_init__(self) -> None:
        weights = frozen_vector(self.weights, "pi", "weights of the contracts")
        if weights.size != len(self.contracts):
            raise ValueError(
                f"pi (weights) must have an entry for each of {len(self.contracts)} contracts; "
                f"got {weights.size}."
            )
        if (weights < 0).any() or not weights.any():
            raise ValueError(
                f"pi (weights) must be non-negative and not all zero; got minimum {weights.min()}."
            )
        horizons = {contract.rounds for contract in self.contracts}
        if len(horizons) != 1:
            raise ValueError(f"n (rounds) must be the same for all contracts; got {sorted(horizons)}.")
        object.__setattr__(self, "weights", weights)

    @classmethod
    def separations(
        cls,
        rounds: int,
        separations: Sequence[int],
        max_participations: int | None = None,
        weights: ArrayLike | None = None,
    ) -> Scenarios:
        """One contract per separation b, with as many participations as fit in n rounds, at most k.

        Args:
            rounds: n.
            separations: the b that may occur.
            max_participations: k; unlimited by default.
            weights: their probabilities; equal by default.
        """
        fits = [Participation.as_many_as_fit(rounds, b) for b in separations]
        cap = rounds if max_participations is None else max_participations
        contracts = tuple(
            Participation(rounds, min(cap, fit.max_participations), fit.min_separation) for fit in fits
        )
        equal = np.full(len(contracts), 1.0 / max(1, len(contracts)))
        return cls(contracts, np.asarray(equal if weights is None else weights, dtype=np.float64))

    @classmethod
    def between(cls, rounds: int, lower: int, upper: int, max_participations: int | None = None) -> Scenarios:
        """Equal weights for up to 17 separations, evenly spaced from the smallest to the largest.

        Args:
            rounds: n.
            lower: the smallest separation that may occur, 1 ≤ lower ≤ upper.
            upper: the largest, at most n.
            max_participations: k; unlimited by default.

        Raises:
            ValueError: the separations are out of order or out of range.

        >>> [contract.min_separation for contract in Scenarios.between(100, 10, 13).contracts]
        [10, 11, 12, 13]
        """
        if not 1 <= lower <= upper <= rounds:
            raise ValueError(
                f"lower (smallest separation) must be at least 1 and at most upper (the largest), at most "
                f"n={rounds}; got {lower} and {upper}. Give both."
            )
        count = min(_MOST_SEPARATIONS, upper - lower + 1)
        separations = np.linspace(lower, upper, count).round().astype(int)
        return cls.separations(rounds, separations.tolist(), max_participations)

    @property
    def rounds(self) -> int:
        """n, the horizon of all contracts."""
        return self.contracts[0].rounds


class RobustObjective:
    """log √E(c) + log (Σ_b (π_b √Q_b(c))^q)^{1/q} and its gradient, with E of `StrategyError`.

    Q_b = ‖Σ_{l<k} C_{:,lb}‖² is the squared sensitivity at b for non-negative non-increasing c.

    Args:
        scenarios: the contracts and π.
        workload: A of the same horizon; with column weights at most 4096 rounds.
        order: q ≥ 1; 1 is the expected error, large q approach the largest.
        queries_order: of the power mean over queries.
    """

    def __init__(
        self,
        scenarios: Scenarios,
        workload: ToeplitzWorkload,
        order: float = 1.0,
        queries_order: float = 1.0,
    ) -> None:
        if workload.rounds != scenarios.rounds:
            raise ValueError(
                f"A (workload) must have n={scenarios.rounds} rounds; got {workload.rounds}. "
                "Use a workload of the same horizon."
            )
        self._scenarios, self._order = scenarios, order
        self._error = StrategyError(workload, queries_order)

    def __call__(self, c: Vector) -> tuple[float, Vector]:
        """The value and the gradient, shape (p,); (inf, 0) where C⁻¹ overflows."""
        error, slope = self._error(c)
        if not np.isfinite(error):
            return error, slope
        column = padded(c, self._scenarios.rounds)
        both = zip(self._scenarios.contracts, self._scenarios.weights, strict=True)
        used = [(contract, weight) for contract, weight in both if weight]
        sums = [
            comb_sum(column, contract.max_participations, contract.min_separation) for contract, _ in used
        ]
        sizes = np.array([np.linalg.norm(total) for total in sums])
        scaled = sizes * [w for _, w in used]
        largest = scaled.max()
        powers = (scaled / largest) ** self._order
        value = 0.5 * np.log(error) + np.log(largest) + np.log(powers.sum()) / self._order
        gradient = 0.5 * slope / error
        for (contract, _), total, size, share in zip(used, sums, sizes, powers / powers.sum(), strict=True):
            if share > 1e-16:
                adjoint = comb_sum_adjoint(total, contract.max_participations, contract.min_separation)
                gradient = gradient + share / size**2 * adjoint[: c.size]
        return float(value), gradient


def robust_toeplitz(
    bands: int,
    scenarios: Scenarios,
    workload: ToeplitzWorkload | None = None,
    criterion: Criterion = "expected",
    start: Toeplitz | None = None,
    objective: Objective = RMSE,
) -> Toeplitz:
    """Minimise the expected or the worst error over non-negative non-increasing c ∈ R^p.

    For such c every sens_{k,b} is exact. With p = n they include the monotone banded, the tapered and the
    buffered Toeplitz matrices.

    Args:
        bands: p, 1 ≤ p ≤ n.
        scenarios: the contracts and their weights.
        workload: A; prefix sums by default.
        criterion: "expected" for Σ_b π_b·RMSE_b, "worst" for max_b π_b·RMSE_b.
        start: non-increasing C to start from; the banded square root by default.
        objective: which error counts in the place of the RMSE.

    Returns:
        C with a unit diagonal.

    Raises:
        ValueError: p is out of range, the workload does not fit or the criterion is unknown.

    Guarantees:
        C is non-negative and non-increasing. Up to local convergence no such C does better: starts at the
        optimum for one separation end at the same value (tests).

    >>> C = robust_toeplitz(4, Scenarios.separations(16, [2, 3, 4], 4))
    >>> C.coefficients.round(2)
    array([1.  , 0.6 , 0.34, 0.13])
    """
    if criterion not in ("expected", "worst"):
        raise ValueError(f"criterion must be 'expected' or 'worst'; got {criterion!r}.")
    n = scenarios.rounds
    workload = prefix(n) if workload is None else workload
    initial = bsr(bands, n) if start is None else start
    goal = objective.for_toeplitz(workload)
    queries, c = goal.queries(workload), np.array(initial.strategy[:bands])
    for mean in goal.orders:
        for order in (1.0,) if criterion == "expected" else _ORDERS:
            c = _minimize_monotone(RobustObjective(scenarios, queries, order, mean), c)
    return Toeplitz(c / c[0], n)


def least_regret(
    bands: int,
    scenarios: Scenarios,
    workload: ToeplitzWorkload | None = None,
    objective: Objective = RMSE,
) -> Toeplitz:
    """Minimise the largest ratio, over the contracts, of the error to the best one for that contract alone.

    The best is that of `rated_banded_toeplitz` with p = b.

    Args:
        bands: p, 1 ≤ p ≤ n.
        scenarios: the contracts; their weights are not used.
        workload: A; prefix sums by default.
        objective: which error.

    Raises:
        ValueError: p is out of range or the workload does not fit.

    >>> C = least_regret(4, Scenarios.separations(16, [2, 3, 4], 4))
    >>> C.coefficients.round(2)
    array([1.  , 0.61, 0.31, 0.12])
    """
    queries = prefix(scenarios.rounds) if workload is None else workload
    best = []
    for contract in scenarios.contracts:
        bands_there = min(contract.min_separation, contract.rounds)
        optimal = rated_banded_toeplitz(bands_there, contract, queries, objective)
        stated = stated_sensitivity(optimal, contract)
        best.append(errors(optimal, queries, stated, objective=objective).objective)
    regret = Scenarios(scenarios.contracts, 1.0 / np.array(best))
    start = robust_toeplitz(bands, scenarios, queries, objective=objective)
    return robust_toeplitz(bands, regret, queries, "worst", start, objective)


def tapered(C: Toeplitz, lower: int, upper: int) -> Toeplitz:
    """The heuristic for unknown separations: c_i ← c_i·(b̂ − i)/(b̂ − b₀) for i ≥ b₀, 0 from b̂ on.

    Args:
        C: optimised for the upper separation.
        lower: b₀, the smallest separation expected, 0 ≤ b₀ < b̂.
        upper: b̂, the largest.

    Raises:
        ValueError: b₀ and b̂ are out of order.

    References:
        McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism", Appendix H.

    >>> tapered(Toeplitz([1.0, 0.5, 0.5, 0.5], 4), 1, 3).coefficients
    array([1.  , 0.5 , 0.25, 0.  ])
    """
    if not 0 <= lower < upper:
        raise ValueError(
            f"b_0 (lower separation) must be at least 0 and below b_hat; got {lower} and {upper}. Swap them?"
        )
    i = np.arange(C.coefficients.size)
    return Toeplitz(C.coefficients * np.clip((upper - i) / (upper - lower), 0.0, 1.0), C.rounds)


def _minimize_monotone(objective: RobustObjective, initial: Vector) -> Vector:
    """L-BFGS-B over the steps δ ≥ 0 with c_j = Σ_{l ≥ j} δ_l; the value does not depend on the scale of c."""
    from scipy.optimize import minimize

    def of_steps(steps: Vector) -> tuple[float, Vector]:
        value, slope = objective(np.cumsum(steps[::-1])[::-1])
        return value, np.cumsum(slope)

    steps = np.append(initial[:-1] - initial[1:], initial[-1])
    if (steps < 0).any():
        raise ValueError("start (coefficients) must be non-negative and non-increasing; got a rise.")
    bounds = [(0.0, None)] * steps.size
    optimum = minimize(of_steps, steps, jac=True, method="L-BFGS-B", bounds=bounds, options=_OPTIONS)
    return np.cumsum(optimum.x[::-1])[::-1]
