"""Joint Moment Estimation and its baselines as values: two strategy matrices and two noise levels.

Every method here releases A₁(X + C₁⁻¹Z₁) and, from its own noise, A₂(X•X + C₂⁻¹Z₂), with absolute noise
standard deviations τ₁ (of Z₁) and τ₂ (of Z₂); post-processing has no second noise and squares the first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fedmf.mechanisms.joint import UserRange, joint_sensitivity
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import Sensitivity, stated_sensitivity
from fedmf.moments.weights import default_weight
from fedmf.participation import Participation


@dataclass(frozen=True)
class MomentWeight:
    """The number by which a method divides noise between the two moments.

    Args:
        symbol: as the papers call it.
        meaning: in words.
        below: what it must be less than; it must be positive too.
        usual: the default in words.
        default: of C₁, C₂, (n, k, b) and the users.
    """

    symbol: str
    meaning: str
    below: float
    usual: str
    default: Callable[[Factorization, Factorization, Participation, UserRange], float]

    def checked(self, value: float) -> float:
        """The value, or a refusal where it is out of range."""
        if not 0 < value < self.below:
            limit = "positive" if math.isinf(self.below) else f"in (0, {self.below:g})"
            raise ValueError(f"{self.symbol} ({self.meaning}) must be {limit}; got {value}.")
        return value


@dataclass(frozen=True)
class MomentMethod:
    """A way to make both moments private, whole: what it takes, how it is made, what it guarantees.

    Args:
        name: as on the command line.
        summary: in one line.
        matrices: how many different strategy matrices it can take, 1 or 2.
        second_noise: whether the second moment has a noise of its own.
        weight: how noise is divided between the moments; None where there is nothing to divide.
        build: of C₁, C₂, (n, k, b), users, σ and the weight.
        multiplier: σ of a mechanism towards users of another contract (`MomentMechanism.multiplier_under`).
    """

    name: str
    summary: str
    matrices: int
    second_noise: bool
    weight: MomentWeight | None
    build: Callable[..., MomentMechanism] = dataclasses.field(repr=False)
    multiplier: Callable[[MomentMechanism, Participation], float] = dataclasses.field(repr=False)

    def check(self, matrices: int, weight: float | None) -> None:
        """Refuse what the method does not take.

        Args:
            matrices: how many strategy matrices are given.
            weight: the weight asked for, if any.

        Raises:
            ValueError: too many matrices, or a weight that is out of range or has no meaning here.
        """
        if not 1 <= matrices <= 2:
            raise ValueError(f"mechanism must be given once, or twice for the two moments; got {matrices}.")
        if matrices > self.matrices:
            raise ValueError(f"mechanism must be one for method {self.name}; got two.")
        if weight is None:
            return
        if self.weight is None:
            raise ValueError(f"weight must be left out for method {self.name}, which has no second noise.")
        self.weight.checked(weight)

    def mechanism(
        self,
        strategies: Sequence[Factorization],
        participation: Participation,
        users: UserRange,
        noise_multiplier: float,
        weight: float | None = None,
    ) -> MomentMechanism:
        """The method for these matrices.

        Args:
            strategies: C₁ and C₂, or one for both.
            participation: (n, k, b).
            users: ζ, dimension class and adjacency.
            noise_multiplier: σ > 0.
            weight: None for the default.

        Raises:
            ValueError: a value out of range, or one that the method does not take.
        """
        self.check(len(strategies), weight)
        first, second = strategies[0], strategies[-1]
        if self.weight is not None and weight is None:
            weight = self.weight.default(first, second, participation, users)
        return self.build(first, second, participation, users, noise_multiplier, weight)


@dataclass(frozen=True, eq=False)
class MomentMechanism:
    """How the two moments of a stream are made private.

    Args:
        method: which way.
        first: C₁.
        second: C₂; None where the second moment has no noise of its own.
        first_std: τ₁, the absolute standard deviation of the entries of Z₁ (units of x).
        second_std: τ₂, that of Z₂ (units of x²); None without Z₂.
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        noise_multiplier: σ; the pair of releases is σ-Gaussian: as private as N(0, σ²) on sensitivity 1.
        sensitivity: s, or that of the first moment where only it is released; exact or a labelled bound.
        weight: λ of JME, the share α of IME, τ of CS; None for post-processing.
        debiased: whether squares of private rows lose their known bias.

    Raises:
        ValueError: C₂, τ₂ and the weight are not those that the method has.
    """

    method: MomentMethod
    first: Factorization
    second: Factorization | None
    first_std: float
    second_std: float | None
    participation: Participation
    users: UserRange
    noise_multiplier: float
    sensitivity: Sensitivity
    weight: float | None = None
    debiased: bool = False

    def __post_init__(self) -> None:
        wanted = self.method.second_noise
        given = self.second is not None, self.second_std is not None
        if given != (wanted, wanted) or (self.weight is not None) != (self.method.weight is not None):
            raise ValueError(
                f"C_2, tau_2 and the weight (second moment) must be those of method {self.method.name}."
            )

    @property
    def name(self) -> str:
        """Of the method: "jme", "ime", "cs", "pp" or "pp-debiased"."""
        return f"{self.method.name}-debiased" if self.debiased else self.method.name

    @property
    def rounds(self) -> int:
        """n."""
        return self.participation.rounds

    @property
    def second_noise(self) -> tuple[Factorization, float]:
        """C₂ and τ₂.

        Raises:
            ValueError: the second moment has no noise of its own.
        """
        if self.second is None or self.second_std is None:
            raise ValueError(
                f"C_2 (second strategy) must exist; got {self.name}, which squares private rows. "
                "Its errors are those of theory.second_moment_errors_by_squaring."
            )
        return self.second, self.second_std

    def multiplier_under(self, participation: Participation) -> float:
        """σ towards users who took part as this contract says: the levels τ₁, τ₂ over their own sensitivity.

        A stricter contract than the planned one (fewer participations, further apart) gives a larger σ.
        """
        return self.method.multiplier(self, participation)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with every digit; `mechanism_from_dict` reads it."""
        shared = self.second is self.first
        return {
            "method": self.method.name,
            "debiased": self.debiased,
            "first": self.first.to_dict(),
            "second": None if self.second is None or shared else self.second.to_dict(),
            "shared": shared,
            "first_std": self.first_std,
            "second_std": self.second_std,
            "participation": dataclasses.asdict(self.participation),
            "users": dataclasses.asdict(self.users),
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "weight": self.weight,
        }


def jme(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    noise_multiplier: float,
    weight: float | None = None,
) -> MomentMechanism:
    """Joint Moment Estimation: both moments under one sensitivity s(λ); τ₁ = sσ, τ₂ = sσ/√λ.

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        noise_multiplier: σ > 0.
        weight: λ; None takes `default_weight`.

    Raises:
        ValueError: λ ≤ 0 or σ ≤ 0.

    References:
        Kalinin, Upadhyay and Lampert (2025), Algorithms 1 and 3.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> C, p = identity(4), Participation(4, 1, 4)
    >>> made = jme(C, C, p, UserRange(1.0, 2, "replace-one"), noise_multiplier=1.0)
    >>> made.first_std, round(made.second_std, 4)   # the first moment alone needs 2 as well
    (2.0, 2.8284)
    """
    sigma = checked_multiplier(noise_multiplier)
    chosen = default_weight(first, second, participation, users) if weight is None else weight
    _LAMBDA.checked(chosen)
    s = joint_sensitivity(first, second, participation, chosen, users)
    std = s.value * sigma
    return MomentMechanism(
        JME, first, second, std, std / math.sqrt(chosen), participation, users, sigma, s, chosen
    )


def separate_sensitivities(
    first: Factorization, second: Factorization, participation: Participation, users: UserRange
) -> tuple[Sensitivity, Sensitivity]:
    """The sensitivity of each moment alone: ‖x − y‖ ≤ 2ζ and ‖x⊗x − y⊗y‖ ≤ √2ζ² (d ≥ 2) or ζ² (d = 1)."""
    zeta = users.norm_bound
    if users.adjacency == "replace-one":
        reach = 2 * zeta, zeta**2 * (math.sqrt(2) if users.dimension > 1 else 1)
    else:
        reach = zeta, zeta**2
    s1, s2 = (stated_sensitivity(C, participation) for C in (first, second))
    return replace(s1, value=s1.value * reach[0]), replace(s2, value=s2.value * reach[1])


def checked_multiplier(sigma: float) -> float:
    """σ, or a refusal where it is not positive and finite."""
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma (noise multiplier) must be positive and finite; got {sigma}.")
    return sigma


def _joint_multiplier(made: MomentMechanism, participation: Participation) -> float:
    second, second_std = made.second_noise
    # λ = (τ₁/τ₂)², which the mechanism has with every digit.
    weight = (made.first_std / second_std) ** 2 if made.weight is None else made.weight
    return made.first_std / joint_sensitivity(made.first, second, participation, weight, made.users).value


_LAMBDA: Final = MomentWeight(
    "lambda", "weight of the second moment", math.inf, "the largest that costs nothing", default_weight
)
#: Joint Moment Estimation.
JME: Final = MomentMethod(
    "jme", "Joint Moment Estimation: one sensitivity for both", 2, True, _LAMBDA, jme, _joint_multiplier
)
