"""What users spent by the participation recorded: as private as that record itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import (
    ParticipationRecord,
    adjacency_factor,
    certified_epsilon,
    distinct_patterns,
    gaussian_epsilon,
)
from fedmf.errors import LedgerError
from fedmf.statements.plan import Plan
from fedmf.statements.planned import TOLERANCE
from fedmf.typing import Vector

#: Relative, of a few operations on doubles.
_ROUNDING: Final = 2.0**-50
_QUANTILES: Final = (0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class Spent:
    """The GDP parameter of every user who took part.

    Args:
        users: ids in the order in which the ledger first met them.
        mu: μ of each, rounded up; infinite without noise. Shape (users,).
    """

    users: list[str]
    mu: Vector

    def figures(self, delta: float, users: int, limit: float) -> dict[str, Any]:
        """The fields of a statement that tell what was spent.

        Args:
            delta: δ in (0, 1).
            users: how many users there are, those that never took part included.
            limit: ε that the plan allows.

        Raises:
            LedgerError: the worst user spent more than that, and not by rounding.
            RuntimeError: the two accountants disagree.

        Guarantees:
            Each ε is rounded up. The quantile q is the smallest ε that at least a fraction q of all users
            does not exceed, so it is some user's ε.
        """
        mu = np.sort(np.concatenate([np.zeros(max(0, users - self.mu.size)), self.mu]))
        at = {q: float(mu[max(1, math.ceil(q * mu.size - 1e-9)) - 1]) if mu.size else 0.0 for q in _QUANTILES}
        epsilons = {f"{q:g}": epsilon_of(value, delta, q == 1) for q, value in at.items()}
        if epsilons["1"] > limit + TOLERANCE * max(1.0, limit):
            raise LedgerError(
                f"epsilon_spent is {epsilons['1']!r}, above the planned {limit!r}. The records contradict "
                "their plan; no privacy statement is made."
            )
        quantiles = {name: finite(min(epsilon, limit)) for name, epsilon in epsilons.items()}
        return {
            "epsilon_spent": quantiles["1"],
            "epsilon_spent_quantiles": quantiles,
            "mu_spent": finite(at[1.0]),
        }


def epsilon_of(mu: float, delta: float, certified: bool = True) -> float:
    """ε of a μ-Gaussian private release, rounded up; by two accountants if it is to be certified.

    Raises:
        RuntimeError: the two accountants disagree.
    """
    if mu == 0 or math.isinf(mu):
        return mu
    return (certified_epsilon if certified else gaussian_epsilon)(1 / mu, delta)


def finite(value: float) -> float | None:
    """As JSON has it: None is infinite."""
    return value if math.isfinite(value) else None


def run_spent(plan: Plan, ledger: ParticipationRecord) -> Spent:
    """μ of every user in a run's ledger, from the rounds that the user joined; made for millions of users.

    The first T rounds release (up to post-processing) the first T rows of C·G + σz. A user with rounds π
    moves C·G by at most a·s, where a is 1 for zero-out and 2 for replace-one and s = ‖Σ_{j∈π} C_{:T,j}‖
    (where columns of C have negative inner products, the sound bound that `pattern_sensitivity` gives
    instead; for a pair of streams that of `PairRelease`).

    Args:
        plan: of the run.
        ledger: verified against the plan's contract.

    Guarantees:
        μ is never below the exact value of the user's rounds. It is a guarantee only if neither participation
        nor the end of the run depends on data; the planned ε holds without that assumption.

    References:
        Balle, Wang (2018), Theorem 8; Denisov et al. (2022), "Improved Differential Privacy for SGD via
        Optimal Private Linear Operators on Adaptive Streams", Theorem 2.1.
    """
    rounds, keys = ledger.by_user()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    lengths = np.diff(starts, append=keys.size)
    sensitivities = np.zeros(starts.size)
    for length in np.unique(lengths).tolist():  # equal patterns are computed once
        users = np.flatnonzero(lengths == length)
        patterns, which = distinct_patterns(rounds[starts[users][:, None] + np.arange(length)])
        sensitivities[users] = plan.release.of_equal_length(patterns, ledger.released)[which]
    return Spent(ledger.histories.names, _mu(sensitivities, plan))


def _mu(sensitivities: NDArray[np.float64], plan: Plan) -> Vector:
    if plan.relative_noise_std == 0:
        return np.where(sensitivities > 0, math.inf, 0.0)
    return sensitivities * (
        adjacency_factor(plan.privacy.adjacency) / plan.relative_noise_std * (1 + _ROUNDING)
    )
