"""Which (k, b) devices can keep, forecast from the check-ins of earlier days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedmf.cohorts.check_in.check_ins import CheckIns
from fedmf.cohorts.check_in.schedule import DeviceRule, Participations
from fedmf.participation import Participation


@dataclass(frozen=True)
class Forecast:
    """What to enforce, and what it is likely to give.

    Attributes:
        contract: (n, k, b) to enforce: b is the longest timer with which m users come to a round on average
            even if a share ``margin`` of them is missing; k the most turns of a user under it.
        longest: the longest timer for which m users come if all is as recorded.
        shortest: the longest for which they come if twice the margin is missing.
        probability: q of the devices' coins, so that m/(1 − margin) users come on average under the contract,
            if so many can.
        arrivals: users in a round then: mean, fewest, most.
    """

    contract: Participation
    longest: int
    shortest: int
    probability: float
    arrivals: tuple[float, int, int]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return {
            "max_participations": self.contract.max_participations,
            "min_separation": self.contract.min_separation,
            "longest_separation": self.longest,
            "shortest_separation": self.shortest,
            "probability": self.probability,
            "arrivals_mean": self.arrivals[0],
            "arrivals_fewest": self.arrivals[1],
            "arrivals_most": self.arrivals[2],
        }


def forecast(
    check_ins: CheckIns,
    rounds: int,
    size: int,
    margin: float = 0.2,
    min_separation: int | None = None,
    max_participations: int | None = None,
    drop_out: float = 0.0,
    seed: int = 0,
) -> Forecast:
    """Replay recorded check-ins under timers of different length.

    Args:
        check_ins: of earlier days, or of a public model; they begin again as often as n rounds need. They are
            an input that must be public, see docs/check-in.md.
        rounds: n.
        size: m, how many users are wanted in a round.
        margin: share of the participations that may be missing, in [0, 1/2).
        min_separation: b, where it is given.
        max_participations: k, where it is given.
        drop_out: share of participations that never arrive.
        seed: public, of the coins.

    Raises:
        ValueError: m is more than come even without timers, or a margin out of range.

    >>> everyone = CheckIns.of_rounds(100, [range(100)])
    >>> found = forecast(everyone, rounds=60, size=10, margin=0.2)
    >>> found.contract, found.shortest, found.longest
    (Participation(rounds=60, max_participations=8, min_separation=8), 6, 10)
    """
    if not 0 <= margin < 0.5:
        raise ValueError(f"margin (share that may be missing) must lie in [0, 0.5); got {margin!r}.")

    def replayed(b: int, q: float = 1.0, k: int | None = None) -> Participations:
        most = Participation.as_many_as_fit(rounds, b).max_participations
        contract = Participation(rounds, min(most, k or most), b)
        return DeviceRule(contract, q, drop_out, seed=seed).participations(check_ins)

    @cache
    def supply(b: int) -> float:
        return float(replayed(b).sizes.mean())

    def longest(missing: float) -> int:
        return _last(lambda b: (1 - missing) * supply(b) >= size, rounds)

    ends = longest(0.0), longest(margin), longest(2 * margin)
    if min_separation is None and ends[0] == 0:
        raise ValueError(
            f"m (size) must be at most the {supply(1):.4g} users that come to a round on "
            f"average; got {size}. Lower it, or use fewer rounds a day."
        )
    b = min_separation or max(1, ends[1])
    most = Participation.as_many_as_fit(rounds, b).max_participations
    # Drop-outs had a turn by their own count: what is enforced must leave room for all of them.
    turns = DeviceRule(Participation(rounds, most, b), seed=seed).participations(check_ins)
    k = min(most, max_participations or max(1, turns.max_participations))
    q = _probability(lambda q: float(replayed(b, q, k).sizes.mean()), size / (1 - margin))
    come = replayed(b, q, k).sizes
    arrivals = (float(come.mean()), int(come.min()), int(come.max()))
    return Forecast(Participation(rounds, k, b), max(b, ends[0]), max(1, min(b, ends[2])), q, arrivals)


def _last(enough: Callable[[int], bool], most: int) -> int:
    """The largest b in 1 … n with enough users, 0 if there is none; fewer come the longer timers are."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _probability(mean: Callable[[float], float], size: float) -> float:
    """The smallest q, to a thousandth, with which so many users come on average; 1 if they never do."""
    low, high = 0, 1000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if mean(middle / 1000) >= size else (middle, high)
    return high / 1000
