"""What a run releases, as far as its privacy is concerned: one stream of sums (a pair is in `pair_release`).

Every question that accounting asks about sensitivity goes through one of these values. Sensitivities are
given per unit clip norm and per unit of `adjacency_factor`, so that for either kind of run the z that enter
the sum of clipped updates have standard deviation ζ·σ·sensitivity·(adjacency factor).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization import (
    Branches,
    Factorization,
    Sensitivity,
    equal_length_sensitivities,
    stated_sensitivity,
)
from fedmf.participation import Participation

#: Under what a statement about rounded storage holds.
ROUNDED_STORAGE: Final = (
    "noise that is kept for later rounds is rounded, and a larger noise makes up for that except with "
    "probability 1e-20: delta is larger by as much"
)


class RunRelease(ABC):
    """C·G of one run, or (C₁G, √λ·C₂F) with the features F of its second moment."""

    @property
    @abstractmethod
    def rounds(self) -> int:
        """n, the horizon."""

    @abstractmethod
    def stated(self, participation: Participation) -> Sensitivity:
        """The sensitivity under (n, k, b), exact or an upper bound that says so.

        Raises:
            ValueError: the horizons differ.
        """

    @property
    def paired(self) -> bool:
        """Whether a second moment is released beside the sums."""
        return False

    @property
    def stored_as(self) -> str:
        """How noise is kept between rounds; "float64" is exact."""
        return "float64"

    @property
    def is_linear(self) -> bool:
        """Whether the sensitivity under replace-one is exactly that under zero-out, in adjacency factors."""
        return True

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its figures rest on beside what those of every release do."""
        return ()

    def check_secret_cohorts(self) -> None:  # noqa: B027
        """Refuse amplification by sampling where no theorem covers it.

        Raises:
            ValueError: such a release.
        """

    def multipliers(self, known: float, planned: float, lost: Sequence[float]) -> list[float]:
        """σ of independent mechanisms that are together as private as it is with rounds that were lost.

        Args:
            known: σ of what is on record.
            planned: that of the whole run.
            lost: one for each loss.
        """
        del planned
        return [known, *lost]

    @abstractmethod
    def leading(self, rounds: int) -> RunRelease:
        """What the first T rounds release.

        Raises:
            ValueError: T is not between 1 and n.
        """

    @abstractmethod
    def of_equal_length(
        self, rows: NDArray[np.integer], released_rounds: int | Branches | None = None
    ) -> NDArray[np.float64]:
        """The sensitivity of recorded patterns with the same number of rounds, shape (patterns,).

        Args:
            rows: one pattern of 0-based rounds a row, shape (patterns, k).
            released_rounds: T ≤ n; all by default. With branches, patterns are places in them.

        Raises:
            ValueError: a round is repeated or lies outside 0 … T−1, or T outside 1 … n.
        """

    def of_patterns(self, patterns: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """The same of patterns of any lengths over all n rounds, shape (len(patterns),)."""
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for user, pattern in enumerate(patterns):
            groups[len(pattern)].append(user)
        sensitivities = np.zeros(len(patterns))
        for users in groups.values():
            sensitivities[users] = self.of_equal_length(np.asarray([patterns[user] for user in users]))
        return sensitivities


@final
@dataclass(frozen=True, eq=False)
class SumRelease(RunRelease):
    """One stream: sums of clipped updates, sens_{k,b}(C).

    Args:
        factorization: C.

    >>> from fedmf.factorization import Toeplitz
    >>> SumRelease(Toeplitz([1.0, 0.75], 4)).of_patterns([[], [0], [0, 3]])
    array([0.       , 1.25     , 1.6007...])
    """

    factorization: Factorization

    @property
    def rounds(self) -> int:
        """n."""
        return self.factorization.rounds

    def stated(self, participation: Participation) -> Sensitivity:
        """See `RunRelease.stated`."""
        return stated_sensitivity(self.factorization, participation)

    def leading(self, rounds: int) -> SumRelease:
        """See `RunRelease.leading`."""
        return SumRelease(self.factorization.leading(rounds))

    def of_equal_length(
        self, rows: NDArray[np.integer], released_rounds: int | Branches | None = None
    ) -> NDArray[np.float64]:
        """See `RunRelease.of_equal_length`."""
        return equal_length_sensitivities(self.factorization, rows, released_rounds)


@final
@dataclass(frozen=True, eq=False)
class RoundedRelease(RunRelease):
    """A release whose stored noise is rounded, which moves it by W standard deviations at most.

    The z have F = 1/(1 − W·σ) times the standard deviation that is accounted for. A user whose pattern has
    the sensitivity s_π is then seen with μ ≤ s_π/(F·σ·s) + W = s̃_π/(σ·s), s the planned sensitivity, with

        s̃_π = s_π/F + (1 − 1/F)·s,

    which is s for the worst pattern: docs/theory/noise-streams.md. Before the first participation nothing of
    the user can move any rounding. Of a pair, both noises are F times as large and the sums' is rounded:
    √((A/F + W)² + (B/F)²) ≤ √(A² + B²)/F + W. Rounding moves m continuations of one run by √m·W at most.

    Args:
        exact: the release without rounding.
        inflation: F ≥ 1.
        planned: s.
    """

    exact: RunRelease
    inflation: float
    planned: float

    @property
    def rounds(self) -> int:
        """n."""
        return self.exact.rounds

    @property
    def paired(self) -> bool:
        """See `RunRelease.paired`."""
        return self.exact.paired

    @property
    def stored_as(self) -> str:
        """See `RunRelease.stored_as`."""
        return "rounded"

    @property
    def is_linear(self) -> bool:
        """See `RunRelease.is_linear`: W does not depend on the adjacency."""
        return False

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See `RunRelease.assumptions`."""
        return (ROUNDED_STORAGE,)

    def check_secret_cohorts(self) -> None:
        """See `RunRelease.check_secret_cohorts`."""
        raise ValueError(
            f"F (inflation) must be 1 with amplification; got {self.inflation!r}. No theorem covers "
            "rounded noise: store it in float64."
        )

    def multipliers(self, known: float, planned: float, lost: Sequence[float]) -> list[float]:
        """See `RunRelease.multipliers`: rounding does not add up as independent noise does."""
        del known
        return [planned] * (len(lost) + 1)

    def stated(self, participation: Participation) -> Sensitivity:
        """See `RunRelease.stated`."""
        exact = self.exact.stated(participation)
        return Sensitivity(
            float(self._moved(np.array(exact.value))),
            "upper_bound",
            f"{exact.case}; rounding of stored noise added",
        )

    def leading(self, rounds: int) -> RoundedRelease:
        """See `RunRelease.leading`."""
        return RoundedRelease(self.exact.leading(rounds), self.inflation, self.planned)

    def of_equal_length(
        self, rows: NDArray[np.integer], released_rounds: int | Branches | None = None
    ) -> NDArray[np.float64]:
        """See `RunRelease.of_equal_length`."""
        ends = released_rounds.ends if isinstance(released_rounds, Branches) else 1
        return self._moved(self.exact.of_equal_length(rows, released_rounds), ends)

    def _moved(self, values: NDArray[np.float64], continuations: int = 1) -> NDArray[np.float64]:
        rounding = math.sqrt(continuations) * (1 - 1 / self.inflation) * self.planned
        moved = values / self.inflation + rounding
        return np.where(values > 0, moved, 0.0)


def stored_release(exact: RunRelease, inflation: float, planned: float) -> RunRelease:
    """A release with the factor F by which rounding what is stored makes its noise larger; 1 for none.

    Args:
        exact: the release without rounding.
        inflation: F.
        planned: s, the sensitivity that σ is for.
    """
    return exact if inflation == 1 else RoundedRelease(exact, inflation, planned)
