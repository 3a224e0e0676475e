"""ε round by round: what the plan allows, and what the recorded participation cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import PatternTable, RealisedPrivacy, realised_privacy
from fedmf.records import Ledger
from fedmf.statements import Plan, PrivacyStatement

#: At how many rounds ε is computed.
_POINTS: Final = 25


@dataclass(frozen=True, eq=False)
class Histories:
    """Who took part when, without names: all participations sorted by user, then by round.

    Attributes:
        users: how many took part at least once.
        rounds: 0-based, shape (participations,).
        keys: of the users, 0 … users − 1 in the order in which the record first met them, same shape.
    """

    users: int
    rounds: NDArray[np.int32]
    keys: NDArray[np.int32]

    @classmethod
    def of(cls, ledger: Ledger) -> Histories:
        """Of a record that was replayed before."""
        users, rounds, keys = ledger.by_user()
        return cls(len(users), rounds, keys)

    def before(self, t: int) -> PatternTable:
        """The patterns as they were when ``t`` rounds were released."""
        early = self.rounds < t
        return PatternTable.of_histories(self.rounds[early], self.keys[early])


@dataclass(frozen=True)
class SpentPrivacy:
    """ε after some of the rounds; nothing without noise, or where rounds were lost with a backup.

    Attributes:
        rounds: numbers of released rounds, up to the horizon.
        planned: ε of the worst user that the plan allows, while cohorts that are secret stay so.
        known: the same against an observer who knows the cohorts; empty where it is no other figure.
        past: those of the rounds that were released.
        worst: realised ε of the worst user; **not private**.
        median: that which half of all users do not exceed; **not private**.
    """

    rounds: tuple[int, ...] = ()
    planned: tuple[float, ...] = ()
    known: tuple[float, ...] = ()
    past: tuple[int, ...] = ()
    worst: tuple[float, ...] = ()
    median: tuple[float, ...] = ()


def privacy_spent(
    plan: Plan, statement: PrivacyStatement, trained: Histories, beside: Mapping[str, Histories]
) -> SpentPrivacy:
    """Both curves of a run.

    Args:
        plan: of the run.
        statement: of the same rounds; the curves end in its figures.
        trained: who took part in rounds.
        beside: who took part in its own streams, as private evaluations, by their names.

    Guarantees:
        planned and known depend on the plan and on how many rounds were released alone.
    """
    if plan.noise_multiplier == 0 or statement.lost:
        return SpentPrivacy()
    n, released = plan.participation.rounds, statement.recorded.rounds
    rounds = tuple(sorted({*np.linspace(0, n, min(n, _POINTS) + 1).astype(int).tolist(), released}))
    planned = dict(zip(rounds, map(plan.epsilon_after, rounds), strict=True))
    known = dict(zip(rounds, map(plan.known_epsilon_after, rounds), strict=True))
    known[released] = statement.planned.known_so_far
    if statement.planned.so_far is not None:
        planned[released] = statement.planned.so_far
    planned[n], known[n] = statement.planned.epsilon, statement.planned.known_cohorts
    past = tuple(t for t in rounds if t <= released)
    realised = [_realised(plan, t, trained, beside) for t in past[:-1]] + [statement.realised]
    return SpentPrivacy(
        rounds,
        tuple(planned.values()),
        tuple(known.values()) if plan.amplification is not None else (),
        past,
        tuple(min(found.epsilon, known[t]) for t, found in zip(past, realised, strict=True)),
        tuple(min(found.quantiles[0.5], known[t]) for t, found in zip(past, realised, strict=True)),
    )


def _realised(plan: Plan, t: int, trained: Histories, beside: Mapping[str, Histories]) -> RealisedPrivacy:
    adjacency, delta, others = plan.privacy.adjacency, plan.privacy.delta, list[float]()
    for own in plan.own_streams:
        asked = beside[own.name]
        rows = min(own.released_by(t), 1 + int(asked.rounds.max(initial=-1)))
        noise = own.relative_noise_std(adjacency)
        others.append(realised_privacy(asked.before(rows), own.release, noise, delta, rows, adjacency).mu)
    before, noise = trained.before(t), plan.relative_noise_std
    return realised_privacy(before, plan.release, noise, delta, t, adjacency, plan.users, math.hypot(*others))
