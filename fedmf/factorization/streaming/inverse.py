"""What every form of streaming C⁻¹z answers: what it keeps, what it draws again, and its product with z."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedmf.typing import Array


class StreamingInverse(ABC):
    """C⁻¹ as a rule for making [C⁻¹z]_t round by round, t = 0 … n − 1, from z_0 … z_t; abstract and frozen.

    Every form ends with a scale for each row, so that C·diag(s)⁻¹ streams like C.
    """

    #: s, shape (n,); [C⁻¹z]_t is s_t times what the rule gives.
    row_scale: Array

    @property
    def rounds(self) -> int:
        """n, the horizon; the rule is not to be continued past it."""
        return self.row_scale.size

    @property
    @abstractmethod
    def memory_vectors(self) -> int:
        """How many model-sized vectors must be kept between rounds."""

    @abstractmethod
    def draws(self) -> NDArray[np.int64]:
        """How many rounds' z are drawn in round t, its own and earlier ones, shape (n,)."""

    @abstractmethod
    def apply(self, z: Array) -> Array:
        """C⁻¹z for z of shape (m,) or (m, d) with m ≤ n; a reference, not a fast path.

        Raises:
            ValueError: z has more rows than the horizon.
        """

    @abstractmethod
    def stamped(self, rounds: int) -> StreamingInverse:
        """The rule that forgets everything every n rounds, to another horizon; it repeats s as well."""

    @property
    def regenerated_vectors(self) -> int:
        """How many past z are drawn again in a round, at most."""
        return int(self.draws().max()) - 1

    @property
    def mean_regenerated_vectors(self) -> float:
        """How many past z are drawn again in a round, on average."""
        return float(self.draws().mean()) - 1.0

    def rows_scaled(self, factors: Array) -> Self:
        """The rule for diag(factors)·C⁻¹."""
        return replace(cast(Any, self), row_scale=self.row_scale * factors)

    def _check_rows(self, z: Array) -> None:
        if len(z) > self.rounds:
            raise ValueError(f"z (noise) must have at most n={self.rounds} rows; got {len(z)}.")


def rows_of(values: Array, z: Array) -> Array:
    """A value per row in the shape that multiplies z row by row."""
    return values[: len(z)].reshape(-1, *[1] * (z.ndim - 1))
