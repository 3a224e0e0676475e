"""The noise kernels on CPUs: OpenSSL's ChaCha20, and compiled passes over tiles that fit in the cache."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from fedmf.noise.domain import Domain, nonce, refinement_nonce
from fedmf.noise.kernels.layout import (
    BLOCK_BYTES,
    NORMALS_PER_BLOCK,
    PAIRS_PER_BLOCK,
)
from fedmf.noise.kernels.passes import add_rounds, add_row, buffers
from fedmf.noise.kernels.row_pass import Row, RowPass, TileWork
from fedmf.noise.kernels.transform import find_coarse
from fedmf.noise.key import NONCE_BYTES, NoiseKey
from fedmf.noise.schedule import KeySchedule

TILE: Final = 1 << 17
"""Elements of a tile, and words of keystream that a thread holds, of several rounds where tiles are shorter.
In less of it OpenSSL and compiled passes take microseconds, threads wait for each other at the interpreter's
lock in between, and a second one gains nothing."""

FEWEST_PER_THREAD: Final = 1 << 17
"""A thread for fewer elements would take longer to start than it saves."""

MOST_ERAS: Final = 64
"""Eras whose keystreams a thread keeps open."""

_ZEROS: Final = memoryview(bytes(TILE * BLOCK_BYTES // NORMALS_PER_BLOCK))
_NOTHING: Final = np.empty(0, np.uint64)
_NO_SUMS: Final = np.empty(0)
_NO_ROUNDS: Final = np.empty((0, TILE), np.uint32), np.empty(0, np.int64), _NOTHING, np.empty(0)
_NONE_STORED: Final = np.empty((0, 0)), 0, np.empty(0, np.int64), np.empty(0)

_Rounds = tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint64], NDArray[np.float64]]
_Stored = tuple[NDArray[Any], int, NDArray[np.int64], NDArray[np.float64]]


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
            values = _array(out)
            out = TileWork(out.numel(), lambda tile, low, high: add_row(tile, values[low:high]))
        vectors, scale = _NONE_STORED, float(row.scale)
        if stored is not None and row.vectors:
            places = np.array((*row.reads, *row.writes), np.int64)
            factors = np.array((*row.read_weights, *row.decays), np.float64)
            vectors = _array(stored), len(row.reads), places, factors
        eras, weights = self.keys.eras(row.rounds), np.array(row.weights, np.float64)

        def share(low: int, high: int) -> None:
            with self._worker() as worker:
                worker.draw(out.work, row.rounds, eras, weights, vectors, scale, start, low, high)

        count = out.count
        threads = count // FEWEST_PER_THREAD
        if threads > 1:
            threads = min(threads, torch.get_num_threads() if self._threads is None else self._threads)
        if threads <= 1:
            share(0, count)
        else:  # each has whole blocks
            edges = (count * n // threads // NORMALS_PER_BLOCK * NORMALS_PER_BLOCK for n in range(threads))
            side_by_side(share, [*edges, count])

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


def side_by_side(run: Callable[[int, int], None], edges: Sequence[int]) -> None:
    """run(low, high) for neighbouring edges, each in a thread of its own, the first in this one."""
    failures: list[BaseException] = []

    def tried(low: int, high: int) -> None:
        try:
            run(low, high)
        except BaseException as failure:
            failures.append(failure)

    others = [threading.Thread(target=tried, args=edge) for edge in pairwise(edges[1:])]
    for thread in others:
        thread.start()
    tried(edges[0], edges[1])
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]


def _tiles(start: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(low, high, skip) of each tile: the elements it is for and how many unwanted ones precede them.

    Tiles consist of whole keystream blocks, so that each stream is read from front to back once.
    """
    skip = (start + low) % NORMALS_PER_BLOCK
    while low < high:
        edge = min(high, low - skip + TILE)
        yield low, edge, skip
        low, skip = edge, 0


def without_noise(work: TileWork) -> None:
    """Do the work on a row of zeros, in this thread."""
    memory = buffers()
    for low, high, skip in _tiles(0, 0, work.count):
        words = _NO_ROUNDS[0][:, : -(-(high - low) // NORMALS_PER_BLOCK) * NORMALS_PER_BLOCK]
        last = (words, *_NO_ROUNDS[1:])
        stored, reads, places, factors = _NONE_STORED
        tile = last, _NO_SUMS, skip, high - low, stored, low, reads, places, factors, 0.0, memory
        work.work(tile, low, high)


class Worker:
    """Keystreams and buffers of one thread, used again by later calls."""

    def __init__(self, keys: KeySchedule, domain: Domain) -> None:
        self._keys, self._domain = keys, domain
        self._streams: dict[int, tuple[CipherContext, CipherContext]] = {}
        self._place: tuple[int, int, int] | None = None  # era, round and block that its stream gives next
        self._words = np.empty(TILE, np.uint32)
        self._bytes = self._words.data.cast("B")
        self._positions = np.empty(TILE // 2, np.int64)  # hardly ever written, so that no cache holds it
        self._sums, self._memory = np.empty(0), buffers()

    def draw(
        self,
        work: Callable[[Any, int, int], None],
        rounds: Sequence[int],
        eras: Sequence[int],
        weights: NDArray[np.float64],
        vectors: _Stored,
        scale: float,
        start: int,
        low: int,
        high: int,
    ) -> None:
        """Do the work on the tiles of elements low … high − 1, in order.

        Rounds are drawn together, as many as the memory of words takes.
        """
        for begin, end, skip in _tiles(start, low, high):
            block = (start + begin) // NORMALS_PER_BLOCK
            count = -(-(skip + end - begin) // NORMALS_PER_BLOCK) * NORMALS_PER_BLOCK
            together = TILE // count
            last = (len(rounds) - 1) // together * together
            sums = _NO_SUMS
            if last:
                if not self._sums.size:
                    self._sums = np.empty(TILE)
                sums = self._sums[:count]
                sums.fill(0.0)
            for j in range(0, last, together):
                drawn = self.rounds(rounds, eras, weights, j, j + together, block, count)
                add_rounds(drawn, sums, self._memory[1])
            drawn = self.rounds(rounds, eras, weights, last, len(rounds), block, count)
            stored, reads, places, factors = vectors
            tile = drawn, sums, skip, end - begin, stored, begin, reads, places, factors, scale, self._memory
            work(tile, begin, end)

    def rounds(
        self,
        rounds: Sequence[int],
        eras: Sequence[int],
        weights: NDArray[np.float64],
        first: int,
        stop: int,
        block: int,
        count: int,
    ) -> _Rounds:
        """Keystream of some of the rounds, (rounds, words), and 64 more bits for pairs of all of it.

        Each round's is made with the key of its era, as `KeySchedule.eras` gives it.
        """
        size, position = 4 * count, block.to_bytes(4, "little")
        zeros, words = _ZEROS[:size], self._words[: (stop - first) * count]
        for j in range(first, stop):
            stream, _ = self._streams.get(eras[j]) or self._open(eras[j])
            if self._place != (eras[j], rounds[j], block):
                stream.reset_nonce(position + nonce(self._domain, rounds[j]))
            self._place, begin = None, (j - first) * size
            stream.update_into(zeros, self._bytes[begin : begin + size])
            self._place = (eras[j], rounds[j], block + count // NORMALS_PER_BLOCK)
        positions, refinements = self._positions[: find_coarse(words, self._positions)], _NOTHING
        if positions.size:
            refinements = self._refinements(rounds[first:stop], eras[first:stop], block, count, positions)
        return words.reshape(stop - first, count), positions, refinements, weights[first:stop]

    def _open(self, era: int) -> tuple[CipherContext, CipherContext]:
        """The keystream of an era and that of its refinements; of many eras, the last few stay open."""
        if len(self._streams) >= MOST_ERAS:
            self._streams.clear()
        key = self._keys.key(era)
        main, refining = (key.keystream(bytes(NONCE_BYTES), 0) for _ in range(2))
        self._streams[era] = main, refining
        return main, refining

    def _refinements(
        self,
        rounds: Sequence[int],
        eras: Sequence[int],
        block: int,
        count: int,
        positions: NDArray[np.int64],
    ) -> NDArray[np.uint64]:
        """64 more bits for each of these pairs."""
        extra = np.empty(positions.size, np.uint64)
        for j, position in enumerate(positions.tolist()):
            behind, pair = divmod(position, PAIRS_PER_BLOCK)
            line, behind = divmod(behind, count // NORMALS_PER_BLOCK)
            stream = (block + behind).to_bytes(4, "little") + refinement_nonce(self._domain, rounds[line])
            _, refining = self._streams.get(eras[line]) or self._open(eras[line])
            refining.reset_nonce(stream)
            words = refining.update(_ZEROS[:BLOCK_BYTES])
            extra[j] = int.from_bytes(words[8 * pair : 8 * pair + 8], "little")
        return extra


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory as an array; bfloat16, which NumPy does not have, as uint16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy().view(np.uint16)
    return tensor.detach().numpy()
