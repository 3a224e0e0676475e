"""The participation contract: (k, b)-min-separated participation over a fixed horizon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: How neighboring data sets differ in one user: its rows become zero, or those of another user.
Adjacency = Literal["zero-out", "replace-one"]

#: The most rounds for which closed forms and optimized banded Toeplitz matrices are built; this
#: takes minutes, and seconds for 10⁶ rounds.
LARGEST_HORIZON: Final = 10_000_000


@dataclass(frozen=True)
class Participation:
    """The participation bound of a run, for its schedule, sensitivity, accountant and ledger.

    A user may join at most ``max_participations`` (k) of the ``rounds`` (n) rounds, and any two
    rounds i ≠ j of the same user satisfy |i − j| ≥ ``min_separation`` (b).

    Args:
        rounds: n ≥ 1, the fixed horizon.
        max_participations: k ≥ 1, with (k − 1)·b + 1 ≤ n so that k participations fit.
        min_separation: b ≥ 1; b = 1 lets a user join every round.

    Raises:
        ValueError: a value is not a positive integer, or k participations b apart do not fit in n
            rounds.

    References:
        Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization", Definition 1.

    >>> Participation(rounds=10, max_participations=3, min_separation=4)
    Participation(rounds=10, max_participations=3, min_separation=4)
    >>> Participation.as_many_as_fit(rounds=10, min_separation=4).max_participations
    3
    """

    rounds: int
    max_participations: int
    min_separation: int

    def __post_init__(self) -> None:
        for symbol, name in (("n", "rounds"), ("k", "max_participations"), ("b", "min_separation")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{symbol} ({name}) must be an integer of at least 1; got {value!r}."
                )
        k = self.max_participations
        b = self.min_separation
        n = self.rounds
        if (k - 1) * b + 1 > n:
            raise ValueError(
                f"k (max_participations) must satisfy (k - 1)*b + 1 <= n; got k={k}, b={b}, n={n}."
                f" With b={b} at most k={most_participations(n, b)} participations fit in {n}"
                " rounds."
            )

    @classmethod
    def as_many_as_fit(cls, rounds: int, min_separation: int) -> Participation:
        """The bound with the largest k that the horizon allows: k = ⌈n/b⌉."""
        return cls(
            rounds, most_participations(max(1, rounds), max(1, min_separation)), min_separation
        )


def most_participations(rounds: int, min_separation: int) -> int:
    """The largest k with (k − 1)·b + 1 ≤ n, that is ⌈n/b⌉."""
    return -(-rounds // min_separation)
