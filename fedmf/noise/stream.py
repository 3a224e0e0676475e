"""Streaming correlated noise: row t of C⁻¹z, without the matrix and mostly without stored noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.noise.source import TILE, GaussianSource

__all__ = ["CorrelatedNoise", "HorizonExceededError", "StreamRecurrence"]

_DIGEST_LABEL = b"fedmf correlated noise, layout 1\x00"
_MATRIX_MARK = 2**64 - 1


class HorizonExceededError(RuntimeError):
    """A round past the horizon n was asked for: nothing about it was calibrated, so no noise exists."""


class StreamRecurrence(Protocol):
    """What the stream needs of a factorization: C⁻¹ as a linear recurrence with scaled rows.

    y_t = Σ_{j<q} feedforward[j]·z_{t−j} − Σ_{j=1..r} feedback[j−1]·y_{t−j},  [C⁻¹z]_t = row_scale[t]·y_t.
    A matrix of coefficients has one row per round: round t uses row t.
    """

    @property
    def feedforward(self) -> NDArray[np.float64]:
        """Shape (q,) or (n, q), q ≥ 1."""
        ...

    @property
    def feedback(self) -> NDArray[np.float64]:
        """Shape (r,) or (n, r), r ≥ 0."""
        ...

    @property
    def row_scale(self) -> NDArray[np.float64]:
        """Shape (n,)."""
        ...


class CorrelatedNoise:
    """The rows [C⁻¹z]_0, [C⁻¹z]_1, … in order, each handed out once, for a vector or a shard of it.

    With a recurrence (f, g, s) of C⁻¹,

        y_t = Σ_{j<q} f_j z_{t−j} − Σ_{j=1..r} g_{j−1} y_{t−j},    [C⁻¹z]_t = s_t y_t,

    where f and g may be different in every round. Past z are regenerated from the key, past y are kept in a
    ring buffer; so memory is r d-vectors and time per round is q keystreams plus r multiply-adds per element.

    Args:
        source: z(t, i), for the whole vector of dimension d.
        recurrence: f, g, s, finite float64; see `StreamRecurrence`.
        rounds: n, at most the length of s; the horizon for which the noise was calibrated.
        start: first element of the shard.
        stop: one past its last element; None means d.

    Raises:
        ValueError: a coefficient is not finite, a shape does not fit, or the shard is not inside [0, d].

    Guarantees:
        A shard's values equal the slice of the whole, and after `seek(t)` all rows equal those of an
        uninterrupted stream, to the last bit (arithmetic is multiply, then add, in a fixed order).
        Round n and later raise `HorizonExceededError`. A call that is interrupted does not advance the
        stream and its row is the same when tried again, on a fresh copy of `out`.

    References:
        Kalinin, McKenna, Pagh and Lampert (2026), "DP-λCGD", on regenerating earlier noise from a seed.

    >>> from types import SimpleNamespace
    >>> from fedmf.noise import NoiseKey
    >>> half = SimpleNamespace(feedforward=np.array([1.0, -0.5]), feedback=np.zeros(0), row_scale=np.ones(3))
    >>> source = GaussianSource(NoiseKey.from_seed(0), dimension=4)
    >>> noise, total = CorrelatedNoise(source, half, rounds=3), torch.zeros(4, dtype=torch.float64)
    >>> for _ in range(3):
    ...     noise.add_(total, scale=1.0)
    >>> expected = source.block(2, 0, 4) + 0.5 * source.block(1, 0, 4) + 0.5 * source.block(0, 0, 4)
    >>> torch.allclose(total, expected), noise.memory_vectors
    (True, 0)
    >>> noise.skip()
    Traceback (most recent call last):
    ...
    fedmf.noise.stream.HorizonExceededError: t (round) must be below n (horizon) = 3; got 3. ...
    """

    def __init__(
        self,
        source: GaussianSource,
        recurrence: StreamRecurrence,
        rounds: int,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._row_scale = _coefficients("row_scale", recurrence.row_scale, at_least=1)
        horizon = self._row_scale.size
        self._feedforward = _coefficients("feedforward", recurrence.feedforward, at_least=1, rows=horizon)
        self._feedback = _coefficients("feedback", recurrence.feedback, at_least=0, rows=horizon)
        if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= horizon:
            raise ValueError(
                f"n (rounds) must be an integer with 1 <= n <= {horizon} (length of row_scale); "
                f"got {rounds!r}. A factorization cannot be used past its horizon."
            )
        stop = source.dimension if stop is None else stop
        if not 0 <= start < stop <= source.dimension:
            raise ValueError(
                f"start, stop (shard) must satisfy 0 <= start < stop <= d = {source.dimension}; "
                f"got {start}, {stop}."
            )
        self.source = source
        self.rounds = rounds
        self.start, self.stop = start, stop
        self.digest = self._digest()
        self._t = 0
        self._past = torch.zeros(self._feedback.shape[-1], stop - start, dtype=torch.float64)
        self._past_t: int | None = 0  # the round that `_past` precedes; None while a row is being computed

    @property
    def t(self) -> int:
        """The next round, 0-based; n once every row was handed out."""
        return self._t

    @property
    def memory_vectors(self) -> int:
        """Number of stored float64 vectors of the shard's length: r, the order of the feedback."""
        return self._past.shape[0]

    def add_(self, out: torch.Tensor, scale: float) -> None:
        """Add scale·[C⁻¹z]_t to `out` in place and advance to round t + 1.

        The sum is formed in float64 and rounded once if `out` is float32.

        Args:
            out: contiguous CPU tensor of shape (stop − start,), float32 or float64.
            scale: absolute standard deviation per unit of C⁻¹z, that is ζ·σ·sens(C); finite.

        Raises:
            HorizonExceededError: all n rows were handed out.
            ValueError: `out` or `scale` is unfit; the stream has not advanced and `out` is unchanged.
        """
        self._check_horizon()
        self._check_out(out)
        scale = float(scale)
        if not math.isfinite(scale):
            raise ValueError(
                f"scale (noise standard deviation) must be finite; got {scale}. No noise was added."
            )
        with torch.no_grad():
            for low, high, y in self._rows():
                out[low - self.start : high - self.start].add_(y.mul_(self._row_scale[self._t]).mul_(scale))
        self._t += 1

    def skip(self) -> None:
        """Consume row t without using it, for a round that released nothing.

        Raises:
            HorizonExceededError: all n rows were handed out.
        """
        self._check_horizon()
        if self._feedback.size:
            for _ in self._rows():
                pass
        self._t += 1

    def seek(self, t: int) -> None:
        """Make t the next round, as if rows 0 … t − 1 had been handed out.

        Free without feedback; otherwise rows are replayed, from the present round if t is not before it.

        Args:
            t: 0 ≤ t ≤ n.

        Raises:
            HorizonExceededError: t > n.
            ValueError: t is negative or not an integer.
        """
        if isinstance(t, bool) or not isinstance(t, int) or t < 0:
            raise ValueError(f"t (round) must be an integer of at least 0; got {t!r}.")
        if t > self.rounds:
            raise HorizonExceededError(f"t (round) must be at most n (horizon) = {self.rounds}; got {t}.")
        if not self._feedback.size:
            self._t = t
            return
        if self._past_t is None or t < self._past_t:
            self._past.zero_()
            self._past_t = 0
        self._t = self._past_t
        while self._t < t:
            self.skip()

    def state_dict(self) -> dict[str, Any]:
        """Position and identity, JSON-able and safe to publish; no noise and no key."""
        return {"t": self._t, **self._identity()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Seek to a saved position after checking that it belongs to this very noise.

        Any sharding may load the state of any other.

        Raises:
            ValueError: an entry is missing, or key, domain, dimension or recurrence differ.
            HorizonExceededError: the position is past the horizon.
        """
        expected = self._identity()
        for name in ("t", *expected):
            if name not in state:
                raise ValueError(f"state (of the noise) must have the entry {name!r}; got {sorted(state)}.")
        for name, value in expected.items():
            if state[name] != value:
                raise ValueError(
                    f"{name} (of the saved noise) must be {value!r}; got {state[name]!r}. "
                    "Resuming with other noise would void the guarantee."
                )
        self.seek(state["t"])

    def _identity(self) -> dict[str, Any]:
        source = self.source
        return {
            "key": source.key.fingerprint,
            "domain": source.domain.name,
            "dimension": source.dimension,
            "digest": self.digest,
        }

    def _digest(self) -> str:
        """SHA-256 of horizon and coefficients: equal digests mean the same C⁻¹."""
        state = hashlib.sha256(_DIGEST_LABEL + self.rounds.to_bytes(8, "little"))
        for part in (self._feedforward, self._feedback, self._row_scale):
            # No vector is as long as the mark that introduces the shape of a matrix.
            shape = part.shape if part.ndim == 1 else (_MATRIX_MARK, *part.shape)
            state.update(
                b"".join(size.to_bytes(8, "little") for size in shape) + part.astype("<f8").tobytes()
            )
        return state.hexdigest()

    def _rows(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """(low, high, y_t[low:high]) over the shard; `_past` holds y_t instead of y_{t−r} once exhausted."""
        if self._past_t != self._t and self._feedback.size:
            self.seek(self._t)  # an earlier attempt at this row was interrupted
        self._past_t = None
        term = torch.empty(min(TILE, self.stop - self.start), dtype=torch.float64)
        low = self.start
        while low < self.stop:
            high = min(self.stop, low - low % TILE + TILE)
            y = self._row_part(low, high, term[: high - low])
            if self._feedback.size:
                self._past[self._t % self.memory_vectors, low - self.start : high - self.start] = y
            yield low, high, y
            low = high
        self._past_t = self._t + 1

    def _row_part(self, low: int, high: int, term: torch.Tensor) -> torch.Tensor:
        """y_t[low:high] in a fixed order of exactly rounded operations, as a new tensor."""
        t, y = self._t, torch.zeros(high - low, dtype=torch.float64)
        for lag, weight in enumerate(_of_round(self._feedforward, t)[: t + 1]):
            if weight != 0:
                y.add_(self.source.block(t - lag, low, high).mul_(weight))
        shard = slice(low - self.start, high - self.start)
        for lag, weight in enumerate(_of_round(self._feedback, t)[:t], start=1):
            if weight != 0:
                y.sub_(torch.mul(self._past[(t - lag) % self.memory_vectors, shard], weight, out=term))
        return y

    def _check_horizon(self) -> None:
        if self._t >= self.rounds:
            raise HorizonExceededError(
                f"t (round) must be below n (horizon) = {self.rounds}; got {self._t}. "
                "Plan a longer run: noise past the horizon was never calibrated."
            )

    def _check_out(self, out: torch.Tensor) -> None:
        length = self.stop - self.start
        if out.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"out (vector) must be float32 or float64; got {out.dtype}. No noise was added.")
        if out.shape != (length,) or not out.is_contiguous() or out.device.type != "cpu":
            raise ValueError(
                f"out (vector) must be a contiguous CPU vector of length {length}; "
                f"got shape {tuple(out.shape)}, strides {out.stride()} on {out.device}. No noise was added."
            )

    def __repr__(self) -> str:
        shard = f"[{self.start}, {self.stop})"
        return f"CorrelatedNoise(t={self._t}, rounds={self.rounds}, shard={shard}, source={self.source!r})"


def _of_round(coefficients: NDArray[np.float64], t: int) -> NDArray[np.float64]:
    return coefficients[t] if coefficients.ndim == 2 else coefficients


def _coefficients(
    name: str, values: NDArray[np.float64], at_least: int, rows: int | None = None
) -> NDArray[np.float64]:
    """A private float64 copy of one part of a recurrence (a vector, or a matrix of that many rows)."""
    part = np.array(values, dtype=np.float64)
    fits = part.ndim == 1 or (part.ndim == 2 and part.shape[0] == rows)
    if not fits or part.shape[-1] < at_least:
        matrix = "" if rows is None else f" or have n={rows} such rows"
        raise ValueError(
            f"{name} (recurrence) must be a vector of length >= {at_least}{matrix}; got {part.shape}."
        )
    bad = np.argwhere(~np.isfinite(part))
    if bad.size:
        first = tuple(bad[0].tolist())
        at = first[0] if part.ndim == 1 else first
        raise ValueError(f"{name} (recurrence) must be finite; got {part[first]} at index {at}.")
    return part
