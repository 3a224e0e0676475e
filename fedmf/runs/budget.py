"""Privacy budgets of single users: who must be left out of a round before anybody is asked."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedmf.accounting import DifferentialPrivacy, adjacency_factor, gaussian_sigma, remaining_epsilons
from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey
from fedmf.records import Ledger, new_file
from fedmf.statements import Plan, UserCosts, compose, joined_mu, planned_mu

if TYPE_CHECKING:
    from fedmf.runs.run import Run


def read_budgets(path: Path) -> dict[str, float]:
    """Budgets from a CSV or Parquet file with the columns ``user`` and ``epsilon``.

    Raises:
        ConfigError: unreadable, other columns, a user named twice, or a budget that is not a number of at
        least 0.
    """
    import pandas as pd  # most of a second, which runs without budgets need not wait for

    try:
        content = path.read_bytes()
        if content[:4] == b"PAR1":
            table = pd.read_parquet(io.BytesIO(content))
        else:
            table = pd.read_csv(io.BytesIO(content), dtype={"user": str}, keep_default_na=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise ConfigError(f"cannot read user budgets {path}: {reason}.") from None
    if set(table.columns) != {"user", "epsilon"}:
        columns = ", ".join(map(str, table.columns))
        raise ConfigError(f"user budgets {path} must have the columns user, epsilon; got {columns}.")
    budgets: dict[str, float] = {}
    for user, value in zip(table["user"], table["epsilon"], strict=True):
        try:
            epsilon = float(value)
        except (TypeError, ValueError):
            epsilon = math.nan
        if not isinstance(user, str) or not epsilon >= 0:
            raise ConfigError(
                f"ε (budget) of a user must be a number of at least 0; got {value!r} for {user!r} in {path}."
            )
        if user in budgets:
            raise ConfigError(f"user {user!r} must have one budget; {path} has several.")
        budgets[user] = epsilon
    return budgets


def check_names(budgets: Iterable[str], users: Iterable[str]) -> None:
    """Refuse a budget of somebody who is not in the run.

    Raises:
        ConfigError: there is one. With a mistyped id, the user who was meant would have no budget.

    >>> check_names(["bob", "ann"], ["ann", "bob", "eve"])
    """
    strangers = set(budgets).difference(users)
    if strangers:
        raise ConfigError(
            f"user_budgets must name users of the run; got {min(strangers)!r} and "
            f"{len(strangers) - 1} others that are not. A user who is named wrongly would have no budget."
        )


def within_total(run: Run, earlier: Sequence[UserCosts], total: float, file: Path) -> Run:
    """The same run with budgets that keep every user within a total over it and what was released before.

    A user who spent μ has ε' left with μ(ε')² + μ² ≤ μ(total)²: a Gaussian filter (docs/composition.md),
    which lets the run be chosen in sight of what was released. Earlier ones that can still go on count with
    all that their contracts allow, for everybody.

    Args:
        run: to begin; without budgets of its own.
        earlier: what each earlier run or stream cost its users.
        total: ε of all together at the run's δ, fixed before the first of them began.
        file: where the budgets are written, a new file for its owner alone.

    Raises:
        ConfigError: the run is without noise or amplified, has budgets already, or names another unit,
            adjacency or namespace than the earlier ones; one of these is amplified; or a user has spent more
            than the total.
        LedgerError: the earlier ones cannot be joined by user id, or hold less than they released.
    """
    privacy = run.privacy
    if not isinstance(privacy, DifferentialPrivacy) or privacy.amplified or privacy.user_budgets:
        raise ConfigError(
            "a total epsilon needs a run with noise, not amplified, and no user_budgets of its own; got "
            f"{privacy.to_dict()}."
        )
    for one in earlier:
        if one.verdict is not None:
            one.verdict.require_no_loss(one.name, "counted in a total epsilon")
    if amplified := [one.name for one in earlier if one.amplified is not None]:
        raise ConfigError(f"no filter covers amplified runs; got {amplified[0]}. Its epsilon adds up.")
    together = compose(earlier, privacy.user_namespace, privacy.delta)
    described = (privacy.unit, privacy.adjacency, privacy.user_namespace)
    before = (earlier[0].unit, earlier[0].adjacency, together.namespace)
    if described != before:
        raise ConfigError(
            f"unit, adjacency and user_namespace of the run must be those of earlier ones, {before}; got "
            f"{described}."
        )
    seed = privacy.noise_seed
    if seed is not None and NoiseKey.from_seed(seed).fingerprint in {one.key for one in earlier}:
        raise ConfigError(f"noise_seed must be that of no earlier run; got {seed}: both add the same noise.")
    more = planned_mu([one for one in earlier if not one.finished])
    users, spent = joined_mu([one for one in earlier if one.finished])
    try:
        *left, fresh = remaining_epsilons(np.hypot([*spent, 0.0], more), total, privacy.delta).tolist()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    budgets = dict(zip(users, left, strict=True))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["user", "epsilon"])
    ids = run.task_source.build().dataset.user_ids
    writer.writerows([user, repr(budgets.get(user, fresh))] for user in ids)
    with new_file(file) as written:
        written.write(text.getvalue().encode())
    return replace(run, privacy=replace(privacy, user_budgets=str(file)))


class NoBudgets:
    """Nobody has a budget of their own: the contract alone limits users."""

    #: Whether who is asked follows from the rounds before.
    limit: ClassVar[bool] = False

    def admit(self, t: int, users: Sequence[str]) -> list[str]:
        """Those of ``users`` that can afford round t, in the same order."""
        del t
        return list(users)


class UserBudgets(NoBudgets):
    """Leaves out users whose next participation would cost more than their budget.

    A user who joined the rounds π, and would join t, moves C·G by at most a·‖Σ_{j∈π∪{t}} C_{:,j}‖ per unit
    clip norm (a pair of streams: the sensitivity of that pattern), over all n rows: also those that later
    rounds release. The user is asked only if ε of that shift is within the budget. The decision depends on
    the user's own recorded participation and nothing else; it depends on data where participation does, for
    instance if whether a user answers is a function of what the user holds.

    Args:
        plan: mechanism and noise.
        budgets: ε by user id; users that are not named are bound by the contract only.
        ledger: the record of participation; read again before each round, so a resumed run decides alike.

    Guarantees:
        No recorded user's realised ε ever exceeds the user's budget.
    """

    limit: ClassVar[bool] = True

    def __init__(self, plan: Plan, budgets: Mapping[str, float], ledger: Ledger) -> None:
        self._release, self._ledger = plan.release, ledger
        scale = plan.relative_noise_std / adjacency_factor(plan.privacy.adjacency)
        delta = plan.privacy.delta
        mus = {
            epsilon: 0.0 if epsilon == 0 else 1 / gaussian_sigma(epsilon, delta)
            for epsilon in set(budgets.values())
            if math.isfinite(epsilon)
        }
        limits = {epsilon: scale * mu for epsilon, mu in mus.items()}
        self._limits = {user: limits[epsilon] for user, epsilon in budgets.items() if epsilon in limits}
        self._history: defaultdict[str, list[int]] = defaultdict(list)
        self._seen = 0

    def admit(self, t: int, users: Sequence[str]) -> list[str]:
        """Those of ``users`` that can afford round t, in the same order."""
        self._catch_up(t)
        bound = [user for user in users if user in self._limits]
        shifts = self._release.of_patterns([[*self._history[user], t] for user in bound])
        too_dear = {
            user for user, shift in zip(bound, shifts.tolist(), strict=True) if shift > self._limits[user]
        }
        return [user for user in users if user not in too_dear]

    def _catch_up(self, t: int) -> None:
        """Histories up to round t: of all rounds at once at first, then of the rounds since."""
        new = ((index, user) for index in range(self._seen, t) for user in self._ledger.participants(index))
        for index, user in self._ledger.participations() if self._seen == 0 else new:
            if index < t and user in self._limits:
                self._history[user].append(index)
        self._seen = max(self._seen, t)


def budgets_of(plan: Plan, kept: Callable[[], Mapping[str, float]], ledger: Ledger) -> NoBudgets:
    """What limits the users of a run beside its contract.

    Args:
        plan: of the run.
        kept: the budgets that its directory keeps.
        ledger: the record of participation.
    """
    if isinstance(plan.privacy, DifferentialPrivacy) and plan.privacy.user_budgets:
        return UserBudgets(plan, kept(), ledger)
    return NoBudgets()
