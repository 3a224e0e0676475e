"""What each single user spent, by name: as private as the record of participation itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import (
    ParticipationRecord,
    RunRelease,
    adjacency_factor,
    distinct_patterns,
    gaussian_epsilons,
)
from fedmf.statements.header import RunHeader
from fedmf.statements.plan import Plan

#: Relative, of a few operations on doubles.
_ROUNDING: Final = 2.0**-50


@dataclass(frozen=True, eq=False)
class UserPrivacy:
    """One entry a user, in the order in which the ledger first met them; arrays of shape (users,).

    Attributes:
        users: ids of those that took part at least once.
        participations: in how many rounds each took part.
        first_round: the first of them, 0-based; ``last_round`` likewise; −1 if there is none.
        sensitivity: how far the user's rounds can move what was released, per unit clip norm.
        mu: the user's GDP parameter, rounded up; 0 without noise.
        epsilon: ε of the user, against an observer who knows when the user took part;
            infinite without noise.
    """

    users: list[str]
    participations: NDArray[np.int64]
    first_round: NDArray[np.integer]
    last_round: NDArray[np.integer]
    sensitivity: NDArray[np.float64]
    mu: NDArray[np.float64]
    epsilon: NDArray[np.float64]


def user_privacy(header: RunHeader, ledger: ParticipationRecord) -> UserPrivacy:
    """Every recorded user's own realised privacy; made for millions of users.

    Args:
        header: the run's description.
        ledger: replayed before, as `build_statement` does.

    Guarantees:
        ε is never below the exact value of the user's rounds, and above it by at most 1e-9·ε + 1e-13. Like
        every realised ε it holds if participation and the end of the run do not depend on data.
    """
    plan = header.plan
    trained = _spent(plan.release, ledger)
    mus = _mu(trained.sensitivity, plan.relative_noise_std, plan)
    mus *= 1 + _ROUNDING
    noisy = plan.noise_multiplier > 0
    epsilon = gaussian_epsilons(mus, plan.privacy.delta) if noisy else np.full(mus.size, np.inf)
    return UserPrivacy(
        trained.users, trained.lengths, trained.first, trained.last, trained.sensitivity, mus, epsilon
    )


@dataclass(frozen=True, eq=False)
class _Spent:
    """What each user of one ledger spent there."""

    users: list[str]
    lengths: NDArray[np.int64]
    first: NDArray[np.integer]
    last: NDArray[np.integer]
    sensitivity: NDArray[np.float64]


def _spent(release: RunRelease, ledger: ParticipationRecord) -> _Spent:
    users, released = ledger.histories.names, ledger.released
    rounds, keys = ledger.by_user()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    lengths = np.diff(starts, append=keys.size)
    spent = _sensitivities(release, rounds, starts, lengths, released)
    if not keys.size:
        return _Spent(users, lengths, rounds, rounds, spent)
    early, late = np.minimum.reduceat(rounds, starts), np.maximum.reduceat(rounds, starts)
    return _Spent(users, lengths, early, late, spent)


def _mu(spent: NDArray[np.float64], noise: float, plan: Plan) -> NDArray[np.float64]:
    """μ of each user; zeros without noise, where nobody reads them."""
    return spent * (adjacency_factor(plan.privacy.adjacency) / noise) if noise > 0 else np.zeros_like(spent)


def _sensitivities(
    release: RunRelease,
    rounds: NDArray[np.integer],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    released: int,
) -> NDArray[np.float64]:
    """Of each user's pattern over the released rows; equal patterns are computed once."""
    sensitivities = np.zeros(starts.size)
    for length in np.unique(lengths).tolist():
        users = np.flatnonzero(lengths == length)
        patterns, which = distinct_patterns(rounds[starts[users][:, None] + np.arange(length)])
        sensitivities[users] = release.of_equal_length(patterns, released)[which]
    return sensitivities
