"""Random cohorts as the amplification theorems assume them: the number of users differs from round
to round.

Every draw comes from SHAKE-256 of a secret 256-bit seed, so that no amount of published models
helps to predict a cohort. Uniform variables are multiples of 2⁻⁵³; that, and taking words modulo a
small number, moves the law of a draw by less than 2⁻⁵² in total variation.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmf.cohorts.fixed import Cohorts, Draw
from fedmf.participation import Participation

_LABEL = b"fedmf cohorts, version 1\x00"


@dataclass(frozen=True)
class SampledCohorts(Cohorts):
    """Cohorts of random size from the run's secret key: amplification may be claimed for them;
    abstract.

    The mean update is still divided by the planned size m. Amplification holds only against an
    observer who does not know who took part: the seed must be secret and the cohorts must stay so.
    """

    secret: ClassVar[bool] = True

    def _separation(self, turns: int, bands: int | None) -> int:
        """That of the bands, or half of what a cyclic order keeps: room for chance."""
        return bands or max(1, turns // 2)

    def probability(self, users: int, contract: Participation) -> float:
        """q, with which a user joins when it may: what the accountant assumes. No seed changes
        it.
        """
        self._check(users, contract)
        return self._joins(users, contract.min_separation)

    @abstractmethod
    def _joins(self, users: int, b: int) -> float:
        """See `probability`."""

    def _check(self, users: int, contract: Participation) -> None:
        """m·b ≤ U, since the rate m/U cannot be kept otherwise with that separation; k = ⌈n/b⌉,
        since a lower cap would change the law of the draws.
        """
        m = self.users_per_round
        b = contract.min_separation
        k = contract.max_participations
        if m * b > users:
            raise ValueError(
                f"m (cohort size) must be at most U/b for sampled cohorts; got m={m} with U={users}"
                f" users and b={b}, where users join at most every {b}th round."
            )
        most = Participation.as_many_as_fit(contract.rounds, b).max_participations
        if k != most:
            raise ValueError(
                f"k (max_participations) must be {most} = ceil(n/b) for sampled cohorts; got k={k}."
                " A limit would change the sampling that the accountant assumes."
            )


@dataclass(frozen=True)
class CyclicPoissonCohorts(SampledCohorts):
    """b groups of users take turns; members join independently with probability m·b/U.

    The users are dealt into groups of ⌊U/b⌋ or ⌈U/b⌉ in a random order; round t asks group t mod b.
    A user is in any one round with probability m/U.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization", Algorithm 2.

    >>> CyclicPoissonCohorts(40, 5).probability(100, Participation.as_many_as_fit(40, 4))
    0.2
    """

    kind: ClassVar[str] = "cyclic-poisson"

    def _joins(self, users: int, b: int) -> float:
        return min(1.0, self.users_per_round * b / users)

    def _draw(self, users: int, contract: Participation, seed: int) -> Draw:
        b = contract.min_separation
        order = np.argsort(_words(seed, "order", users), kind="stable")
        q = self._joins(users, b)

        def cohort(t: int) -> NDArray[np.int64]:
            """Takes time O(m): the gaps between chosen members are drawn."""
            group = order[t % b :: b]
            expected = group.size * q
            batch = int(expected + 6 * math.sqrt(expected) + 16)
            positions = []
            last = -1
            part = 0
            while last < group.size:
                gaps = _geometric(seed, f"round {t}, part {part}", batch, q)
                # A gap beyond the group ends it; cutting it there keeps the sum far from 2^63.
                part_positions = last + np.cumsum(np.minimum(gaps, group.size) + 1)
                positions.append(part_positions)
                last = int(part_positions[-1])
                part = part + 1
            chosen = np.concatenate(positions)
            return np.sort(group[chosen[chosen < group.size]])

        return cohort


@dataclass(frozen=True)
class BallsInBinsCohorts(SampledCohorts):
    """Each user draws one of b = ⌊U/m⌋ bins and joins the rounds bin, bin + b, bin + 2b, …

    A cohort holds U/b users on average, which is m, or up to m·(1 + 1/b).

    References:
        Choquette-Choo et al. (2024), "Near Exact Privacy Amplification for Matrix Mechanisms".

    >>> contract = Participation.as_many_as_fit(12, 4)
    >>> schedule = BallsInBinsCohorts(12, 25).schedule(100, contract, secret_seed=1)
    >>> bool((schedule.cohort(1) == schedule.cohort(9)).all())
    True
    """

    kind: ClassVar[str] = "balls-in-bins"

    def _separation(self, turns: int, bands: int | None) -> int:
        return turns

    def _joins(self, users: int, b: int) -> float:
        return 1.0 / b

    def _check(self, users: int, contract: Participation) -> None:
        """Also b = ⌊U/m⌋: the cohorts would not have the planned size."""
        super()._check(users, contract)
        m = self.users_per_round
        b = contract.min_separation
        if b != users // m:
            raise ValueError(
                f"b (min_separation) must be floor(U/m) = {users // m} for balls in bins; got"
                f" b={b}. {b} bins make cohorts of {users / b:.4g} users on average, not m={m}."
            )

    def _draw(self, users: int, contract: Participation, seed: int) -> Draw:
        b = contract.min_separation
        bins = (_words(seed, "bins", users) % np.uint64(b)).astype(np.int64)
        return lambda t: np.flatnonzero(bins == t % b)


@dataclass(frozen=True)
class MinSeparatedCohorts(SampledCohorts):
    """b-min-sep sampling: an eligible user joins with probability q and then rests for b − 1
    rounds.

    Users are independent. A user who joined round s is eligible again from round s + b on; in every
    round in which it is eligible it joins with probability q, so two participations are b +
    Geometric(q) rounds apart. The process starts warm, in its stationary law: before round 0 a user
    is eligible with probability 1/(1 + q(b−1)), and has r more rounds to rest with probability q/(1
    + q(b−1)) for each r = 1 … b − 1. Hence every user is in every round with the same probability
    q/(1 + q(b−1)), and q is chosen so that this is m/U.

    b = 1 is Poisson sampling; q = 1 is Balls-in-Bins.

    References:
        Dong, Ganesh (2026), arXiv:2602.09338.

    >>> q = MinSeparatedCohorts(12, 10).probability(100, Participation.as_many_as_fit(12, 4))
    >>> round(q, 6)   # q = m/(U − m(b−1))
    0.142857
    """

    kind: ClassVar[str] = "b-min-sep"

    def _joins(self, users: int, b: int) -> float:
        return min(1.0, self.users_per_round / (users - self.users_per_round * (b - 1)))

    def _draw(self, users: int, contract: Participation, seed: int) -> Draw:
        """Draws the whole schedule: 8 bytes for each participation."""
        n = contract.rounds
        b = contract.min_separation
        q = self._joins(users, b)
        member = np.arange(users, dtype=np.int64)
        uniform = (_words(seed, "rest", users) >> np.uint64(11)) * 2.0**-53
        # The first b − 1 intervals of length m/U mean that many rounds of rest before round 0,
        # others none.
        interval = np.floor(uniform / (self.users_per_round / users)).astype(np.int64) + 1
        joins = np.where(interval < b, interval, 0) + _geometric(seed, "gap 0", users, q)
        drawn: list[NDArray[np.int64]] = []
        while member.size:
            within = joins < n
            member = member[within]
            joins = joins[within]
            drawn.append(joins * users + member)
            gaps = _geometric(seed, f"gap {len(drawn)}", member.size, q)
            joins = joins + b + np.minimum(gaps, n)
        every = np.sort(np.concatenate(drawn))
        starts = np.searchsorted(every, np.arange(n + 1) * users)
        return lambda t: every[starts[t] : starts[t + 1]] - t * users


def _words(seed: int, label: str, count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit words, a function of the seed, which lies in 0..2²⁵⁶ − 1, and the label."""
    shake = hashlib.shake_256(_LABEL + seed.to_bytes(32, "little") + label.encode())
    return np.frombuffer(shake.digest(8 * count), dtype="<u8")


def _geometric(seed: int, label: str, count: int, probability: float) -> NDArray[np.int64]:
    """The number of failures of a coin of this probability before its first success; cut off at
    2⁶².
    """
    if probability >= 1:
        return np.zeros(count, dtype=np.int64)
    uniform = ((_words(seed, label, count) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    return np.minimum(np.log(uniform) / math.log1p(-probability), 2.0**62).astype(np.int64)
