"""Standard errors of the releases of a stream without an end, from the noise alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from fedmf.factorization import Factorization, query_variances
from fedmf.moments.unbounded.segments import Segments
from fedmf.typing import Vector
from fedmf.workload import ToeplitzWorkload, prefix

#: C and τ of a segment.
Level = Callable[[int], tuple[Factorization, float]]
#: How much of a variance may be missing where it is taken to have settled.
_SETTLED: Final = 1e-9


class ReleaseErrors(ABC):
    """What the rows of a workload without an end add up to, and the variance of their noise; abstract."""

    @abstractmethod
    def row_sums(self, steps: NDArray[np.int64]) -> Vector:
        """Σ_i [A]_{ti} for steps t, counted from 1."""

    @abstractmethod
    def variances(self, steps: NDArray[np.int64]) -> Vector:
        """The variance of the noise of one coordinate of the release."""


@final
class GrowingErrors(ReleaseErrors):
    """Of prefix sums, or averages, over segments with independent noise.

    The release of step t holds the totals of all segments before and a prefix of its own, so

        v_t = Σ_{i<j} τ_i²‖1ᵀC_i⁻¹‖² + τ_j²‖(AC_j⁻¹)_{t−T_j}‖²,   over t² for averages.

    Args:
        segments: the cut.
        level: C_j and τ_j.
        averaged: whether sums are divided by t.
    """

    def __init__(self, segments: Segments, level: Level, averaged: bool) -> None:
        self._segments, self._level, self._averaged = segments, level, averaged
        self._found: Vector = np.zeros(0)
        self._next = 0

    def row_sums(self, steps: NDArray[np.int64]) -> Vector:
        """See `ReleaseErrors.row_sums`."""
        return np.ones(len(steps)) if self._averaged else steps.astype(np.float64)

    def variances(self, steps: NDArray[np.int64]) -> Vector:
        """See `ReleaseErrors.variances`."""
        while len(self._found) < steps.max(initial=0):
            C, std = self._level(self._next)
            within = std**2 * query_variances(C, prefix(self._segments.steps(self._next)))
            before = self._found[-1] if self._next else 0.0
            self._found, self._next = np.concatenate([self._found, before + within]), self._next + 1
        found = self._found[steps - 1]
        return found / steps.astype(np.float64) ** 2 if self._averaged else found


@final
class SteadyErrors(ReleaseErrors):
    """Of a workload that forgets, with one strategy matrix that goes on for ever.

    v_t = τ²‖(AC⁻¹)_t‖² grows to a limit; steps past the horizon given here have that.

    Args:
        strategy: C, up to a horizon.
        std: τ.
        workload: A, up to the same horizon.
    """

    def __init__(self, strategy: Factorization, std: float, workload: ToeplitzWorkload) -> None:
        self._sums, self._variances = workload.row_sums(), std**2 * query_variances(strategy, workload)

    @property
    def settled(self) -> bool:
        """Whether the second half of the horizon adds nothing to variances and sums."""
        half = len(self._sums) // 2
        return all(
            bool(abs(values[-1] - values[half]) <= _SETTLED * abs(values[-1]))
            for values in (self._sums, self._variances)
        )

    def row_sums(self, steps: NDArray[np.int64]) -> Vector:
        """See `ReleaseErrors.row_sums`."""
        return self._sums[np.minimum(steps, len(self._sums)) - 1]

    def variances(self, steps: NDArray[np.int64]) -> Vector:
        """See `ReleaseErrors.variances`."""
        return self._variances[np.minimum(steps, len(self._variances)) - 1]
