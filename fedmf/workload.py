"""Workloads: the lower-triangular matrix A whose rows are the released queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ToeplitzWorkload", "prefix"]


@dataclass(frozen=True, eq=False)
class ToeplitzWorkload:
    """A = LTT(a): row t releases Σ_{i ≤ t} a_{t−i} g_i.

    Args:
        name: how the command line and statements call it.
        coefficients: a, shape (n,), float64, finite, a_0 ≠ 0.

    Raises:
        ValueError: the coefficients are not a finite vector with a_0 ≠ 0.

    >>> prefix(3).materialize()
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """

    name: str
    coefficients: NDArray[np.float64]

    def __post_init__(self) -> None:
        a = np.array(self.coefficients, dtype=np.float64)
        if a.ndim != 1 or a.size == 0 or not np.isfinite(a).all() or a[0] == 0:
            raise ValueError(
                f"a (workload coefficients) must be a finite vector with a_0 != 0; got {a.shape}."
            )
        a.setflags(write=False)
        object.__setattr__(self, "coefficients", a)

    @property
    def rounds(self) -> int:
        """n, the number of queries."""
        return self.coefficients.size

    def materialize(self) -> NDArray[np.float64]:
        """The dense n×n matrix; an oracle for small n."""
        lag = np.subtract.outer(np.arange(self.rounds), np.arange(self.rounds))
        return np.where(lag >= 0, self.coefficients[np.abs(lag)], 0.0)


def prefix(rounds: int) -> ToeplitzWorkload:
    """All prefix sums: A is lower triangular with ones, what SGD with a constant learning rate releases."""
    if rounds < 1:
        raise ValueError(f"n (rounds) must be at least 1; got {rounds}.")
    return ToeplitzWorkload("prefix", np.ones(rounds))
