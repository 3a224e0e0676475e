"""Privacy spent by each user, from the recorded participation, in one run and in several together.

It is as private as the record itself. Several runs and streams on the same users get one statement,
by √(Σ μ²) of each user. Branches of one run are copies of it that were continued; their common
rounds count once (docs/theory/accounting.md, "Branches of one run").
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from fedmf.accounting.gaussian import certified_epsilon, gaussian_epsilon, gaussian_sigma
from fedmf.errors import ConfigError, LedgerError
from fedmf.ledger.lineage import Lineage
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
    "every initial model and its frozen parts are public, or were released by another of them",
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
#: Public figures of each of several, which a letter names.
_PUBLIC: Final = (
    "unit",
    "workload",
    "users",
    "users_per_round",
    "sampling",
    "max_participations",
    "dimension",
    "columns",
    "periods",
    "rounds",
    "rounds_released",
)
#: How a stream of periods counts in the spent ε.
PERIODS_COUNTED: Final = "in full for every user: who took part in which period is private"
#: Relative, of sensitivities of the worst recorded and the worst allowed pattern, summed in
#: different orders, and of a difference of μ².
_TOLERANCE: Final = 1e-9
_QUANTILES: Final = (0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class UserLosses:
    """The GDP parameter of every user.

    Args:
        users: ids in the order in which the ledger first met them.
        mu: μ of each, rounded up; infinite without noise; shape (users,).
        others: μ of each user who is not among them, rounded up. It is above 0 where nobody is
            named, since it is private who took part.
    """

    users: list[str]
    mu: Vector
    others: float = 0.0

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
            users does not exceed, so it is some user's ε. Without any user it is that of the
            others.
        """
        absent = np.full(max(0, users - self.mu.size), self.others)
        mu = np.sort(np.concatenate([absent, self.mu]))
        if not mu.size:
            mu = np.array([self.others])
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
    """The smallest entry that at least a fraction q of all does not exceed."""
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
class LaterCost:
    """The privacy cost of the releases of a branch after its fork.

    Args:
        planned_mu: μ of the worst user that (n, k, b) allows, once all rounds are released.
        spent: the losses of its users.
    """

    planned_mu: float
    spent: UserLosses


class LaterReleases(Protocol):
    """The releases of a branch after a fork, the cost of which can be computed."""

    def after(self, fork: int) -> LaterCost | None:
        """The cost of the releases after the first ``fork`` commits; None if it is not known."""
        ...


@dataclass(frozen=True, eq=False)
class PrivacyCost:
    """The privacy that one run or stream cost each of its users.

    Args:
        name: the path of its directory.
        statement: its statement.
        spent: the losses of its users.
        lineage: its commits, which tell branches of one run; None where there are none.
        later: its releases after a fork; None where only the cost of all is known.
    """

    name: str
    statement: PrivacyStatement
    spent: UserLosses
    lineage: Lineage | None = None
    later: LaterReleases | None = None

    @property
    def folder(self) -> str:
        """The name of the directory without its path, which is not public."""
        return Path(self.name).resolve().name


@dataclass(frozen=True, eq=False)
class _Share:
    """The share of one run or stream in the cost of several together.

    Args:
        cost: of the run or stream by itself.
        planned_mu: the guaranteed μ of the releases that no other one counts.
        spent: the losses by these releases.
        note: for the statement, which releases are counted; empty for all.
    """

    cost: PrivacyCost
    planned_mu: float
    spent: UserLosses
    note: str = ""


def joined_losses(losses: Sequence[UserLosses]) -> UserLosses:
    """√(Σ μ²) of each user over those given, rounded up.

    >>> a = UserLosses(["ann", "bob"], np.array([3.0, 1.0]))
    >>> b = UserLosses(["eve", "ann"], np.array([2.0, 4.0]))
    >>> joined = joined_losses([a, b])
    >>> joined.users, joined.mu.round(9), joined.others
    (['ann', 'bob', 'eve'], array([5., 1., 2.]), 0.0)
    >>> joined = joined_losses([a, UserLosses([], np.zeros(0), others=4.0)])
    >>> joined.users, joined.mu.round(3), round(joined.others, 9)
    (['ann', 'bob'], array([5.   , 4.123]), 4.0)
    """
    users = dict.fromkeys(itertools.chain.from_iterable(each.users for each in losses))
    squares = np.zeros(len(users))
    for each in losses:
        mu = dict(zip(each.users, each.mu.tolist(), strict=True))
        squares += [mu.get(user, each.others) ** 2 for user in users]
    others = math.hypot(*(each.others for each in losses))
    return UserLosses(list(users), np.sqrt(squares) * _slack(losses), others * _slack(losses))


def compose(costs: Sequence[PrivacyCost], delta: float | None = None) -> PrivacyStatement:
    """The statement on several runs and streams on the same users, joined by user id.

    Args:
        costs: of two or more, each with a noise key of its own, or branches of one run or stream.
        delta: δ of the result; the smallest of theirs if left out.

    Raises:
        ConfigError: one names no users; units or adjacencies differ; or δ is out of range.
        LedgerError: one adds no noise; two have one noise key and are no branches with independent
            noise; or no user took part.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Corollary 3.3.
    """
    statements = [cost.statement for cost in costs]
    for cost in costs:
        if cost.statement["noise_key"] is None:
            raise LedgerError(f"{cost.name} adds no noise, so the composition is not private.")
        if cost.statement["users_participated"] is None and not cost.spent.others:
            raise ConfigError(
                f"{cost.name} names no users (--user-column): it cannot be matched by user id."
            )
    _require_equal("unit", costs)
    _require_equal("adjacency", costs)
    shares = _shares(costs)
    if delta is None:
        delta = float(min(s["delta"] for s in statements))
    if not 0 < delta < 1:
        raise ConfigError(f"δ (delta) must lie strictly between 0 and 1; got {delta!r}.")
    joined = joined_losses([share.spent for share in shares])
    if not joined.users and not joined.others:
        raise LedgerError("users (of runs and streams) must be at least one; no user took part.")
    times = Counter[str]()
    for cost in costs:
        times.update(cost.spent.users)
    planned = math.hypot(*(share.planned_mu for share in shares)) * _slack(shares)
    unit = statements[0]["unit"]
    return PrivacyStatement(
        {
            "composed": [_part(share) for share in shares],
            "unit": unit,
            "adjacency": statements[0]["adjacency"],
            "delta": delta,
            "epsilon": epsilon_of(planned, delta),
            "mu": planned,
            **joined.figures(delta, len(joined.users), math.inf),
            "users_participated": len(joined.users) or None,
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
            "this_copy": _unseen(costs),
        }
    )


def epsilon_left(budget: float, statement: PrivacyStatement) -> float:
    """The ε that is left of a total for later runs and streams on the same users, rounded down.

    The total and what was released are Gaussian mechanisms, whose μ² are subtracted. A later run or
    stream may have this ε at the same δ.

    Args:
        budget: ε of the total, fixed before the first release.
        statement: on what was released.

    Returns:
        0.0 if nothing is left.

    Raises:
        ConfigError: the budget is not positive and finite.
        LedgerError: a run without noise was released.
    """
    if not 0 < budget < math.inf:
        raise ConfigError(f"ε (budget) must be positive and finite; got {budget!r}.")
    if statement["mu"] is None:
        raise LedgerError("a run without noise leaves nothing of a budget.")
    total = 1 / gaussian_sigma(budget, statement["delta"])
    spent = statement["mu"]
    if spent >= total:
        return 0.0
    mu = math.sqrt((total - spent) * (total + spent)) * (1 - _TOLERANCE)
    return epsilon_of(mu, statement["delta"], certified=False)


def _require_equal(field: str, costs: Sequence[PrivacyCost]) -> None:
    first = costs[0]
    for cost in costs[1:]:
        if cost.statement[field] != first.statement[field]:
            raise ConfigError(
                f"{field} must be the same to account for several together; {first.name} has"
                f" {first.statement[field]!r} and {cost.name} {cost.statement[field]!r}."
            )


def _shares(costs: Sequence[PrivacyCost]) -> list[_Share]:
    """The share of each run or stream, in the order given: every release counts once.

    Of branches of one run the longest counts whole, and each other one from the last commit on that
    it has in common with a longer one.

    Raises:
        LedgerError: two have one noise key and are no branches with independent noise.
    """
    shares = dict[int, _Share]()
    families = dict[str, list[PrivacyCost]]()
    for place in sorted(range(len(costs)), key=lambda place: -_commits(costs[place])):
        cost = costs[place]
        family = families.setdefault(cost.statement["noise_key"], [])
        shares[place] = _whole(cost)
        forks = [_fork(longer, cost) for longer in family]
        if forks:
            fork = max(forks)
            shares[place] = _share_after(fork, cost, family[forks.index(fork)])
        family.append(cost)
    return [shares[place] for place in range(len(costs))]


def _commits(cost: PrivacyCost) -> int:
    if cost.lineage is None:
        return 0
    return len(cost.lineage.chains)


def _fork(longer: PrivacyCost, cost: PrivacyCost) -> int:
    """T, how many commits two directories with one noise key have in common.

    Raises:
        LedgerError: they are no branches of one run, or their later noise is not independent.
    """
    problem = "they are not copies of one run or stream"
    if (
        cost.lineage is not None
        and longer.lineage is not None
        and cost.lineage.origin == longer.lineage.origin
    ):
        fork = cost.lineage.common_commits(longer.lineage)
        if not cost.lineage.released_after(fork) or not longer.lineage.released_after(fork):
            return fork
        independent = cost.lineage.independent_after(fork, longer.lineage)
        if independent and not cost.statement["noise_key_public"]:
            return fork
        problem = "both continued with the same noise"
    raise LedgerError(
        f"noise keys must be different; {longer.name} and {cost.name} have"
        f" {cost.statement['noise_key']}, and {problem}. Their noise is not independent."
    )


def _whole(cost: PrivacyCost, note: str = "") -> _Share:
    return _Share(cost, cost.statement["mu"], cost.spent, note)


def _share_after(fork: int, cost: PrivacyCost, longer: PrivacyCost) -> _Share:
    """The share of a branch, the first commits of which count with a longer branch."""
    common = f"the first {fork} commits are those of {longer.folder}"
    if cost.lineage is None or not cost.lineage.released_after(fork):
        nothing = UserLosses(cost.spent.users, np.zeros_like(cost.spent.mu))
        return _Share(cost, 0.0, nothing, f"copy: {common}, and there are no others")
    if fork == 0:
        return _whole(cost)
    later = None
    if cost.later is not None:
        later = cost.later.after(fork)
    if later is None:
        return _whole(cost, f"branch: {common}, and are counted twice, which is a safe bound")
    planned = min(later.planned_mu, cost.statement["mu"])
    spent = UserLosses(cost.spent.users, np.minimum(later.spent.mu, cost.spent.mu))
    return _Share(cost, planned, spent, f"branch: {common}, and are counted once")


def _unseen(costs: Sequence[PrivacyCost]) -> str | None:
    """A sentence on releases that this machine has seen and none of the directories holds."""
    lineages = [cost.lineage for cost in costs if cost.lineage is not None]
    for cost in costs:
        if cost.lineage is None or cost.lineage.seen is None:
            continue
        seen = cost.lineage.seen
        if not any(seen.is_held_by(lineage.chains) for lineage in lineages):
            return f"{cost.folder}: {cost.lineage.unseen()}"
    return None


def _part(share: _Share) -> dict[str, Any]:
    part: dict[str, Any] = {"directory": share.cost.folder}
    for name in ("noise_key", "delta", "epsilon", "amplification"):
        part[name] = share.cost.statement[name]
    for name in _PUBLIC:
        if name in share.cost.statement:
            part[name] = share.cost.statement[name]
    part["counted"] = share.note or "all releases"
    if share.spent.others:
        part["counted"] += f", {PERIODS_COUNTED}"
    return part


def _slack(terms: Sequence[object]) -> float:
    """A factor above the rounding errors of sums of squares and a root."""
    return 1 + (len(terms) + 4) * 2.0**-52
