"""Random cohorts as the amplification theorems assume them: the number of users differs from round to round.

Every draw comes from SHAKE-256 of a secret 256-bit seed, so that no amount of published models helps to
predict a cohort. Uniform variables are multiples of 2⁻⁵³; that, and taking words modulo a small number,
moves the law of a draw by less than 2⁻⁵² in total variation.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from fedmf.cohorts.fixed import CohortSchedule
from fedmf.participation import Participation

_LABEL = b"fedmf cohorts, version 1\x00"


class SampledSchedule(CohortSchedule):
    """Cohorts of random size; the mean update is still divided by the planned size m.

    Amplification holds only against an observer who does not know who took part: the seed must be secret and
    the cohorts must stay so.
    """

    #: q, with which a user joins when it may: what the accountant of the schedule assumes.
    probability: float

    def _prepare(self) -> None:
        """See `CohortSchedule`: m·b ≤ U, since the rate m/U cannot be kept otherwise with that separation;
        k = ⌈n/b⌉, since a lower cap would change the law of the draws; a secret seed 0 ≤ seed < 2²⁵⁶."""
        users, cohort_size, seed = self.users, self.cohort_size, self.seed
        n, b = self.participation.rounds, self.participation.min_separation
        if cohort_size * b > users:
            raise ValueError(
                f"m (cohort size) must be at most U/b for sampled cohorts; got m={cohort_size} with "
                f"U={users} users and b={b}, where users join at most every {b}th round."
            )
        most = Participation.as_many_as_fit(n, b).max_participations
        k = self.participation.max_participations
        if k != most:
            raise ValueError(
                f"k (max_participations) must be {most} = ceil(n/b) for sampled cohorts; got k={k}. A cap "
                "would change the sampling that the accountant assumes."
            )
        if not 0 <= seed < 2**256:
            raise ValueError("seed (of the cohorts) must lie in 0..2^256-1.")

    def _words(self, label: str, count: int) -> NDArray[np.uint64]:
        """Uniform 64-bit words, a function of seed and label."""
        shake = hashlib.shake_256(_LABEL + self.seed.to_bytes(32, "little") + label.encode())
        return np.frombuffer(shake.digest(8 * count), dtype="<u8")

    def _geometric(self, label: str, count: int, probability: float) -> NDArray[np.int64]:
        """How often a coin of that probability fails before it first succeeds; cut off at 2⁶²."""
        if probability >= 1:
            return np.zeros(count, dtype=np.int64)
        uniform = ((self._words(label, count) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
        return np.minimum(np.log(uniform) / math.log1p(-probability), 2.0**62).astype(np.int64)


class CyclicPoisson(SampledSchedule):
    """b groups of users take turns; in its turn each member joins with probability m·b/U, independently.

    The users are dealt into groups of ⌊U/b⌋ or ⌈U/b⌉ in a random order; round t asks group t mod b. A user
    is in any one round with probability m/U.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization", Algorithm 2.

    >>> schedule = CyclicPoisson(100, 5, Participation.as_many_as_fit(40, 4), seed=1)
    >>> schedule.probability
    0.2
    """

    def _prepare(self) -> None:
        super()._prepare()
        users = self.users
        self.probability = min(1.0, self.cohort_size * self.participation.min_separation / users)
        self._order = np.argsort(self._words("order", users), kind="stable")

    def _cohort(self, t: int) -> NDArray[np.int64]:
        """Takes time O(m): the gaps between chosen members are drawn."""
        group = self._order[t % self.participation.min_separation :: self.participation.min_separation]
        expected = group.size * self.probability
        batch = int(expected + 6 * math.sqrt(expected) + 16)
        positions, last, part = [], -1, 0
        while last < group.size:
            gaps = self._geometric(f"round {t}, part {part}", batch, self.probability)
            # A gap beyond the group ends it; cutting it there keeps the sum far from 2^63.
            part_positions = last + np.cumsum(np.minimum(gaps, group.size) + 1)
            positions.append(part_positions)
            last, part = int(part_positions[-1]), part + 1
        chosen = np.concatenate(positions)
        return np.sort(group[chosen[chosen < group.size]])


class BallsInBins(SampledSchedule):
    """Each user draws one of b bins uniformly, once, and joins the rounds bin, bin + b, bin + 2b, …

    A cohort holds U/b users on average; b = ⌊U/m⌋ makes that m, or up to m·(1 + 1/b).

    References:
        Choquette-Choo et al. (2024), "Near Exact Privacy Amplification for Matrix Mechanisms".

    >>> schedule = BallsInBins(100, 25, Participation.as_many_as_fit(12, 4), seed=1)
    >>> bool((schedule.cohort(1) == schedule.cohort(9)).all())
    True
    """

    def _prepare(self) -> None:
        """Also b = ⌊U/m⌋: the cohorts would not have the planned size."""
        super()._prepare()
        users, cohort_size, b = self.users, self.cohort_size, self.participation.min_separation
        if b != users // cohort_size:
            raise ValueError(
                f"b (min_separation) must be floor(U/m) = {users // cohort_size} for balls in bins; got "
                f"b={b}. {b} bins make cohorts of {users / b:.4g} users on average, not m={cohort_size}."
            )
        self.probability = 1.0 / b
        bins = (self._words("bins", users) % np.uint64(b)).astype(np.int64)
        self._order = np.argsort(bins, kind="stable")
        self._starts = np.searchsorted(bins[self._order], np.arange(b + 1))

    def _cohort(self, t: int) -> NDArray[np.int64]:
        turn = t % self.participation.min_separation
        return self._order[self._starts[turn] : self._starts[turn + 1]].copy()


class MinSeparationSampling(SampledSchedule):
    """b-min-sep sampling: an eligible user joins with probability q and then rests for b − 1 rounds.

    Users are independent. A user who joined round s is eligible again from round s + b on; in every round in
    which it is eligible it joins with probability q, so two participations are b + Geometric(q) rounds
    apart. The process starts warm, in its stationary law: before round 0 a user is eligible with probability
    1/(1 + q(b−1)), and has r more rounds to rest with probability q/(1 + q(b−1)) for each r = 1 … b − 1.
    Hence every user is in every round with the same probability q/(1 + q(b−1)), and q is chosen so that
    this is m/U.

    b = 1 is Poisson sampling; q = 1 is Balls-in-Bins.

    References:
        Dong, Ganesh (2026), arXiv:2602.09338.

    >>> schedule = MinSeparationSampling(100, 10, Participation.as_many_as_fit(12, 4), seed=1)
    >>> round(schedule.probability, 6)   # q = m/(U − m(b−1))
    0.142857
    """

    def _prepare(self) -> None:
        """Draws the whole schedule: 8 bytes for each participation."""
        super()._prepare()
        users, cohort_size = self.users, self.cohort_size
        n, b = self.participation.rounds, self.participation.min_separation
        self.probability = min(1.0, cohort_size / (users - cohort_size * (b - 1)))
        member = np.arange(users, dtype=np.int64)
        joins = self._rest_at_start() + self._geometric("gap 0", users, self.probability)
        drawn: list[NDArray[np.int64]] = []
        while member.size:
            within = joins < n
            member, joins = member[within], joins[within]
            drawn.append(joins * users + member)
            gaps = self._geometric(f"gap {len(drawn)}", member.size, self.probability)
            joins = joins + b + np.minimum(gaps, n)
        self._drawn = np.sort(np.concatenate(drawn))
        self._starts = np.searchsorted(self._drawn, np.arange(n + 1) * users)

    def _rest_at_start(self) -> NDArray[np.int64]:
        """Rounds each user still has to rest before round 0, from the stationary law."""
        b = self.participation.min_separation
        uniform = (self._words("rest", self.users) >> np.uint64(11)) * 2.0**-53
        rate = self.cohort_size / self.users
        # The first b − 1 intervals of length m/U mean that many rounds of rest, the remainder none.
        interval = np.floor(uniform / rate).astype(np.int64) + 1
        return np.where(interval < b, interval, 0)

    def _cohort(self, t: int) -> NDArray[np.int64]:
        return self._drawn[self._starts[t] : self._starts[t + 1]] - t * self.users
