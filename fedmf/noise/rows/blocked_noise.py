"""Correlated noise for a long vector, block by block, so that what it is added to fits the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fedmf.mechanisms.streaming import StreamingInverse
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource

#: Elements of a block: 8 MiB in float64.
BLOCK = 1 << 20


class BlockedNoise:
    """The rows of `NoiseStream` for consecutive blocks of a vector, each added when its part is at hand.

    Args:
        source: z(t, i), for the whole vector of dimension d.
        inverse: a streaming form of C⁻¹.
        rounds: n.
        block: elements of a block.
        device: where stored vectors live.

    Guarantees:
        The same bits as one `NoiseStream` for the whole vector. All blocks are at the same row.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> from fedmf.noise import NoiseKey
    >>> source = GaussianSource(NoiseKey.from_seed(0), dimension=5)
    >>> noise = BlockedNoise(source, identity(2).recurrence(), 2, block=3)
    >>> out = torch.zeros(5, dtype=torch.float64)
    >>> for part, stream in noise.blocks():
    ...     stream.add_(out[part], 1.0)
    >>> torch.equal(out, source.block(0, 0, 5)), noise.t
    (True, 1)
    """

    def __init__(
        self,
        source: GaussianSource,
        inverse: StreamingInverse,
        rounds: int,
        block: int = BLOCK,
        device: torch.device | str = "cpu",
    ) -> None:
        d = source.dimension
        self._streams = [
            NoiseStream(source, inverse, rounds, start, stop, device=device)
            for start, stop in ((start, min(start + block, d)) for start in range(0, d, block))
        ]

    @property
    def t(self) -> int:
        """The next row, 0-based."""
        return self._streams[0].t

    def blocks(self) -> Iterator[tuple[slice, NoiseStream]]:
        """Each block's place in the vector and its noise."""
        for stream in self._streams:
            yield slice(stream.start, stream.stop), stream

    def seek(self, t: int) -> None:
        """Make t the next row of every block; as `NoiseStream.seek`."""
        for stream in self._streams:
            stream.seek(t)

    def skip(self) -> None:
        """Consume a row without using it; as `NoiseStream.skip`."""
        for stream in self._streams:
            stream.skip()

    def state_dict(self) -> dict[str, Any]:
        """Position and identity of the whole, JSON-able."""
        return self._streams[0].state_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; as `NoiseStream.load_state`."""
        for stream in self._streams:
            stream.load_state(state)
