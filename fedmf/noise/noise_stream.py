"""Correlated noise, row by row: integers X with C·X = D·k + B·e, added to integer sums.

`NoiseStream` draws the innovations k (`fedmf.noise.innovations`) and makes rows of them
(`fedmf.noise.rows`). `released` is the only place where a sum and a row of noise meet.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import pairwise
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
    """Consecutive rows that are made together.

    Args:
        count: number of rows.
        rounds: whose innovations they need.
        scales: ρ of these rounds.
        tables: numbers that the rule takes from C⁻¹.
    """

    count: int
    rounds: Sequence[int]
    scales: Array
    tables: Tables


class NoiseStream:
    """The rows X_0, X_1, … in order, each added to one sum and never again.

    X_t = k_t − R_t: k_t are the innovations of round t, R_t the nearest integers to a form of
    earlier rows. Past innovations are drawn again from their keys; only past rows, or sums of them,
    are stored, and those can be computed again at any time.

    Args:
        keys: the key of each row; a single key serves all of them.
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
    >>> inverse = cgd(0.5, 3).streaming_inverse()
    >>> noise = NoiseStream(NoiseKey.from_seed(0), Domain.TRAINING, inverse, 3, 4, std=1e6)
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
        # The round that the stored vectors precede; None while rows are made.
        self._stored_t: int | None = 0
        self._innovations: list[Innovations] = []  # one for each thread

    @property
    def t(self) -> int:
        """The next round, from 0; n once every row was used."""
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
            ValueError: ``total`` has another type or shape; neither it nor the stream has changed.
        """
        if total.shape != (self.dimension,):
            raise ValueError(
                f"sum must have shape ({self.dimension},); got {tuple(total.shape)}. No noise was"
                " added."
            )
        self.release_rows(total[None])

    def release_rows(self, totals: Tensor) -> None:
        """Turn the sums of rounds t, t + 1, … into their releases, and advance past the last.

        They get the integers of `release` on one sum after the other; for short sums this is much
        faster.

        Args:
            totals: int64, shape (rows, d), rows of contiguous memory.

        Raises:
            HorizonExceededError: fewer rows are left; nothing has changed.
            ValueError: ``totals`` has another type or shape; nothing has changed.
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
            self._replay()
            if values.device.type == "cpu":
                self._make_rows(self._t, count, values.numpy())
            else:
                rows = np.zeros((count, self.dimension), np.int64)
                self._make_rows(self._t, count, rows)
                values += torch.from_numpy(rows).to(values.device)
        self._t += count

    def seek(self, t: int) -> None:
        """Make t the next round, as if rows 0 … t − 1 had been used.

        This costs nothing. The next release makes the rows again on which its stored vectors
        depend, unless it has them.

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
        """Return position and identity, which are JSON-able and safe to publish.

        Args:
            with_vectors: include the stored vectors, so that continuing needs no replay. They are a
                tensor of past noise, to be guarded like the key.
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

        Stored vectors are used if the state has any. They may precede an earlier row, `stored_t`,
        for which the state has the digest of keys, `stored_openings`; then the rows since are
        computed again.

        Raises:
            ValueError: an entry is missing, or key, domain, dimension, C, τ or the keys of used
                rows differ.
            HorizonExceededError: the position is past the horizon.
        """
        current_t = self._t
        self.seek(state.get("t"))  # type: ignore[arg-type]
        opening_indices = self.keys.digest(self._t)
        for name, value in {**self._identity(), "opening_indices": opening_indices}.items():
            if state.get(name) != value:
                self._t = current_t
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
        stored_t = state.get("stored_t", self._t)
        stored_openings = state.get("stored_openings", opening_indices)
        if stored_t <= self._t and stored_openings == self.keys.digest(stored_t):
            self._stored = stored.numpy().copy()
            self._stored_t = stored_t

    def _identity(self) -> dict[str, Any]:
        return {
            "key": self.keys.root.fingerprint,
            "domain": self.domain.name,
            "dimension": self.dimension,
            "digest": self.digest,
        }

    def _replay(self) -> None:
        """Bring the stored vectors to where they precede round t, by computing rows again."""
        if self._stored_t == self._t:
            return
        start = self._rule.replay_start(self._t)
        from_t = self._stored_t
        if from_t is None or not start <= from_t <= self._t:
            self._stored[:] = 0.0
            from_t = start
        if self._rule.vectors:
            self._make_rows(from_t, self._t - from_t, None)
        self._stored_t = self._t

    def _make_rows(self, t: int, count: int, totals: Integers | None) -> None:
        """Make rows t … t + count − 1, block by block, and add them to the totals, if any.

        The stored vectors must precede row t; afterwards they precede row t + count.
        """
        self._stored_t = None
        step = max(1, _BLOCK_OF_ROWS // self.dimension)
        for begin in range(0, count, step):
            end = min(begin + step, count)
            block = self._block(t + begin, end - begin)
            if totals is None:
                self._make_block(block, None)
            else:
                self._make_block(block, totals[begin:end])
        self._stored_t = t + count

    def _block(self, t: int, count: int) -> _Block:
        rounds = self._rule.innovation_rounds(t, count)
        return _Block(count, rounds, self._scales[np.array(rounds)], self._rule.tables(t, count))

    def _make_block(self, block: _Block, totals: Integers | None) -> None:
        """Make some rows, on several threads if that pays."""
        edges = self._column_edges(block.count)
        threads = len(edges) - 1
        while len(self._innovations) < threads:
            self._innovations.append(Innovations(self.keys, self.domain))
        if threads == 1:
            self._make_columns(self._innovations[0], block, totals, 0, self.dimension)
            return
        with ThreadPoolExecutor(threads) as pool:
            work = []
            for innovations, (low, high) in zip(self._innovations, pairwise(edges), strict=False):
                part = (innovations, block, totals, low, high)
                work.append(pool.submit(self._make_columns, *part))
        for each in work:
            each.result()

    def _column_edges(self, count: int) -> list[int]:
        """Divide the columns of ``count`` rows among threads; each begins a block of keystream."""
        threads = min(self.dimension * count // _FEWEST_PER_THREAD, torch.get_num_threads())
        if threads <= 1 or self.dimension <= BLOCK * threads:
            return [0, self.dimension]
        begins = [self.dimension * i // threads // BLOCK * BLOCK for i in range(threads)]
        return [*begins, self.dimension]

    def _make_columns(
        self, innovations: Innovations, block: _Block, totals: Integers | None, low: int, high: int
    ) -> None:
        """Make some columns of some rows, tile by tile; ``low`` begins a block of keystream."""
        most = min(self._rule.columns_at_once(block.count), WORDS)
        tile = min(most // BLOCK * BLOCK, _whole_blocks(high - low))
        k_memory = np.empty(len(block.rounds) * tile, np.int64)
        x_memory = np.empty(block.count * tile, np.int64)
        for begin in range(low, high, tile):
            width = min(tile, high - begin)
            k_width = _whole_blocks(width)
            k = k_memory[: len(block.rounds) * k_width].reshape(-1, k_width)
            x = x_memory[: block.count * width].reshape(-1, width)
            innovations.draw(block.rounds, block.scales, begin // BLOCK, k)
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
    """Set G to o = G + X: the only function by which sums become releases."""
    if not total.dtype == row.dtype == np.int64:
        raise TypeError(f"sum and row must be int64; got {total.dtype} and {row.dtype}.")
    np.add(total, row, out=total)


def _whole_blocks(columns: int) -> int:
    """Round a number of columns up to whole blocks of keystream."""
    return -(-columns // BLOCK) * BLOCK


def _digest(inverse: StreamingInverse, rounds: int, std: float) -> str:
    """Return a SHA-256 of horizon, coefficients and τ: equal digests mean equal rows."""
    head = f"{rounds} {type(inverse).__name__} {std.hex()}"
    state = hashlib.sha256(_DIGEST_LABEL + head.encode())
    for field in fields(inverse):  # type: ignore[arg-type]
        part = getattr(inverse, field.name)
        if isinstance(part, np.ndarray):
            little_endian = {"f": "<f8", "i": "<i8"}[part.dtype.kind]
            content = part.astype(little_endian).tobytes()
            state.update(f"{field.name} {part.shape}\n".encode() + content)
        else:
            state.update(f"{field.name} {part}\n".encode())
    return state.hexdigest()
