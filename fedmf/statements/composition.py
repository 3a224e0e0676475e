"""What users spent by the participation recorded, in one run or stream and in several together.

It is as private as that record itself. Several runs and streams on the same users have one
statement, by √(Σ μ²) of each user.
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
_QUANTILES: Final = (0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class UserLosses:
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
            Each ε is rounded up. The quantile q is the smallest ε that at least a fraction q of all
            users does not exceed, so it is some user's ε.
        """
        mu = np.sort(np.concatenate([np.zeros(max(0, users - self.mu.size)), self.mu]))
        at = {
            q: float(mu[max(1, math.ceil(q * mu.size - 1e-9)) - 1]) if mu.size else 0.0
            for q in _QUANTILES
        }
        epsilons = {f"{q:g}": epsilon_of(value, delta, q == 1) for q, value in at.items()}
        if epsilons["1"] > limit + _TOLERANCE * max(1.0, limit):
            raise LedgerError(
                f"epsilon_spent is {epsilons['1']!r}, above the planned {limit!r}. The records"
                " contradict their plan; no privacy statement is made."
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


@dataclass(frozen=True, eq=False)
class PrivacyCost:
    """What one run or stream cost each of its users.

    Args:
        name: of its directory.
        statement: of it.
        spent: of its users.
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
    place: dict[str, int] = {}
    where = [[place.setdefault(user, len(place)) for user in one.spent.users] for one in costs]
    squares = np.zeros(len(place))
    for one, places in zip(costs, where, strict=True):
        np.add.at(squares, np.array(places, dtype=np.int64), one.spent.mu**2)
    return [*place], np.sqrt(squares) * _slack(costs)


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
    said = [one.statement for one in costs]
    for one in costs:
        if one.statement["noise_key"] is None:
            raise LedgerError(f"{one.name} adds no noise, so the composition is not private.")
        if one.statement["users_participated"] is None:
            raise LedgerError(
                f"{one.name} names no users (--user-column): it cannot be matched by user id."
            )
    for field in ("unit", "adjacency"):
        first, *others = {one.statement[field]: one.name for one in costs}.items()
        for other, name in others:
            raise LedgerError(
                f"{field} must be the same to account for several together; {first[1]} has"
                f" {first[0]!r} and {name} {other!r}."
            )
    holders: dict[str, str] = {}
    for one in costs:
        key = one.statement["noise_key"]
        if key in holders:
            raise LedgerError(
                f"noise keys must be different; {holders[key]} and {one.name} have {key}. Their"
                " noise is not independent."
            )
        holders[key] = one.name
    if delta is None:
        delta = float(min(s["delta"] for s in said))
    if not 0 < delta < 1:
        raise LedgerError(f"δ (delta) must lie strictly between 0 and 1; got {delta!r}.")
    joined = UserLosses(*joined_mu(costs))
    if not joined.users:
        raise LedgerError("users (of runs and streams) must be at least one; no user took part.")
    times = Counter(user for one in costs for user in one.spent.users)
    planned = math.hypot(*(s["mu"] for s in said)) * _slack(costs)
    unit = said[0]["unit"]
    return PrivacyStatement(
        {
            "composed": [_part(one) for one in costs],
            "unit": unit,
            "adjacency": said[0]["adjacency"],
            "delta": delta,
            "epsilon": epsilon_of(planned, delta),
            "mu": planned,
            **joined.figures(delta, len(joined.users), math.inf),
            "users_participated": len(joined.users),
            "users_in_several": sum(count > 1 for count in times.values()),
            "noise_key_public": any(s["noise_key_public"] for s in said),
            "public_inputs": [],
            "not_private": ["users_in_several", *OPERATORS],
            "assumptions": [*map(UNITS[unit].say, _ASSUMPTIONS)],
            "not_covered": [
                "what the statement of one of the directories does not cover",
                SPENT_NOT_COVERED,
            ],
            "secret": [],
        }
    )


def _part(one: PrivacyCost) -> dict[str, Any]:
    figures = ("noise_key", "delta", "epsilon", "amplification")
    return {"directory": one.name, **{name: one.statement[name] for name in figures}}


def _slack(costs: Sequence[PrivacyCost]) -> float:
    """What sums of squares and a root may have rounded down."""
    return 1 + (len(costs) + 4) * 2.0**-52
