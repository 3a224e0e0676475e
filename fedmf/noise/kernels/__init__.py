"""From keystream to normals to sums of rows, on each device.

The compiler is loaded with the first kernels that are asked for.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily
from fedmf.noise.kernels.layout import MAX_DIMENSION, NORMALS_PER_BLOCK
from fedmf.noise.kernels.protocol import NoiseKernels
from fedmf.noise.kernels.row_pass import Row, RowPass, TileWork, check_vector

if TYPE_CHECKING:
    from fedmf.noise.kernels.cpu import (
        FEWEST_PER_THREAD,
        TILE,
        CpuKernels,
        Worker,
        side_by_side,
        without_noise,
    )
    from fedmf.noise.kernels.gpu import TritonKernels
    from fedmf.noise.kernels.passes import chunk_of, chunks_of, each_round
    from fedmf.noise.kernels.transform import fma, scratch
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "FEWEST_PER_THREAD",
    "MAX_DIMENSION",
    "NORMALS_PER_BLOCK",
    "TILE",
    "CpuKernels",
    "NoiseKernels",
    "Row",
    "RowPass",
    "TileWork",
    "TritonKernels",
    "Worker",
    "check_vector",
    "chunk_of",
    "chunks_of",
    "each_round",
    "fma",
    "scratch",
    "side_by_side",
    "without_noise",
]
