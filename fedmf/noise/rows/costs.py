"""What drawing a row of z again and reading a stored one cost on a device, measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch

from fedmf.noise.domain import Domain
from fedmf.noise.kernels import NoiseKernels, RowPass
from fedmf.noise.key import NoiseKey
from fedmf.noise.source import GaussianSource

_ELEMENTS: Final = {"cpu": 1 << 19}
_ELEMENTS_ELSEWHERE: Final = 1 << 24
_REPEATS: Final = 3


@dataclass(frozen=True)
class Costs:
    """Time per element: of one more z drawn in a row, and of one more stored vector read in it."""

    draw: float
    read: float

    def regenerated(self, draws: float) -> float:
        """A row of that many z, all drawn."""
        return draws * self.draw

    def cached(self, draws: float) -> float:
        """The same with earlier z stored: z_t is drawn for the row and the cache, which costs two writes."""
        return 2 * self.draw + (draws + 1) * self.read


@lru_cache(maxsize=8)
def measured_costs(device: str) -> Costs:
    """Both costs on a device, from the fastest of a few short runs with a public key; once per process."""
    source = GaussianSource(NoiseKey.from_seed(0), _ELEMENTS_ELSEWHERE, Domain.TRAINING)
    kernels = source.kernels(device)
    length = _ELEMENTS.get(torch.device(device).type, _ELEMENTS_ELSEWHERE)
    out = torch.zeros(length, dtype=torch.float64, device=device)
    ring = torch.zeros(9, length, dtype=torch.float64, device=device)
    few, many = (_fastest(kernels, out, ring, draws, 0) for draws in (1, 5))
    draw = max(many - few, 0.0) / 4
    few, many = (_fastest(kernels, out, ring, 1, reads) for reads in (0, 8))
    return Costs(draw / length, max(many - few, 0.0) / 8 / length)


def _fastest(kernels: NoiseKernels, out: torch.Tensor, ring: torch.Tensor, draws: int, reads: int) -> float:
    """Seconds of a row with that many draws and reads."""
    rounds, places = tuple(range(draws)), tuple(range(reads))
    row = RowPass(rounds, (1.0,) * draws, 0.0, places, (0.5,) * reads, (8,), (0.0,))
    times = []
    for _ in range(_REPEATS + 1):  # the first may compile
        _wait(out.device)
        begin = time.perf_counter()
        kernels.add_(row, out, 0, ring)
        _wait(out.device)
        times.append(time.perf_counter() - begin)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
