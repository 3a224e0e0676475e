"""What each user's recorded participation cost, after the fact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.gaussian import (
    adjacency_factor,
    certified_epsilon,
    gaussian_epsilon,
)
from fedmf.accounting.patterns import Pattern, PatternTable
from fedmf.accounting.release import RunRelease
from fedmf.accounting.rounding import double_at_least

QUANTILES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class RealisedPrivacy:
    """The distribution of ε over users, from the rounds in which each of them took part.

    Attributes:
        epsilon: the worst user's ε; infinite without noise, 0 if nobody took part.
        mu: the worst user's GDP parameter.
        sensitivity: that of the worst user's pattern over the released rows, per unit clip norm.
        worst_pattern: the rounds of a worst user; empty if nobody took part.
        users: all users, those that never took part included.
        participants: users that took part at least once.
        quantiles: q ↦ the smallest ε that at least a fraction q of all users does not exceed (at q = 0 the
            smallest of all), so each is some user's ε.
    """

    epsilon: float
    mu: float
    sensitivity: float
    worst_pattern: Pattern
    users: int
    participants: int
    quantiles: dict[float, float]

    @property
    def rho(self) -> float:
        """μ²/2, rounded up."""
        return double_at_least(Fraction(self.mu) ** 2 / 2) if math.isfinite(self.mu) else math.inf


def realised_privacy(
    patterns: PatternTable | Mapping[Pattern, int],
    release: RunRelease,
    sigma: float,
    delta: float,
    released_rounds: int,
    adjacency: str = "zero-out",
    users: int | None = None,
    beside: float = 0.0,
) -> RealisedPrivacy:
    """ε of every user from the recorded participation patterns.

    The first T rounds release (up to post-processing) the first T rows of C·G + sigma·z. A user with rounds π
    moves C·G by at most a·s_u, where a is 1 for zero-out and 2 for replace-one and
    s_u = ‖Σ_{j∈π} C_{:T,j}‖ (where columns of C have negative inner products, the sound bound that
    `pattern_sensitivity` gives instead); so that user has μ_u = a·s_u/sigma. For a pair of streams s_u is
    that of `PairRelease`, and sigma is still the noise of the first.

    Args:
        patterns: rounds (0-based, below T) ↦ number of users, as `Ledger.patterns` gives them.
        release: what the run releases, exactly as it did.
        sigma: standard deviation of the z that were added, in units of the clip norm: noise multiplier ×
            planned sensitivity × adjacency factor. 0 for a run without noise.
        delta: δ in (0, 1).
        released_rounds: T, between 0 and n.
        adjacency: "zero-out" or "replace-one".
        users: how many users there are, those that never took part included; by default only those in
            ``patterns``.
        beside: μ of what else was released, of the worst user there; each user's μ² is taken to be larger by
            its square, which is no less than what that user lost.

    Raises:
        ValueError: T outside 0 … n, a pattern with a round outside 0 … T−1, a bad σ, δ or adjacency, or fewer
            users than participants.

    Guarantees:
        Each ε is rounded up. ε is a guarantee only if neither the participation of a user nor the round at
        which the run stopped depends on the data; the planned ε holds without that assumption.

    References:
        Balle, Wang (2018), Theorem 8; Denisov et al. (2022), "Improved Differential Privacy for SGD via
        Optimal Private Linear Operators on Adaptive Streams", Theorem 2.1.

    >>> from fedmf.accounting import SumRelease
    >>> from fedmf.factorization import Toeplitz
    >>> identity = SumRelease(Toeplitz([1.0], rounds=4))
    >>> result = realised_privacy({(0,): 2, (1, 3): 1}, identity, 2.0, 1e-5, released_rounds=4, users=4)
    >>> result.worst_pattern, round(result.mu, 6), result.quantiles[0.0]
    ((1, 3), 0.707107, 0.0)
    """
    factor = adjacency_factor(adjacency)
    noise = _noise_std(sigma)
    if not 0 < delta < 1:
        raise ValueError(f"δ (failure probability) must lie strictly between 0 and 1; got {delta!r}.")
    if not 0 <= released_rounds <= release.rounds:
        raise ValueError(f"T (released rounds) must lie in 0..{release.rounds}; got {released_rounds!r}.")
    table = patterns if isinstance(patterns, PatternTable) else PatternTable.of_counts(patterns)
    idle = 0 if isinstance(patterns, PatternTable) else patterns.get((), 0)
    participants = table.participants
    population = _population(users, participants + idle)
    values, counts, worst = _spent(table, release, released_rounds)
    shifts = factor * np.concatenate([[0.0], values])
    if beside:
        shifts = np.hypot(shifts, beside * noise) * (1 + 2.0**-50)
    counts = np.concatenate([[population - participants], counts])
    top = float(shifts.max())
    return RealisedPrivacy(
        epsilon=_epsilon(top, noise, delta, certified=True),
        mu=double_at_least(Fraction(top) / Fraction(noise)) if noise else (math.inf if top else 0.0),
        sensitivity=float(values.max(initial=0.0)),
        worst_pattern=worst,
        users=population,
        participants=participants,
        quantiles=_quantiles(shifts, counts, noise, delta),
    )


def _epsilon(shift: float, noise: float, delta: float, certified: bool = False) -> float:
    """ε of a release that one user can move by ``shift`` under noise of that standard deviation."""
    if shift == 0:
        return 0.0
    if noise == 0:
        return math.inf
    return (certified_epsilon if certified else gaussian_epsilon)(noise / shift, delta)


def _quantiles(
    shifts: NDArray[np.float64], counts: NDArray[np.int64], noise: float, delta: float
) -> dict[float, float]:
    """ε grows with the shift, so the quantiles of ε are those of the shift: few ε need be computed."""
    present = counts > 0
    if not present.any():
        return dict.fromkeys(QUANTILES, 0.0)
    shifts, counts = shifts[present], counts[present]
    order = np.argsort(shifts)
    reached = np.cumsum(counts[order])
    epsilons: dict[float, float] = {}
    for q in QUANTILES:
        needed = max(1, math.ceil(q * int(reached[-1]) - 1e-9))
        shift = float(shifts[order][np.searchsorted(reached, needed)])
        epsilons[q] = _epsilon(shift, noise, delta, certified=q == 1.0)
    return epsilons


def _noise_std(sigma: float) -> float:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ValueError(f"sigma (noise standard deviation) must be finite and non-negative; got {sigma!r}.")
    return float(sigma)


def _population(users: int | None, recorded: int) -> int:
    if users is not None and users < recorded:
        raise ValueError(f"N (users of the run) must be at least the {recorded} recorded; got {users!r}.")
    return recorded if users is None else users


def _spent(
    table: PatternTable, release: RunRelease, released_rounds: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], Pattern]:
    """(sensitivity of each pattern, users that share it, a worst pattern)."""
    values, counts, worst, top = [np.empty(0)], [np.empty(0, dtype=np.int64)], (), -1.0
    for patterns, users in table.groups.values():
        sensitivities = release.of_equal_length(patterns, released_rounds)
        values.append(sensitivities)
        counts.append(users)
        if sensitivities.max() > top:
            top, worst = float(sensitivities.max()), tuple(patterns[int(sensitivities.argmax())].tolist())
    return np.concatenate(values), np.concatenate(counts), worst
