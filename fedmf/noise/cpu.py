"""The noise kernels on CPUs: OpenSSL's ChaCha20, and compiled passes over tiles that fit in the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.noise.kernels import check_feedback, check_state_space, check_sum, check_vector
from fedmf.noise.key import NONCE_BYTES, NoiseKey
from fedmf.noise.layout import (
    BLOCK_BYTES,
    NORMALS_PER_BLOCK,
    PAIRS_PER_BLOCK,
    Domain,
    nonce,
    refinement_nonce,
)
from fedmf.noise.passes import add_sum, feed_back, step_states
from fedmf.noise.transform import add_blocks, find_coarse, scratch

__all__ = ["CpuKernels"]

TILE: Final = 1 << 15
"""Elements per tile: keystream, sums and zeros to encrypt take at most 640 KiB per thread whatever d is."""

FEWEST_PER_THREAD: Final = 1 << 17
"""A thread for fewer elements would take longer to start than it saves."""

_ZEROS: Final = memoryview(bytes(TILE * BLOCK_BYTES // NORMALS_PER_BLOCK))
_NOTHING: Final = np.empty(0, np.uint64)

_Round = tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint64], float]
_Pass = Callable[[_Round, NDArray[np.float64], int, int, int], None]


class CpuKernels:
    """`NoiseKernels` on CPU tensors.

    Args:
        key: the run's key.
        domain: what the noise is for.
        threads: how many at most; None means `torch.get_num_threads()` at each call.

    Guarantees:
        The same bits for any number of threads, any cut of the vector and any vector instructions of the
        processor: all arithmetic is elementwise, IEEE 754 float64 with explicit fused multiply-adds.
        Calls from several threads are safe if they write to different tensors.

    >>> out = torch.zeros(3)
    >>> CpuKernels(NoiseKey.from_seed(0), Domain.TRAINING).accumulate_(out, 5, [7, 6], [1.0, -0.5])
    >>> bool(out.abs().min() > 0)
    True
    """

    def __init__(self, key: NoiseKey, domain: Domain, threads: int | None = None) -> None:
        self.key = key
        self.domain = domain
        self._threads = threads
        self._idle: list[_Worker] = []

    def accumulate_(
        self, out: torch.Tensor, start: int, rounds: Sequence[int], weights: Sequence[float]
    ) -> None:
        """See `NoiseKernels.accumulate_`."""
        _check_cpu(out)
        check_vector(out, start)
        check_sum(rounds, weights)
        values = _array(out)

        def work(last: _Round, sums: NDArray[np.float64], low: int, high: int, skip: int) -> None:
            add_sum(last, sums, values[low:high], skip)

        self._share(work, start, out.numel(), rounds, weights)

    def feedback_(
        self,
        out: torch.Tensor,
        scale: float,
        start: int,
        rounds: Sequence[int],
        weights: Sequence[float],
        ring: torch.Tensor,
        slots: Sequence[int],
        ring_weights: Sequence[float],
        write_slot: int,
    ) -> None:
        """See `NoiseKernels.feedback_`."""
        _check_cpu(out)
        check_vector(out, start)
        check_sum(rounds, weights)
        check_feedback(out, scale, ring, slots, ring_weights, write_slot)
        values, rows, scale = _array(out), _array(ring), float(scale)
        places, taps = np.array(slots, np.int64), np.array(ring_weights, np.float64)

        def work(last: _Round, sums: NDArray[np.float64], low: int, high: int, skip: int) -> None:
            part = values[low:high]
            feed_back(last, sums, part, skip, scale, rows, low, places, taps, write_slot)

        self._share(work, start, out.numel(), rounds, weights)

    def state_space_(
        self,
        out: torch.Tensor,
        scale: float,
        start: int,
        t: int,
        state: torch.Tensor,
        decays: Sequence[float],
        output_weights: Sequence[float],
    ) -> None:
        """See `NoiseKernels.state_space_`."""
        _check_cpu(out)
        check_vector(out, start)
        check_sum([t], [1.0])
        check_state_space(out, scale, state, decays, output_weights)
        values, rows, scale = _array(out), _array(state), float(scale)
        factors, taps = np.array(decays, np.float64), np.array(output_weights, np.float64)

        def work(last: _Round, sums: NDArray[np.float64], low: int, high: int, skip: int) -> None:
            step_states(last, sums, values[low:high], skip, scale, rows, low, factors, taps)

        self._share(work, start, out.numel(), [t], [1.0])

    def _share(
        self, work: _Pass, start: int, count: int, rounds: Sequence[int], weights: Sequence[float]
    ) -> None:
        """Give each thread a range of whole tiles of elements 0 … count − 1, and wait for all."""
        threads = count // FEWEST_PER_THREAD
        if threads > 1:
            threads = min(threads, torch.get_num_threads() if self._threads is None else self._threads)
        if threads <= 1:
            self._work(work, start, 0, count, rounds, weights)
            return
        edges = [*(count * n // threads // TILE * TILE for n in range(threads)), count]
        failures: list[BaseException] = []

        def run(low: int, high: int) -> None:
            try:
                self._work(work, start, low, high, rounds, weights)
            except BaseException as failure:
                failures.append(failure)

        others = [threading.Thread(target=run, args=edge) for edge in pairwise(edges[1:])]
        for thread in others:
            thread.start()
        run(edges[0], edges[1])
        for thread in others:
            thread.join()
        if failures:
            raise failures[0]

    def _work(
        self, work: _Pass, start: int, low: int, high: int, rounds: Sequence[int], weights: Sequence[float]
    ) -> None:
        """One thread's share, elements low … high − 1 of `out`, tile by tile."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker(self.key, self.domain)
        try:
            for part in _tiles(start, low, high):
                worker.draw(work, rounds, weights, start, *part)
        finally:
            self._idle.append(worker)

    def __deepcopy__(self, memo: dict[int, object]) -> CpuKernels:
        return CpuKernels(self.key, self.domain, self._threads)

    def __repr__(self) -> str:
        return f"CpuKernels({self.key!r}, {self.domain.name})"


def _tiles(start: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(low, high, skip) of each tile: the elements it is for and how many unwanted ones precede them.

    Tiles consist of whole keystream blocks, so that each stream is read from front to back once.
    """
    skip = (start + low) % NORMALS_PER_BLOCK
    while low < high:
        edge = min(high, low - skip + TILE)
        yield low, edge, skip
        low, skip = edge, 0


class _Worker:
    """Keystreams and buffers of one thread, used again by later calls; 256 KiB more for sums of rounds."""

    def __init__(self, key: NoiseKey, domain: Domain) -> None:
        self._domain = domain
        self._stream, self._refining = (key.keystream(bytes(NONCE_BYTES), 0) for _ in range(2))
        self._place: tuple[int, int] | None = None  # round and block that `_stream` gives next
        self._words = np.empty(TILE, np.uint32)
        self._bytes = self._words.data.cast("B")
        self._positions = np.empty(TILE // 2, np.int64)  # hardly ever written, so that no cache holds it
        self._sums, self._scratch = np.empty(0), scratch()

    def draw(
        self,
        work: _Pass,
        rounds: Sequence[int],
        weights: Sequence[float],
        start: int,
        low: int,
        high: int,
        skip: int,
    ) -> None:
        """Do the work on a tile with the words of the last round and the weighted sum of those before it."""
        block, last = (start + low) // NORMALS_PER_BLOCK, len(rounds) - 1
        count = -(-(skip + high - low) // NORMALS_PER_BLOCK) * NORMALS_PER_BLOCK
        sums = self._sums[:0]
        if last:
            if not self._sums.size:
                self._sums = np.empty(TILE)
            sums = self._sums[:count]
            sums.fill(0.0)
        for j in range(last):
            words, positions, refinements, weight = self._round(rounds[j], weights[j], block, count)
            add_blocks(words, 0, positions, refinements, weight, sums, self._scratch)
        work(self._round(rounds[last], weights[last], block, count), sums, low, high, skip)

    def _round(self, t: int, weight: float, block: int, count: int) -> _Round:
        """Keystream words of a tile, and 64 more bits for the pairs at the positions."""
        if self._place != (t, block):
            self._stream.reset_nonce(block.to_bytes(4, "little") + nonce(self._domain, t))
        self._place, size = None, count * BLOCK_BYTES // NORMALS_PER_BLOCK
        self._stream.update_into(_ZEROS[:size], self._bytes[:size])
        self._place, words = (t, block + count // NORMALS_PER_BLOCK), self._words[:count]
        found = find_coarse(words, self._positions)
        if not found:
            return words, self._positions[:0], _NOTHING, float(weight)
        positions = self._positions[:found]
        return words, positions, self._refinements(t, block, positions), float(weight)

    def _refinements(self, t: int, block: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        extra, purpose = np.empty(positions.size, np.uint64), refinement_nonce(self._domain, t)
        for j, position in enumerate(positions.tolist()):
            behind, pair = divmod(position, PAIRS_PER_BLOCK)
            self._refining.reset_nonce((block + behind).to_bytes(4, "little") + purpose)
            words = self._refining.update(_ZEROS[:BLOCK_BYTES])
            extra[j] = int.from_bytes(words[8 * pair : 8 * pair + 8], "little")
        return extra


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory as an array; bfloat16, which NumPy does not have, as uint16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy().view(np.uint16)
    return tensor.detach().numpy()


def _check_cpu(out: torch.Tensor) -> None:
    if out.device.type != "cpu":
        raise ValueError(f"out (vector) must be on the CPU; got {out.device}. No noise was added.")
