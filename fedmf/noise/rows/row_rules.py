"""Rows of C⁻¹z on the kernels: what is drawn, what is stored between rounds, and where it lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.mechanisms.streaming import (
    BlockSums,
    Recurrence,
    SparseRows,
    StateSpace,
    StreamingInverse,
    closed_levels,
)
from fedmf.noise.kernels import NoiseKernels, Row, RowPass

Form = TypeVar("Form", bound=StreamingInverse)

#: Bytes of past z that are stored at most, and the draws a row that they must save.
_LARGEST_CACHE, _WORTH_DRAWS = 1 << 22, 1 << 14


class RowRule(ABC, Generic[Form]):
    """How row t reaches a vector, given the vectors stored in earlier rounds; abstract.

    The stored vectors are a (`vectors`, length) tensor that belongs to the caller. They precede one round:
    after `row_(…, t)` they precede t + 1, and if it fails they precede none.
    """

    #: What is streamed; its digest identifies the noise.
    inverse: Form
    #: How many vectors are stored.
    vectors: int

    @abstractmethod
    def row_pass(self, scale: float, t: int) -> RowPass:
        """The pass of round t, which adds scale·[C⁻¹z]_t."""

    def row_(
        self, kernels: NoiseKernels, out: Row, scale: float, start: int, t: int, stored: torch.Tensor
    ) -> None:
        """out ← out + scale·[C⁻¹z]_t, and stored as after round t."""
        kernels.add_(self.row_pass(scale, t), out, start, stored)

    def begin(self, t: int) -> int:
        """The last round up to t before which nothing needs to be known: replay starts there."""
        return 0

    def reset(self, kernels: NoiseKernels, start: int, t: int, stored: torch.Tensor) -> None:
        """Make `stored` precede round t, one that `begin` gave."""
        stored.zero_()

    def _scaled(self, scale: float, t: int) -> float:
        return scale * float(self.inverse.row_scale[t])


class RegeneratedRows(RowRule[Recurrence | SparseRows]):
    """All earlier z are drawn again and nothing is stored."""

    vectors = 0

    def __init__(self, inverse: Recurrence | SparseRows) -> None:
        self.inverse = inverse
        self._row = inverse.row if isinstance(inverse, SparseRows) else _Inputs(inverse)
        # A single z is scaled first, which rounds otherwise; several are to give the bits of `CachedRows`.
        self._at_once = isinstance(inverse, SparseRows) or inverse.feedforward.shape[-1] == 1

    def begin(self, t: int) -> int:
        """t itself."""
        return t

    def row_pass(self, scale: float, t: int) -> RowPass:
        """See `RowRule.row_pass`."""
        rounds, weights = self._row(t)
        scale = self._scaled(scale, t)
        if weights == [1.0] and self._at_once:
            return RowPass(tuple(rounds), (scale,))
        return RowPass(tuple(rounds), tuple(weights), scale)


class CachedRows(RowRule[Recurrence]):
    """The last q − 1 z are stored in float64 instead of being drawn again: the same bits, sooner.

    Place i mod (q − 1) holds z_i. After row t, which is the last to read z_{t−q+1}, z_t is put there.
    """

    def __init__(self, inverse: Recurrence) -> None:
        self.inverse = inverse
        self.vectors = inverse.feedforward.shape[-1] - 1
        self._inputs = _Inputs(inverse)

    def begin(self, t: int) -> int:
        """t itself: `reset` draws what is missing."""
        return t

    def reset(self, kernels: NoiseKernels, start: int, t: int, stored: torch.Tensor) -> None:
        """Draw the q − 1 rounds before t."""
        for earlier in range(max(0, t - self.vectors), t):
            self._store(kernels, start, earlier, stored)

    def row_pass(self, scale: float, t: int) -> RowPass:
        """See `RowRule.row_pass`."""
        rounds, weights = self._inputs(t)
        drawn = 1 if rounds[:1] == [t] else 0
        reads = tuple(i % self.vectors for i in rounds[drawn:])
        past = tuple(-weight for weight in weights[drawn:])
        return RowPass(tuple(rounds[:drawn]), tuple(weights[:drawn]), self._scaled(scale, t), reads, past)

    def row_(
        self, kernels: NoiseKernels, out: Row, scale: float, start: int, t: int, stored: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        super().row_(kernels, out, scale, start, t, stored)
        self._store(kernels, start, t, stored)

    def _store(self, kernels: NoiseKernels, start: int, t: int, stored: torch.Tensor) -> None:
        kernels.add_(RowPass((t,), (1.0,)), stored[t % self.vectors].zero_(), start)


class FeedbackRows(RowRule[Recurrence]):
    """The last r outputs y are stored in a ring; row t overwrites y_{t−r}, which it is the last to read."""

    def __init__(self, inverse: Recurrence) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors
        self._fresh = _fresh_rounds(inverse)
        self._inputs = _Inputs(inverse)

    def begin(self, t: int) -> int:
        """The last round up to t from which on no row reads an earlier output."""
        return int(np.flatnonzero(self._fresh[: t + 1])[-1])

    def row_pass(self, scale: float, t: int) -> RowPass:
        """See `RowRule.row_pass`."""
        rounds, weights = self._inputs(t)
        lags, feedback = _nonzero(_of_round(self.inverse.feedback, t)[:t])
        reads, place = tuple((t - 1 - lag) % self.vectors for lag in lags), t % self.vectors
        scale, past = self._scaled(scale, t), tuple(feedback)
        return RowPass(tuple(rounds), tuple(weights), scale, reads, past, (place,), (0.0,))


class StateRows(RowRule[StateSpace]):
    """m decaying sums of past outputs are stored, one pass a round."""

    def __init__(self, inverse: StateSpace) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors
        self._decays, self._weights = tuple(inverse.decays.tolist()), tuple(inverse.output_weights.tolist())
        self._sums = tuple(range(self.vectors))

    def begin(self, t: int) -> int:
        """The start of t's period."""
        return 0 if self.inverse.period is None else t - t % self.inverse.period

    def row_pass(self, scale: float, t: int) -> RowPass:
        """See `RowRule.row_pass`."""
        scale = self._scaled(scale, t)
        return RowPass((t,), (1.0,), scale, self._sums, self._weights, self._sums, self._decays)

    def row_(
        self, kernels: NoiseKernels, out: Row, scale: float, start: int, t: int, stored: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        if self.inverse.restarts(t):
            stored.zero_()
        super().row_(kernels, out, scale, start, t, stored)


class BlockRows(RowRule[BlockSums]):
    """A place for each level holds the sum of x over the last complete block of that level, in float64."""

    def __init__(self, inverse: BlockSums) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors

    def begin(self, t: int) -> int:
        """The start of t's period."""
        return t - t % self.inverse.period

    def row_pass(self, scale: float, t: int) -> RowPass:
        """See `RowRule.row_pass`."""
        local, place = t % self.inverse.period, self._place(t)
        reads, weights = _nonzero(self.inverse.weights[local])
        gain, scale = float(self.inverse.gain[local]), self._scaled(scale, t)
        return RowPass((t,), (gain,), scale, tuple(reads), tuple(weights), (place,), (0.0,))

    def row_(
        self, kernels: NoiseKernels, out: Row, scale: float, start: int, t: int, stored: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        super().row_(kernels, out, scale, start, t, stored)
        place = self._place(t)
        for below in range(place):
            stored[place].add_(stored[below])

    def _place(self, t: int) -> int:
        # A block of the highest level ends the period and is read by nobody; then place 0 is free.
        level = closed_levels(t % self.inverse.period)
        return level if level < self.vectors else 0


def of_inverse(inverse: StreamingInverse) -> RowRule[Any]:
    """The rule that stores what this form of C⁻¹ names and draws the rest again."""
    match inverse:
        case Recurrence() if inverse.memory_vectors:
            return FeedbackRows(inverse)
        case Recurrence() | SparseRows():
            return RegeneratedRows(inverse)
        case StateSpace():
            return StateRows(inverse)
        case BlockSums() if inverse.memory_vectors:
            return BlockRows(inverse)
        case BlockSums():
            inputs = [[t] for t in range(inverse.rounds)]
            gains = [[float(inverse.gain[0])]] * inverse.rounds
            return RegeneratedRows(SparseRows.of_lists(inputs, gains, inverse.row_scale))
        case _:
            raise TypeError(
                "inverse (C^-1) must be a Recurrence, SparseRows, StateSpace or BlockSums; "
                f"got {type(inverse).__name__}."
            )


def choose_rows(inverse: StreamingInverse, length: int, device: torch.device, whole: int) -> RowRule[Any]:
    """The rule for making rows: that of the form of C⁻¹, with past z stored where that is cheap.

    Past z are stored on a CPU if they take at most 4 MiB and save at least 2¹⁴ draws a row. Stored or drawn
    again, they give the same bits.

    Args:
        inverse: C⁻¹.
        length: elements of a vector.
        device: of the vector.
        whole: elements of the vector that it is a part of.
    """
    rule = of_inverse(inverse)
    if rule.vectors or not isinstance(inverse, Recurrence) or inverse.feedforward.shape[-1] == 1:
        return rule
    cached = CachedRows(inverse)
    few = device.type == "cpu" and cached.vectors * whole * 8 <= _LARGEST_CACHE
    saved = (inverse.mean_regenerated_vectors - 1) * length
    return cached if few and saved >= _WORTH_DRAWS else rule


class _Inputs:
    """t and the earlier rounds whose z row t needs, latest first, with their weights."""

    def __init__(self, inverse: Recurrence) -> None:
        self._feedforward = inverse.feedforward
        self._every_round = _nonzero(inverse.feedforward) if inverse.feedforward.ndim == 1 else None

    def __call__(self, t: int) -> tuple[list[int], list[float]]:
        lags, weights = self._every_round or _nonzero(_of_round(self._feedforward, t)[: t + 1])
        count = bisect_right(lags, t)
        return [t - lag for lag in lags[:count]], weights[:count]


def _nonzero(coefficients: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    """Where coefficients are not zero, and those."""
    places = np.flatnonzero(coefficients)
    return places.tolist(), coefficients[places].tolist()


def _of_round(coefficients: NDArray[np.float64], t: int) -> NDArray[np.float64]:
    return coefficients[t] if coefficients.ndim == 2 else coefficients


def _fresh_rounds(inverse: Recurrence) -> NDArray[np.bool_]:
    """Whether no row from t on reads an output before t, shape (n + 1,)."""
    n = inverse.rounds
    lags = np.arange(1, inverse.memory_vectors + 1)
    reach = np.broadcast_to(np.where(inverse.feedback != 0, lags, 0).max(axis=-1), (n,))
    earliest = np.minimum.accumulate(np.maximum(np.arange(n) - reach, 0)[::-1])[::-1]
    return np.append(earliest >= np.arange(n), True)
