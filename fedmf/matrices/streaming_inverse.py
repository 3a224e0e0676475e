"""Forms of C⁻¹ by which noise is streamed: [C⁻¹z]_t round by round from z_0 … z_t.

A form is data, which the noise kernels read: the z that a round draws and the vectors that are
stored between rounds. Its `stream` states the same rule as a pair of functions, the reference for
the kernels; `materialize` gives the dense matrix of any form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmf.matrices.arrays import Array, Vector
from fedmf.matrices.series import frozen_vector


@dataclass(frozen=True)
class Stream:
    """A lower-triangular matrix as a rule: y_t from x_t and a state that stands for x_0 … x_{t−1}.

    Args:
        init: the state before round 0, given the shape of an x.
        next: (state, t, x_t) to y_t and the state before round t + 1; the old state is not used
            again.

    References:
        McKenna (2024), Algorithm 5; jax_privacy, streaming_matrix.

    >>> sums = Stream(lambda shape: np.zeros(shape), lambda total, t, x: (total + x, total + x))
    >>> sums.materialize(2)
    array([[1., 0.],
           [1., 1.]])
    """

    init: Callable[[tuple[int, ...]], Any]
    next: Callable[[Any, int, Array], tuple[Array, Any]]

    def apply(self, x: Array) -> Array:
        """y for x of shape (n,) or (n, d); a reference, not a fast path."""
        y = np.zeros(x.shape)
        state = self.init(x.shape[1:])
        for t in range(len(x)):
            y[t], state = self.next(state, t, x[t])
        return y

    def materialize(self, rounds: int) -> Array:
        """The dense n×n matrix."""
        return self.apply(np.eye(rounds))


class StreamingInverse(ABC):
    """C⁻¹ as a rule that makes [C⁻¹z]_t from z_0 … z_t, t = 0 … n − 1; abstract and frozen.

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
        """The number of model-sized vectors that are stored between rounds."""

    def draws(self) -> NDArray[np.int64]:
        """The number of z that round t draws, its own and earlier ones, shape (n,)."""
        return np.ones(self.rounds, dtype=np.int64)

    @abstractmethod
    def diagonal(self) -> Array:
        """The diagonal of C⁻¹, shape (n,)."""

    @abstractmethod
    def stream(self) -> Stream:
        """The rule without its horizon, row scale included."""

    @abstractmethod
    def stamped(self, rounds: int) -> StreamingInverse:
        """The rule that starts afresh, with s, every n rounds up to another horizon."""

    def apply(self, z: Array) -> Array:
        """C⁻¹z for z of shape (m,) or (m, d) with m ≤ n; a reference, not a fast path.

        Raises:
            ValueError: z has more rows than the horizon.
        """
        if len(z) > self.rounds:
            raise ValueError(f"z (noise) must have at most n={self.rounds} rows; got {len(z)}.")
        return self.stream().apply(z)

    def materialize(self) -> Array:
        """C⁻¹, shape (n, n)."""
        return self.apply(np.eye(self.rounds))

    @property
    def regenerated_vectors(self) -> int:
        """The largest number of past z that a round draws again."""
        return int(self.draws().max()) - 1

    @property
    def mean_regenerated_vectors(self) -> float:
        """The mean number of past z that a round draws again."""
        return float(self.draws().mean()) - 1.0

    def rows_scaled(self, factors: Array) -> Self:
        """The rule for diag(factors)·C⁻¹."""
        return replace(cast(Any, self), row_scale=self.row_scale * factors)


@dataclass(frozen=True, eq=False)
class Recurrence(StreamingInverse):
    """C⁻¹z by a recurrence on past inputs and past outputs.

    y_t = Σ_{j<q} f_j z_{t−j} − Σ_{j=1..r} g_j y_{t−j} and [C⁻¹z]_t = s_t·y_t for t = 0 … n−1, with
    z_{<0} = y_{<0} = 0. Past z can be drawn again from a keyed source; past y must be stored. Where
    f or g has one row per round, round t uses row t.

    Args:
        feedforward: f, shape (q,) or (n, q), q ≥ 1.
        feedback: g, shape (r,) or (n, r), r ≥ 0.
        row_scale: s, shape (n,).

    Raises:
        ValueError: a coefficient is not finite, f or s is empty, or a matrix does not have n rows.

    >>> Recurrence([1.0, -0.5], [], [1.0, 1.0, 1.0]).apply(np.array([1.0, 1.0, 1.0]))
    array([1. , 0.5, 0.5])
    >>> Recurrence([[1.0, 0.0], [1.0, -0.5], [1.0, 2.0]], [], [1.0, 1.0, 1.0]).apply(np.ones(3))
    array([1. , 0.5, 3. ])
    """

    feedforward: Vector
    feedback: Vector
    row_scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_scale", frozen_vector(self.row_scale, "s", "row_scale"))
        n = self.row_scale.size
        feedforward = _coefficients(self.feedforward, "f", "feedforward", n)
        object.__setattr__(self, "feedforward", feedforward)
        feedback = np.zeros(0)
        if np.size(self.feedback):
            feedback = _coefficients(self.feedback, "g", "feedback", n)
        object.__setattr__(self, "feedback", feedback)

    @property
    def memory_vectors(self) -> int:
        """r, the number of past outputs y that are stored."""
        return self.feedback.shape[-1]

    def diagonal(self) -> Array:
        """f_t0·s_t."""
        return self.feedforward[..., 0] * self.row_scale

    def rows(self, t: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
        """Entries of rows t … t + count − 1 of C⁻¹ without feedback, as `SparseRows.rows`."""
        width = self.feedforward.shape[-1]
        own = np.arange(t, t + count)[:, None]
        inputs = own - np.arange(width)
        coefficients = np.broadcast_to(self.feedforward, (self.rounds, width))[t : t + count]
        present = (inputs >= 0) & ((coefficients != 0) | (inputs == own))
        first = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
        return first, inputs[present], (coefficients * self.row_scale[own])[present]

    def largest_row_sum(self) -> float:
        """A bound on Σ_j |C⁻¹_tj| over all rounds t, without feedback."""
        sums = np.abs(self.feedforward).sum(axis=-1)
        return float((sums * self.row_scale).max())

    def draws(self) -> NDArray[np.int64]:
        """The number of z_t, z_{t−1}, … with a coefficient other than zero, shape (n,), ≥ 1."""
        t = np.arange(self.rounds)
        used = self.feedforward != 0
        if used.ndim == 2:
            counted = used & (np.arange(used.shape[1]) <= t[:, None])
            return np.maximum(counted.sum(axis=1), 1)
        return np.maximum(np.cumsum(used)[np.minimum(t, used.size - 1)], 1)

    def stamped(self, rounds: int) -> Recurrence:
        """A row of coefficients per round; those that reach before the block are zero."""
        local = np.arange(rounds) % self.rounds
        feedforward = self._within_block(self.feedforward, local, first_lag=0)
        feedback = np.zeros(0)
        if self.feedback.size:
            feedback = self._within_block(self.feedback, local, first_lag=1)
        return Recurrence(feedforward, feedback, self.row_scale[local])

    def _within_block(self, coefficients: Array, local: NDArray[np.int64], first_lag: int) -> Array:
        """The coefficients of rounds with these indices in their block, shape (rounds, lags)."""
        width = coefficients.shape[-1]
        rows = np.broadcast_to(coefficients, (self.rounds, width))[local]
        lags = np.arange(first_lag, first_lag + width)
        return np.where(lags <= local[:, None], rows, 0.0)

    def stream(self) -> Stream:
        """The rule with the last q inputs and r outputs as its state."""
        q = self.feedforward.shape[-1]
        r = self.memory_vectors
        feedforward = np.broadcast_to(self.feedforward, (self.rounds, q))
        feedback = np.broadcast_to(self.feedback, (self.rounds, r))

        def step(state: tuple[Array, Array], t: int, z: Array) -> tuple[Array, Any]:
            past_inputs, outputs = state
            inputs = np.concatenate([z[None], past_inputs[: q - 1]])
            y = np.tensordot(feedforward[t], inputs, 1) - np.tensordot(feedback[t], outputs, 1)
            return y * self.row_scale[t], (inputs, np.concatenate([y[None], outputs])[:r])

        return Stream(lambda shape: (np.zeros((q, *shape)), np.zeros((r, *shape))), step)


@dataclass(frozen=True, eq=False)
class StateSpace(StreamingInverse):
    """C⁻¹z for C = LTT(1, Σ_i ω_i, Σ_i ω_i θ_i, …) from m sums of past outputs.

    y_t = z_t − Σ_i ω_i S_i(t),  S_i(t + 1) = θ_i S_i(t) + y_t,  S_i(0) = 0,  and [C⁻¹z]_t =
    s_t·y_t. This is C y = z solved forward: with positive ω no term is larger than what it is a
    part of, so decays may lie as close to 1 and to each other as they like.

    Args:
        decays: θ, shape (m,), |θ_i| ≤ 1.
        output_weights: ω, shape (m,).
        row_scale: s, shape (n,).
        period: all S_i return to 0 before every round that is a multiple of it; None means never.

    Raises:
        ValueError: a vector is not finite or empty, m differs, a decay exceeds 1 or the period is
            not positive.

    >>> StateSpace([0.5], [0.25], np.ones(4)).apply(np.array([1.0, 0.0, 0.0, 0.0]))
    array([ 1.      , -0.25    , -0.0625  , -0.015625])
    """

    decays: Vector
    output_weights: Vector
    row_scale: Vector
    period: int | None = None

    def __post_init__(self) -> None:
        for name, symbol in (("decays", "theta"), ("output_weights", "omega"), ("row_scale", "s")):
            object.__setattr__(self, name, frozen_vector(getattr(self, name), symbol, name))
        if self.decays.size != self.output_weights.size:
            raise ValueError(
                f"omega (output_weights) must have m={self.decays.size} entries like theta; "
                f"got {self.output_weights.size}."
            )
        if not (np.abs(self.decays) <= 1).all():
            at = int(np.flatnonzero(np.abs(self.decays) > 1)[0])
            raise ValueError(
                f"theta (decays) must be at most 1 in size; got {self.decays[at]} at index {at}."
            )
        if self.period is not None and self.period < 1:
            raise ValueError(f"m (period) must be at least 1; got {self.period}.")

    @property
    def memory_vectors(self) -> int:
        """m, the number of sums."""
        return self.decays.size

    def diagonal(self) -> Array:
        """s_t."""
        return self.row_scale

    def restarts(self, t: int) -> bool:
        """Return whether all sums are 0 before round t."""
        return t == 0 or (self.period is not None and t % self.period == 0)

    def stamped(self, rounds: int) -> StateSpace:
        """The rule whose sums return to 0 at every block."""
        local = np.arange(rounds) % self.rounds
        period = self.rounds
        if self.period is not None:
            period = self.period
        if self.rounds % period:
            raise ValueError(f"m (period) must divide n={self.rounds} for stamping; got {period}.")
        return replace(self, row_scale=self.row_scale[local], period=period)

    def stream(self) -> Stream:
        """The rule with the sums as its state."""

        def step(sums: Array, t: int, z: Array) -> tuple[Array, Array]:
            if self.restarts(t):
                sums = np.zeros_like(sums)
            y = z - np.tensordot(self.output_weights, sums, 1)
            return y * self.row_scale[t], self.decays.reshape(-1, *[1] * z.ndim) * sums + y

        return Stream(lambda shape: np.zeros((self.decays.size, *shape)), step)


@dataclass(frozen=True, eq=False)
class SparseRows(StreamingInverse):
    """[C⁻¹z]_t = s_t·Σ_m weights[m]·z_{inputs[m]} over first[t] ≤ m < first[t + 1].

    Nothing is stored; all past z are drawn again.

    Args:
        first: shape (n + 1,), from 0, increasing.
        inputs: rounds, inputs[m] ≤ t in row t.
        weights: same shape, finite.
        row_scale: s, shape (n,).

    Raises:
        ValueError: the shapes do not fit, a row is empty or reaches past its round.

    >>> rows = SparseRows.of_lists([[0], [1, 0]], [[1.0], [1.0, -0.5]], np.ones(2))
    >>> rows.apply(np.array([2.0, 2.0])), rows.regenerated_vectors, rows.mean_regenerated_vectors
    (array([2., 1.]), 1, 0.5)
    """

    first: NDArray[np.int64]
    inputs: NDArray[np.int64]
    weights: Vector
    row_scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_scale", frozen_vector(self.row_scale, "s", "row_scale"))
        object.__setattr__(self, "weights", frozen_vector(self.weights, "w", "weights"))
        for name in ("first", "inputs"):
            values = np.array(getattr(self, name), dtype=np.int64)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        n = self.row_scale.size
        m = self.weights.size
        counts = np.diff(self.first)
        fit = self.first.shape == (n + 1,) and self.inputs.shape == (m,)
        if not fit or self.first[0] != 0 or self.first[-1] != m:
            raise ValueError(
                f"first, inputs (rows) must have shapes ({n + 1},) and ({m},) and cover all"
                f" weights; got {self.first.shape} and {self.inputs.shape}."
            )
        if not (counts > 0).all():
            raise ValueError(
                f"row t (of C^-1) must not be empty; got t={int(np.argmin(counts > 0))}."
            )
        late = (self.inputs > np.repeat(np.arange(n), counts)) | (self.inputs < 0)
        if late.any():
            raise ValueError(
                f"inputs (rounds) must be between 0 and their row; got {self.inputs[late][0]}."
            )

    @classmethod
    def of_lists(
        cls, inputs: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], row_scale: Vector
    ) -> SparseRows:
        """Make the form from a list of rounds and one of weights for every row."""
        lengths = [len(row) for row in inputs]
        first = np.concatenate([[0], np.cumsum(lengths)])
        return cls(first, np.concatenate(inputs), np.concatenate(weights), row_scale)

    @property
    def memory_vectors(self) -> int:
        """Zero."""
        return 0

    def draws(self) -> NDArray[np.int64]:
        """The number of entries of each row, shape (n,)."""
        return np.diff(self.first)

    def diagonal(self) -> Array:
        """The weights of z_t in row t, times s_t.

        Raises:
            ValueError: a row has no entry of its own round.
        """
        row = np.repeat(np.arange(self.rounds), self.draws())
        own = np.zeros(self.rounds)
        np.add.at(own, row[self.inputs == row], self.weights[self.inputs == row])
        if not (own > 0).all():
            at = int(np.argmin(own > 0))
            raise ValueError(
                f"row t (of C^-1) must have a positive entry for its own round; got t={at}."
            )
        return own * self.row_scale

    def rows(self, t: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
        """Entries of rows t … t + count − 1 of C⁻¹.

        Returns:
            The bounds of the rows in the two others, shape (count + 1,); the rounds; the entries.
        """
        first = self.first[t : t + count + 1]
        part = slice(first[0], first[-1])
        scale = np.repeat(self.row_scale[t : t + count], np.diff(first))
        return first - first[0], self.inputs[part], self.weights[part] * scale

    def largest_row_sum(self) -> float:
        """The largest Σ_j |C⁻¹_tj| over all rounds t."""
        sums = np.add.reduceat(np.abs(self.weights), self.first[:-1])
        return float((sums * self.row_scale).max())

    def row(self, t: int) -> tuple[list[int], list[float]]:
        """The rounds and weights of row t, without s."""
        part = slice(self.first[t], self.first[t + 1])
        return self.inputs[part].tolist(), self.weights[part].tolist()

    def stamped(self, rounds: int) -> SparseRows:
        """The rows, shifted to every block."""
        n = self.rounds
        inputs: list[list[int]] = []
        weights: list[list[float]] = []
        for t in range(rounds):
            row_inputs, row_weights = self.row(t % n)
            start = t // n * n
            inputs.append([start + i for i in row_inputs])
            weights.append(row_weights)
        return self.of_lists(inputs, weights, self.row_scale[np.arange(rounds) % n])

    def stream(self) -> Stream:
        """The rule with all inputs as its state, in place of drawing them again."""

        def step(past: list[Array], t: int, z: Array) -> tuple[Array, list[Array]]:
            past.append(z)
            inputs, weights = self.row(t)
            chosen = np.stack([past[i] for i in inputs])
            return np.tensordot(weights, chosen, 1) * self.row_scale[t], past

        return Stream(lambda shape: [], step)


def levels(rounds: int) -> int:
    """⌈log₂ n⌉, the number of levels with a dyadic block that another round follows."""
    return (rounds - 1).bit_length()


def closed_levels(t: int) -> int:
    """v, the level of the largest dyadic block that ends with round t (0-based): 2^v divides t + 1.

    >>> [closed_levels(t) for t in range(8)]
    [0, 1, 0, 2, 0, 1, 0, 3]
    """
    return (~t & (t + 1)).bit_length() - 1


@dataclass(frozen=True, eq=False)
class BlockSums(StreamingInverse):
    """C⁻¹z where row t of C is constant over each dyadic block of the rounds before t.

    The rounds 0 … t − 1 are the disjoint union of one block of 2^j rounds for every bit j that is
    set in t; D_j is the sum of x over it. Then

        x_t = a_t·z_t − Σ_{j: bit j of t} g_{tj}·D_j,    [C⁻¹z]_t = s_t·x_t,

    and the block that ends with round t, of level v, has D_v = x_t + Σ_{j<v} D_j. At most ⌈log₂ n⌉
    sums are stored, and a round reads as many as t has bits.

    Args:
        gain: a, shape (m,), positive; m is the period after which everything starts afresh, or n.
        weights: g, shape (m, ⌈log₂ m⌉); zero where the bit is not set.
        row_scale: s, shape (n,).

    Raises:
        ValueError: the shapes do not fit, a value is not finite, or a weight has no block.

    >>> twice = BlockSums([1.0, 0.5], [[0.0], [0.5]], np.ones(2))  # C = [[1, 0], [1, 2]]
    >>> twice.apply(np.array([1.0, 4.0])), twice.memory_vectors
    (array([1. , 1.5]), 1)
    """

    gain: Vector
    weights: Array
    row_scale: Vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", frozen_vector(self.gain, "a", "gain"))
        object.__setattr__(self, "row_scale", frozen_vector(self.row_scale, "s", "row_scale"))
        object.__setattr__(self, "weights", _block_weights(self.weights, self.gain.size))

    @classmethod
    def of_strategy(cls, matrix: ArrayLike) -> BlockSums:
        """Read a and g from C: a_t = 1/C_tt, g_tj = C_ts/C_tt with s in block j before t."""
        C = np.asarray(matrix, dtype=np.float64)
        t = np.arange(len(C))
        diagonal = np.diagonal(C)
        weights = np.zeros((len(C), levels(len(C))))
        for j in range(weights.shape[1]):
            inside = t[t >> j & 1 == 1]
            weights[inside, j] = C[inside, inside >> j + 1 << j + 1] / diagonal[inside]
        return cls(1.0 / diagonal, weights, np.ones(len(C)))

    def diagonal(self) -> Array:
        """a_t·s_t."""
        return self.gain[np.arange(self.rounds) % self.period] * self.row_scale

    @property
    def period(self) -> int:
        """m, the number of rounds after which everything starts afresh."""
        return self.gain.size

    @property
    def memory_vectors(self) -> int:
        """⌈log₂ m⌉, a sum for every level."""
        return self.weights.shape[1]

    def stamped(self, rounds: int) -> BlockSums:
        """The rule with another horizon; its m rounds repeat."""
        if self.rounds % self.period:
            raise ValueError(
                f"m (period) must divide n={self.rounds} for stamping; got {self.period}."
            )
        return replace(self, row_scale=self.row_scale[np.arange(rounds) % self.rounds])

    def stream(self) -> Stream:
        """The rule with the sums as its state, and one more that is never read."""

        def step(sums: Array, t: int, z: Array) -> tuple[Array, Array]:
            local = t % self.period
            x = self.gain[local] * z - np.tensordot(self.weights[local], sums[:-1], 1)
            v = min(closed_levels(local), self.memory_vectors)
            sums[v] = x + sums[:v].sum(axis=0)
            return x * self.row_scale[t], sums

        return Stream(lambda shape: np.zeros((self.memory_vectors + 1, *shape)), step)


def _coefficients(values: ArrayLike, symbol: str, meaning: str, rounds: int) -> NDArray[np.float64]:
    """A read-only copy of finite coefficients: a vector for all rounds, or a row for each."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2:
        return frozen_vector(matrix, symbol, meaning)
    if matrix.shape[0] != rounds or not matrix.size:
        raise ValueError(
            f"{symbol} ({meaning}) must be a vector or have n={rounds} non-empty rows; got"
            f" {matrix.shape}."
        )
    return _finite(matrix, symbol, meaning)


def _block_weights(values: ArrayLike, period: int) -> Array:
    weights = np.array(values, dtype=np.float64).reshape(period, -1)
    if weights.shape[1] != levels(period):
        raise ValueError(
            f"g (weights) must have {levels(period)} columns, one a level, for m={period} rounds; "
            f"got {weights.shape[1]}."
        )
    absent = (np.arange(period)[:, None] >> np.arange(weights.shape[1]) & 1) == 0
    if weights[absent].any():
        t, j = np.argwhere(absent & (weights != 0))[0].tolist()
        raise ValueError(
            f"g (weights) must be 0 where t has no block; got {weights[t, j]} at t={t}, j={j}."
        )
    return _finite(weights, "g", "weights")


def _finite(matrix: Array, symbol: str, meaning: str) -> Array:
    if not np.isfinite(matrix).all():
        t, j = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise ValueError(
            f"{symbol} ({meaning}) must be finite; got {matrix[t, j]} at index ({t}, {j})."
        )
    matrix.setflags(write=False)
    return matrix
