"""Privacy spent by each user, from the recorded participation, in one run and in several together.

It is as private as the record itself. Several runs and streams on the same users get one statement,
by √(Σ μ²) of each user.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedmf.accounting.gaussian import certified_epsilon, gaussian_epsilon
from fedmf.errors import LedgerError
from fedmf.matrices.arrays import Vector
from fedmf.statements.privacy import UNITS
from fedmf.statements.statement import (
    OPERATORS,
    SPENT_ASSUMPTION,
    SPENT_NOT_COVERED,
    PrivacyStatement,
)

_ASSUMPTIONS: Final = (
    "the statement of each directory holds, with all of its assumptions and secrets",
    (
        "nothing else was released about these {many}: a release outside these directories costs"
        " them more"
    ),
    "one person has the same id in all of them, and no other id in any",
    (
        "the noise of each (noise multiplier, mechanism, participation) was fixed before the first"
        " release"
    ),
    "cohorts are known: amplification by sampling does not count here",
    SPENT_ASSUMPTION,
)
#: Relative, of sensitivities of the worst recorded and the worst allowed pattern, summed in
#: different orders.
_TOLERANCE: Final = 1e-9
_QUANTILES: Final = (0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class UserLosses:
    """The GDP parameter of every user who took part.

    Args:
        users: ids in the order in which the ledger first met them.
        mu: μ of each, rounded up; infinite without noise; shape (users,).
    """

    users: list[str]
    mu: Vector

    def figures(self, delta: float, users: int, limit: float) -> dict[str, Any]:
        """The fields of a statement about spent privacy.

        Args:
            delta: δ in (0, 1).
            users: how many users there are, those that never took part included.
            limit: ε that the plan allows.

        Raises:
            LedgerError: the worst user spent more than that, and not by rounding.
            RuntimeError: the two accountants disagree.

        Guarantees:
            Each ε is rounded up. The quantile q is the smallest ε that at least a fraction q of all
            users does not exceed, so it is some user's ε.
        """
        absent = np.zeros(max(0, users - self.mu.size))
        mu = np.sort(np.concatenate([absent, self.mu]))
        largest = 0.0
        if mu.size:
            largest = float(mu[-1])
        epsilon = epsilon_of(largest, delta)
        if epsilon > limit + _TOLERANCE * max(1.0, limit):
            raise LedgerError(
                f"epsilon_spent is {epsilon!r}, above the planned {limit!r}. The records"
                " contradict their plan; no privacy statement is made."
            )
        quantiles = dict[str, float | None]()
        for q in _QUANTILES:
            at_q = _quantile(mu, q)
            quantiles[f"{q:g}"] = finite(min(epsilon_of(at_q, delta, certified=False), limit))
        quantiles["1"] = finite(min(epsilon, limit))
        return {
            "epsilon_spent": quantiles["1"],
            "epsilon_spent_quantiles": quantiles,
            "mu_spent": finite(largest),
        }


def _quantile(ordered: Vector, q: float) -> float:
    """The smallest entry that at least a fraction q of all does not exceed; 0 without entries."""
    if not ordered.size:
        return 0.0
    rank = max(1, math.ceil(q * ordered.size - 1e-9))
    return float(ordered[rank - 1])


def epsilon_of(mu: float, delta: float, certified: bool = True) -> float:
    """ε of a μ-Gaussian private release, rounded up; two accountants agree on a certified one.

    Raises:
        RuntimeError: the two accountants disagree.
    """
    if mu == 0 or math.isinf(mu):
        return mu
    if certified:
        return certified_epsilon(1 / mu, delta)
    return gaussian_epsilon(1 / mu, delta)


def finite(value: float) -> float | None:
    """A number for JSON; None stands for infinite."""
    if math.isfinite(value):
        return value
    return None


@dataclass(frozen=True, eq=False)
class PrivacyCost:
    """The privacy that one run or stream cost each of its users.

    Args:
        name: the name of its directory.
        statement: its statement.
        spent: the losses of its users.
    """

    name: str
    statement: PrivacyStatement
    spent: UserLosses


def joined_mu(costs: Sequence[PrivacyCost]) -> tuple[list[str], Vector]:
    """Users who took part in any, and √(Σ μ²) of each over those given, rounded up.

    >>> def of(users, mu):
    ...     return PrivacyCost("", {}, UserLosses(users, np.array(mu)))
    >>> users, mu = joined_mu([of(["ann", "bob"], [3.0, 1.0]), of(["eve", "ann"], [2.0, 4.0])])
    >>> users, mu.round(9)
    (['ann', 'bob', 'eve'], array([5., 1., 2.]))
    """
    squares = dict[str, float]()
    for cost in costs:
        for user, mu in zip(cost.spent.users, cost.spent.mu.tolist(), strict=True):
            squares[user] = squares.get(user, 0.0) + mu * mu
    return list(squares), np.sqrt(list(squares.values())) * _slack(costs)


def compose(costs: Sequence[PrivacyCost], delta: float | None = None) -> PrivacyStatement:
    """The statement on several runs and streams on the same users, joined by user id.

    Args:
        costs: of two or more, each with a noise key of its own.
        delta: δ of the result; the smallest of theirs if left out.

    Raises:
        LedgerError: one adds no noise or names no users; units or adjacencies differ; two have one
            noise key; no user took part; or δ is out of range.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Corollary 3.3.
    """
    statements = [cost.statement for cost in costs]
    for cost in costs:
        if cost.statement["noise_key"] is None:
            raise LedgerError(f"{cost.name} adds no noise, so the composition is not private.")
        if cost.statement["users_participated"] is None:
            raise LedgerError(
                f"{cost.name} names no users (--user-column): it cannot be matched by user id."
            )
    _require_equal("unit", costs)
    _require_equal("adjacency", costs)
    _require_different_keys(costs)
    if delta is None:
        delta = float(min(s["delta"] for s in statements))
    if not 0 < delta < 1:
        raise LedgerError(f"δ (delta) must lie strictly between 0 and 1; got {delta!r}.")
    joined = UserLosses(*joined_mu(costs))
    if not joined.users:
        raise LedgerError("users (of runs and streams) must be at least one; no user took part.")
    times = Counter[str]()
    for cost in costs:
        times.update(cost.spent.users)
    planned = math.hypot(*(s["mu"] for s in statements)) * _slack(costs)
    unit = statements[0]["unit"]
    return PrivacyStatement(
        {
            "composed": [_part(cost) for cost in costs],
            "unit": unit,
            "adjacency": statements[0]["adjacency"],
            "delta": delta,
            "epsilon": epsilon_of(planned, delta),
            "mu": planned,
            **joined.figures(delta, len(joined.users), math.inf),
            "users_participated": len(joined.users),
            "users_in_several": sum(count > 1 for count in times.values()),
            "noise_key_public": any(s["noise_key_public"] for s in statements),
            "public_inputs": [],
            "not_private": ["users_in_several", *OPERATORS],
            "assumptions": UNITS[unit].say_all(_ASSUMPTIONS),
            "not_covered": [
                "what the statement of one of the directories does not cover",
                SPENT_NOT_COVERED,
            ],
            "secret": [],
        }
    )


def _require_equal(field: str, costs: Sequence[PrivacyCost]) -> None:
    first = costs[0]
    for cost in costs[1:]:
        if cost.statement[field] != first.statement[field]:
            raise LedgerError(
                f"{field} must be the same to account for several together; {first.name} has"
                f" {first.statement[field]!r} and {cost.name} {cost.statement[field]!r}."
            )


def _require_different_keys(costs: Sequence[PrivacyCost]) -> None:
    holders = dict[str, str]()
    for cost in costs:
        key = cost.statement["noise_key"]
        if key in holders:
            raise LedgerError(
                f"noise keys must be different; {holders[key]} and {cost.name} have {key}. Their"
                " noise is not independent."
            )
        holders[key] = cost.name


def _part(cost: PrivacyCost) -> dict[str, Any]:
    part: dict[str, Any] = {"directory": cost.name}
    for name in ("noise_key", "delta", "epsilon", "amplification"):
        part[name] = cost.statement[name]
    return part


def _slack(costs: Sequence[PrivacyCost]) -> float:
    """A factor above the rounding errors of sums of squares and a root."""
    return 1 + (len(costs) + 4) * 2.0**-52
