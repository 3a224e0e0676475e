"""The unit of a release, and what it costs in privacy that noise and sums are integers.

A sum of vectors of norm at most 1 is held in units of 2⁻ᴮ. Its rows of noise keep D·k = C·X − B·e
with |e| ≤ ½ + η for all d entries of n rows, unless a normal variable is farther than c standard
deviations from 0, which has probability p. Two neighboring worlds then need innovations that
differ by ‖Dκ‖ ≤ s + W in place of the s = ‖CΔ‖ of real numbers (docs/theory/noise.md):

    W = ‖B‖₂·√(dn)·(1 + 2η)·2⁻ᴮ,    μ = (s + W)/τ,    δ grows by (1 + e^ε)·p.

Several parts with noise τ_i and movement W_i each cost √(Σ (W_i/τ_i)²) together. With c = 20 + μ
and any δ ≥ e⁻²⁰⁰, ε ≤ μ²/2 + 20μ, so that (1 + e^ε)·P(|N| > c) ≤ 2·e⁻²⁰⁰ for each of the variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from fedmf.matrices.factorization import LARGEST_DENSE, Factorization, Stamped
from fedmf.noise.rows import rule_of

FINEST: Final = 31
"""B where nothing asks for a coarser unit: Σ n² of a vector of norm 1 is then at most 2⁶²."""

COARSEST: Final = 8
"""Smallest B: noise for which only coarser units are left is rejected."""

_LARGEST_SCALE: Final = 2.0**36
_LARGEST_ETA: Final = 0.25
#: Rows and innovations are integers that float64 represents exactly.
_LARGEST_ROW: Final = 2.0**51
_LARGEST_SUM: Final = 2.0**62
#: c − μ.
_DEVIATIONS: Final = 20.0
#: 2·e⁻²⁰⁰, rounded up.
_TAIL: Final = 3e-87
#: Room of τ for W, so that a unit that suits s suits s + W too.
_ROOM: Final = 1.01
#: Factor that rounds the results of this file upwards.
_UPWARDS: Final = 1.0 + 2.0**-40


@dataclass(frozen=True, eq=False)
class Part:
    """A vector that is summed and released in every round, as far as its unit depends on it.

    Args:
        factorization: C.
        size: d, the number of integers in a round.
        users: m, the most vectors in a sum.
        ratio: τ of this part, in bounds of its vectors, per τ of the whole release.
        cut: how far ‖CΔ‖ moves, in units, where vectors are rounded to integers.
    """

    factorization: Factorization
    size: int
    users: int
    ratio: float = 1.0
    cut: float = 0.0


@dataclass(frozen=True)
class IntegerNoise:
    """The unit of a part, and what its integers cost.

    Args:
        bits: B; the unit is 2⁻ᴮ of the bound of a vector.
        std: τ in units.
        movement: W in bounds of a vector, including what rounding of vectors adds to s.
        eta: η, the most that float64 adds to the error ½ of a row.
        failure: an upper bound of (1 + e^ε)·p.
    """

    bits: int
    std: float
    movement: float
    eta: float
    failure: float


def integer_noise(part: Part, std: float, mu: float, finest: int = FINEST) -> IntegerNoise:
    """Choose the finest unit that a part with noise τ allows, by public numbers alone.

    Args:
        part: with its C, d and m.
        std: τ of the whole release in bounds; the part's is ``part.ratio`` times it.
        mu: μ of the whole release.
        finest: B of the finest unit that may be chosen.

    Raises:
        ValueError: the noise is so large that no unit from 2⁻⁸ on suits it.
    """
    C = part.factorization
    inverse = C.streaming_inverse()
    rule = rule_of(inverse)
    diagonal = inverse.diagonal()
    row_std = math.sqrt(float(C.noise_row_variances().max()))
    tau = part.ratio * std
    deviations = _DEVIATIONS + mu * _ROOM
    for bits in range(finest, COARSEST - 1, -1):
        units = tau * 2.0**bits * _ROOM
        farthest = deviations * units * row_std
        eta = rule.rounding_bound(deviations * units, row_std)
        if (
            units * float(diagonal.max()) <= _LARGEST_SCALE
            and eta <= _LARGEST_ETA
            and farthest <= _LARGEST_ROW
            and part.users * 2.0**bits + farthest <= _LARGEST_SUM
        ):
            break
    else:
        raise ValueError(
            f"noise must have a standard deviation below 2^28 bounds of a vector; got {tau:g}. "
            "No unit of integers suits it: ask for a larger epsilon."
        )
    spread = strategy_norm_bound(C) if rule.spread_by_strategy else 1 / float(diagonal.min())
    entries = part.size * C.rounds
    moved = spread * math.sqrt(entries) * (1 + 2 * eta) + part.cut
    movement = moved * 2.0**-bits * _UPWARDS
    failure = (2 + rule.vectors) * entries * _TAIL
    return IntegerNoise(bits, tau * 2.0**bits, movement, eta, failure)


@dataclass(frozen=True)
class Rounding:
    """The cost of integers in a release of one or several parts.

    Args:
        parts: the unit of each.
        movement: W of the whole release in bounds: μ = (s + W)/τ.
        failure: an upper bound of what integers add to δ.
    """

    parts: tuple[IntegerNoise, ...]
    movement: float
    failure: float

    @property
    def bits(self) -> tuple[int, ...]:
        """B of each part."""
        return tuple(part.bits for part in self.parts)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a dict that `dataclasses.asdict` wrote."""
        parts = tuple(IntegerNoise(**part) for part in values["parts"])
        return cls(parts, float(values["movement"]), float(values["failure"]))


NOTHING: Final = Rounding((), 0.0, 0.0)
"""The cost in a release without noise."""


def rounding_of(
    parts: Sequence[Part], sensitivity: float, std: float, finest: Sequence[int] | None = None
) -> Rounding:
    """Return the units of all parts of a release with noise τ, and what they cost together.

    Args:
        parts: at least one.
        sensitivity: s of the whole release, in bounds.
        std: τ of the whole release, in bounds; 0 for one without noise.
        finest: B of the finest unit that each part may have; `FINEST` by default.
    """
    if std == 0:
        return NOTHING
    if finest is None:
        finest = [FINEST] * len(parts)
    mu = sensitivity / std
    noises = list[IntegerNoise]()
    squares = 0.0
    for part, bits in zip(parts, finest, strict=True):
        noise = integer_noise(part, std, mu, bits)
        noises.append(noise)
        squares += (noise.movement / part.ratio) ** 2
    total = math.sqrt(squares) * _UPWARDS
    return Rounding(tuple(noises), total, sum(noise.failure for noise in noises))


def calibrated(
    parts: Sequence[Part], sensitivity: float, multiplier: float
) -> tuple[float, Rounding]:
    """Return a τ with τ ≥ σ·(s + W), and the units it has.

    Args:
        parts: of the release.
        sensitivity: s ≥ ‖CΔ‖ of the whole release, in bounds.
        multiplier: σ = 1/μ; 0 for no noise.
    """
    std = multiplier * sensitivity
    while True:
        rounding = rounding_of(parts, sensitivity, std)
        needed = multiplier * (sensitivity + rounding.movement)
        if needed <= std:
            return std, rounding
        std = needed * _UPWARDS


def strategy_norm_bound(factorization: Factorization) -> float:
    """Bound ‖C‖₂.

    The bound is Σ|c_j| where C is Toeplitz up to column scales, √(‖C‖₁‖C‖_∞) for other C with few
    rounds, and ‖C‖_F for many.
    """
    if isinstance(factorization, Stamped):
        return strategy_norm_bound(factorization.base)
    bound = factorization.toeplitz_bound()
    if bound is not None:
        coefficients, scales = bound
        return float(np.abs(coefficients).sum() / scales.min()) * _UPWARDS
    if factorization.rounds <= LARGEST_DENSE:
        sizes = np.abs(factorization.materialize())
        columns_by_rows = float(sizes.sum(axis=0).max() * sizes.sum(axis=1).max())
        return math.sqrt(columns_by_rows) * _UPWARDS
    return math.sqrt(float(factorization.gram_diagonal(0).sum())) * _UPWARDS
