"""Rows of C⁻¹z on the kernels: what is drawn, what is kept between rounds, and where it lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.factorization import BlockSums, Recurrence, SparseRows, StateSpace, StreamingInverse, closed_levels
from fedmf.noise.kernels import NoiseKernels

__all__ = ["BlockRows", "CachedRows", "FeedbackRows", "RegeneratedRows", "RowRule", "StateRows", "of_inverse"]

Form = TypeVar("Form", bound=StreamingInverse)

#: Elements of a row that is formed at once where nothing is kept, in float64: 8 MiB, elsewhere 128 MiB.
TILE, TILE_ELSEWHERE = 1 << 20, 1 << 24


class RowRule(ABC, Generic[Form]):
    """How row t reaches a vector, given the vectors kept from earlier rounds; abstract.

    The kept vectors are a (`vectors`, length) tensor that belongs to the caller. They precede one round:
    after `row_(…, t)` they precede t + 1, and if it fails they precede none.
    """

    #: What is streamed; its digest identifies the noise.
    inverse: Form
    #: How many vectors are kept.
    vectors: int
    #: Whether kept vectors may be rounded to less than float64.
    roundable = False

    @abstractmethod
    def row_(
        self, kernels: NoiseKernels, out: torch.Tensor, scale: float, start: int, t: int, kept: torch.Tensor
    ) -> None:
        """out ← out + scale·[C⁻¹z]_t, and kept as after round t."""

    def begin(self, t: int) -> int:
        """The last round up to t before which nothing needs to be known: replay starts there."""
        return 0

    def reset(self, kernels: NoiseKernels, start: int, t: int, kept: torch.Tensor) -> None:
        """Make `kept` precede round t, one that `begin` gave."""
        kept.zero_()

    def _scaled(self, scale: float, t: int) -> float:
        return scale * float(self.inverse.row_scale[t])


class RegeneratedRows(RowRule[Recurrence | SparseRows]):
    """All earlier z are drawn again and nothing is kept.

    The row is formed in float64, tile by tile, before it meets `out`, as where vectors are kept.
    """

    vectors = 0

    def __init__(self, inverse: Recurrence | SparseRows) -> None:
        self.inverse = inverse
        # Scaling first rounds otherwise than `CachedRows`, which is to give the same bits.
        self._row = inverse.row if isinstance(inverse, SparseRows) else _Inputs(inverse)
        self._at_once = isinstance(inverse, SparseRows) or inverse.feedforward.shape[-1] == 1

    def begin(self, t: int) -> int:
        """t itself."""
        return t

    def row_(
        self, kernels: NoiseKernels, out: torch.Tensor, scale: float, start: int, t: int, kept: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        rounds, weights = self._row(t)
        scale = self._scaled(scale, t)
        if weights == [1.0] and self._at_once:
            kernels.accumulate_(out, start, rounds, [scale])
            return
        size = TILE if out.device.type == "cpu" else TILE_ELSEWHERE
        if out.numel() <= size:
            row = torch.empty(1, out.numel(), dtype=torch.float64, device=out.device)
            kernels.feedback_(out, scale, start, rounds, weights, row, [], [], 0)
            return
        tile = torch.empty(1, size, dtype=torch.float64, device=out.device)
        for low in range(0, out.numel(), size):
            part = out[low : low + size]
            row = tile[:, : part.numel()]
            kernels.feedback_(part, scale, start + low, rounds, weights, row, [], [], 0)


class CachedRows(RowRule[Recurrence]):
    """The last q − 1 z are kept in float64 instead of being drawn again: the same bits, sooner.

    Slot i mod (q − 1) holds z_i. The row is left for a moment in the slot of the oldest z, which no later
    row reads, and z_t is put there.
    """

    def __init__(self, inverse: Recurrence) -> None:
        self.inverse = inverse
        self.vectors = inverse.feedforward.shape[-1] - 1
        self._inputs = _Inputs(inverse)

    def begin(self, t: int) -> int:
        """t itself: `reset` draws what is missing."""
        return t

    def reset(self, kernels: NoiseKernels, start: int, t: int, kept: torch.Tensor) -> None:
        """Draw the q − 1 rounds before t."""
        for earlier in range(max(0, t - self.vectors), t):
            self._keep(kernels, start, earlier, kept)

    def row_(
        self, kernels: NoiseKernels, out: torch.Tensor, scale: float, start: int, t: int, kept: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        rounds, weights = self._inputs(t)
        own = weights[:1] if rounds[:1] == [t] else []
        slots = [i % self.vectors for i in rounds[len(own) :]]
        past = [-weight for weight in weights[len(own) :]]
        scale, slot = self._scaled(scale, t), t % self.vectors
        kernels.feedback_(out, scale, start, [t] * len(own), own, kept, slots, past, slot)
        self._keep(kernels, start, t, kept)

    def _keep(self, kernels: NoiseKernels, start: int, t: int, kept: torch.Tensor) -> None:
        kernels.accumulate_(kept[t % self.vectors].zero_(), start, [t], [1.0])


class FeedbackRows(RowRule[Recurrence]):
    """The last r outputs y are kept in a ring; row t overwrites y_{t−r}, which it is the last to read."""

    def __init__(self, inverse: Recurrence) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors
        self.roundable = inverse.feedforward.shape[-1] == 1  # what `rounded_storage` covers
        self._fresh = _fresh_rounds(inverse)
        self._inputs = _Inputs(inverse)

    def begin(self, t: int) -> int:
        """The last round up to t from which on no row reads an earlier output."""
        return int(np.flatnonzero(self._fresh[: t + 1])[-1])

    def row_(
        self, kernels: NoiseKernels, out: torch.Tensor, scale: float, start: int, t: int, kept: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        rounds, weights = self._inputs(t)
        feedback = _of_round(self.inverse.feedback, t)[:t]
        lags = np.flatnonzero(feedback)
        slots = [(t - 1 - int(lag)) % self.vectors for lag in lags]
        ring_weights = feedback[lags].tolist()
        scale, slot = self._scaled(scale, t), t % self.vectors
        kernels.feedback_(out, scale, start, rounds, weights, kept, slots, ring_weights, slot)


class StateRows(RowRule[StateSpace]):
    """m decaying sums of past outputs are kept, one pass a round."""

    roundable = True

    def __init__(self, inverse: StateSpace) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors
        self._decays, self._weights = inverse.decays.tolist(), inverse.output_weights.tolist()

    def begin(self, t: int) -> int:
        """The start of t's period."""
        return 0 if self.inverse.period is None else t - t % self.inverse.period

    def row_(
        self, kernels: NoiseKernels, out: torch.Tensor, scale: float, start: int, t: int, kept: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        if self.inverse.restarts(t):
            kept.zero_()
        kernels.state_space_(out, self._scaled(scale, t), start, t, kept, self._decays, self._weights)


class BlockRows(RowRule[BlockSums]):
    """A slot for each level keeps the sum of x over the last complete block of that level, in float64."""

    def __init__(self, inverse: BlockSums) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors

    def begin(self, t: int) -> int:
        """The start of t's period."""
        return t - t % self.inverse.period

    def row_(
        self, kernels: NoiseKernels, out: torch.Tensor, scale: float, start: int, t: int, kept: torch.Tensor
    ) -> None:
        """See `RowRule.row_`."""
        local = t % self.inverse.period
        weights = self.inverse.weights[local]
        used = np.flatnonzero(weights)
        level = closed_levels(local)
        # A block of the highest level ends the period and is read by nobody; then slot 0 is free.
        slot = level if level < self.vectors else 0
        scale, gain = self._scaled(scale, t), [float(self.inverse.gain[local])]
        kernels.feedback_(out, scale, start, [t], gain, kept, used.tolist(), weights[used].tolist(), slot)
        for below in range(slot):
            kept[slot].add_(kept[below])


def of_inverse(inverse: StreamingInverse) -> RowRule[Any]:
    """The rule that keeps what this form of C⁻¹ names and draws the rest again."""
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
