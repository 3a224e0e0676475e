"""What users spent by the participation recorded: as private as that record itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedmf.accounting import certified_epsilon, gaussian_epsilon
from fedmf.errors import LedgerError
from fedmf.typing import Vector

#: Relative, of sensitivities of the worst recorded and the worst allowed pattern, summed in different orders.
_TOLERANCE: Final = 1e-9
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
        if epsilons["1"] > limit + _TOLERANCE * max(1.0, limit):
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
