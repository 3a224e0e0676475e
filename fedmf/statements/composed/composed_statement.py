"""One privacy statement for several runs and streams on the same users."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from fedmf.accounting import UNITS, gaussian_epsilons, odometer_epsilon
from fedmf.errors import LedgerError
from fedmf.statements.composed.costs import UserCosts, joined_mu, planned_mu
from fedmf.statements.composed.loss_distribution import ComposedLosses, NoLosses
from fedmf.statements.document import Document, joint_fault_lines, lists_of, promise, up
from fedmf.statements.plain import together
from fedmf.statements.words import REALISED_ASSUMPTION
from fedmf.typing import Vector
from fedmf.version import SOFTWARE


def _facts(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    one, hidden = UNITS[s["unit"]].name, s["epsilon_secret_cohorts_quantiles"]
    realised = _spread(one, s["epsilon_realised"], s["epsilon_realised_median"])
    in_sight = _spread(one, s["epsilon_odometer"], s["epsilon_odometer_median"])
    joined = ", ".join(f"{count:,} in {n}" for n, count in s["users_by_directories"].items())
    facts = [
        ("epsilon realised", f"{realised}, of {s['users_participated']:,} who took part in any"),
        ("epsilon planned", f"{up(s['epsilon_planned'])} for a {one} who does all that contracts allow"),
        ("as odometer", f"{in_sight}, if they were chosen in sight of each other"),
        ("added up", f"{up(s['epsilon_sum'])} at delta {up(s['delta_sum'])}: what summing would say"),
        ("mu realised", up(s["mu_realised"])),
        ("joined by", f"{one} id of {s['user_namespace']!r}: {joined}"),
    ]
    if hidden is not None:
        told = f"{_spread(one, hidden['1'], hidden['0.5'])}, towards those who do not know them"
        facts.insert(2, ("secret cohorts", told))
    return facts


def _spread(one: str, worst: float | None, median: float | None) -> str:
    return f"{up(worst)} (worst {one}), half at most {up(median)}"


def _part(part: Mapping[str, Any], one: str) -> str:
    return (
        f"{part['directory']}: epsilon {up(part['epsilon_realised'])} (worst {one}) at delta "
        f"{up(part['delta'])}, {part['users_participated']:,} took part, noise key {part['noise_key']}"
        f"{', amplified' if part['amplified'] else ''}"
    )


QUANTILES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_ASSUMPTIONS: Final = (
    "nothing else was released about these {many}: what is not in these directories costs them more",
    "one person has the same id in all of them, and no other id in any",
    "how each hides what it releases (noise multiplier, strategy, contract, budgets) was fixed before the "
    "first release of any; epsilon_odometer holds without this",
    REALISED_ASSUMPTION,
)
_NAMED: Final = (
    "user ids of directories that do not say what they are ids of are taken as ids of {namespace!r}: "
    "asserted, not recorded"
)
_INEXACT: Final = (
    "a stream's record tells how often each user took part, not when: its users are counted as if at the "
    "worst steps that lie as far apart as recorded"
)


@dataclass(frozen=True, eq=False)
class ComposedStatement:
    """What several runs and streams cost their users together.

    Attributes:
        costs: of each, in the order in which they were given.
        namespace: of the user ids.
        asserted: whether somebody asserted it for a directory that names none.
        delta: δ of every ε here.
        users: ids of those that took part in any.
        mu: √(Σ μ²) of each over all of them: towards those who know who took part when.
        hidden_mu: the same without amplified runs, shape (users,).
    """

    costs: tuple[UserCosts, ...]
    namespace: str
    asserted: bool
    delta: float
    users: list[str]
    mu: Vector
    hidden_mu: Vector

    @cached_property
    def epsilon(self) -> Vector:
        """ε of each user, shape (users,), never below the exact one."""
        return gaussian_epsilons(self.mu, self.delta)

    @cached_property
    def quantiles(self) -> dict[float, float]:
        """q ↦ the smallest ε that at least a fraction q of the users does not exceed."""
        return {q: self.epsilon[place].item() for q, place in self._places(self.mu).items()}

    @cached_property
    def hidden(self) -> dict[float, float] | None:
        """The same while the cohorts of amplified runs stay secret; None without such runs."""
        places = self._places(self.hidden_mu)
        return self._losses.hidden({q: self.hidden_mu[u].item() for q, u in places.items()}, self.delta)

    @cached_property
    def planned(self) -> float:
        """ε of a user who does all that every contract allows, while cohorts stay secret."""
        known = [one for one in self.costs if one.amplified is None]
        return self._losses.epsilon_with(planned_mu(known), self.delta)

    @cached_property
    def sums(self) -> tuple[float, float]:
        """(Σ ε of the worst user, ε of each at its own δ; Σ δ): what adding up would say."""
        totals = np.zeros(len(self.users))
        place = {user: i for i, user in enumerate(self.users)}
        for one in self.costs:
            where = np.array([place[user] for user in one.users], dtype=np.int64)
            np.add.at(totals, where, gaussian_epsilons(one.mu, one.delta))
        return float(totals.max(initial=0.0)), math.fsum(one.delta for one in self.costs)

    @cached_property
    def _losses(self) -> NoLosses:
        amplified = [one.amplified for one in self.costs if one.amplified is not None]
        return ComposedLosses(amplified) if amplified else NoLosses()

    def _places(self, mu: Vector) -> dict[float, int]:
        """q ↦ a user whose μ is that quantile."""
        order = np.argsort(mu, kind="stable")
        return {q: int(order[max(1, math.ceil(q * mu.size - 1e-9)) - 1]) for q in QUANTILES}

    @property
    def public_noise(self) -> bool:
        """Whether the noise of one of them can be computed by anybody."""
        return any(one.public_noise for one in self.costs)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; figures come from the records of participation and are not private."""
        first, odometer = self.costs[0], odometer_epsilon(self.mu, self.delta)
        places, (added, added_delta) = self._places(self.mu), self.sums
        hidden = None if self.hidden is None else {f"{q:g}": _finite(e) for q, e in self.hidden.items()}
        return {
            "composed": [self._part(one) for one in self.costs],
            "unit": first.unit,
            "user_namespace": self.namespace,
            "adjacency": first.adjacency,
            "delta": self.delta,
            "epsilon_planned": _finite(self.planned),
            "epsilon_realised": self.quantiles[1.0],
            "epsilon_realised_median": self.quantiles[0.5],
            "epsilon_realised_quantiles": {f"{q:g}": e for q, e in self.quantiles.items()},
            "epsilon_secret_cohorts_quantiles": hidden,
            "mu_realised": float(self.mu.max()),
            "epsilon_odometer": float(odometer.max()),
            "epsilon_odometer_median": float(odometer[places[0.5]]),
            "epsilon_sum": added,
            "delta_sum": added_delta,
            "users_participated": len(self.users),
            "users_by_directories": {str(n): count for n, count in sorted(self._shared().items())},
            "noise_key_public": self.public_noise,
            "assumptions": self._assumptions(),
            "not_private": "all of this statement but epsilon_planned",
            "stated_by": SOFTWARE,
        }

    def _part(self, one: UserCosts) -> dict[str, Any]:
        worst = float(one.mu.max(initial=0.0))
        return {
            "directory": one.name,
            **({} if one.verdict is None else {"records": one.verdict.to_dict()}),
            "noise_key": one.key,
            "users_participated": len(one.users),
            "delta": one.delta,
            "mu_realised": worst,
            "epsilon_realised": gaussian_epsilons(np.array([worst]), one.delta).item(),
            "amplified": one.amplified is not None,
        }

    def _shared(self) -> Counter[int]:
        """How many users took part in how many of them."""
        taken = Counter(user for one in self.costs for user in one.users)
        return Counter(taken.values())

    def _assumptions(self) -> list[str]:
        say = UNITS[self.costs[0].unit].say
        return [
            *map(say, _ASSUMPTIONS),
            *([_NAMED.format(namespace=self.namespace)] if self.asserted else []),
            *self._losses.assumptions,
            *([] if all(one.exact for one in self.costs) else [_INEXACT]),
        ]

    def document(self) -> Document:
        """In words."""
        s = self.to_dict()
        unit, faults = UNITS[s["unit"]], joint_fault_lines(s["composed"])
        simulated = ["Simulation only, no privacy (public noise seed). With secret keys:"]
        return Document(
            f"{len(s['composed'])} runs and streams together: the worst {unit.name} has "
            f"{promise(s['epsilon_realised'], s['delta'], s['adjacency'])} against anyone who sees all that "
            "they released (not private).",
            _facts(s),
            lists_of(s),
            f"Stated by {s['stated_by']}.",
            protects=not self.public_noise,
            plain=[] if self.public_noise else together(unit.name),
            first=[*faults, *simulated * self.public_noise],
            whole=not faults,
            members=[_part(part, unit.name) for part in s["composed"]],
        )


def compose(costs: Sequence[UserCosts], namespace: str = "", delta: float | None = None) -> ComposedStatement:
    """Account for several runs and streams on the same users together, joined by user id.

    Args:
        costs: of two or more, each with a noise key of its own.
        namespace: asserted of the ids of those that name none.
        delta: δ of the result; the smallest of theirs if left out, or the sum of all where δ of an amplified
            run cannot be lowered.

    Raises:
        LedgerError: units, adjacencies or namespaces differ, no namespace is named, two have one noise key,
            nobody took part, or δ is out of range.

    Guarantees:
        Each user's ε is at most the sum of its ε of each, with the sum of their δ, but for rounding.
    """
    _require_one("unit", {one.unit: one.name for one in costs})
    _require_one("adjacency", {one.adjacency: one.name for one in costs})
    asserted = any(not one.namespace for one in costs)
    named = {one.namespace: one.name for one in costs if one.namespace}
    if asserted and not namespace:
        nameless = next(one.name for one in costs if not one.namespace)
        raise LedgerError(
            f"user_namespace (what ids are ids of) must be named to join users by id; {nameless} names none. "
            "Assert it with --user-namespace NAME."
        )
    if namespace:
        named.setdefault(namespace, "--user-namespace")
    _require_one("user_namespace", named)
    _require_own_keys(costs)
    chosen = _delta(costs, delta)
    users, mu = joined_mu(costs)
    if not users:
        raise LedgerError("users (of runs and streams) must be at least one; nobody took part in any.")
    place = {user: i for i, user in enumerate(users)}
    hidden = np.zeros(len(users))
    known, part = joined_mu([one for one in costs if one.amplified is None])
    hidden[[place[user] for user in known]] = part
    return ComposedStatement(tuple(costs), next(iter(named)), asserted, chosen, users, mu, hidden)


def _require_one(what: str, found: dict[str, str]) -> None:
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise LedgerError(
            f"{what} must be the same to account for several together; {first} has {one!r} and {second} "
            f"{other!r}."
        )


def _require_own_keys(costs: Sequence[UserCosts]) -> None:
    holders: dict[str, str] = {}
    for one in costs:
        if one.key in holders:
            raise LedgerError(
                f"noise keys must be different; {holders[one.key]} and {one.name} have {one.key}. Their "
                "noise is not independent: account for branches of one run by themselves."
            )
        holders[one.key] = one.name


def _delta(costs: Sequence[UserCosts], delta: float | None) -> float:
    least = math.fsum(one.amplified.least_delta for one in costs if one.amplified is not None)
    smallest, total = min(one.delta for one in costs), math.fsum(one.delta for one in costs)
    chosen = delta if delta is not None else (total if least else smallest)
    if not 0 < chosen < 1 or chosen < least:
        raise LedgerError(
            f"δ (delta) must lie strictly between 0 and 1 and be at least {least!r}, the sum of those that "
            f"amplified runs state; got {chosen!r}."
        )
    return chosen


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
