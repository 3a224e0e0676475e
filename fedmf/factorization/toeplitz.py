"""Strategy matrices as values, by what is stored: C, C⁻¹, a diagonal, or another with rescaled columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmf.factorization.banded_matrix import Banded
from fedmf.factorization.base import Factorization, Recurrence, Vector, frozen_vector
from fedmf.factorization.buffered import BufferedToeplitz
from fedmf.factorization.dense import Dense
from fedmf.factorization.scaled_toeplitz import ScaledToeplitz
from fedmf.factorization.series import reciprocal, trimmed
from fedmf.factorization.stamped import Stamped

__all__ = [
    "ColumnScaled",
    "Diagonal",
    "InverseToeplitz",
    "Toeplitz",
    "factorization_from_dict",
    "leading",
    "normalized",
]


@dataclass(frozen=True, eq=False)
class Toeplitz(ScaledToeplitz):
    """C = LTT(c), c padded with zeros to the horizon.

    Args:
        coefficients: c, shape (p,), p ≤ n, c_0 > 0.
        rounds: n, the horizon.

    Raises:
        ValueError: c is not finite, c_0 ≤ 0 or c is longer than the horizon.

    >>> Toeplitz([1.0, 0.5], 3).materialize()
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0.5, 1. ]])
    """

    coefficients: Vector
    rounds: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _first_column(self.coefficients, self.rounds, "c"))

    def _strategy(self) -> Vector:
        return np.pad(self.coefficients, (0, self.rounds - self.coefficients.size))

    def _correlation(self) -> Vector:
        return reciprocal(self.coefficients, self.rounds)

    def recurrence(self) -> Recurrence:
        """C y = z solved forward: y_t = (z_t − Σ_j c_j y_{t−j})/c_0; keeps p − 1 past outputs."""
        c = trimmed(self.coefficients)
        return Recurrence(np.array([1.0 / c[0]]), c[1:] / c[0], self.scale)

    def leading(self, rounds: int) -> Toeplitz:
        """LTT(c) at the horizon T."""
        _check_leading(rounds, self.rounds)
        return Toeplitz(self.coefficients[:rounds], rounds)

    def to_dict(self) -> dict[str, Any]:
        """{"type": "toeplitz", "rounds", "coefficients"}."""
        return {"type": "toeplitz", "rounds": self.rounds, "coefficients": self.coefficients.tolist()}


@dataclass(frozen=True, eq=False)
class InverseToeplitz(ScaledToeplitz):
    """C⁻¹ = LTT(h), h padded with zeros to the horizon.

    Args:
        coefficients: h, shape (q,), q ≤ n, h_0 > 0.
        rounds: n, the horizon.

    Raises:
        ValueError: h is not finite, h_0 ≤ 0 or h is longer than the horizon.

    >>> InverseToeplitz([1.0, -0.5], 3).materialize()
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    """

    coefficients: Vector
    rounds: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _first_column(self.coefficients, self.rounds, "h"))

    def _strategy(self) -> Vector:
        return reciprocal(self.coefficients, self.rounds)

    def _correlation(self) -> Vector:
        return np.pad(self.coefficients, (0, self.rounds - self.coefficients.size))

    def recurrence(self) -> Recurrence:
        """[C⁻¹z]_t = Σ_j h_j z_{t−j}; keeps nothing, draws q − 1 past z again."""
        return Recurrence(trimmed(self.coefficients), np.zeros(0), self.scale)

    def leading(self, rounds: int) -> InverseToeplitz:
        """LTT(h)⁻¹ at the horizon T."""
        _check_leading(rounds, self.rounds)
        return InverseToeplitz(self.coefficients[:rounds], rounds)

    def to_dict(self) -> dict[str, Any]:
        """{"type": "inverse-toeplitz", "rounds", "coefficients"}."""
        return {"type": "inverse-toeplitz", "rounds": self.rounds, "coefficients": self.coefficients.tolist()}


@dataclass(frozen=True, eq=False)
class Diagonal(ScaledToeplitz):
    """C = diag(entries): independent noise of a different size in each round.

    Args:
        entries: shape (n,), positive; round t's noise has standard deviation 1/entries_t.

    Raises:
        ValueError: an entry is not finite or not positive.

    >>> Diagonal([2.0, 1.0]).noise_row_variances()
    array([0.25, 1.  ])
    """

    entries: Vector
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", _positive(self.entries, "d", "entries"))
        object.__setattr__(self, "rounds", self.entries.size)

    def _strategy(self) -> Vector:
        return np.eye(1, self.rounds)[0]

    def _correlation(self) -> Vector:
        return self.strategy

    def _scale(self) -> Vector:
        return 1.0 / self.entries

    def recurrence(self) -> Recurrence:
        """[C⁻¹z]_t = z_t / entries_t."""
        return Recurrence(np.ones(1), np.zeros(0), self.scale)

    def leading(self, rounds: int) -> Diagonal:
        """The first T entries."""
        _check_leading(rounds, self.rounds)
        return Diagonal(self.entries[:rounds])

    def to_dict(self) -> dict[str, Any]:
        """{"type": "diagonal", "entries"}."""
        return {"type": "diagonal", "entries": self.entries.tolist()}


@dataclass(frozen=True, eq=False)
class ColumnScaled(ScaledToeplitz):
    """C = base·diag(s)⁻¹, with s the column norms of the base: column normalisation.

    C⁻¹z = s ⊙ (base⁻¹z), so streaming costs one more multiplication per round.

    Args:
        base: any matrix of this family.
        factors: s, shape (n,), positive.

    Raises:
        ValueError: s is not finite, not positive or not of the base's length.

    References:
        Kalinin, McKenna, Pagh & Lampert (2026), Proposition 7.

    >>> normalized(Toeplitz([1.0, 1.0], 3)).materialize().round(3)
    array([[0.707, 0.   , 0.   ],
           [0.707, 0.707, 0.   ],
           [0.   , 0.707, 1.   ]])
    """

    base: ScaledToeplitz
    factors: Vector
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        factors = _positive(self.factors, "s", "column scale")
        if factors.size != self.base.rounds:
            raise ValueError(f"s (column scale) must have n={self.base.rounds} entries; got {factors.size}.")
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "rounds", factors.size)

    def _strategy(self) -> Vector:
        return self.base.strategy

    def _correlation(self) -> Vector:
        return self.base.correlation

    def _scale(self) -> Vector:
        return self.base.scale * self.factors

    def recurrence(self) -> Recurrence:
        """The base's recurrence with its rows scaled by s."""
        inner = self.base.recurrence()
        return Recurrence(inner.feedforward, inner.feedback, inner.row_scale * self.factors)

    def leading(self, rounds: int) -> ColumnScaled:
        """The base's leading block with the same first T scales: norms over the *full* horizon are kept."""
        _check_leading(rounds, self.rounds)
        base = self.base.leading(rounds)
        assert isinstance(base, ScaledToeplitz)
        return ColumnScaled(base, self.factors[:rounds])

    def to_dict(self) -> dict[str, Any]:
        """{"type": "column-scaled", "base", "factors"}."""
        return {"type": "column-scaled", "base": self.base.to_dict(), "factors": self.factors.tolist()}


def normalized(base: ScaledToeplitz) -> ColumnScaled:
    """The base with every column divided by its norm over the horizon.

    >>> normalized(Toeplitz([1.0, 0.5], 4)).gram_diagonal(0)
    array([1., 1., 1., 1.])
    """
    return ColumnScaled(base, np.sqrt(base.gram_diagonal(0)))


def leading(factorization: Factorization, rounds: int) -> Factorization:
    """The leading T×T block of C: what the first T rounds release.

    >>> leading(Toeplitz([1.0, 0.5], 4), 2).materialize()
    array([[1. , 0. ],
           [0.5, 1. ]])
    """
    return factorization.leading(rounds)


def factorization_from_dict(description: Mapping[str, Any]) -> Factorization:
    """Read what `Factorization.to_dict` wrote.

    Raises:
        ValueError: the type is unknown, or the values do not describe a factorization.

    >>> factorization_from_dict(Toeplitz([1.0, 0.5], 4).to_dict()).to_dict()
    {'type': 'toeplitz', 'rounds': 4, 'coefficients': [1.0, 0.5]}
    """
    match description:
        case {"type": "toeplitz", "coefficients": coefficients, "rounds": rounds}:
            return Toeplitz(coefficients, rounds)
        case {"type": "inverse-toeplitz", "coefficients": coefficients, "rounds": rounds}:
            return InverseToeplitz(coefficients, rounds)
        case {"type": "diagonal", "entries": entries}:
            return Diagonal(entries)
        case {"type": "buffered-toeplitz", "decays": decays, "weights": weights, "rounds": rounds}:
            return BufferedToeplitz(decays, weights, rounds)
        case {"type": "column-scaled", "base": base, "factors": factors}:
            inner = factorization_from_dict(base)
            if not isinstance(inner, ScaledToeplitz):
                raise ValueError(f"base (column-scaled) must be a Toeplitz type; got {base.get('type')!r}.")
            return ColumnScaled(inner, factors)
        case {"type": "banded", "band": band}:
            return Banded(band)
        case {"type": "stamped", "base": base, "rounds": rounds}:
            return Stamped(factorization_from_dict(base), rounds)
        case {"type": "dense", "rows": rows}:
            return Dense.from_rows(rows)
        case _:
            kind = description.get("type")
            raise ValueError(
                f"type (factorization) must be toeplitz, inverse-toeplitz, buffered-toeplitz, diagonal, "
                f"column-scaled, banded or dense, with its fields; got {kind!r} with {sorted(description)}."
            )


def _first_column(values: Vector, rounds: int, symbol: str) -> Vector:
    vector = frozen_vector(values, symbol, "coefficients")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"n (rounds) must be an integer of at least 1; got {rounds!r}.")
    if vector.size > rounds:
        raise ValueError(f"{symbol} (coefficients) must have at most n={rounds} entries; got {vector.size}.")
    if vector[0] <= 0:
        raise ValueError(f"{symbol}_0 (leading coefficient) must be positive; got {vector[0]}.")
    return vector


def _positive(values: Vector, symbol: str, meaning: str) -> Vector:
    vector = frozen_vector(values, symbol, meaning)
    if not (vector > 0).all():
        at = int(np.flatnonzero(vector <= 0)[0])
        raise ValueError(f"{symbol} ({meaning}) must be positive; got {vector[at]} at index {at}.")
    return vector


def _check_leading(rounds: int, horizon: int) -> None:
    if not 1 <= rounds <= horizon:
        raise ValueError(f"T (leading rounds) must be between 1 and n={horizon}; got {rounds}.")
