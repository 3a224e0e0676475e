"""Strategy matrices as values, by what is stored: C, C⁻¹, a diagonal, or another with rescaled columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmf.factorization.algebra import (
    check_leading,
    frozen_vector,
    padded,
    positive_vector,
    reciprocal,
    settled_reciprocal,
    trimmed,
)
from fedmf.factorization.matrices.banded_matrix import Banded
from fedmf.factorization.matrices.buffered import BufferedToeplitz
from fedmf.factorization.matrices.dense import Dense
from fedmf.factorization.matrices.scaled_toeplitz import ColumnScaled, ScaledToeplitz
from fedmf.factorization.matrices.stamped import Stamped
from fedmf.factorization.matrices.strategy_matrix import Factorization
from fedmf.factorization.matrices.trees import BlockTree, KaryTree
from fedmf.factorization.streaming import BlockSums, Recurrence
from fedmf.typing import Vector


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
        return padded(self.coefficients, self.rounds)

    def _correlation(self) -> Vector:
        return reciprocal(self.coefficients, self.rounds)

    def settled_pair(self) -> tuple[Vector, Vector]:
        """c and 1/c, cut where they have settled at 0."""
        c = trimmed(self.coefficients)
        return c, settled_reciprocal(c, self.rounds)

    def recurrence(self) -> Recurrence:
        """C y = z solved forward: y_t = (z_t − Σ_j c_j y_{t−j})/c_0; keeps p − 1 past outputs."""
        c = trimmed(self.coefficients)
        return Recurrence(np.array([1.0 / c[0]]), c[1:] / c[0], self.scale)

    def leading(self, rounds: int) -> Toeplitz:
        """LTT(c) at the horizon T."""
        check_leading(rounds, self.rounds)
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
        return padded(self.coefficients, self.rounds)

    def settled_pair(self) -> tuple[Vector, Vector]:
        """1/h and h, cut where they have settled at 0."""
        h = trimmed(self.coefficients)
        return settled_reciprocal(h, self.rounds), h

    def recurrence(self) -> Recurrence:
        """[C⁻¹z]_t = Σ_j h_j z_{t−j}; keeps nothing, draws q − 1 past z again."""
        return Recurrence(trimmed(self.coefficients), np.zeros(0), self.scale)

    def leading(self, rounds: int) -> InverseToeplitz:
        """LTT(h)⁻¹ at the horizon T."""
        check_leading(rounds, self.rounds)
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
        object.__setattr__(self, "entries", positive_vector(self.entries, "d", "entries"))
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
        check_leading(rounds, self.rounds)
        return Diagonal(self.entries[:rounds])

    def to_dict(self) -> dict[str, Any]:
        """{"type": "diagonal", "entries"}."""
        return {"type": "diagonal", "entries": self.entries.tolist()}


def normalized(factorization: Factorization) -> Factorization:
    """C with every column divided by its norm over the horizon.

    Raises:
        ValueError: the result has no form that can be kept.

    >>> normalized(Toeplitz([1.0, 0.5], 4)).gram_diagonal(0)
    array([1., 1., 1., 1.])
    """
    return factorization.columns_divided_by(np.sqrt(factorization.gram_diagonal(0)))


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
        case {"type": "block-tree", "gain": gain, "weights": weights, "row_scale": row_scale}:
            return BlockTree(BlockSums(gain, weights, row_scale))
        case {"type": "kary-tree", "arity": arity, "factors": factors}:
            return KaryTree(arity, factors)
        case _:
            kind = description.get("type")
            raise ValueError(
                f"type (factorization) must be toeplitz, inverse-toeplitz, buffered-toeplitz, diagonal, "
                "column-scaled, banded, stamped, dense, block-tree or kary-tree, with its fields; "
                f"got {kind!r} with {sorted(description)}."
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
