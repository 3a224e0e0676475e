"""Methods that make both moments of a stream private, as values: JME and its baselines.

Every method releases A₁(X + C₁⁻¹Z₁) and, from its own noise, A₂(X•X + C₂⁻¹Z₂), with absolute noise
standard deviations τ₁ (of Z₁) and τ₂ (of Z₂); post-processing has no second noise and squares the
first. The levels of a method are for real numbers; `MomentMechanism.of_integers` adds what integers
need.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fedmf.matrices.factorization import Factorization, factorization_from_dict
from fedmf.matrices.joint_sensitivity import UserRange, free_weight, joint_sensitivity
from fedmf.matrices.second_moment import SecondMoment
from fedmf.matrices.sensitivity import Sensitivity, sensitivity_of
from fedmf.noise.units import NOTHING, Rounding
from fedmf.participation import Participation
from fedmf.release.row_plan import RowPlan, moment_reaches


@dataclass(frozen=True)
class MomentWeight:
    """The number by which a method divides noise between the two moments.

    Args:
        symbol: the papers' name.
        meaning: in words.
        below: upper limit, not included; the number must be positive too.
        usual: the default in words.
        default: computes it from C₁, C₂, (n, k, b) and the users.
    """

    symbol: str
    meaning: str
    below: float
    usual: str
    default: Callable[[Factorization, Factorization, Participation, UserRange], float]


#: τ₁, τ₂ and the sensitivity, of C₁, C₂, (n, k, b), users, σ and the weight.
Levels = Callable[
    [Factorization, Factorization, Participation, UserRange, float, float],
    tuple[float, float | None, Sensitivity],
]


@dataclass(frozen=True)
class MomentMethod:
    """A method that makes both moments private: its inputs, its noise and its guarantee.

    Args:
        name: as on the command line.
        summary: in one line.
        matrices: how many different strategy matrices it can take, 1 or 2.
        weight: how noise is divided between the moments; None where the second has no noise of its
            own.
        levels: its noise.
        multiplier: σ of a mechanism towards users of another contract
            (`MomentMechanism.multiplier_under`).
    """

    name: str
    summary: str
    matrices: int
    weight: MomentWeight | None
    levels: Levels = dataclasses.field(repr=False)
    multiplier: Callable[[MomentMechanism, Participation], float] = dataclasses.field(
        default=lambda made, participation: made.first_std / made.levels_under(participation)[0],
        repr=False,
    )

    @property
    def second_noise(self) -> bool:
        """Whether the second moment has a noise of its own."""
        return self.weight is not None

    def check(self, matrices: int, weight: float | None) -> None:
        """Reject inputs that the method does not take.

        Args:
            matrices: how many strategy matrices are given.
            weight: the given weight, if any.

        Raises:
            ValueError: too many matrices, or a weight that is out of range or has no meaning here.
        """
        if not 1 <= matrices <= 2:
            raise ValueError(
                f"mechanism must be given once, or twice for the two moments; got {matrices}."
            )
        if matrices > self.matrices:
            raise ValueError(f"mechanism must be one for method {self.name}; got two.")
        if weight is None:
            return
        if self.weight is None:
            raise ValueError(
                f"weight must be left out for method {self.name}, which has no second noise."
            )
        if not 0 < weight < self.weight.below:
            limit = f"in (0, {self.weight.below:g})"
            if math.isinf(self.weight.below):
                limit = "positive"
            raise ValueError(
                f"{self.weight.symbol} ({self.weight.meaning}) must be {limit}; got {weight}."
            )

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
        if not 0 < noise_multiplier < math.inf:
            raise ValueError(
                f"sigma (noise multiplier) must be positive and finite; got {noise_multiplier}."
            )
        first = strategies[0]
        second = strategies[-1]
        if self.weight is not None and weight is None:
            weight = self.weight.default(first, second, participation, users)
        tau_1, tau_2, s = self.levels(
            first, second, participation, users, noise_multiplier, weight or 0.0
        )
        own = second if self.second_noise else None
        return MomentMechanism(
            self,
            first,
            own,
            tau_1,
            tau_2,
            participation,
            users,
            noise_multiplier,
            s,
            weight,
            own is None,
        )


@dataclass(frozen=True, eq=False)
class MomentMechanism:
    """The mechanism of a stream: strategy matrices, noise levels, and the units of its sums.

    Args:
        method: the method.
        first: C₁.
        second: C₂; None where the second moment has no noise of its own.
        first_std: τ₁, the absolute standard deviation of the entries of Z₁ (units of x).
        second_std: τ₂, for Z₂ (units of x²); None without Z₂.
        participation: (n, k, b).
        users: ζ, dimension class, adjacency.
        noise_multiplier: σ; the pair of releases is σ-Gaussian: as private as N(0, σ²) on
            sensitivity 1.
        sensitivity: s, or of the first moment where only it is released; exact or a labeled bound.
        weight: λ of JME, the share α of IME, τ of CS; None for post-processing.
        debiased: whether squares of private rows lose their known bias.
        rounding: the units of the sums, and the cost of integers; no units for real numbers.

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
    rounding: Rounding = NOTHING

    def __post_init__(self) -> None:
        if {self.second is None, self.second_std is None, self.weight is None} != {
            not self.method.second_noise
        }:
            raise ValueError(
                "C_2, tau_2 and the weight (second moment) must be as for method"
                f" {self.method.name}."
            )

    @property
    def name(self) -> str:
        """The name of the method: "jme", "ime", "cs", "pp" or "pp-debiased"."""
        if self.debiased:
            return f"{self.method.name}-debiased"
        return self.method.name

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
                f"C_2 (second strategy) must exist; got {self.name}, which squares private rows."
            )
        return self.second, self.second_std

    def of_integers(self, moment: SecondMoment) -> MomentMechanism:
        """Return the mechanism for integers, with units and enough noise for them.

        Both τ grow by one factor until μ, with what integers cost, is 1/σ again
        (`RowPlan.calibrated`).

        Args:
            moment: the second one.

        Raises:
            ValueError: no units suit the noise.
        """
        rows = self.rows(moment).calibrated(self.first_std, self.second_std)
        first_std = rows.noise_stds[0]
        second_std = None
        if self.method.second_noise:
            second_std = rows.noise_stds[1]
        return replace(self, first_std=first_std, second_std=second_std, rounding=rows.rounding)

    def rows(self, moment: SecondMoment) -> RowPlan:
        """Return the plan of its noisy sums, which has no units before `of_integers`."""
        matrices = (self.first,)
        if self.method.second_noise:
            matrices = (self.first, self.second_noise[0])
        return RowPlan(
            self.users, self.participation, self.noise_multiplier, moment, matrices, self.rounding
        )

    def levels_under(self, participation: Participation) -> tuple[float, float | None, Sensitivity]:
        """τ₁, τ₂ and the sensitivity for σ = 1 and another contract."""
        second = self.first if self.second is None else self.second
        return self.method.levels(
            self.first, second, participation, self.users, 1.0, self.weight or 0.0
        )

    def multiplier_under(self, participation: Participation) -> float:
        """σ towards users who took part as another contract allows.

        It is that of the levels τ₁ and τ₂ over the sensitivity of these users. A stricter contract
        than the planned one (fewer participations, further apart) gives a larger σ. The cost of
        integers counts in full, whoever took part.
        """
        added = self.rounding.movement * self.users.norm_bound / self.first_std
        return 1 / (1 / self.method.multiplier(self, participation) + added)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with every digit; `mechanism_from_dict` reads it."""
        shared = self.second is self.first
        second = None
        if self.second is not None and not shared:
            second = self.second.to_dict()
        return {
            "method": self.method.name,
            "debiased": self.debiased,
            "first": self.first.to_dict(),
            "second": second,
            "shared": shared,
            "first_std": self.first_std,
            "second_std": self.second_std,
            "participation": dataclasses.asdict(self.participation),
            "users": dataclasses.asdict(self.users),
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "weight": self.weight,
            "rounding": dataclasses.asdict(self.rounding),
        }


def mechanism_from_dict(description: Mapping[str, Any]) -> MomentMechanism:
    """Read what `MomentMechanism.to_dict` wrote.

    Raises:
        ValueError: the description is not one of a mechanism.
    """
    fields = dict(description)
    fields["method"] = METHODS[fields["method"]]
    fields["first"] = factorization_from_dict(fields["first"])
    if fields.pop("shared"):
        fields["second"] = fields["first"]
    elif fields["second"] is not None:
        fields["second"] = factorization_from_dict(fields["second"])
    fields["participation"] = Participation(**fields["participation"])
    fields["users"] = UserRange(**fields["users"])
    fields["sensitivity"] = Sensitivity(**fields["sensitivity"])
    fields["rounding"] = Rounding.from_dict(fields["rounding"])
    return MomentMechanism(**fields)


def default_weight(
    first: Factorization, second: Factorization, participation: Participation, users: UserRange
) -> float:
    """λ: the largest that is free for equal matrices (replace-one), or equal shares (zero-out).

    With R = sens(C₁)²/(ζ² sens(C₂)²): free_weight·R for replace-one. Under zero-out nothing is
    free, s² = ζ² sens(C₁)² + λζ⁴ sens(C₂)² at most, and λ = R gives each moment half of it.
    """
    ratio = sensitivity_of(first, participation).value / sensitivity_of(second, participation).value
    free = free_weight(users.dimension) if users.adjacency == "replace-one" else 1.0
    return free * (ratio / users.norm_bound) ** 2


def _jme(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
    weight: float,
) -> tuple[float, float, Sensitivity]:
    """Both moments under one sensitivity s(λ): τ₁ = sσ, τ₂ = sσ/√λ (Algorithms 1 and 3)."""
    s = joint_sensitivity(first, second, participation, weight, users)
    std = s.value * sigma
    return std, std / math.sqrt(weight), s


def _ime(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
    share: float,
) -> tuple[float, float, Sensitivity]:
    """Two mechanisms under the GDP split μ₁² = αμ², μ₂² = (1 − α)μ² (Algorithm 4).

    The split is that of the algorithm's proof. ‖x − y‖ and ‖x⊗x − y⊗y‖ are at most ζ and ζ² times
    the numbers of `moment_reaches`.
    """
    zeta = users.norm_bound
    reaches = moment_reaches(users)
    reach = (zeta * reaches[0], zeta**2 * reaches[1])
    s_1, s_2 = (sensitivity_of(C, participation) for C in (first, second))
    tau_1 = s_1.value * reach[0] * sigma / math.sqrt(share)
    tau_2 = s_2.value * reach[1] * sigma / math.sqrt(1 - share)
    # √(S₁² + (τ₁/τ₂)²·S₂²) of both together; one user need not attain both.
    return tau_1, tau_2, Sensitivity(tau_1 / sigma, "upper_bound", "each moment on its own")


def _split_multiplier(made: MomentMechanism, participation: Participation) -> float:
    """σ of two independent mechanisms: 1/σ² = Σ 1/σ_i²."""
    level_1, level_2, _ = made.levels_under(participation)
    assert level_2 is not None
    assert made.weight is not None
    _, second_std = made.second_noise
    share = made.weight
    first = level_1 * math.sqrt(share)
    second = level_2 * math.sqrt(1 - share)
    return 1 / math.hypot(first / made.first_std, second / second_std)


def _alone(
    first: Factorization, participation: Participation, users: UserRange, norm: float, sigma: float
) -> tuple[float, Sensitivity]:
    """τ of one mechanism for vectors of at most this norm."""
    alone = sensitivity_of(first, participation)
    s = replace(alone, value=alone.value * (norm * (2 if users.adjacency == "replace-one" else 1)))
    return s.value * sigma, s


def _cs(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
    scale: float,
) -> tuple[float, float, Sensitivity]:
    """(x, √τ·x⊗x) as one vector of norm at most √(ζ² + τζ⁴) (Algorithm 5, with the norm of C)."""
    zeta = users.norm_bound
    std, s = _alone(first, participation, users, math.sqrt(zeta**2 + scale * zeta**4), sigma)
    return std, std / math.sqrt(scale), s


def _pp(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
    weight: float,
) -> tuple[float, None, Sensitivity]:
    """Only x̂ is made private; the second moment is x̂⊗x̂ − τ₁²·[C₁⁻¹C₁⁻ᵀ]_tt·I.

    This is Algorithm 6, corrected.
    """
    std, s = _alone(first, participation, users, users.norm_bound, sigma)
    return std, None, s


_LAMBDA: Final = MomentWeight(
    "lambda",
    "weight of the second moment",
    math.inf,
    "the largest that costs nothing",
    default_weight,
)
_ALPHA: Final = MomentWeight("alpha", "share of the first moment", 1.0, "1/2", lambda *_: 0.5)
_TAU: Final = MomentWeight(
    "tau",
    "scale of the second moment",
    math.inf,
    "1/zeta^2",
    lambda first, second, participation, users: users.norm_bound**-2,
)
_ALL: Final = (
    MomentMethod("jme", "Joint Moment Estimation: one sensitivity for both", 2, _LAMBDA, _jme),
    MomentMethod("ime", "a mechanism for each moment", 2, _ALPHA, _ime, _split_multiplier),
    MomentMethod("cs", "both moments as one vector", 1, _TAU, _cs),
    MomentMethod("pp", "squares of private rows, less their bias", 1, None, _pp),
)
#: Joint Moment Estimation, independent moments, concatenate and split, post-processing, by name.
METHODS: Final[Mapping[str, MomentMethod]] = {method.name: method for method in _ALL}


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
    >>> mechanism = jme(C, C, p, UserRange(1.0, 2, "replace-one"), noise_multiplier=1.0)
    >>> # The first moment alone needs a standard deviation of 2 as well.
    >>> mechanism.first_std, round(mechanism.second_std, 4)
    (2.0, 2.8284)
    """
    return METHODS["jme"].mechanism([first, second], participation, users, noise_multiplier, weight)
