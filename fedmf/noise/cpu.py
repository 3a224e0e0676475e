"""Noise on processors: OpenSSL's ChaCha20, and compiled passes over tiles that fit in the cache."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from fedmf.noise.box_muller import add_normals, add_scaled, correlate, find_coarse
from fedmf.noise.key import NONCE_BYTES, Domain, NoiseKey, nonce, refinement_nonce
from fedmf.noise.row_pass import BLOCK_BYTES, NORMALS_PER_BLOCK, PAIRS_PER_BLOCK, Row, RowPass, TileWork
from fedmf.noise.schedule import KeySchedule
from fedmf.typing import Array

TILE: Final = 1 << 16
"""Elements of a tile, and words of keystream that a thread holds, of several rounds where tiles are shorter.
In less of it OpenSSL and compiled passes take microseconds, threads wait for each other at the interpreter's
lock in between, and a second one gains nothing."""

FEWEST_PER_THREAD: Final = 1 << 17
"""A thread for fewer elements would take longer to start than it saves."""

MOST_ERAS: Final = 64
"""Eras for which a thread keeps keystreams open."""

_ZEROS: Final = memoryview(bytes(TILE * BLOCK_BYTES // NORMALS_PER_BLOCK))


class CpuKernels:
    """`NoiseKernels` on CPU tensors.

    Args:
        keys: which key makes which row; a key alone makes all.
        domain: what the noise is for.
        threads: how many at most; None means `torch.get_num_threads()` at each call.

    Guarantees:
        The same bits for any number of threads, any cut of the vector and any vector instructions of the
        processor: all arithmetic is elementwise, IEEE 754 float64 with explicit fused multiply-adds.
        Calls from several threads are safe if they write to different tensors.

    >>> out = torch.zeros(3)
    >>> CpuKernels(NoiseKey.from_seed(0), Domain.TRAINING).add_(RowPass((7, 6), (1.0, -0.5)), out, 5)
    >>> bool(out.abs().min() > 0)
    True
    """

    def __init__(self, keys: NoiseKey | KeySchedule, domain: Domain, threads: int | None = None) -> None:
        self.keys = KeySchedule.of(keys)
        self.domain = domain
        self._threads = threads
        self._idle: list[Worker] = []

    def add_(self, row: RowPass, out: Row, start: int, stored: torch.Tensor | None = None) -> None:
        """See `NoiseKernels.add_`."""
        if out.device.type != "cpu":
            raise ValueError(f"out (vector) must be on the CPU; got {out.device}. No noise was added.")
        row.check_fit(out, start, stored)
        if not isinstance(out, TileWork):
            values = out.detach().numpy()
            out = TileWork(
                values.size, lambda y, scale, low: add_scaled(y, scale, values[low : low + y.size])
            )
        vectors = None if stored is None else stored.detach().numpy()

        def share(low: int, high: int) -> None:
            with self._worker() as worker:
                worker.make(row, out, vectors, start, low, high)

        count = out.count
        threads = count // FEWEST_PER_THREAD
        if threads > 1:
            threads = min(threads, torch.get_num_threads() if self._threads is None else self._threads)
        if threads <= 1:
            share(0, count)
            return
        edges = [count * n // threads // NORMALS_PER_BLOCK * NORMALS_PER_BLOCK for n in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(share, edges, [*edges[1:], count]))

    def normals(self, rounds: range, start: int, stop: int) -> tuple[Array, int]:
        """z(t, start), …, z(t, stop − 1) for each of the rounds.

        Returns:
            A matrix with a row per round, and which of its columns is that of element ``start``.
        """
        block = start // NORMALS_PER_BLOCK
        z = np.zeros((len(rounds), (-(-stop // NORMALS_PER_BLOCK) - block) * NORMALS_PER_BLOCK))
        with self._worker() as worker:
            worker.add_normals(rounds, np.ones(len(rounds)), block, z)
        return z, start - block * NORMALS_PER_BLOCK

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        """One that is idle, for one thread."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = Worker(self.keys, self.domain)
        try:
            yield worker
        finally:
            self._idle.append(worker)

    def __deepcopy__(self, memo: dict[int, object]) -> CpuKernels:
        return CpuKernels(copy.deepcopy(self.keys, memo), self.domain, self._threads)

    def __repr__(self) -> str:
        return f"CpuKernels({self.keys.root!r}, {self.domain.name})"


class Worker:
    """Keystreams and buffers of one thread, used again by later calls."""

    def __init__(self, keys: KeySchedule, domain: Domain) -> None:
        self._keys, self._domain = keys, domain
        self._streams: dict[int, tuple[CipherContext, CipherContext]] = {}
        self._words = np.empty(TILE, np.uint32)
        self._bytes = self._words.data.cast("B")
        self._positions = np.empty(TILE // 2, np.int64)  # hardly ever written, so that no cache holds it
        self._sums = np.empty(0)

    def make(
        self, row: RowPass, out: TileWork, stored: NDArray[np.float64] | None, start: int, low: int, high: int
    ) -> None:
        """Make elements low … high − 1 of a row, tile by tile.

        Tiles consist of whole keystream blocks.
        """
        weights = np.array(row.weights, np.float64)
        places = np.array((*row.reads, *row.writes), np.int64)
        factors = np.array((*row.read_weights, *row.decays), np.float64)
        if not self._sums.size:
            self._sums = np.empty(TILE)
        skip = (start + low) % NORMALS_PER_BLOCK
        while low < high:
            count = min(high - low, TILE - skip)
            y = self._sums[: -(-(skip + count) // NORMALS_PER_BLOCK) * NORMALS_PER_BLOCK]
            y.fill(0.0)
            self.add_normals(row.rounds, weights, (start + low) // NORMALS_PER_BLOCK, y[None])
            y = y[skip : skip + count]
            if places.size and stored is not None:
                correlate(y, stored, low, len(row.reads), places, factors)
            out.work(y, float(row.scale), low)
            low, skip = low + count, 0

    def add_normals(
        self, rounds: Sequence[int], weights: NDArray[np.float64], block: int, z: NDArray[np.float64]
    ) -> None:
        """z[j] += weights[j]·z(rounds[j], ·) from a block on, or all of them to z[0] if that is the only one.

        Each round is drawn with the key of its era, and as many together as the memory of words takes.
        """
        eras, count = self._keys.eras(rounds), z.shape[1]
        together = TILE // count
        for first in range(0, len(rounds), together):
            some = range(first, min(first + together, len(rounds)))
            words = self._words[: len(some) * count]
            for j in some:
                self._draw(eras[j], rounds[j], block, (j - first) * 4 * count, 4 * count)
            positions = self._positions[: find_coarse(words, self._positions)]
            refinements = np.empty(positions.size, np.uint64)
            for i, position in enumerate(positions.tolist()):
                behind, pair = divmod(position, PAIRS_PER_BLOCK)
                line, behind = divmod(behind, count // NORMALS_PER_BLOCK)
                refinements[i] = self._refined(eras[first + line], rounds[first + line], block + behind, pair)
            into = z if len(z) == 1 else z[first : some.stop]
            add_normals(words.reshape(-1, count), positions, refinements, weights[first : some.stop], into)

    def _draw(self, era: int, t: int, block: int, begin: int, size: int) -> None:
        """Bytes of keystream from a block of a round on into the memory of words."""
        stream, _ = self._streams.get(era) or self._open(era)
        stream.reset_nonce(block.to_bytes(4, "little") + nonce(self._domain, t))
        stream.update_into(_ZEROS[:size], self._bytes[begin : begin + size])

    def _refined(self, era: int, t: int, block: int, pair: int) -> int:
        """64 more bits for a pair."""
        _, stream = self._streams.get(era) or self._open(era)
        stream.reset_nonce(block.to_bytes(4, "little") + refinement_nonce(self._domain, t))
        words: Any = stream.update(_ZEROS[:BLOCK_BYTES])
        return int.from_bytes(words[8 * pair : 8 * pair + 8], "little")

    def _open(self, era: int) -> tuple[CipherContext, CipherContext]:
        """The keystream of an era and of its refinements; of many eras, the last few stay open."""
        if len(self._streams) >= MOST_ERAS:
            self._streams.clear()
        key = self._keys.key(era)
        main, refining = (key.keystream(bytes(NONCE_BYTES), 0) for _ in range(2))
        self._streams[era] = main, refining
        return main, refining
