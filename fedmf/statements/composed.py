"""Several runs and streams on the same users under one statement: √(Σ μ²) of each user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedmf.accounting import UNITS, ParticipationRecord, at_least, gaussian_epsilons, gaussian_mu
from fedmf.errors import LedgerError
from fedmf.statements.document import aligned, promise
from fedmf.statements.header import RunHeader
from fedmf.statements.per_user import user_privacy
from fedmf.statements.privacy_statement import build_statement
from fedmf.statements.words import REALISED_ASSUMPTION
from fedmf.typing import Vector
from fedmf.version import SOFTWARE

_ASSUMPTIONS: Final = (
    "nothing else was released about these {many}: what is not in these directories costs them more",
    "one person has the same id in all of them, and no other id in any",
    "the noise of each (noise multiplier, mechanism, participation) was fixed before the first release",
    "cohorts are known: amplification by sampling does not count here",
    REALISED_ASSUMPTION,
)


@dataclass(frozen=True, eq=False)
class UserCosts:
    """What one run or stream cost each of its users.

    Args:
        name: of its directory.
        unit: whose contribution is protected: "user" or "example".
        adjacency: "zero-out" or "replace-one".
        namespace: what its user ids are ids of; empty where none was named.
        key: fingerprint of its noise key.
        public_noise: whether anybody can compute its noise.
        delta: δ that it was asked for.
        users: ids of those that took part at least once, in any order.
        mu: μ of each from the participation recorded, shape (users,).
        planned_mu: μ of a user who does all that its contract allows.
    """

    name: str
    unit: str
    adjacency: str
    namespace: str
    key: str
    public_noise: bool
    delta: float
    users: Sequence[str]
    mu: Vector
    planned_mu: float


def run_costs(
    name: str,
    header: RunHeader,
    ledger: ParticipationRecord,
) -> UserCosts:
    """What a run cost each of its users, from its records, checked as for its statement.

    Raises:
        LedgerError: records that are damaged or contradict each other, or a run without noise.
    """
    plan = header.plan
    if plan.noise_multiplier == 0 or header.key_fingerprint is None:
        raise LedgerError(f"{name} adds no noise: nothing together with it is private.")
    build_statement(header, ledger)
    spent = user_privacy(header, ledger)
    return UserCosts(
        name,
        plan.privacy.unit,
        plan.privacy.adjacency,
        plan.privacy.user_namespace,
        header.key_fingerprint,
        header.key_public,
        plan.privacy.delta,
        spent.users,
        spent.mu,
        gaussian_mu(plan.noise_multiplier),
    )


def joined_mu(costs: Sequence[UserCosts]) -> tuple[list[str], Vector]:
    """Users who took part in any, and √(Σ μ²) of each over those given, rounded up.

    >>> def of(name, users, mu):
    ...     return UserCosts(name, "user", "zero-out", "x", name, False, 1e-5, users, np.array(mu), max(mu))
    >>> users, mu = joined_mu([of("a", ["ann", "bob"], [3.0, 1.0]), of("b", ["eve", "ann"], [2.0, 4.0])])
    >>> users, mu.round(9)
    (['ann', 'bob', 'eve'], array([5., 1., 2.]))
    """
    place: dict[str, int] = {}
    where = [[place.setdefault(user, len(place)) for user in one.users] for one in costs]
    squares = np.zeros(len(place))
    for one, places in zip(costs, where, strict=True):
        np.add.at(squares, np.array(places, dtype=np.int64), one.mu**2)
    return [*place], np.sqrt(squares) * _slack(costs)


def compose(costs: Sequence[UserCosts], namespace: str = "", delta: float | None = None) -> dict[str, Any]:
    """The statement on several runs and streams on the same users, joined by user id, JSON-able.

    Args:
        costs: of two or more, each with a noise key of its own.
        namespace: asserted of the ids of those that name none.
        delta: δ of the result; the smallest of theirs if left out.

    Raises:
        LedgerError: units, adjacencies or namespaces differ, no namespace is named, two have one noise key,
            nobody took part, or δ is out of range.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Corollary 3.3.
    """
    _require_one("unit", {one.unit: one.name for one in costs})
    _require_one("adjacency", {one.adjacency: one.name for one in costs})
    named = {one.namespace: one.name for one in costs if one.namespace}
    nameless = [one.name for one in costs if not one.namespace]
    if nameless and not namespace:
        raise LedgerError(
            f"user_namespace (what ids are ids of) must be named to join users by id; {nameless[0]} names "
            "none. Assert it with --user-namespace NAME."
        )
    if namespace:
        named.setdefault(namespace, "--user-namespace")
    _require_one("user_namespace", named)
    holders: dict[str, str] = {}
    for one in costs:
        if one.key in holders:
            raise LedgerError(
                f"noise keys must be different; {holders[one.key]} and {one.name} have {one.key}. Their "
                "noise is not independent."
            )
        holders[one.key] = one.name
    delta = min(one.delta for one in costs) if delta is None else delta
    if not 0 < delta < 1:
        raise LedgerError(f"δ (delta) must lie strictly between 0 and 1; got {delta!r}.")
    users, mu = joined_mu(costs)
    if not users:
        raise LedgerError("users (of runs and streams) must be at least one; nobody took part in any.")
    planned = math.hypot(*(one.planned_mu for one in costs)) * _slack(costs)
    median = np.sort(mu)[(len(users) - 1) // 2]
    everybody, *figures = gaussian_epsilons(np.array([planned, mu.max(), median]), delta).tolist()
    asserted = f"user ids of {', '.join(nameless)} are ids of {namespace!r}: asserted, not recorded"
    return {
        "composed": [_part(one) for one in costs],
        "unit": costs[0].unit,
        "user_namespace": next(iter(named)),
        "adjacency": costs[0].adjacency,
        "delta": delta,
        "epsilon_planned": everybody,
        "epsilon_realised": figures[0],
        "epsilon_realised_median": figures[1],
        "mu_realised": float(mu.max()),
        "users_participated": len(users),
        "noise_key_public": any(one.public_noise for one in costs),
        "assumptions": [
            *map(UNITS[costs[0].unit].say, _ASSUMPTIONS),
            *([asserted] if nameless else []),
        ],
        "not_private": "all of this statement but epsilon_planned",
        "stated_by": SOFTWARE,
    }


def composed_text(statement: dict[str, Any], full: bool) -> str:
    """The same in words, with the assumptions if it is to be full."""
    s, one = statement, UNITS[statement["unit"]].name
    spread = f"{at_least(s['epsilon_realised'])} (worst {one}), half at most"
    facts = [
        ("epsilon planned", f"{at_least(s['epsilon_planned'])} for a {one} who does all that is allowed"),
        ("epsilon realised", f"{spread} {at_least(s['epsilon_realised_median'])}"),
        ("took part", f"{s['users_participated']:,}, joined by ids of {s['user_namespace']!r}"),
    ]
    facts += [
        (
            part["directory"],
            f"epsilon {at_least(part['epsilon_realised'])} at delta {at_least(part['delta'])}, "
            f"{part['users_participated']:,} took part, noise key {part['noise_key']}",
        )
        for part in s["composed"]
    ]
    simulated = ["Simulation only, no privacy (public noise seed). With secret keys:"]
    lines = [
        *simulated * s["noise_key_public"],
        f"{len(s['composed'])} runs and streams together: the worst {one} has "
        f"{promise(s['epsilon_realised'], s['delta'], s['adjacency'])} against anyone who sees all that they "
        "released (not private).",
        *aligned(facts),
    ]
    if full:
        lines += ["", "Assumptions:", *(f"  - {text}" for text in s["assumptions"])]
    return "\n".join(lines) + "\n"


def _part(one: UserCosts) -> dict[str, Any]:
    worst = float(one.mu.max(initial=0.0))
    return {
        "directory": one.name,
        "noise_key": one.key,
        "users_participated": len(one.users),
        "delta": one.delta,
        "mu_realised": worst,
        "epsilon_realised": gaussian_epsilons(np.array([worst]), one.delta).item(),
    }


def _slack(costs: Sequence[UserCosts]) -> float:
    """What sums of squares and a root may have rounded down."""
    return 1 + (len(costs) + 4) * 2.0**-52


def _require_one(what: str, found: dict[str, str]) -> None:
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise LedgerError(
            f"{what} must be the same to account for several together; {first} has {one!r} and {second} "
            f"{other!r}."
        )
