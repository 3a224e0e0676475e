"""The noise plan of a stream: how rows become noisy sums, and whether their noise is enough.

Which matrices a stream has and how its noise is divided between the two moments are chosen
elsewhere (`fedmf.moments.methods`). Here the sensitivity of what is released, the cost of integers
and the noise that (ε, δ) needs are computed from the matrices, the contract and the units alone.
`fedmf.release.private_stream` draws noise by no plan that has less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Self

from fedmf.clipping.row_features import NEAR
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange, joint_sensitivity
from fedmf.matrices.second_moment import SecondMoment
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.noise.units import NOTHING, Part, Rounding, calibrated, rounding_of
from fedmf.participation import Participation, most_participations
from fedmf.release.plan import certified_multiplier

#: Most rows of a release, which bounds the sums of integers.
MOST_ROWS: Final = 1 << 25
#: Relative, of numbers that are computed in different orders.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The matrices, units and noise by which rows become noisy sums, with their guarantee.

    Args:
        users: ζ of a row, the dimension class of its second moment, and the adjacency.
        participation: (N, K, B), of releases in which a user has one row.
        noise_multiplier: σ > 0; towards such a user all releases are 1/σ-GDP.
        second_moment: the second moment of a row that is summed, if `factorizations` has C₂.
        factorizations: C₁ of the rows, and C₂ of their second moments if these have noise of their
            own.
        rounding: unit and noise of each part; `calibrated` computes them.
    """

    users: UserRange
    participation: Participation
    noise_multiplier: float
    second_moment: SecondMoment
    factorizations: tuple[Factorization, ...]
    rounding: Rounding = NOTHING

    @property
    def rounds(self) -> int:
        """N, the largest number of releases."""
        return self.participation.rounds

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of integers of each part in a release: d, and those of the second moment."""
        both = (self.second_moment.dimension, self.second_moment.size)
        return both[: len(self.factorizations)]

    @property
    def units(self) -> list[float]:
        """Units of the released sums: ζ·2⁻ᴮ, and ζ²·2⁻ᶠ of second moments with noise."""
        zeta = self.users.norm_bound
        return [zeta**power * 2.0**-bits for power, bits in enumerate(self.rounding.bits, start=1)]

    @property
    def noise_stds(self) -> list[float]:
        """τ₁, and τ₂ of second moments with noise: absolute standard deviations."""
        zeta = self.users.norm_bound
        return [std * zeta**power for power, std in enumerate(self._relative_stds, start=1)]

    @property
    def _relative_stds(self) -> list[float]:
        """τ₁/ζ and τ₂/ζ², of the integers that are drawn."""
        return [noise.std * 2.0**-noise.bits for noise in self.rounding.parts]

    def calibrated(self, first_std: float, second_std: float | None = None) -> Self:
        """Return the plan with units, and with enough noise for integers.

        With μ = 1/σ for real numbers, integers have μ + √((W₁/τ₁)² + (W₂/τ₂)²), where W₂ includes
        the rounding of products. Both τ grow by one factor until that is 1/σ again.

        Args:
            first_std: τ₁ that gives σ for real numbers.
            second_std: τ₂; None without C₂.

        Raises:
            ValueError: no units suit the noise.
        """
        zeta = self.users.norm_bound
        ratio = 1.0
        if second_std is not None:
            ratio = second_std / first_std / zeta
        sensitivity = first_std / zeta / self.noise_multiplier
        std, rounding = calibrated(self._parts(ratio), sensitivity, self.noise_multiplier)
        plan = replace(self, rounding=rounding)
        plan._check_units(std)
        return plan

    def check_noise(self) -> None:
        """Compute sensitivity and rounding again, and reject a plan with less noise than σ needs.

        A user moves (C₁X/τ₁, C₂(X•X)/τ₂) by at most (s + W)/τ₁ with s = s(λ) of
        `joint_sensitivity` at λ = (τ₁/τ₂)², however τ₁ and τ₂ were chosen; this must be at most
        1/σ.

        Raises:
            ValueError: the noise is too small, or matrices, units and contract do not fit.
        """
        self._check_parts()
        stds = self._relative_stds
        std = stds[0]
        self._check_units(std)
        ratio = stds[-1] / std
        parts = self._parts(ratio)
        needed = math.inf
        for sensitivity in self._sensitivities(ratio):
            cost = rounding_of(parts, sensitivity, std, self.rounding.bits)
            needed = min(needed, self.noise_multiplier * (sensitivity + cost.movement))
            stated = self.rounding.movement >= cost.movement * (1 - _TOLERANCE)
            fits = stated and cost.bits == self.rounding.bits
            if fits and std >= needed * (1 - _TOLERANCE):
                return
        raise ValueError(
            f"tau (noise of the stream) must be at least {needed:.9g} zeta for sigma ="
            f" {self.noise_multiplier:.9g} with the units {self.rounding.bits}; got {std:.9g} zeta."
            " The noise is too small for the stated guarantee."
        )

    def _parts(self, ratio: float) -> tuple[Part, ...]:
        """The sums of a release.

        Args:
            ratio: τ₂/ζ² per τ₁/ζ.
        """
        rows = Part(self.factorizations[0], self.second_moment.dimension, MOST_ROWS)
        if len(self.factorizations) == 1:
            return (rows,)
        C = self.factorizations[1]
        size = self.second_moment.size
        cut = NEAR * math.sqrt(size) * sensitivity_of(C, self.participation).value
        return rows, Part(C, size, MOST_ROWS, ratio, cut)

    def _sensitivities(self, ratio: float) -> Iterator[float]:
        """Upper bounds of s for ζ = 1, the quickest first."""
        first_reach, second_reach = moment_reaches(self.users)
        first = self.factorizations[0]
        alone = sensitivity_of(first, self.participation).value * first_reach
        if len(self.factorizations) == 1:
            yield alone
            return
        second = self.factorizations[1]
        other = sensitivity_of(second, self.participation).value * second_reach
        yield math.hypot(alone, other / ratio)
        unit = replace(self.users, norm_bound=1.0)
        yield joint_sensitivity(first, second, self.participation, ratio**-2, unit).value

    def _check_parts(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                "sigma (noise multiplier) must be positive and finite; got"
                f" {self.noise_multiplier}."
            )
        horizons = {C.rounds for C in self.factorizations}
        if horizons != {self.rounds}:
            raise ValueError(
                f"n (rounds of C_1 and C_2) must be {self.rounds} as in the contract; got"
                f" {sorted(horizons)}."
            )
        if len(self.rounding.parts) != len(self.factorizations):
            raise ValueError(
                f"rounding (units and noise) must have {len(self.factorizations)} parts; got"
                f" {len(self.rounding.parts)}."
            )
        needed = min(self.second_moment.sensitivity_dimension, 2)
        given = min(self.users.dimension, 2)
        if needed > given:
            raise ValueError(
                f"d (sensitivity dimension) must be at least {needed} for this second moment; got"
                f" {given}. Make the mechanism with a UserRange of that dimension."
            )

    def _check_units(self, std: float) -> None:
        """Reject features in a finer unit than products of the coordinates have."""
        bits = self.rounding.bits
        if bits[-1] > 2 * bits[0]:
            raise ValueError(
                "noise of the first moment must be below 2^20 zeta next to so little of the"
                f" second; got {std:.3g} zeta. Use a smaller weight or a larger epsilon."
            )


@dataclass(frozen=True)
class StreamGuarantee:
    """The guarantee that a stream states to each of its users.

    Args:
        epsilon: ε.
        delta: δ.
        adjacency: "zero-out" or "replace-one".
        release_every: R, how many rows a release sums; the last may have fewer.
    """

    epsilon: float
    delta: float
    adjacency: str
    release_every: int

    def check(self, plan: RowPlan, rows: Participation) -> None:
        """Reject a plan with less noise than the guarantee needs.

        Args:
            plan: of the noise.
            rows: (n, k, b) of each user's rows.

        Raises:
            ValueError: σ of the plan is too small, or it is for another contract or adjacency.
        """
        steps, rows_of_user = step_contract(rows, self.release_every)
        if (plan.participation, plan.users.adjacency) != (steps, self.adjacency):
            raise ValueError(
                f"plan (of a stream) must be for {steps} and {self.adjacency!r}; got"
                f" {plan.participation} and {plan.users.adjacency!r}."
            )
        needed = rows_of_user * certified_multiplier(self.epsilon, self.delta)
        if not plan.noise_multiplier >= needed * (1 - _TOLERANCE):
            raise ValueError(
                f"sigma (noise multiplier of the stream) must be at least {needed:.9g} for epsilon"
                f" = {self.epsilon:g}, delta = {self.delta:g} and {rows_of_user} rows of a user in"
                f" a release; got {plan.noise_multiplier:.9g}. The noise is too small for the"
                " stated guarantee."
            )


def step_contract(rows: Participation, every: int) -> tuple[Participation, int]:
    """Return the contract of releases for rows under (n, k, b), and how many rows one release has.

    The R rows before a release are summed, and these sums are the N = ⌈n/R⌉ steps of the mechanism.
    Of a user with at most k rows, no two less than b apart, a step holds at most c = min(k, ⌈R/b⌉)
    rows, and two steps with rows of the user are at least ⌊b/R⌋ apart. Let S be what one row may
    add. The user's rows in step j add up to an element of m_j·conv(S), with m_j ≤ c and Σm_j ≤ k.
    The norm of what they change in C·(sums) is convex, so it is largest at an extreme point of
    these: at most K = ⌈k/c⌉ steps with c equal rows each (exactly such where c divides k). The
    sensitivity is c times the one of single rows under (N, K, max(1, ⌊b/R⌋)).

    Args:
        rows: (n, k, b).
        every: R.

    Returns:
        (N, K, B) of releases, and c, the most rows of a user in one.

    >>> step_contract(Participation(9000, 25, 300), 3000)
    (Participation(rounds=3, max_participations=3, min_separation=1), 10)
    >>> step_contract(Participation(9000, 3, 3000), 1000)
    (Participation(rounds=9, max_participations=3, min_separation=3), 1)
    """
    n = rows.rounds
    k = rows.max_participations
    b = rows.min_separation
    steps = -(-n // every)
    most = min(k, -(-every // b))
    apart = max(1, b // every)
    return Participation(steps, min(-(-k // most), most_participations(steps, apart)), apart), most


def moment_reaches(users: UserRange) -> tuple[float, float]:
    """Return the largest ‖x − y‖ and ‖x⊗x − y⊗y‖ of one row, for ζ = 1.

    They are 2 and √2 (d ≥ 2) or 1 (d = 1) under replace-one, and 1 and 1 under zero-out, where y is
    0.
    """
    if users.adjacency == "zero-out":
        return 1.0, 1.0
    if users.dimension == 1:
        return 2.0, 1.0
    return 2.0, math.sqrt(2)
