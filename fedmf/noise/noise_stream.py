"""Correlated noise, row by row: integers X with C·X = D·k + B·e, added to integer sums."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedmf.errors import HorizonExceededError
from fedmf.matrices.arrays import Array
from fedmf.matrices.streaming_inverse import StreamingInverse
from fedmf.noise.innovations import BLOCK, MAX_DIMENSION, MAX_SCALE, WORDS, Innovations
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.rows import Integers, Tables, rule_of
from fedmf.noise.schedule import KeySchedule

_DIGEST_LABEL: Final = b"fedmf integer noise, layout 3\x00"
#: A thread for fewer columns would take longer to start than it saves.
_FEWEST_PER_THREAD: Final = 1 << 17
#: Entries of a block of rows.
_BLOCK_OF_ROWS: Final = 1 << 19
#: The product with the diagonal of C⁻¹ is rounded up, so that no innovation has less noise than is
#: due.
_UPWARDS: Final = 1.0 + 2.0**-50


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows that are made together.

    Args:
        count: how many.
        drawn: the rounds of which they need innovations.
        scales: ρ of these rounds.
        tables: what the rule takes from C⁻¹.
    """

    count: int
    drawn: Sequence[int]
    scales: Array
    tables: Tables


class NoiseStream:
    """The rows X_0, X_1, … in order, each added to one sum and never again.

    X_t = k_t − R_t: k_t are the innovations of round t, R_t the nearest integers to a form of
    earlier rows (`fedmf.noise.rows`). Past innovations are drawn again from their keys; only past
    rows, or sums of them, are stored, and those can be made again at any time.

    Args:
        keys: which key makes which row; a key alone makes all.
        domain: separates uses of one key.
        inverse: a streaming form of C⁻¹, from `Factorization.streaming_inverse()`.
        rounds: n, at most the inverse's; the horizon for which the noise was calibrated.
        dimension: d, 1 ≤ d ≤ 2³³.
        std: τ, the standard deviation of D·k in units of the sums; 0 for sums without noise.

    Raises:
        ValueError: the horizon is longer than the inverse's, or d or τ out of range.

    Guarantees:
        A release is the sum of two int64 vectors, G_t and X_t; nothing here becomes a float before.
        X_t is a function of keys, domain, C and τ: the same integers on any processor, for any
        number of threads, after any `seek`. Round n and later raise `HorizonExceededError`. A call
        that fails does not advance the stream.

    References:
        docs/theory/noise.md, which proves what releases reveal.
        Kalinin, McKenna, Pagh and Lampert (2026), "DP-λCGD", on regenerating earlier noise from a
        seed.

    >>> from fedmf.mechanisms.closed_forms import cgd
    >>> from fedmf.noise.key import NoiseKey
    >>> noise = NoiseStream(NoiseKey.from_seed(0), Domain.TRAINING, cgd(0.5, 3).streaming_inverse(), 3, 4, std=1e6)
    >>> total = torch.zeros(4, dtype=torch.int64)
    >>> noise.release(total)
    >>> bool((total.abs() > 0).all()), noise.t, noise.memory_vectors
    (True, 1, 0)
    """

    def __init__(
        self,
        keys: NoiseKey | KeySchedule,
        domain: Domain,
        inverse: StreamingInverse,
        rounds: int,
        dimension: int,
        std: float,
    ) -> None:
        horizon = inverse.rounds
        if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= horizon:
            raise ValueError(
                f"n (rounds) must be an integer with 1 <= n <= {horizon} (rounds of C); "
                f"got {rounds!r}. A factorization cannot be used past its horizon."
            )
        if isinstance(dimension, bool) or not isinstance(dimension, int):
            raise ValueError(f"d (dimension) must be an integer; got {dimension!r}.")
        if not 1 <= dimension <= MAX_DIMENSION:
            raise ValueError(
                f"d (dimension) must be between 1 and 2^33; got {dimension}. "
                "A longer vector would exhaust the block counter of one round."
            )
        if not (math.isfinite(std) and std >= 0):
            raise ValueError(f"tau (noise standard deviation) must be finite and >= 0; got {std}.")
        self.keys = KeySchedule.of(keys)
        self.domain = Domain(domain)
        self.rounds = rounds
        self.dimension = dimension
        self.std = float(std)
        self._rule = rule_of(inverse)
        self._scales = self.std * inverse.diagonal() * _UPWARDS
        if not 0 <= self._scales.min() <= self._scales.max() <= MAX_SCALE:
            raise ValueError(
                "rho (tau times the diagonal of C^-1) must lie in [0, 2^46]; got"
                f" {self._scales.max():g}. Use a coarser unit."
            )
        self.digest = _digest(inverse, rounds, self.std)
        self._t = 0
        self._stored = np.zeros((self._rule.vectors, dimension))
        # The round that the stored vectors precede; None while a row is being made.
        self._stored_t: int | None = 0
        #: One for each thread.
        self._innovations: list[Innovations] = []

    @property
    def t(self) -> int:
        """The next round, 0-based; n once every row was used."""
        return self._t

    @property
    def memory_vectors(self) -> int:
        """Number of stored vectors of length d."""
        return self._rule.vectors

    def release(self, total: Tensor) -> None:
        """Turn the sum of round t into its release: add row X_t, and advance to round t + 1.

        Args:
            total: G_t, int64, shape (d,), on any device; becomes o_t = G_t + X_t.

        Raises:
            HorizonExceededError: all n rows were used.
            ValueError: ``total`` is something else; the stream has not advanced and it is
                unchanged.
        """
        if total.shape != (self.dimension,):
            raise ValueError(
                f"sum must have shape ({self.dimension},); got {tuple(total.shape)}. No noise was"
                " added."
            )
        self.release_rows(total[None])

    def release_rows(self, totals: Tensor) -> None:
        """Turn the sums of rounds t, t + 1, … into their releases, and advance past the last.

        The integers of `release` on one sum after the other, much sooner where sums are short.

        Args:
            totals: int64, shape (rows, d), rows of contiguous memory.

        Raises:
            HorizonExceededError: fewer rows are left; nothing has changed.
            ValueError: ``totals`` is something else; nothing has changed.
        """
        if totals.dtype != torch.int64 or totals.ndim != 2 or totals.shape[1] != self.dimension:
            raise ValueError(
                f"sums must be int64 of shape (rows, {self.dimension}); got {totals.dtype} of shape"
                f" {tuple(totals.shape)}. No noise was added."
            )
        count = len(totals)
        self._check_horizon(count)
        if self.std > 0:
            values = totals.detach()
            if values.device.type == "cpu":
                self._make(self._t, count, values.numpy())
            else:
                rows = np.zeros((count, self.dimension), np.int64)
                self._make(self._t, count, rows)
                values += torch.from_numpy(rows).to(values.device)
        self._t += count

    def skip(self) -> None:
        """Consume row t without using it, for a round that released nothing.

        Raises:
            HorizonExceededError: all n rows were used.
        """
        self._check_horizon(1)
        self._t += 1

    def seek(self, t: int) -> None:
        """Make t the next round, as if rows 0 … t − 1 had been used.

        Free here; the next row replays the rounds that its stored vectors depend on, unless they
        are there.

        Args:
            t: 0 ≤ t ≤ n.

        Raises:
            HorizonExceededError: t > n.
            ValueError: t is negative or not an integer.
        """
        if isinstance(t, bool) or not isinstance(t, int) or t < 0:
            raise ValueError(f"t (round) must be an integer of at least 0; got {t!r}.")
        if t > self.rounds:
            raise HorizonExceededError(
                f"t (round) must be at most n (horizon) = {self.rounds}; got {t}."
            )
        self._t = t

    def state_dict(self, *, with_vectors: bool = False) -> dict[str, Any]:
        """Return position and identity, JSON-able and safe to publish; with stored vectors neither.

        Args:
            with_vectors: include them, so that continuing needs no replay. They are past noise, to
                be guarded like the key.
        """
        state: dict[str, Any] = {
            "t": self._t,
            **self._identity(),
            "opening_indices": self.keys.digest(self._t),
        }
        if with_vectors and self._rule.vectors:
            self._replay()
            state["stored"] = torch.from_numpy(self._stored.copy())
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position after checking that it belongs to this very noise.

        Stored vectors are used if there are any. They may be those of an earlier row, `stored_t`,
        of which the state has the digest of keys, `stored_openings`; then the rows since are made
        again.

        Raises:
            ValueError: an entry is missing, or key, domain, dimension, C, τ or the keys of used
                rows differ.
            HorizonExceededError: the position is past the horizon.
        """
        before = self._t
        self.seek(state.get("t"))  # type: ignore[arg-type]
        opening_indices = self.keys.digest(self._t)
        for name, value in {**self._identity(), "opening_indices": opening_indices}.items():
            if state.get(name) != value:
                self._t = before
                raise ValueError(
                    f"{name} (of the saved noise) must be {value!r}; got {state.get(name)!r}. Other"
                    " noise would void the guarantee: restore all records from the same copy."
                )
        stored = state.get("stored")
        if stored is None:
            return
        if stored.shape != self._stored.shape or stored.dtype != torch.float64:
            raise ValueError(
                "stored (vectors of the saved noise) must be float64 of shape"
                f" {self._stored.shape}; got {stored.dtype} of shape {tuple(stored.shape)}."
            )
        at = state.get("stored_t", self._t)
        if at <= self._t and state.get("stored_openings", opening_indices) == self.keys.digest(at):
            self._stored = stored.numpy().copy()
            self._stored_t = at

    def _identity(self) -> dict[str, Any]:
        return {
            "key": self.keys.root.fingerprint,
            "domain": self.domain.name,
            "dimension": self.dimension,
            "digest": self.digest,
        }

    def _make(self, t: int, count: int, totals: Integers | None) -> None:
        """Add rows t … t + count − 1 to the totals, or only pass through them."""
        self._replay()
        self._stored_t = None
        step = max(1, _BLOCK_OF_ROWS // self.dimension)
        for top in range(0, count, step):
            rows = min(step, count - top)
            self._make_block(t + top, rows, None if totals is None else totals[top : top + rows])
        self._stored_t = t + count

    def _replay(self) -> None:
        """Bring the stored vectors to where they precede round t."""
        if self._stored_t == self._t:
            return
        at = self._stored_t
        begin = self._rule.begin(self._t)
        if at is None or not begin <= at <= self._t:
            self._stored[:] = 0.0
            at = begin
        self._stored_t = at
        if at < self._t and self._rule.vectors:
            missing = self._t - at
            self._stored_t = None
            step = max(1, _BLOCK_OF_ROWS // self.dimension)
            for top in range(0, missing, step):
                self._make_block(at + top, min(step, missing - top), None)
        self._stored_t = self._t

    def _make_block(self, t: int, count: int, totals: Integers | None) -> None:
        """Make some rows, on several threads if that pays."""
        drawn = self._rule.drawn(t, count)
        block = _Block(count, drawn, self._scales[np.array(drawn)], self._rule.tables(t, count))
        edges = [0, self.dimension]
        threads = min(self.dimension * count // _FEWEST_PER_THREAD, torch.get_num_threads())
        if threads > 1 and self.dimension > BLOCK * threads:
            edges = [self.dimension * i // threads // BLOCK * BLOCK for i in range(threads)]
            edges.append(self.dimension)
        while len(self._innovations) < len(edges) - 1:
            self._innovations.append(Innovations(self.keys, self.domain))
        if len(edges) == 2:
            self._make_columns(self._innovations[0], block, totals, 0, self.dimension)
            return
        with ThreadPoolExecutor(threads) as pool:
            made = [
                pool.submit(self._make_columns, innovations, block, totals, low, high)
                for innovations, low, high in zip(self._innovations, edges, edges[1:], strict=False)
            ]
        for each in made:
            each.result()

    def _make_columns(
        self, innovations: Innovations, block: _Block, totals: Integers | None, low: int, high: int
    ) -> None:
        """Make some columns of some rows, tile by tile; ``low`` begins a block of keystream."""
        columns = self._rule.columns_at_once(block.count)
        wide = min(columns // BLOCK * BLOCK, WORDS, -(-(high - low) // BLOCK) * BLOCK)
        k_memory = np.empty(len(block.drawn) * wide, np.int64)
        x_memory = np.empty(block.count * wide, np.int64)
        for begin in range(low, high, wide):
            width = min(wide, high - begin)
            whole = -(-width // BLOCK) * BLOCK
            k = k_memory[: len(block.drawn) * whole].reshape(-1, whole)
            x = x_memory[: block.count * width].reshape(-1, width)
            innovations.draw(block.drawn, block.scales, begin // BLOCK, k)
            self._rule.rows(block.tables, k, self._stored, begin, x)
            if totals is not None:
                released(totals[:, begin : begin + width], x)

    def _check_horizon(self, rows: int) -> None:
        if self._t + rows > self.rounds:
            raise HorizonExceededError(
                f"t (round) must be below n (horizon) = {self.rounds}; got {self._t + rows - 1}. "
                "Plan a longer run: noise past the horizon was never calibrated."
            )

    def __repr__(self) -> str:
        return (
            f"NoiseStream({self.keys.root!r}, {self.domain.name}, t={self._t},"
            f" rounds={self.rounds}, dimension={self.dimension})"
        )


def released(total: Integers, row: Integers) -> None:
    """o = G + X, in place of G: the one function by which sums become releases."""
    if not total.dtype == row.dtype == np.int64:
        raise TypeError(f"sum and row must be int64; got {total.dtype} and {row.dtype}.")
    np.add(total, row, out=total)


def _digest(inverse: StreamingInverse, rounds: int, std: float) -> str:
    """SHA-256 of horizon, coefficients and τ: equal digests mean equal rows."""
    head = f"{rounds} {type(inverse).__name__} {std.hex()}"
    state = hashlib.sha256(_DIGEST_LABEL + head.encode())
    for field in fields(inverse):  # type: ignore[arg-type]
        part = getattr(inverse, field.name)
        if isinstance(part, np.ndarray):
            kind = "<f8" if part.dtype.kind == "f" else "<i8"
            state.update(f"{field.name} {part.shape}\n".encode() + part.astype(kind).tobytes())
        else:
            state.update(f"{field.name} {part}\n".encode())
    return state.hexdigest()
