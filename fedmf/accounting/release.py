"""What a run releases, as far as its privacy is concerned: one stream of sums, or a pair of streams.

Every question that accounting asks about sensitivity goes through one of these two values. Sensitivities are
given per unit clip norm and per unit of `adjacency_factor`, so that for either kind of run the z that enter
the sum of clipped updates have standard deviation ζ·σ·sensitivity·(adjacency factor).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.gaussian import adjacency_factor
from fedmf.factorization import (
    Branches,
    Factorization,
    Sensitivity,
    UserRange,
    equal_length_joint_sensitivities,
    equal_length_sensitivities,
    factorization_from_dict,
    joint_sensitivity,
    stated_sensitivity,
)
from fedmf.participation import Adjacency, Participation

#: How the second moment of a round is formed before noise is added:
#: "per-user", (1/m)·Σ_u L(x_u⊗x_u) of the clipped updates x_u;
#: "squared-mean", L(x̄⊗x̄) of x̄ = (1/m)·Σ_u x_u;
#: "joint-clip", (1/m)·Σ_u c_u L(g_u⊗g_u) beside x̄ = (1/m)·Σ_u c_u g_u, where c_u clips the concatenation
#: (g_u, √τ·L(g_u⊗g_u)) of the unclipped update to the norm ζ.
SecondForm = Literal["per-user", "squared-mean", "joint-clip"]
#: One unit of the grid of clipped coordinates and of features, relative to ζ and ζ².
_UNIT: Final = 2.0**-40


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


@dataclass(frozen=True, eq=False)
class SecondStream:
    """The second stream of a pair: features of the clipped updates, sums of squares over blocks.

    Args:
        form: "per-user", Σ_u features(x_u); "squared-mean", features of the mean of the x_u, projected onto
            the ball of radius ζ; "joint-clip", Σ_u features(x_u) with (x_u, √λ·features(x_u)) clipped to ζ.
        moment: which features, for people: "diagonal", "block energies".
        features: m ≥ 1, how many numbers they are.
        dimension: d ≥ m, the length of an update.
        weight: λ > 0, in units of one over the square of the clip norm's.
        mechanism: name of the strategy C₂.
        params: its free parameters.
        factorization: C₂.

    Raises:
        ValueError: a value is out of range.
    """

    form: SecondForm
    moment: str
    features: int
    dimension: int
    weight: float
    mechanism: str
    params: Mapping[str, float | int]
    factorization: Factorization

    def __post_init__(self) -> None:
        if self.form not in ("per-user", "squared-mean", "joint-clip"):
            raise ValueError(
                f"form (of the second moment) must be 'per-user', 'squared-mean' or 'joint-clip'; got "
                f"{self.form!r}."
            )
        if not 1 <= self.features <= self.dimension:
            raise ValueError(f"m (features) must lie in 1..d={self.dimension}; got {self.features}.")
        if not 0 < self.weight < math.inf:
            raise ValueError(
                f"lambda (weight of the second moment) must be positive and finite; got {self.weight}."
            )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**plain, "params": dict(self.params), "factorization": self.factorization.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(**{**values, "factorization": factorization_from_dict(dict(values["factorization"]))})


@final
@dataclass(frozen=True, eq=False)
class PairRelease(RunRelease):
    """Two streams under one guarantee: clipped updates and their second moment, docs/theory/pair-release.md.

    Args:
        first: C₁.
        second: the other stream.
        clip_norm: ζ.
        adjacency: "zero-out" or "replace-one".
        cohort_size: m, the denominator of the mean.

    Raises:
        ValueError: the horizons differ, or "joint-clip" with C₂ other than C₁.

    >>> from fedmf.factorization import identity
    >>> C = identity(4)
    >>> second = SecondStream("per-user", "diagonal", 3, 3, 0.5, "identity", {}, C)
    >>> round(PairRelease(C, second, 1.0, "zero-out", 8).stated(Participation(4, 1, 4)).value ** 2, 12)
    1.5
    """

    first: Factorization
    second: SecondStream
    clip_norm: float
    adjacency: Adjacency
    cohort_size: int

    def __post_init__(self) -> None:
        C_2 = self.second.factorization
        if C_2.rounds != self.first.rounds:
            raise ValueError(
                f"n (rounds) must be the same for C_1 and C_2; got {self.first.rounds}, {C_2.rounds}."
            )
        if self.second.form == "joint-clip" and C_2.to_dict() != self.first.to_dict():
            raise ValueError("C_2 must be C_1 with form 'joint-clip': one clip bounds the concatenation.")

    @property
    def rounds(self) -> int:
        """n."""
        return self.first.rounds

    def leading(self, rounds: int) -> PairRelease:
        """See `RunRelease.leading`."""
        values = {name: getattr(self.second, name) for name in self.second.__dataclass_fields__}
        second = SecondStream(**{**values, "factorization": self.second.factorization.leading(rounds)})
        first = self.first.leading(rounds)
        return PairRelease(first, second, self.clip_norm, self.adjacency, self.cohort_size)

    def stated(self, participation: Participation) -> Sensitivity:
        """See `RunRelease.stated`."""
        if self.second.form == "joint-clip":
            return stated_sensitivity(self.first, participation)
        second, weight, users = self.second.factorization, *self._reach
        sensitivity = joint_sensitivity(self.first, second, participation, weight, users)
        slack = self._rounding
        if not slack:
            return Sensitivity(sensitivity.value / self._factor, sensitivity.kind, sensitivity.case)
        value = sensitivity.value / self._factor + slack * stated_sensitivity(second, participation).value
        return Sensitivity(value, "upper_bound", f"{sensitivity.case}; rounding of features added")

    def of_equal_length(
        self, rows: NDArray[np.integer], released_rounds: int | Branches | None = None
    ) -> NDArray[np.float64]:
        """See `RunRelease.of_equal_length`."""
        if self.second.form == "joint-clip":
            return equal_length_sensitivities(self.first, rows, released_rounds)
        second, weight, users = self.second.factorization, *self._reach
        sensitivities = equal_length_joint_sensitivities(
            self.first, second, rows, weight, users, released_rounds
        )
        sensitivities /= self._factor
        if slack := self._rounding:
            sensitivities += slack * equal_length_sensitivities(second, rows, released_rounds)
        return sensitivities

    @property
    def _reach(self) -> tuple[float, UserRange]:
        """(weight, range) for ζ = 1 of the theorem that covers the form."""
        nu = self.second.weight * self.clip_norm**2
        if self.second.form == "squared-mean":
            # ‖E‖ ≤ 2ζ‖D‖ makes φ(p, q) = p + 4νq, in units of ‖D‖, whatever the adjacency.
            return 4 * nu, UserRange(1.0, 1, "zero-out")
        return nu, UserRange(1.0, self.second.features, self.adjacency)

    @property
    def _factor(self) -> float:
        """What turns the sensitivity of `_reach` into one per unit of the adjacency factor."""
        return 1.0 if self.second.form == "squared-mean" else float(adjacency_factor(self.adjacency))

    @property
    def _rounding(self) -> float:
        """√λ times how far rounding moves one row of features, in the units of the sensitivity.

        Features are rounded towards zero to multiples of ζ²·2⁻⁴⁰, which under zero-out shortens one user's
        vector, and under replace-one may lengthen a difference of two by √m units. The square of the mean is
        taken of its coordinates on the grid of ζ·2⁻⁴⁰, clipped in float64.
        """
        units, second = math.sqrt(self.second.features) * _UNIT, self.second
        root, factor = math.sqrt(second.weight) * self.clip_norm, adjacency_factor(self.adjacency)
        if second.form == "squared-mean":
            d = second.dimension
            point = math.sqrt(d) * _UNIT + (d + 64) * 2.0**-52
            return root * (2 * (2 * point + units)) * self.cohort_size / factor
        return root * units / factor if self.adjacency == "replace-one" else 0.0


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
