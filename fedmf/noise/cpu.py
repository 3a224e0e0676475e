"""The noise kernels on CPUs: OpenSSL's ChaCha20, and compiled passes over tiles that fit in the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from fedmf.noise.kernels import check_feedback, check_state_space, check_sum, check_vector
from fedmf.noise.key import NoiseKey
from fedmf.noise.layout import (
    BLOCK_BYTES,
    NORMALS_PER_BLOCK,
    PAIRS_PER_BLOCK,
    Domain,
    nonce,
    refinement_nonce,
)
from fedmf.noise.passes import add_sum, feed_back, step_states
from fedmf.noise.transform import add_pairs, find_coarse

__all__ = ["CpuKernels"]

TILE: Final = 1 << 15
"""Elements per tile: keystream, sums and zeros to encrypt take at most 640 KiB per thread whatever d is."""

FEWEST_PER_THREAD: Final = 1 << 17
"""A thread for fewer elements would take longer to start than it saves."""

TILE_BLOCKS: Final = TILE // NORMALS_PER_BLOCK
_ZEROS: Final = bytes(TILE_BLOCKS * BLOCK_BYTES)
_ONE_BLOCK: Final = bytes(BLOCK_BYTES)
_NOTHING: Final = np.empty(0, np.uint64)

_Round = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], float]
_Sums = tuple[NDArray[np.float64], NDArray[np.float64]]


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

    def accumulate_(
        self, out: torch.Tensor, start: int, rounds: Sequence[int], weights: Sequence[float]
    ) -> None:
        """See `NoiseKernels.accumulate_`."""
        _check_cpu(out)
        check_vector(out, start)
        check_sum(rounds, weights)
        values = _array(out)

        def work(tiles: _Tiles) -> None:
            for low, high, skip in tiles:
                add_sum(*tiles.draw(), values[low:high], skip)

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
        values, rows = _array(out), _array(ring)
        places, taps = np.array(slots, np.int64), np.array(ring_weights, np.float64)

        def work(tiles: _Tiles) -> None:
            for low, high, skip in tiles:
                part = values[low:high]
                feed_back(*tiles.draw(), part, skip, float(scale), rows, low, places, taps, write_slot)

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
        values, rows = _array(out), _array(state)
        factors, taps = np.array(decays, np.float64), np.array(output_weights, np.float64)

        def work(tiles: _Tiles) -> None:
            for low, high, skip in tiles:
                step_states(*tiles.draw(), values[low:high], skip, float(scale), rows, low, factors, taps)

        self._share(work, start, out.numel(), [t], [1.0])

    def _share(
        self,
        work: Callable[[_Tiles], None],
        start: int,
        count: int,
        rounds: Sequence[int],
        weights: Sequence[float],
    ) -> None:
        """Give each thread a range of whole tiles of elements 0 … count − 1, and wait for all."""
        most = torch.get_num_threads() if self._threads is None else self._threads
        threads = max(1, min(most, count // FEWEST_PER_THREAD))
        edges = [*(count * n // threads // TILE * TILE for n in range(threads)), count]
        failures: list[BaseException] = []

        def run(low: int, high: int) -> None:
            try:
                work(_Tiles(self.key, self.domain, start, low, high, rounds, weights))
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

    def __repr__(self) -> str:
        return f"CpuKernels({self.key!r}, {self.domain.name})"


class _Tiles:
    """The tiles of elements start + low … start + high − 1, with open keystreams for a sum of rounds.

    Tiles consist of whole keystream blocks, so that each stream is read from front to back once.
    """

    def __init__(
        self,
        key: NoiseKey,
        domain: Domain,
        start: int,
        low: int,
        high: int,
        rounds: Sequence[int],
        weights: Sequence[float],
    ) -> None:
        self._key, self._domain = key, domain
        self._low, self._high = low, high
        self._skip = (start + low) % NORMALS_PER_BLOCK
        self._block = (start + low) // NORMALS_PER_BLOCK
        self._terms = [
            (t, float(weight), key.keystream(nonce(domain, t), self._block))
            for t, weight in zip(rounds, weights, strict=True)
        ]
        blocks = min(TILE_BLOCKS, -(-(self._skip + high - low) // NORMALS_PER_BLOCK))
        pairs = blocks * PAIRS_PER_BLOCK
        self._words = np.empty(pairs, np.uint64)
        self._positions = np.empty(pairs, np.int64)  # hardly ever written, so that no cache holds it
        self._sums = np.zeros((2, pairs if len(self._terms) > 1 else 0))
        self._cut(blocks)

    def _cut(self, blocks: int) -> None:
        """Make the buffers fit a tile of that many blocks."""
        pairs = blocks * PAIRS_PER_BLOCK
        self._blocks = blocks
        self._earlier = (self._sums[0, :pairs], self._sums[1, :pairs])
        self._tile = self._words[:pairs]
        self._tile32 = self._tile.view(np.uint32)
        self._bytes, self._zeros = self._tile.data.cast("B"), _ZEROS[: blocks * BLOCK_BYTES]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(low, high, skip) of each tile: the elements it is for and how many unwanted ones precede them."""
        low, skip = self._low, self._skip
        while low < self._high:
            high = min(self._high, low - skip + TILE)
            blocks = -(-(skip + high - low) // NORMALS_PER_BLOCK)
            if blocks != self._blocks:
                self._cut(blocks)
            yield low, high, skip
            self._block += blocks
            low, skip = high, 0

    def draw(self) -> tuple[_Round, _Sums]:
        """The keystream of the last round with its weight, and the weighted sum of the rounds before it."""
        *earlier, last = self._terms
        for half in self._earlier:
            half[:] = 0.0
        for term in earlier:
            add_pairs(*self._round(*term), *self._earlier)
        return self._round(*last), self._earlier

    def _round(self, t: int, weight: float, stream: CipherContext) -> _Round:
        stream.update_into(self._zeros, self._bytes)
        count = find_coarse(self._tile32, self._positions)
        positions = self._positions[:count]
        return self._tile, positions, self._refinements(t, positions) if count else _NOTHING, weight

    def _refinements(self, t: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """64 more bits for each of these pairs."""
        extra, stream = np.empty(positions.size, np.uint64), refinement_nonce(self._domain, t)
        for j, position in enumerate(positions.tolist()):
            block, pair = divmod(position, PAIRS_PER_BLOCK)
            words = self._key.keystream(stream, self._block + block).update(_ONE_BLOCK)
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
