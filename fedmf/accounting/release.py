"""What a run releases, as far as its privacy is concerned: one stream of sums (a pair is in `pair_release`).

Every question that accounting asks about sensitivity goes through one of these values. Sensitivities are
given per unit clip norm and per unit of `adjacency_factor`, so that for either kind of run the z that enter
the sum of clipped updates have standard deviation ζ·σ·sensitivity·(adjacency factor).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedmf.mechanisms.histories import equal_length_sensitivities
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import Sensitivity, stated_sensitivity
from fedmf.participation import Participation


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
    def is_linear(self) -> bool:
        """Whether the sensitivity under replace-one is exactly that under zero-out, in adjacency factors."""
        return True

    def check_secret_cohorts(self) -> None:  # noqa: B027
        """Refuse amplification by sampling where no theorem covers it.

        Raises:
            ValueError: such a release.
        """

    @abstractmethod
    def leading(self, rounds: int) -> RunRelease:
        """What the first T rounds release.

        Raises:
            ValueError: T is not between 1 and n.
        """

    @abstractmethod
    def of_equal_length(
        self, rows: NDArray[np.integer], released_rounds: int | None = None
    ) -> NDArray[np.float64]:
        """The sensitivity of recorded patterns with the same number of rounds, shape (patterns,).

        Args:
            rows: one pattern of 0-based rounds a row, shape (patterns, k).
            released_rounds: T ≤ n; all by default.

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

    >>> from fedmf.mechanisms.toeplitz import Toeplitz
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
        self, rows: NDArray[np.integer], released_rounds: int | None = None
    ) -> NDArray[np.float64]:
        """See `RunRelease.of_equal_length`."""
        return equal_length_sensitivities(self.factorization, rows, released_rounds)
