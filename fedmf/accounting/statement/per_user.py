"""What each single user spent, by name: as private as the record of participation itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.gaussian import adjacency_factor, gaussian_epsilons
from fedmf.accounting.patterns import distinct_patterns
from fedmf.accounting.recorded import ParticipationRecord
from fedmf.accounting.release import RunRelease
from fedmf.accounting.statement.header import RunHeader

__all__ = ["UserPrivacy", "user_privacy"]


@dataclass(frozen=True, eq=False)
class UserPrivacy:
    """One entry a user, in the order in which the ledger first met them; arrays of shape (users,).

    Attributes:
        users: ids of those that took part at least once.
        participations: in how many rounds each took part.
        first_round: the first of them, 0-based; ``last_round`` likewise.
        sensitivity: how far the user's rounds can move what was released, per unit clip norm.
        epsilon: ε of the user against an observer who knows these rounds; infinite without noise.
    """

    users: list[str]
    participations: NDArray[np.int64]
    first_round: NDArray[np.int32]
    last_round: NDArray[np.int32]
    sensitivity: NDArray[np.float64]
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
    with ledger.snapshot():
        users, rounds, keys = ledger.by_user()
        last = ledger.last_round()
    released = 0 if last is None else last + 1
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    lengths = np.diff(starts, append=keys.size)
    spent = _sensitivities(header.plan.release, rounds, starts, lengths, released)
    plan = header.plan
    if plan.noise_multiplier > 0:
        mu = spent * (adjacency_factor(plan.privacy.adjacency) / plan.relative_noise_std)
        epsilon = gaussian_epsilons(mu, plan.privacy.delta)
    else:
        epsilon = np.full(spent.size, np.inf)
    return UserPrivacy(users, lengths, rounds[starts], rounds[starts + lengths - 1], spent, epsilon)


def _sensitivities(
    release: RunRelease,
    rounds: NDArray[np.int32],
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
