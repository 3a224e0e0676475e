"""What a run releases, as far as its privacy is concerned: sums of clipped updates, or a pair of
streams.

Every question that accounting asks about sensitivity goes through one of these values.
Sensitivities are given per unit clip norm and per unit of `adjacency_factor`, so that for either
kind of run the z that enter the sum of clipped updates have standard deviation
ζ·σ·sensitivity·(adjacency factor).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.gaussian import adjacency_factor
from fedmf.matrices.factorization import Factorization, factorization_from_dict
from fedmf.matrices.joint_sensitivity import (
    UserRange,
    equal_length_joint_sensitivities,
    joint_sensitivity,
)
from fedmf.matrices.recorded_patterns import equal_length_sensitivities
from fedmf.matrices.sensitivity import Sensitivity, sensitivity_of
from fedmf.participation import Adjacency, Participation

#: How the second moment of a round is formed before noise is added:
#: "per-user", (1/m)·Σ_u L(x_u⊗x_u) of the clipped updates x_u;
#: "squared-mean", L(x̄⊗x̄) of x̄ = (1/m)·Σ_u x_u.
SecondForm = Literal["per-user", "squared-mean"]
#: Bits of the finest units of coordinates and features.
_FINEST: Final = (31, 31)


@dataclass(frozen=True, eq=False)
class SumQuery:
    """C·G of one run: the sums of clipped updates.

    Args:
        factorization: C.

    >>> from fedmf.matrices.toeplitz import Toeplitz
    >>> SumQuery(Toeplitz([1.0, 0.75], 4)).of_equal_length(np.array([[0, 3], [0, 1]]))
    array([1.6007..., 2.1505...])
    """

    factorization: Factorization

    @property
    def rounds(self) -> int:
        """n, the horizon."""
        return self.factorization.rounds

    @property
    def paired(self) -> bool:
        """Whether a second moment is released in addition to the sums."""
        return False

    def check_secret_cohorts(self) -> None:
        """Refuse amplification by sampling where no theorem covers it.

        Raises:
            ValueError: such a release.
        """

    def stated(self, participation: Participation) -> Sensitivity:
        """The sensitivity under (n, k, b), exact, or an upper bound that is marked as such.

        Raises:
            ValueError: the horizons differ.
        """
        return sensitivity_of(self.factorization, participation)

    def leading(self, rounds: int) -> Self:
        """What the first T rounds release.

        Raises:
            ValueError: T is not between 1 and n.
        """
        return dataclasses.replace(self, factorization=self.factorization.leading(rounds))

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
        return equal_length_sensitivities(self.factorization, rows, released_rounds)


@dataclass(frozen=True, eq=False)
class SecondStream:
    """The second stream of a pair: features of the clipped updates, sums of squares over blocks.

    Args:
        form: "per-user", Σ_u features(x_u); "squared-mean", features of the mean of the x_u,
            projected onto the ball of radius ζ.
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
        if self.form not in ("per-user", "squared-mean"):
            raise ValueError(
                "form (of the second moment) must be 'per-user' or 'squared-mean'; got"
                f" {self.form!r}."
            )
        if not 1 <= self.features <= self.dimension:
            raise ValueError(
                f"m (features) must lie in 1..d={self.dimension}; got {self.features}."
            )
        if not 0 < self.weight < math.inf:
            raise ValueError(
                "lambda (weight of the second moment) must be positive and finite; got"
                f" {self.weight}."
            )

    def noise_std(self, first: float) -> float:
        """τ₂ = τ₁/√λ, where τ₁ belongs to the sums."""
        return first / math.sqrt(self.weight)

    def facts(self, noise_std: float) -> dict[str, Any]:
        """What a statement says of it, with τ₂."""
        named = {
            name: getattr(self, name)
            for name in ("form", "moment", "features", "weight", "mechanism")
        }
        return {**named, "params": dict(self.params), "noise_std": noise_std}

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**plain, "params": dict(self.params), "factorization": self.factorization.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(
            **{**values, "factorization": factorization_from_dict(dict(values["factorization"]))}
        )


@dataclass(frozen=True, eq=False)
class PairQuery(SumQuery):
    """Two streams under one guarantee: clipped updates and their second moment,
    docs/theory/moments.md.

    Args:
        factorization: C₁.
        second: the other stream.
        clip_norm: ζ.
        adjacency: "zero-out" or "replace-one".
        cohort_size: m, the denominator of the mean.
        bits: B and F: coordinates are integers in units of ζ·2⁻ᴮ, features in units of ζ²·2⁻ᶠ.

    Raises:
        ValueError: the horizons differ.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> C = identity(4)
    >>> second = SecondStream("per-user", "diagonal", 3, 3, 0.5, "identity", {}, C)
    >>> round(PairQuery(C, second, 1.0, "zero-out", 8).stated(Participation(4, 1, 4)).value ** 2, 12)
    1.5
    """

    second: SecondStream
    clip_norm: float
    adjacency: Adjacency
    cohort_size: int
    bits: tuple[int, int] = _FINEST

    def __post_init__(self) -> None:
        C_2 = self.second.factorization
        if C_2.rounds != self.factorization.rounds:
            raise ValueError(
                f"n (rounds) must be the same for C_1 and C_2; got {self.factorization.rounds},"
                f" {C_2.rounds}."
            )

    @property
    def paired(self) -> bool:
        """See `SumQuery.paired`."""
        return True

    def check_secret_cohorts(self) -> None:
        """See `SumQuery.check_secret_cohorts`."""
        raise ValueError(
            "amplification must be None with a second stream: no theorem covers the pair."
        )

    def leading(self, rounds: int) -> Self:
        """See `SumQuery.leading`."""
        second = dataclasses.replace(
            self.second, factorization=self.second.factorization.leading(rounds)
        )
        return dataclasses.replace(
            self, factorization=self.factorization.leading(rounds), second=second
        )

    def stated(self, participation: Participation) -> Sensitivity:
        """See `SumQuery.stated`."""
        second, weight, users = self.second.factorization, *self._reach
        sensitivity = joint_sensitivity(self.factorization, second, participation, weight, users)
        slack = self._rounding
        if not slack:
            return Sensitivity(sensitivity.value / self._factor, sensitivity.kind, sensitivity.case)
        value = (
            sensitivity.value / self._factor + slack * sensitivity_of(second, participation).value
        )
        return Sensitivity(value, "upper_bound", f"{sensitivity.case}; rounding of features added")

    def of_equal_length(
        self, rows: NDArray[np.integer], released_rounds: int | None = None
    ) -> NDArray[np.float64]:
        """See `SumQuery.of_equal_length`."""
        second, weight, users = self.second.factorization, *self._reach
        sensitivities = equal_length_joint_sensitivities(
            self.factorization, second, rows, weight, users, released_rounds
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
        return (
            1.0 if self.second.form == "squared-mean" else float(adjacency_factor(self.adjacency))
        )

    @property
    def _rounding(self) -> float:
        """√λ times how far rounding moves one row of features, in the units of the sensitivity.

        Features are rounded towards zero to multiples of ζ²·2⁻ᶠ, which under zero-out shortens one
        user's vector, and under replace-one may lengthen a difference of two by √m units. The
        square of the mean is taken of its coordinates on the grid of ζ·2⁻ᴮ, clipped in float64.
        """
        second = self.second
        unit = 2.0 ** -self.bits[0]
        feature_unit = 2.0 ** -self.bits[1]
        units = math.sqrt(second.features) * feature_unit
        root = math.sqrt(second.weight) * self.clip_norm
        factor = adjacency_factor(self.adjacency)
        if second.form == "squared-mean":
            d = second.dimension
            point = math.sqrt(d) * unit + (d + 64) * 2.0**-50
            return root * (2 * (2 * point + units)) * self.cohort_size / factor
        return root * units / factor if self.adjacency == "replace-one" else 0.0


def release_of(
    factorization: Factorization,
    second: SecondStream | None,
    clip_norm: float,
    adjacency: Adjacency,
    cohort_size: int,
    bits: tuple[int, int] = _FINEST,
) -> SumQuery:
    """What a run releases by C and its second stream, if any."""
    if second is None:
        return SumQuery(factorization)
    return PairQuery(factorization, second, clip_norm, adjacency, cohort_size, bits)
