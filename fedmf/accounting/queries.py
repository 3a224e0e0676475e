"""The queries that a run answers with noise: sums of clipped updates, or a pair of streams.

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

from fedmf.accounting.gaussian import adjacency_factor
from fedmf.matrices.factorization import Factorization, factorization_from_dict
from fedmf.matrices.joint_sensitivity import UserRange, joint_sensitivity
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
    >>> SumQuery(Toeplitz([1.0, 0.75], 4)).stated(Participation(4, 1, 4)).value
    1.25
    """

    factorization: Factorization

    @property
    def rounds(self) -> int:
        """n, the horizon."""
        return self.factorization.rounds

    @property
    def paired(self) -> bool:
        """False: nothing is released in addition to the sums."""
        return False

    def check_secret_cohorts(self) -> None:
        """Reject amplification by sampling where no theorem covers the query.

        Raises:
            ValueError: no theorem does.
        """

    def stated(self, participation: Participation) -> Sensitivity:
        """The sensitivity under (n, k, b), exact, or an upper bound that is marked as such.

        Raises:
            ValueError: the horizons differ.
        """
        return sensitivity_of(self.factorization, participation)

    def leading(self, rounds: int) -> Self:
        """The query of the first T rounds.

        Raises:
            ValueError: T is not between 1 and n.
        """
        return dataclasses.replace(self, factorization=self.factorization.leading(rounds))


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
        """The fields of a statement about this stream, with τ₂."""
        return {
            "form": self.form,
            "moment": self.moment,
            "features": self.features,
            "weight": self.weight,
            "mechanism": self.mechanism,
            "params": dict(self.params),
            "noise_std": noise_std,
        }

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**plain, "params": dict(self.params), "factorization": self.factorization.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a stream from its `to_dict`."""
        factorization = factorization_from_dict(dict(values["factorization"]))
        return cls(**{**values, "factorization": factorization})


@dataclass(frozen=True, eq=False)
class PairQuery(SumQuery):
    """Two streams under one guarantee: clipped updates and their second moment.

    docs/theory/moments.md proves their joint sensitivity.

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
    >>> query = PairQuery(C, second, 1.0, "zero-out", 8)
    >>> round(query.stated(Participation(4, 1, 4)).value ** 2, 12)
    1.5
    """

    second: SecondStream
    clip_norm: float
    adjacency: Adjacency
    cohort_size: int
    bits: tuple[int, int] = _FINEST

    def __post_init__(self) -> None:
        n_1 = self.factorization.rounds
        n_2 = self.second.factorization.rounds
        if n_1 != n_2:
            raise ValueError(f"n (rounds) must be the same for C_1 and C_2; got {n_1}, {n_2}.")

    @property
    def paired(self) -> bool:
        """True: the second moment is released too."""
        return True

    def check_secret_cohorts(self) -> None:
        """Reject amplification: no theorem covers a pair."""
        raise ValueError(
            "amplification must be None with a second stream: no theorem covers the pair."
        )

    def leading(self, rounds: int) -> Self:
        """The query of the first T rounds of both streams."""
        second = dataclasses.replace(
            self.second, factorization=self.second.factorization.leading(rounds)
        )
        return dataclasses.replace(
            self, factorization=self.factorization.leading(rounds), second=second
        )

    def stated(self, participation: Participation) -> Sensitivity:
        """The joint sensitivity, with what rounding of features adds to it."""
        C_2 = self.second.factorization
        weight, users = self.weight_and_range
        joint = joint_sensitivity(self.factorization, C_2, participation, weight, users)
        if not self.feature_rounding:
            return Sensitivity(joint.value / self.distance_unit, joint.kind, joint.case)
        slack = self.feature_rounding * sensitivity_of(C_2, participation).value
        value = joint.value / self.distance_unit + slack
        return Sensitivity(value, "upper_bound", f"{joint.case}; rounding of features added")

    @property
    def weight_and_range(self) -> tuple[float, UserRange]:
        """(weight, range of one user) for ζ = 1, of the theorem that covers the form."""
        nu = self.second.weight * self.clip_norm**2
        if self.second.form == "squared-mean":
            # ‖E‖ ≤ 2ζ‖D‖ makes φ(p, q) = p + 4νq, in units of ‖D‖, whatever the adjacency.
            return 4 * nu, UserRange(1.0, 1, "zero-out")
        return nu, UserRange(1.0, self.second.features, self.adjacency)

    @property
    def distance_unit(self) -> float:
        """The divisor that makes the theorem's sensitivity one per unit of adjacency factor."""
        if self.second.form == "squared-mean":
            return 1.0
        return float(adjacency_factor(self.adjacency))

    @property
    def feature_rounding(self) -> float:
        """√λ times how far rounding moves one row of features, in the units of the sensitivity.

        Features are rounded towards zero to multiples of ζ²·2⁻ᶠ, which under zero-out shortens one
        user's vector, and under replace-one may lengthen a difference of two by √m units. The
        square of the mean is taken of its coordinates on the grid of ζ·2⁻ᴮ, clipped in float64.
        """
        unit = 2.0 ** -self.bits[0]
        feature_unit = 2.0 ** -self.bits[1]
        units = math.sqrt(self.second.features) * feature_unit
        root = math.sqrt(self.second.weight) * self.clip_norm
        factor = adjacency_factor(self.adjacency)
        if self.second.form == "squared-mean":
            d = self.second.dimension
            point = math.sqrt(d) * unit + (d + 64) * 2.0**-50
            return root * (2 * (2 * point + units)) * self.cohort_size / factor
        if self.adjacency == "replace-one":
            return root * units / factor
        return 0.0


def query_of(
    factorization: Factorization,
    second: SecondStream | None,
    clip_norm: float,
    adjacency: Adjacency,
    cohort_size: int,
    bits: tuple[int, int] = _FINEST,
) -> SumQuery:
    """The query of a run, by C and its second stream, if any."""
    if second is None:
        return SumQuery(factorization)
    return PairQuery(factorization, second, clip_norm, adjacency, cohort_size, bits)
