"""Sums that a run releases beside those of its rounds, with a contract, noise and a record of their own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from fedmf.accounting import SumRelease, adjacency_factor
from fedmf.factorization import Mechanism, Sensitivity
from fedmf.participation import Participation

#: The joint multiplier is rounded down by far more than the rounding of what it is computed from.
_DOWN: Final = 1 - 2.0**-48


def joint_multiplier(*multipliers: float) -> float:
    """σ of a Gaussian mechanism that is as private as several together: 1/σ² = Σ 1/σ_i², rounded down.

    Args:
        multipliers: σ_i > 0; infinite for one that tells nothing. A single one is its own.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", Corollary 3.3.

    >>> round(joint_multiplier(5 / 3, 5 / 4), 12), joint_multiplier(2.0)
    (1.0, 2.0)
    """
    if len(multipliers) == 1:
        return multipliers[0]
    return _DOWN / math.hypot(*(1 / sigma for sigma in multipliers))


class OwnStream(ABC):
    """A second stream of sums; a user takes part in it as `participation` says, whatever else it does.

    A release of the stream belongs to a number of rounds that were released before it. Its noise is
    independent of that of training, so that μ² of both add up, planned in `joint_multiplier` and of a user
    over both records; no station adds anything else.

    Attributes:
        participation: (E, k_e, b_e).
        mechanism: name, parameters and C_e.
        sensitivity: of C_e under the contract.
        noise_multiplier: σ_e > 0 for sensitivity 1.
    """

    #: By which headers and statements name it, and the file that keeps who was part of which release.
    name: ClassVar[str]
    ledger: ClassVar[str]
    #: What its releases are called.
    plural: ClassVar[str]
    #: Why no theorem covers releases of it that were lost with a backup.
    without_losses: ClassVar[str]

    participation: Participation
    mechanism: Mechanism
    sensitivity: Sensitivity
    noise_multiplier: float

    @abstractmethod
    def check_beside(self, rounds: int, users: int, amplified: bool, noisy: bool) -> None:
        """Refuse a run beside which it cannot be.

        Args:
            rounds: n, of the run.
            users: N.
            amplified: whether the run claims amplification.
            noisy: whether it has noise.

        Raises:
            ValueError: it is none for that run.
        """

    @abstractmethod
    def released_by(self, rounds: int) -> int:
        """How many releases belong to the first ``rounds`` rounds, the one after the last of them too."""

    @abstractmethod
    def least_released_by(self, rounds: int) -> int:
        """How many must have been released by then: the one after the last round may be about to be."""

    @abstractmethod
    def facts(self, adjacency: str, released: int) -> dict[str, Any]:
        """What a statement says of it that follows from the plan, after so many releases; JSON-able."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote; C_e is the recorded one, never fitted again."""

    @property
    def count(self) -> int:
        """E."""
        return self.participation.rounds

    @property
    def release(self) -> SumRelease:
        """What it releases, as far as privacy is concerned."""
        return SumRelease(self.mechanism.factorization)

    def multiplier_of(self, releases: int) -> float:
        """σ of the first so many releases for the worst allowed user; infinite for none."""
        if releases == 0:
            return math.inf
        k, b = self.participation.max_participations, self.participation.min_separation
        fitting = Participation.as_many_as_fit(releases, b).max_participations
        block = Participation(releases, min(k, fitting), b)
        spent = self.release.leading(releases).stated(block).value
        return self.noise_multiplier * max(1.0, self.sensitivity.value / spent)

    def relative_noise_std(self, adjacency: str) -> float:
        """Standard deviation of the streamed z per unit of the norm of a user's row."""
        return self.noise_multiplier * self.sensitivity.value * adjacency_factor(adjacency)
