"""The laws by which secret cohorts are drawn, each with the draw itself.

Amplified ε rests on them: the accountants in this folder assume the probability that a sampler
states here, and a run asks the cohorts that the same sampler draws. Every draw comes from SHAKE-256
of a secret 256-bit seed, so that no amount of published models helps to predict a cohort. Uniform
variables are multiples of 2⁻⁵³; that, and taking words modulo a small number, moves the law of a
draw by less than 2⁻⁵² in total variation.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmf.participation import Participation

_LABEL = b"fedmf cohorts, version 1\x00"

#: The sorted indices of the users of a round, by the round's 0-based index.
Draw = Callable[[int], NDArray[np.int64]]


@dataclass(frozen=True)
class CohortSampler(ABC):
    """A law of secret cohorts of random size; abstract.

    Amplification holds only against an observer who does not know who took part: the seed must be
    secret and the cohorts must stay so.

    Args:
        users: U.
        cohort_size: m, the mean number of users of a round.
        participation: (n, k, b).

    Raises:
        ValueError: m·b > U, so that the rate m/U cannot be kept with that separation, or k is not
            ⌈n/b⌉: a lower limit would change the law.
    """

    #: The name of the law, which is also that of its accountant.
    name: ClassVar[str]

    users: int
    cohort_size: int
    participation: Participation

    def __post_init__(self) -> None:
        m = self.cohort_size
        b = self.participation.min_separation
        k = self.participation.max_participations
        if m * b > self.users:
            raise ValueError(
                f"m (cohort size) must be at most U/b for sampled cohorts; got m={m} with"
                f" U={self.users} users and b={b}, where users join at most every {b}th round."
            )
        largest = Participation.as_many_as_fit(self.participation.rounds, b).max_participations
        if k != largest:
            raise ValueError(
                f"k (max_participations) must be {largest} = ceil(n/b) for sampled cohorts; got"
                f" k={k}. A limit would change the sampling that the accountant assumes."
            )

    @property
    @abstractmethod
    def probability(self) -> float:
        """q, the probability with which a user joins when it may; no seed changes it."""

    @abstractmethod
    def draw(self, seed: int) -> Draw:
        """Draw the cohorts of all rounds.

        Args:
            seed: secret, in 0..2²⁵⁶ − 1.
        """


@dataclass(frozen=True)
class CyclicPoissonSampler(CohortSampler):
    """b groups of users take turns; members join independently with probability m·b/U.

    The users are dealt into groups of ⌊U/b⌋ or ⌈U/b⌉ in a random order; round t asks group t mod b.
    A user is in any one round with probability m/U.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization", Algorithm 2.

    >>> CyclicPoissonSampler(100, 5, Participation.as_many_as_fit(40, 4)).probability
    0.2
    """

    name: ClassVar[str] = "cyclic-poisson"

    @property
    def probability(self) -> float:
        """q = m·b/U."""
        return min(1.0, self.cohort_size * self.participation.min_separation / self.users)

    def draw(self, seed: int) -> Draw:
        """Deal the users into groups; a round's members are drawn when it is asked for."""
        b = self.participation.min_separation
        order = np.argsort(_words(seed, "order", self.users), kind="stable")

        def cohort(t: int) -> NDArray[np.int64]:
            group = order[t % b :: b]
            return np.sort(group[_chosen_places(seed, t, group.size, self.probability)])

        return cohort


def _chosen_places(seed: int, t: int, size: int, probability: float) -> NDArray[np.int64]:
    """Return the places of a group of this size that a coin each chooses, in O(size·q).

    The gaps between chosen places are drawn, which are geometric.
    """
    expected = size * probability
    batch = int(expected + 6 * math.sqrt(expected) + 16)
    parts: list[NDArray[np.int64]] = []
    last = -1
    while last < size:
        gaps = _geometric(seed, f"round {t}, part {len(parts)}", batch, probability)
        # A gap beyond the group ends it; cutting it there keeps the sum far from 2^63.
        places = last + np.cumsum(np.minimum(gaps, size) + 1)
        parts.append(places)
        last = int(places[-1])
    chosen = np.concatenate(parts)
    return chosen[chosen < size]


@dataclass(frozen=True)
class BallsInBinsSampler(CohortSampler):
    """Each user draws one of b = ⌊U/m⌋ bins and joins the rounds bin, bin + b, bin + 2b, …

    A cohort holds U/b users on average, which is m, or up to m·(1 + 1/b).

    Raises:
        ValueError: b is not ⌊U/m⌋, so that the cohorts would not have the planned size.

    References:
        Choquette-Choo et al. (2024), "Near Exact Privacy Amplification for Matrix Mechanisms".

    >>> cohort = BallsInBinsSampler(100, 25, Participation.as_many_as_fit(12, 4)).draw(seed=1)
    >>> bool((cohort(1) == cohort(9)).all())
    True
    """

    name: ClassVar[str] = "balls-in-bins"

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.cohort_size
        b = self.participation.min_separation
        if b != self.users // m:
            raise ValueError(
                f"b (min_separation) must be floor(U/m) = {self.users // m} for balls in bins; got"
                f" b={b}. {b} bins make cohorts of {self.users / b:.4g} users on average, not"
                f" m={m}."
            )

    @property
    def probability(self) -> float:
        """q = 1/b, of being in any one bin."""
        return 1.0 / self.participation.min_separation

    def draw(self, seed: int) -> Draw:
        """Draw a bin for every user."""
        b = self.participation.min_separation
        bins = (_words(seed, "bins", self.users) % np.uint64(b)).astype(np.int64)
        return lambda t: np.flatnonzero(bins == t % b)


@dataclass(frozen=True)
class MinSeparatedSampler(CohortSampler):
    """b-min-sep sampling: eligible users join with probability q and rest for b − 1 rounds.

    Users are independent. A user who joined round s is eligible again from round s + b on; in every
    round in which it is eligible it joins with probability q, so two participations are b +
    Geometric(q) rounds apart. The process starts warm, in its stationary law: before round 0 a user
    is eligible with probability 1/(1 + q(b−1)), and has r more rounds to rest with probability q/(1
    + q(b−1)) for each r = 1 … b − 1. Hence every user is in every round with the same probability
    q/(1 + q(b−1)), and q is chosen so that this is m/U.

    b = 1 is Poisson sampling; q = 1 is Balls-in-Bins.

    References:
        Dong, Ganesh (2026), arXiv:2602.09338.

    >>> sampler = MinSeparatedSampler(100, 10, Participation.as_many_as_fit(12, 4))
    >>> round(sampler.probability, 6)   # q = m/(U − m(b−1))
    0.142857
    """

    name: ClassVar[str] = "b-min-sep"

    @property
    def probability(self) -> float:
        """q = m/(U − m(b − 1))."""
        resting = self.cohort_size * (self.participation.min_separation - 1)
        return min(1.0, self.cohort_size / (self.users - resting))

    def draw(self, seed: int) -> Draw:
        """Draw the whole schedule: 8 bytes for each participation."""
        n = self.participation.rounds
        b = self.participation.min_separation
        q = self.probability
        member = np.arange(self.users, dtype=np.int64)
        uniform = (_words(seed, "rest", self.users) >> np.uint64(11)) * 2.0**-53
        # The first b − 1 intervals of length m/U mean that many rounds of rest before round 0,
        # others none.
        interval = np.floor(uniform / (self.cohort_size / self.users)).astype(np.int64) + 1
        rest = np.where(interval < b, interval, 0)
        joins = rest + _geometric(seed, "gap 0", self.users, q)
        parts: list[NDArray[np.int64]] = []
        while member.size:
            within = joins < n
            member = member[within]
            joins = joins[within]
            parts.append(joins * self.users + member)
            gaps = _geometric(seed, f"gap {len(parts)}", member.size, q)
            joins = joins + b + np.minimum(gaps, n)
        participations = np.sort(np.concatenate(parts))
        starts = np.searchsorted(participations, np.arange(n + 1) * self.users)
        return lambda t: participations[starts[t] : starts[t + 1]] - t * self.users


def _words(seed: int, label: str, count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit words, a function of the seed, which lies in 0..2²⁵⁶ − 1, and the label."""
    shake = hashlib.shake_256(_LABEL + seed.to_bytes(32, "little") + label.encode())
    return np.frombuffer(shake.digest(8 * count), dtype="<u8")


def _geometric(seed: int, label: str, count: int, probability: float) -> NDArray[np.int64]:
    """Numbers of failures of a coin before its first success, cut off at 2⁶²."""
    if probability >= 1:
        return np.zeros(count, dtype=np.int64)
    uniform = ((_words(seed, label, count) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    return np.minimum(np.log(uniform) / math.log1p(-probability), 2.0**62).astype(np.int64)
