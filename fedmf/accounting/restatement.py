"""What a published mechanism gives: exact ρ, μ and ε from C, its noise and who may take part how often."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from fedmf.accounting.gaussian import adjacency_factor, gaussian_epsilon, gaussian_figures
from fedmf.factorization import (
    Factorization,
    GivenFactorization,
    Mechanism,
    MechanismChoice,
    Objective,
    Sensitivity,
    check_rounds,
    errors,
    stated_sensitivity,
)
from fedmf.participation import Participation
from fedmf.workload import parse_workload

#: What a square root and a quotient may have rounded up.
_DOWN: Final = 1 - 2.0**-50


@dataclass(frozen=True, eq=False)
class Restatement:
    """C·x + ζ·σ·Z under (k, b)-min-separation, with Z standard Gaussian, restated.

    Each x_t is a sum of updates of norm ζ at most, each of another user. The noise is not scaled by the
    sensitivity of C: σ is what each row of C·x gets, as deployments publish it.

    Args:
        mechanism: C.
        participation: (n, k, b).
        noise_multiplier: σ > 0, standard deviation of each entry of the noise per clip norm ζ.
        delta: δ in (0, 1).
        sensitivity: of C, exact or an upper bound; μ, ρ and ε are as exact as it is.
        rmse: of the released sums, per coordinate, ζ = 1.
        workload: what is released.

    Guarantees:
        Every figure is rounded up. With an exact sensitivity no smaller μ holds for the worst user.
    """

    mechanism: Mechanism
    participation: Participation
    noise_multiplier: float
    delta: float
    sensitivity: Sensitivity
    rmse: float
    workload: str

    def sigma(self, adjacency: str = "zero-out") -> float:
        """The noise per unit of what one user can change: σ/(sens(C)·f), f = 2 for replace-one."""
        return _sigma(self.noise_multiplier / self.sensitivity.value, adjacency)

    def epsilon(self, adjacency: str = "zero-out") -> float:
        """The smallest ε at δ, by the exact trade-off curve of the Gaussian mechanism."""
        return gaussian_epsilon(self.sigma(adjacency), self.delta)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "mechanism": self.mechanism.name,
            "params": dict(self.mechanism.params),
            **dataclasses.asdict(self.participation),
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "sensitivity": self.sensitivity.value,
            "sensitivity_kind": self.sensitivity.kind,
            "sensitivity_case": self.sensitivity.case,
            "workload": self.workload,
            "rmse": self.rmse,
            "adjacency": both_adjacencies(self.noise_multiplier / self.sensitivity.value, self.delta),
        }


def restate(
    choice: MechanismChoice | Factorization,
    participation: Participation,
    noise_multiplier: float,
    delta: float,
    workload: str = "prefix",
    objective: str = "rmse",
) -> Restatement:
    """What C·x + ζ·σ·Z gives the worst user of a (k, b)-min-separation contract.

    Args:
        choice: C, or a mechanism to be built for the contract.
        participation: (n, k, b).
        noise_multiplier: σ > 0, of each row of C·x per clip norm, not per unit sensitivity.
        delta: δ in (0, 1).
        workload: whose error is stated.
        objective: what C by name minimises, as in `design`.

    Raises:
        ValueError: a value is out of range, or C is not of n rounds.

    >>> from fedmf.factorization import tree
    >>> published = restate(tree(16), Participation(16, 2, 8), noise_multiplier=4.0, delta=1e-6)
    >>> round(published.sensitivity.value**2, 6), round(published.figures["adjacency"]["zero-out"]["rho"], 6)
    (12.0, 0.375)
    """
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(
            f"sigma (noise_multiplier) must be positive and finite; got {noise_multiplier}. "
            "Without noise nothing is private."
        )
    check_rounds(participation.rounds)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1); got {delta}.")
    choice = GivenFactorization(choice) if isinstance(choice, Factorization) else choice
    queries = parse_workload(workload, participation.rounds)
    mechanism = choice.build(participation, queries, Objective.parse(objective))
    sensitivity = stated_sensitivity(mechanism.factorization, participation)
    error = errors(mechanism.factorization, queries, sensitivity, noise_multiplier / sensitivity.value)
    return Restatement(
        mechanism, participation, noise_multiplier, delta, sensitivity, error.rmse, queries.name
    )


def both_adjacencies(multiplier: float, delta: float) -> dict[str, dict[str, float]]:
    """μ, ρ and ε of a Gaussian release by adjacency, and the ε that is usually published for that ρ.

    Args:
        multiplier: σ of the noise per unit of what one user's disappearance changes.
        delta: δ.
    """
    found = {}
    for adjacency in ("zero-out", "replace-one"):
        figures = gaussian_figures(_sigma(multiplier, adjacency), delta)
        found[adjacency] = {**figures, "epsilon_by_rho": zcdp_epsilon(figures["rho"], delta)}
    return found


def _sigma(multiplier: float, adjacency: str) -> float:
    return multiplier / adjacency_factor(adjacency) * _DOWN


def zcdp_epsilon(rho: float, delta: float) -> float:
    """ε that is usually published for ρ-zCDP: min over α > 1 of ρα + (log(1/(αδ)) + (α−1)·log(1−1/α))/(α−1).

    Larger than the exact ε of the Gaussian mechanism with that ρ; here to compare with what was published.

    References:
        Canonne, Kamath and Steinke (2020), "The Discrete Gaussian for Differential Privacy", Proposition 12.

    >>> round(zcdp_epsilon(79 / 98, 1e-10), 2)
    8.9
    """
    from scipy.optimize import minimize_scalar

    def bound(log_more: float) -> float:
        more = math.exp(log_more)  # α − 1
        return rho * (1 + more) - math.log1p(more) / more - math.log(delta) / more - math.log1p(1 / more)

    best: Any = minimize_scalar(bound, bounds=(-15.0, 25.0), method="bounded", options={"xatol": 1e-9})
    return float(best.fun)
