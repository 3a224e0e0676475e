"""Rows of C⁻¹z on the kernels: the draws, the vectors stored between rounds, and their place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import Any, TypeGuard

import numpy as np
import torch

from fedmf.mechanisms.streaming import (
    BlockSums,
    Recurrence,
    SparseRows,
    StateSpace,
    StreamingInverse,
    closed_levels,
)
from fedmf.noise.row_pass import NoiseKernels, Row, RowPass
from fedmf.typing import Array

#: Columns of many rows that are made together, and z that are held for them.
_COLUMNS, _MOST_NORMALS = 1 << 13, 1 << 22


class RowRule(ABC):
    """How row t reaches a vector, given the vectors stored in earlier rounds; abstract.

    The stored vectors are a (`vectors`, length) tensor that belongs to the caller. They precede one round:
    after `row_(…, t)` they precede t + 1, and if it fails they precede none.
    """

    #: The `StreamingInverse` that is streamed; its digest identifies the noise.
    inverse: Any
    #: How many vectors are stored.
    vectors: int = 0

    @abstractmethod
    def row_pass(self, scale: float, t: int) -> RowPass:
        """The pass of round t, which adds scale·[C⁻¹z]_t."""

    def row_(
        self, kernels: NoiseKernels, out: Row, scale: float, start: int, t: int, stored: torch.Tensor
    ) -> None:
        """out ← out + scale·[C⁻¹z]_t, and stored as after round t."""
        kernels.add_(self.row_pass(scale, t), out, start, stored)

    def begin(self, t: int) -> int:
        """The last round up to t before which nothing needs to be known: replay starts there, from zeros."""
        return 0

    def _scaled(self, scale: float, t: int) -> float:
        return scale * float(self.inverse.row_scale[t])


class RegeneratedRows(RowRule):
    """All earlier z are drawn again and nothing is stored."""

    def __init__(self, inverse: Recurrence | SparseRows) -> None:
        self.inverse = inverse
        self._row = inverse.row if isinstance(inverse, SparseRows) else _Inputs(inverse)
        # A single z is scaled, and rounded, before it is added.
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


class FeedbackRows(RowRule):
    """The last r outputs y are stored in a ring; row t overwrites y_{t−r}, which it is the last to read."""

    def __init__(self, inverse: Recurrence) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors
        self._inputs = _Inputs(inverse)
        n, lags = inverse.rounds, np.arange(1, self.vectors + 1)
        reach = np.broadcast_to(np.where(inverse.feedback != 0, lags, 0).max(axis=-1), (n,))
        earliest = np.minimum.accumulate(np.maximum(np.arange(n) - reach, 0)[::-1])[::-1]
        self._fresh = np.append(earliest >= np.arange(n), True)  # no row from t on reads an output before t

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


class StateRows(RowRule):
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


class BlockRows(RowRule):
    """A place for each level holds the sum of x over the last complete block of that level."""

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


def rule_of(inverse: StreamingInverse) -> RowRule:
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


def made_together(inverse: StreamingInverse, length: int) -> TypeGuard[Recurrence | StateSpace]:
    """Whether `add_rows` makes rows of this form and length, and they fit its memory with all they draw."""
    if not isinstance(inverse, Recurrence):
        return isinstance(inverse, StateSpace)
    return 2 * inverse.feedforward.shape[-1] * min(length, _COLUMNS) <= _MOST_NORMALS


def add_rows(
    kernels: Any,
    inverse: Recurrence | StateSpace,
    out: Array,
    scale: float,
    start: int,
    t: int,
    stored: Array,
) -> None:
    """out[i] ← out[i] + scale·[C⁻¹z]_{t+i}, and stored as after the last of these rounds, on a processor.

    A row of a few hundred elements costs far less than the calls that make it. Here the keystreams of a block
    of rounds go through Box–Muller together, and the recurrence or the sums run in one compiled loop.

    Args:
        kernels: `CpuKernels` that draw z.
        inverse: C⁻¹.
        out: shape (count, length), contiguous.
        scale: standard deviation per unit of C⁻¹z.
        start: global index of column 0.
        t: the round of out[0].
        stored: as for the rule of the inverse.

    Guarantees:
        The bits of out and stored are those that `RowRule.row_` gives round by round.
    """
    from fedmf.noise.box_muller import decay, recur

    count, length = out.shape
    scales = scale * inverse.row_scale[t : t + count]
    state = isinstance(inverse, StateSpace)
    forward, back = (
        (np.ones((1, 1)), np.zeros((1, 0)))
        if state
        else (_of_rounds(each, t, count) for each in (inverse.feedforward, inverse.feedback))
    )
    lags = forward.shape[1]
    for low in range(0, length, _COLUMNS):
        high = min(low + _COLUMNS, length)
        step = max(1, _MOST_NORMALS // (high - low) - lags)
        for top in range(0, count, step):
            part, at = out[top : top + step], t + top
            first = max(0, at - lags + 1)
            z, skip = kernels.normals(range(first, at + len(part)), start + low, start + high)
            if state:
                period, ends = inverse.period or inverse.rounds, scales[top : top + step]
                weights, decays = np.array(inverse.output_weights), np.array(inverse.decays)
                decay(z, skip, at, period, ends, weights, decays, stored, part, low, high)
                continue
            f, g = (each if len(each) == 1 else each[top : top + step] for each in (forward, back))
            recur(z, skip, at - first, at, scales[top : top + step], f, g, stored, part, low, high)


class _Inputs:
    """t and the earlier rounds with a z that row t needs, latest first, with their weights."""

    def __init__(self, inverse: Recurrence) -> None:
        self._feedforward = inverse.feedforward
        self._every_round = _nonzero(inverse.feedforward) if inverse.feedforward.ndim == 1 else None

    def __call__(self, t: int) -> tuple[list[int], list[float]]:
        lags, weights = self._every_round or _nonzero(_of_round(self._feedforward, t)[: t + 1])
        count = bisect_right(lags, t)
        return [t - lag for lag in lags[:count]], weights[:count]


def _nonzero(coefficients: Array) -> tuple[list[int], list[float]]:
    """Where coefficients are not zero, and those."""
    places = np.flatnonzero(coefficients)
    return places.tolist(), coefficients[places].tolist()


def _of_round(coefficients: Array, t: int) -> Array:
    return coefficients[t] if coefficients.ndim == 2 else coefficients


def _of_rounds(coefficients: Array, t: int, count: int) -> Array:
    """A row per round, or one row for all."""
    return np.array(coefficients[t : t + count] if coefficients.ndim == 2 else coefficients[None])
