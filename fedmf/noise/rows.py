"""Rows of noise as integers: X_t = k_t − R_t, with R_t the nearest integer to a form of the past.

R_t is formed from rows before t alone, in float64 with plain products and sums in a fixed order,
and rounded before k_t comes in. With D the diagonal of C, every form keeps D·k = C·X − B·e, where
|e| ≤ ½ + η:

    feedforward     R = −rint(Σ_j a_tj·k_{t−j})   a = C⁻¹D, B = C   C⁻¹ has few or known entries
    feedback        R = rint(Σ_j c_tj·X_{t−j})    c = D⁻¹C, B = D   C has few diagonals
    decaying sums   R = rint(s_t·Σ_i ω_i·S_i)     B = D             C sums geometric series
    block sums      R = rint(s_t·Σ_j g_tj·D_j)    B = D             C is constant in blocks

Never round k_t together with the form: that merges two k into one X, and the parity of the sum
would show. docs/theory/noise.md has the theorem.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmf.matrices.arrays import Array
from fedmf.matrices.streaming_inverse import (
    BlockSums,
    Recurrence,
    SparseRows,
    StateSpace,
    StreamingInverse,
    closed_levels,
)
from fedmf.noise.jit import compiled, jit_inline

Integers = NDArray[np.int64]
Tables = tuple[Any, ...]

#: Relative error of a product or a sum in float64.
_EPSILON: Final = 2.0**-53
#: Factor of error bounds, for the rounding of k and X themselves.
_ROOM: Final = 1.01
#: Entries of rows and innovations that are held at a time.
_AT_ONCE: Final = 1 << 19
#: Columns of a tile: fewer are not worth the calls, more leave the cache.
_FEWEST_COLUMNS: Final = 1 << 9
_MOST_COLUMNS: Final = 1 << 15


@jit_inline
def _subtract(k, past, x):
    """Set x to k − rint(past), in integers."""
    for j in range(past.size):
        x[j] = k[j] - np.int64(np.rint(past[j]))


@compiled("void(int64[:,::1], int64[::1], int64[::1], int64[::1], float64[::1], int64[:,::1])")
def _feedforward(k, current, starts, earlier, weights, x):
    """Set x[i] to k_t + Σ a_tj·k_{t−j}, with the sum rounded first.

    Row current[i] of k is k_t. The terms of the sum are weights[m] times row earlier[m] of k, for
    m = starts[i] … starts[i + 1] − 1.
    """
    past = np.empty(x.shape[1])
    for i in range(x.shape[0]):
        past[:] = 0.0
        for m in range(starts[i], starts[i + 1]):
            row = k[earlier[m]]
            weight = weights[m]
            for j in range(past.size):
                past[j] -= weight * np.float64(row[j])
        _subtract(k[current[i]], past, x[i])


@compiled("void(int64[:,::1], int64, float64[:,::1], float64[:,:], int64, int64[:,::1])")
def _feedback(k, t, coefficients, stored, column, x):
    """Set x to rows t, t + 1, …

    stored[i mod r] holds X_i. coefficients[i] are the c_{t+i, j} of lags j = 1 … r.
    """
    lags = stored.shape[0]
    past = np.empty(x.shape[1])
    for i in range(x.shape[0]):
        past[:] = 0.0
        for lag in range(1, min(lags, t + i) + 1):
            weight = coefficients[i, lag - 1]
            if weight != 0.0:
                row = stored[(t + i - lag) % lags, column : column + past.size]
                for j in range(past.size):
                    past[j] += weight * row[j]
        _subtract(k[i], past, x[i])
        row = stored[(t + i) % lags, column : column + past.size]
        for j in range(past.size):
            row[j] = np.float64(x[i, j])


@compiled(
    "void(int64[:,::1], int64, int64, float64[::1], float64[::1], float64[::1], float64[:,:],"
    " int64, int64[:,::1])"
)
def _decaying_sums(k, t, period, scales, weights, decays, stored, column, x):
    """Set x to rows t, t + 1, …

    stored[m] holds S_m ← θ_m·S_m + X/s, which is 0 before each multiple of the period.
    """
    past = np.empty(x.shape[1])
    for i in range(x.shape[0]):
        sums = stored[:, column : column + past.size]
        if (t + i) % period == 0:
            sums[:] = 0.0
        past[:] = 0.0
        for m in range(weights.size):
            for j in range(past.size):
                past[j] += weights[m] * sums[m, j]
        for j in range(past.size):
            past[j] *= scales[i]
        _subtract(k[i], past, x[i])
        inverse = 1.0 / scales[i]
        for j in range(past.size):
            past[j] = np.float64(x[i, j]) * inverse
        for m in range(weights.size):
            for j in range(past.size):
                sums[m, j] = decays[m] * sums[m, j] + past[j]


@compiled(
    "void(int64[:,::1], int64[::1], float64[::1], float64[:,::1], float64[:,:], int64,"
    " int64[:,::1])"
)
def _block_sums(k, places, scales, weights, stored, column, x):
    """Set x to rows whose past is a sum of stored block sums, with weights[i] in row i.

    After row i, the sum at place p = places[i] is X/s and all sums at places below p.
    """
    past = np.empty(x.shape[1])
    for i in range(x.shape[0]):
        sums = stored[:, column : column + past.size]
        past[:] = 0.0
        for m in range(weights.shape[1]):
            if weights[i, m] != 0.0:
                for j in range(past.size):
                    past[j] += weights[i, m] * sums[m, j]
        for j in range(past.size):
            past[j] *= scales[i]
        _subtract(k[i], past, x[i])
        inverse = 1.0 / scales[i]
        for j in range(past.size):
            past[j] = np.float64(x[i, j]) * inverse
        for below in range(places[i]):
            for j in range(past.size):
                past[j] += sums[below, j]
        sums[places[i]] = past


@compiled("float64[::1](float64[:], float64[:], int64)")
def _sum_variances(decays, weights, rounds):
    """Return the variances of the sums S_i before round ``rounds``, for z of variance 1."""
    sums = np.zeros(decays.size)
    variances = np.zeros(decays.size)
    y = 1.0  # the response to z_0 = 1
    for _ in range(rounds):
        for m in range(decays.size):
            sums[m] = decays[m] * sums[m] + y
            variances[m] += sums[m] * sums[m]
        y = 0.0
        for m in range(decays.size):
            y -= weights[m] * sums[m]
    return variances


Form = TypeVar("Form", bound=StreamingInverse)


class RowRule(ABC, Generic[Form]):
    """A rule that makes rows of innovations and of vectors stored in earlier rounds; abstract.

    The stored vectors are a float64 matrix (`vectors`, length) that belongs to the caller. They
    precede one round: after `rows` they precede the round after its last.

    Attributes:
        inverse: the form of C⁻¹ that is streamed.
        vectors: number of stored vectors.
    """

    inverse: Form
    vectors: int

    def replay_start(self, t: int) -> int:
        """Return the last round up to t from which on rows can be made with stored vectors of 0."""
        return 0

    def innovation_rounds(self, t: int, count: int) -> Sequence[int]:
        """Return the rounds whose innovations rows t … t + count − 1 need, ascending."""
        return range(t, t + count)

    @abstractmethod
    def tables(self, t: int, count: int) -> Tables:
        """Return the numbers of C⁻¹ for rows t … t + count − 1, which serve all columns."""

    @abstractmethod
    def rows(self, tables: Tables, k: Integers, stored: Array, column: int, x: Integers) -> None:
        """Set x to rows t, t + 1, … in some columns.

        Args:
            tables: `tables` of these rows.
            k: innovations of `innovation_rounds`, a row each, at least as wide as x.
            stored: the vectors; changed.
            column: column of the stored vectors that is column 0 of x.
            x: shape (count, columns); set.
        """

    @abstractmethod
    def rounding_bound(self, farthest: float, row_std: float) -> float:
        """Bound η, by which float64 adds to the error ½ of R.

        It holds unless a normal variable is farther than c standard deviations from 0.

        Args:
            farthest: c·τ in units.
            row_std: the largest standard deviation of an entry of C⁻¹z, for z of variance 1.
        """

    @property
    def spread_by_strategy(self) -> bool:
        """True if B is C, false if B is the diagonal of C."""
        return False

    def columns_at_once(self, count: int) -> int:
        """Return the number of columns of ``count`` rows that are made at a time."""
        held = max(1, len(self.innovation_rounds(self.inverse.rounds - count, count)))
        return min(max(_AT_ONCE // held, _FEWEST_COLUMNS), _MOST_COLUMNS)


class FeedforwardRows(RowRule[Recurrence | SparseRows]):
    """Past innovations are drawn again, and nothing is stored."""

    vectors = 0

    def __init__(self, inverse: Recurrence | SparseRows) -> None:
        self.inverse = inverse
        self._diagonal = inverse.diagonal()

    @property
    def spread_by_strategy(self) -> bool:
        """True: B = C."""
        return True

    def replay_start(self, t: int) -> int:
        """Return t: nothing is stored."""
        return t

    def innovation_rounds(self, t: int, count: int) -> Sequence[int]:
        """Return the rounds with an entry in one of these rows of C⁻¹."""
        if isinstance(self.inverse, Recurrence):
            lags = self.inverse.feedforward.shape[-1]
            return range(max(0, t + 1 - lags), t + count)
        _, columns, _ = self.inverse.rows(t, count)
        return np.unique(columns).tolist()

    def tables(self, t: int, count: int) -> Tables:
        """Return the places of k_t and of earlier innovations, and the weights a_tj of these.

        Returns:
            As `_feedforward` takes them; places are rows of `innovation_rounds`.
        """
        starts, columns, entries = self.inverse.rows(t, count)
        rounds = np.array(self.innovation_rounds(t, count), np.int64)
        own_rounds = np.arange(t, t + count)
        is_earlier = columns < np.repeat(own_rounds, np.diff(starts))
        weights = entries / self._diagonal[columns]
        earlier_starts = np.concatenate([[0], np.cumsum(is_earlier)])[starts]
        current = np.searchsorted(rounds, own_rounds)
        earlier = np.searchsorted(rounds, columns[is_earlier])
        return current, earlier_starts, earlier, weights[is_earlier]

    def rows(self, tables: Tables, k: Integers, stored: Array, column: int, x: Integers) -> None:
        """Set x to rows of C⁻¹D·k, in which all terms but k_t are rounded together."""
        del stored, column
        _feedforward(k, *tables, x)

    def rounding_bound(self, farthest: float, row_std: float) -> float:
        """Bound the error of Σ_j a_tj·k_{t−j} by its number of terms and Σ_j |a_tj·k_{t−j}|."""
        del row_std
        terms = int(self.inverse.draws().max())
        return _EPSILON * (terms + 4) * _ROOM * farthest * self.inverse.largest_row_sum()


class FeedbackRows(RowRule[Recurrence]):
    """The last r rows are stored in a ring; row t overwrites X_{t−r}, which no later row reads."""

    def __init__(self, inverse: Recurrence) -> None:
        if inverse.feedforward.shape[-1] > 1:
            raise TypeError(
                "inverse (C^-1) must have feedforward or feedback coefficients, not both."
            )
        self.inverse = inverse
        self.vectors = inverse.memory_vectors
        n = inverse.rounds
        rounds = np.arange(n)
        lags = np.arange(1, self.vectors + 1)
        longest_lags = np.where(inverse.feedback != 0, lags, 0).max(axis=-1)
        first_read = np.maximum(rounds - np.broadcast_to(longest_lags, (n,)), 0)
        # The earliest round that any row from t on reads.
        first_read_later = np.minimum.accumulate(first_read[::-1])[::-1]
        self._needs_no_past = np.append(first_read_later >= rounds, True)

    def replay_start(self, t: int) -> int:
        """Return the last round up to t from which on no row reads an earlier one."""
        return int(np.flatnonzero(self._needs_no_past[: t + 1])[-1])

    def tables(self, t: int, count: int) -> Tables:
        """Return t, and c_tj = g_tj·s_t/s_{t−j} for these rounds and the lags j = 1 … r."""
        feedback = np.atleast_2d(self.inverse.feedback)
        if len(feedback) == 1:
            coefficients = np.tile(feedback, (count, 1))
        else:
            coefficients = feedback[t : t + count]
        current = np.arange(t, t + count)[:, None]
        earlier = np.maximum(current - np.arange(1, self.vectors + 1), 0)
        scale = self.inverse.row_scale
        return t, np.ascontiguousarray(coefficients * (scale[current] / scale[earlier]))

    def rows(self, tables: Tables, k: Integers, stored: Array, column: int, x: Integers) -> None:
        """Set x to the rows that solve C·X = D·k forward."""
        _feedback(k, *tables, stored, column, x)

    def rounding_bound(self, farthest: float, row_std: float) -> float:
        """Bound the error of Σ_j c_tj·X_{t−j}, which has r terms."""
        feedback = np.atleast_2d(self.inverse.feedback)
        scale = self.inverse.row_scale
        largest_sum = float(np.abs(feedback).sum(axis=1).max())
        largest = largest_sum * float(scale.max() / scale.min())
        return _EPSILON * (self.vectors + 6) * _ROOM * farthest * row_std * largest


class DecayingSums(RowRule[StateSpace]):
    """m decaying sums of past rows are stored."""

    def __init__(self, inverse: StateSpace) -> None:
        self.inverse = inverse
        self.vectors = inverse.memory_vectors
        self._period = inverse.rounds if inverse.period is None else inverse.period

    def replay_start(self, t: int) -> int:
        """Return the start of t's period."""
        return t - t % self._period

    def tables(self, t: int, count: int) -> Tables:
        """Return t, the period, s of these rounds, ω and θ."""
        scales = np.array(self.inverse.row_scale[t : t + count])
        weights = np.array(self.inverse.output_weights)
        decays = np.array(self.inverse.decays)
        return t, self._period, scales, weights, decays

    def rows(self, tables: Tables, k: Integers, stored: Array, column: int, x: Integers) -> None:
        """Set x to the rows that solve C·X = D·k forward by the sums."""
        _decaying_sums(k, *tables, stored, column, x)

    def rounding_bound(self, farthest: float, row_std: float) -> float:
        """Bound the error of Σ_i ω_i·S_i.

        Every step of a sum adds an error, which decays as the sum does.
        """
        del row_std
        weights = np.array(self.inverse.output_weights)
        decays = np.array(self.inverse.decays)
        deviations = np.sqrt(_sum_variances(decays, weights, self._period))
        remembered = np.minimum(self._period, 1 / np.maximum(1 - np.abs(decays), 1e-300))
        steps = self.vectors + 5 + 6 * remembered
        total = float((np.abs(weights) * deviations * steps).sum())
        return _EPSILON * _ROOM * farthest * total * float(self.inverse.row_scale.max())


class DyadicSums(RowRule[BlockSums]):
    """The sum of the rows over the last complete block of each level is stored."""

    def __init__(self, inverse: BlockSums) -> None:
        self.inverse = inverse
        self.vectors = max(1, inverse.memory_vectors)

    def replay_start(self, t: int) -> int:
        """Return the start of t's period."""
        return t - t % self.inverse.period

    def tables(self, t: int, count: int) -> Tables:
        """Return s and g of these rounds, and the places of the blocks that end with them."""
        rounds_in_period = np.arange(t, t + count) % self.inverse.period
        places = np.array([self._place(int(each)) for each in rounds_in_period])
        scales = np.array(self.inverse.row_scale[t : t + count])
        return places, scales, np.ascontiguousarray(self.inverse.weights[rounds_in_period])

    def rows(self, tables: Tables, k: Integers, stored: Array, column: int, x: Integers) -> None:
        """Set x to the rows that solve C·X = D·k forward by the block sums."""
        _block_sums(k, *tables, stored, column, x)

    def _place(self, round_in_period: int) -> int:
        """Return the place of the block that ends with a round, which is its level.

        A block that ends the period is read by no later row; its place does not matter.
        """
        level = closed_levels(round_in_period)
        if level < self.vectors:
            return level
        return 0

    def rounding_bound(self, farthest: float, row_std: float) -> float:
        """Bound the error of Σ_j g_tj·D_j by the largest sums of 2ʲ rows."""
        levels = self.inverse.memory_vectors
        sizes = 2.0 ** np.arange(levels)
        largest = 0.0
        if levels:
            largest = float((np.abs(self.inverse.weights) * sizes).sum(axis=1).max())
        scale = self.inverse.row_scale
        ratio = float(scale.max() / scale.min())
        return _EPSILON * (2 * levels + 6) * _ROOM * farthest * row_std * largest * ratio


def rule_of(inverse: StreamingInverse) -> RowRule[Any]:
    """Return the rule for a form of C⁻¹.

    Raises:
        TypeError: no rule makes integers of this form.
    """
    match inverse:
        case Recurrence() if inverse.memory_vectors:
            return FeedbackRows(inverse)
        case Recurrence() | SparseRows():
            return FeedforwardRows(inverse)
        case StateSpace():
            return DecayingSums(inverse)
        case BlockSums():
            return DyadicSums(inverse)
        case _:
            raise TypeError(
                "inverse (C^-1) must be a Recurrence, SparseRows, StateSpace or BlockSums; "
                f"got {type(inverse).__name__}."
            )
