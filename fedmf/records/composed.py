"""Several runs and streams on the same users under one statement: √(Σ μ²) of each user."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedmf.accounting import UNITS
from fedmf.errors import LedgerError
from fedmf.records.spent import Spent, epsilon_of
from fedmf.records.statement import OPERATORS, SPENT_ASSUMPTION, PrivacyStatement
from fedmf.typing import Vector

_ASSUMPTIONS: Final = (
    "nothing else was released about these {many}: a release outside these directories costs them more",
    "one person has the same id in all of them, and no other id in any",
    "the noise of each (noise multiplier, mechanism, participation) was fixed before the first release",
    "cohorts are known: amplification by sampling does not count here",
    SPENT_ASSUMPTION,
)


@dataclass(frozen=True, eq=False)
class Costs:
    """What one run or stream cost each of its users.

    Args:
        name: of its directory.
        statement: of it.
        spent: of its users.
    """

    name: str
    statement: Mapping[str, Any]
    spent: Spent


def joined_mu(costs: Sequence[Costs]) -> tuple[list[str], Vector]:
    """Users who took part in any, and √(Σ μ²) of each over those given, rounded up.

    >>> def of(users, mu):
    ...     return Costs("", {}, Spent(users, np.array(mu)))
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


def compose(costs: Sequence[Costs], delta: float | None = None) -> PrivacyStatement:
    """The statement on several runs and streams on the same users, joined by user id.

    Args:
        costs: of two or more, each with a noise key of its own.
        delta: δ of the result; the smallest of theirs if left out.

    Raises:
        LedgerError: one adds no noise or names no users; units or adjacencies differ; two have one noise
            key; nobody took part; or δ is out of range.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Corollary 3.3.
    """
    said = [one.statement for one in costs]
    for one in costs:
        if one.statement["noise_key"] is None:
            raise LedgerError(f"{one.name} adds no noise: nothing together with it is private.")
        if one.statement["users_participated"] is None:
            raise LedgerError(f"{one.name} names no users (--user-column): it cannot be joined by user id.")
    for field in ("unit", "adjacency"):
        _require_one(field, ((one.statement[field], one.name) for one in costs))
    holders: dict[str, str] = {}
    for one in costs:
        key = one.statement["noise_key"]
        if key in holders:
            raise LedgerError(
                f"noise keys must be different; {holders[key]} and {one.name} have {key}. Their noise is not "
                "independent."
            )
        holders[key] = one.name
    if delta is None:
        delta = float(min(s["delta"] for s in said))
    if not 0 < delta < 1:
        raise LedgerError(f"δ (delta) must lie strictly between 0 and 1; got {delta!r}.")
    joined = Spent(*joined_mu(costs))
    if not joined.users:
        raise LedgerError("users (of runs and streams) must be at least one; nobody took part in any.")
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
            "noise_key_public": any(s["noise_key_public"] for s in said),
            "public_inputs": [],
            "not_private": ["composed", *OPERATORS],
            "assumptions": [*map(UNITS[unit].say, _ASSUMPTIONS)],
            "not_covered": [],
            "secret": [],
        }
    )


def _part(one: Costs) -> dict[str, Any]:
    figures = ("noise_key", "delta", "mu_spent", "epsilon_spent", "users_participated")
    return {"directory": one.name, **{name: one.statement[name] for name in figures}}


def _slack(costs: Sequence[Costs]) -> float:
    """What sums of squares and a root may have rounded down."""
    return 1 + (len(costs) + 4) * 2.0**-52


def _require_one(what: str, found: Iterable[tuple[str, str]]) -> None:
    (one, first), *others = found
    for other, second in others:
        if other != one:
            raise LedgerError(
                f"{what} must be the same to account for several together; {first} has {one!r} and {second} "
                f"{other!r}."
            )
