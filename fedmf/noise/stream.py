"""Streaming correlated noise: row t of C⁻¹z, without the matrix and mostly without stored noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np
import torch

from fedmf.errors import HorizonExceededError
from fedmf.mechanisms.streaming import StreamingInverse
from fedmf.noise.row_pass import NoiseKernels, Row, check_vector
from fedmf.noise.rows import add_rows, made_together, rule_of
from fedmf.noise.source import GaussianSource

_DIGEST_LABEL: Final = b"fedmf correlated noise, layout 2\x00"


class NoiseStream:
    """The rows [C⁻¹z]_0, [C⁻¹z]_1, … in order, each handed out once, for a vector or a shard of it.

    A streaming form of C⁻¹ says which z a row needs and which vectors are stored between rounds (see
    `mechanisms.streaming.StreamingInverse`). Past z are drawn again from the key; only past outputs, or sums
    of them, must be stored, and those can be made again from the key at any time.

    Args:
        source: z(t, i), for the whole vector of dimension d.
        inverse: a streaming form of C⁻¹, from `Factorization.recurrence()`.
        rounds: n, at most the inverse's; the horizon for which the noise was calibrated.
        start: first element of the shard.
        stop: one past its last element; None means d.
        device: where stored vectors live until the first row says.

    Raises:
        ValueError: the shard is not inside [0, d], or the horizon is longer than the inverse's.

    Guarantees:
        A shard's values equal the slice of the whole, and after `seek(t)` all rows equal the rows of an
        uninterrupted stream, to the last bit. Past z stored or drawn again give the same bits. Round n and
        later raise `HorizonExceededError`. A call that is interrupted does not advance the stream and its
        row is the same when tried again, on a fresh copy of `out`. The covariance of the rows of an
        element is scale²·C⁻¹C⁻ᵀ.

    References:
        Kalinin, McKenna, Pagh and Lampert (2026), "DP-λCGD", on regenerating earlier noise from a seed.

    >>> from fedmf.mechanisms.closed_forms import cgd
    >>> from fedmf.noise import NoiseKey
    >>> source = GaussianSource(NoiseKey.from_seed(0), dimension=4)
    >>> noise = NoiseStream(source, cgd(0.5, 3).recurrence(), rounds=3)
    >>> total = torch.zeros(4, dtype=torch.float64)
    >>> for _ in range(3):
    ...     noise.add_(total, scale=1.0)
    >>> expected = source.block(2, 0, 4) + 0.5 * source.block(1, 0, 4) + 0.5 * source.block(0, 0, 4)
    >>> torch.allclose(total, expected), noise.memory_vectors
    (True, 0)
    >>> noise.skip()
    Traceback (most recent call last):
    ...
    fedmf.errors.HorizonExceededError: t (round) must be below n (horizon) = 3; got 3. ...
    """

    def __init__(
        self,
        source: GaussianSource,
        inverse: StreamingInverse,
        rounds: int,
        start: int = 0,
        stop: int | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        horizon = inverse.rounds
        if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= horizon:
            raise ValueError(
                f"n (rounds) must be an integer with 1 <= n <= {horizon} (rounds of C); "
                f"got {rounds!r}. A factorization cannot be used past its horizon."
            )
        stop = source.dimension if stop is None else stop
        if not 0 <= start < stop <= source.dimension:
            raise ValueError(
                f"start, stop (shard) must satisfy 0 <= start < stop <= d = {source.dimension}; "
                f"got {start}, {stop}."
            )
        self.source, self.rounds = source, rounds
        self.start, self.stop = start, stop
        self._device = torch.device(device)
        self._rule = rule_of(inverse)
        self.digest = _digest(self._rule.inverse, rounds)
        self._t = 0
        self._stored: torch.Tensor | None = None
        self._stored_t: int | None = None  # the round that `_stored` precedes; None while a row is being made

    @property
    def t(self) -> int:
        """The next round, 0-based; n once every row was handed out."""
        return self._t

    @property
    def memory_vectors(self) -> int:
        """Number of stored vectors of the shard's length."""
        return self._rule.vectors

    def add_(self, out: Row, scale: float) -> None:
        """Add scale·[C⁻¹z]_t to `out` in place and advance to round t + 1.

        The row is formed in float64, and its sum with `out` is rounded once to the type of `out`.

        Args:
            out: contiguous vector of shape (stop − start,), float32 or float64; stored vectors
                move to its device. Or an operation on the row, tile by tile.
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
        kernels = self.source.kernels(out.device)
        with torch.no_grad():
            self._device = out.device
            stored = self._ready(kernels)
            self._stored_t = None
            self._rule.row_(kernels, out, scale, self.start, self._t, stored)
        self._stored_t = self._t = self._t + 1

    def add_rows_(self, out: torch.Tensor, scale: float) -> None:
        """Add row t to out[0], row t + 1 to out[1] and so on, and advance past the last.

        The same bits as `add_` on one vector after the other, much sooner where vectors are short.

        Args:
            out: contiguous float64 matrix on the CPU, shape (rows, stop − start).
            scale: as for `add_`.

        Raises:
            HorizonExceededError: fewer rows are left; nothing has changed.
            ValueError: `out` or `scale` is unfit; nothing has changed.
        """
        length = self.stop - self.start
        fit = out.dtype == torch.float64 and out.device.type == "cpu" and out.is_contiguous()
        if not fit or out.ndim != 2 or out.shape[1] != length:
            raise ValueError(
                f"out (rows) must be a contiguous float64 CPU matrix of {length} columns; got {out.dtype} of "
                f"shape {tuple(out.shape)} on {out.device}. No noise was added."
            )
        self._check_horizon(len(out))
        inverse, kernels = self._rule.inverse, self.source.kernels(out.device)
        if not (made_together(inverse, length) and hasattr(kernels, "normals") and math.isfinite(scale)):
            for row in out:
                self.add_(row, scale)
            return
        with torch.no_grad():
            self._device = out.device
            stored = self._ready(kernels).numpy()
            self._stored_t, values = None, out.detach().numpy()
            add_rows(kernels, inverse, values, scale, self.start, self._t, stored)
        self._stored_t = self._t = self._t + len(out)

    def skip(self) -> None:
        """Consume row t without using it, for a round that released nothing.

        Raises:
            HorizonExceededError: all n rows were handed out.
        """
        self._check_horizon()
        self._t += 1

    def seek(self, t: int) -> None:
        """Make t the next round, as if rows 0 … t − 1 had been handed out.

        Free here; the next row replays the rounds that its stored vectors depend on, unless they are at hand.

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
        self._t = t

    def state_dict(self, *, kept_vectors: bool = False) -> dict[str, Any]:
        """Position and identity, JSON-able and safe to publish; with stored vectors neither.

        Args:
            kept_vectors: include them, so that another shard layout can continue without replay. They are
                past noise, to be guarded like the key.
        """
        eras = self.source.keys.digest(self._t)
        state: dict[str, Any] = {"t": self._t, **self._identity(), "eras": eras}
        if kept_vectors and self._rule.vectors:
            with torch.no_grad():
                state["kept"] = self._ready(self.source.kernels(self._device)).to("cpu", copy=True)
            state["start"], state["stop"] = self.start, self.stop
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position after checking that it belongs to this very noise.

        Any shard may load the state of any other, on any device. Stored vectors are used if the saved shard
        contains this one, and made again otherwise. They may be those of an earlier row, `kept_t`, of which
        the state has the digest of keys, `kept_eras`; then the rows since are made again.

        Raises:
            ValueError: an entry is missing, or key, domain, dimension, recurrence or the keys of rows handed
                out differ.
            HorizonExceededError: the position is past the horizon.
        """
        before = self._t
        self.seek(state.get("t"))  # type: ignore[arg-type]
        eras = self.source.keys.digest(self._t)
        for name, value in {**self._identity(), "eras": eras}.items():
            if state.get(name) != value:
                self._t = before
                raise ValueError(
                    f"{name} (keys of the saved noise) must be {value!r}; got {state.get(name)!r}. Other "
                    "noise would void the guarantee: restore all records from the same copy."
                )
        stored, at, eras = state.get("kept"), state.get("kept_t", self._t), state.get("kept_eras", eras)
        if stored is None or not state["start"] <= self.start < self.stop <= state["stop"]:
            return
        if at <= self._t and eras == self.source.keys.digest(at):
            self._load_stored(stored, state["start"], state["stop"], at)

    def _load_stored(self, stored: torch.Tensor, start: int, stop: int, at: int) -> None:
        shape = (self._rule.vectors, stop - start)
        if stored.shape != shape or stored.dtype != torch.float64:
            raise ValueError(
                f"kept (vectors of the saved noise) must be float64 of shape {shape}; "
                f"got {stored.dtype} of shape {tuple(stored.shape)}."
            )
        part = stored[:, self.start - start : self.stop - start]
        self._stored = part.to(self._device, copy=True).contiguous()
        self._stored_t = at

    def _identity(self) -> dict[str, Any]:
        source = self.source
        return {
            "key": source.key.fingerprint,
            "domain": source.domain.name,
            "dimension": source.dimension,
            "digest": self.digest,
        }

    def _ready(self, kernels: NoiseKernels) -> torch.Tensor:
        """Stored vectors on the device, as before round t; earlier rounds are replayed if need be."""
        stored = self._stored
        if stored is None:
            shape = (self._rule.vectors, self.stop - self.start)
            stored = self._stored = torch.zeros(shape, dtype=torch.float64, device=self._device)
            self._stored_t = 0
        elif stored.device != self._device:
            stored = self._stored = stored.to(self._device)
        if self._stored_t == self._t or not self._rule.vectors:
            return stored
        begin = self._rule.begin(self._t)
        at, self._stored_t = self._stored_t, None
        if at is None or not begin <= at <= self._t:
            stored.zero_()
            at = begin
        if at < self._t:
            unseen = torch.zeros(stored.shape[1], device=self._device)
            for earlier in range(at, self._t):
                self._rule.row_(kernels, unseen, 0.0, self.start, earlier, stored)
        self._stored_t = self._t
        return stored

    def _check_horizon(self, rows: int = 1) -> None:
        if self._t + rows > self.rounds:
            raise HorizonExceededError(
                f"t (round) must be below n (horizon) = {self.rounds}; got {self._t + rows - 1}. "
                "Plan a longer run: noise past the horizon was never calibrated."
            )

    def _check_out(self, out: Row) -> None:
        check_vector(out, self.start)
        if out.numel() != self.stop - self.start:
            raise ValueError(
                f"out (vector) must have length {self.stop - self.start}; got {out.numel()}. "
                "No noise was added."
            )

    def __repr__(self) -> str:
        shard = f"[{self.start}, {self.stop})"
        return f"NoiseStream(t={self._t}, rounds={self.rounds}, shard={shard}, source={self.source!r})"


def _digest(inverse: StreamingInverse, rounds: int) -> str:
    """SHA-256 of horizon and coefficients: equal digests mean equal rows."""
    state = hashlib.sha256(_DIGEST_LABEL + f"{rounds} {type(inverse).__name__}".encode())
    for field in fields(inverse):  # type: ignore[arg-type]
        part = getattr(inverse, field.name)
        if isinstance(part, np.ndarray):
            kind = "<f8" if part.dtype.kind == "f" else "<i8"
            state.update(f"{field.name} {part.shape}\n".encode() + part.astype(kind).tobytes())
        else:
            state.update(f"{field.name} {part}\n".encode())
    return state.hexdigest()
