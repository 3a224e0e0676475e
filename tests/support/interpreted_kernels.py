"""What `triton_worker` runs in Triton's interpreter: the passes, keystream, quotients and roots."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from fedmf.noise.gpu import TritonKernels
from numba import vectorize
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from fedmf.clipping.gpu import add_clipped_on_gpu
from fedmf.loops import fma
from fedmf.noise import gpu_kernels
from fedmf.noise.key import Domain, NoiseKey
from support.openings import schedule_of

words = gpu_kernels._keystream
add_row = gpu_kernels.add_row
quotient, root = gpu_kernels.quotient, gpu_kernels.root


@vectorize("float64(float64, float64, float64)")
def _fused(x, y, z):
    return fma(x, y, z)


def _create_fma(self, x, y, z):
    return TensorHandle(_fused(x.data, y.data, z.data), x.dtype.scalar)


InterpreterBuilder.create_fma = _create_fma  # Triton's own rounds twice; a GPU does not


class Interpreted(TritonKernels):
    """On CPU tensors."""

    def _check_device(self) -> None:
        pass


def run(secret: bytes, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Make a pass and return its tensors as it leaves them."""
    Interpreted(NoiseKey(secret), Domain.TRAINING, torch.device("cpu")).add_(**arguments)
    return {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}


def run_eras(
    secret: bytes, openings: list[tuple[int, bytes]], arguments: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """The same with a key schedule."""
    keys = schedule_of(NoiseKey(secret), openings)
    Interpreted(keys, Domain.TRAINING, torch.device("cpu")).add_(**arguments)
    return {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}


@triton.jit
def _word(at):
    return tl.load(at).to(tl.uint32, bitcast=True)


@triton.jit
def _blocks(out, counter, key, nonce, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    c = tl.load(counter + lane).to(tl.uint32, bitcast=True)
    k0, k1, k2, k3 = _word(key), _word(key + 1), _word(key + 2), _word(key + 3)
    k4, k5, k6, k7 = _word(key + 4), _word(key + 5), _word(key + 6), _word(key + 7)
    n0, n1, n2 = _word(nonce), _word(nonce + 1), _word(nonce + 2)
    low, high = words(k0, k1, k2, k3, k4, k5, k6, k7, c, n0, n1, n2)
    at = out + 16 * lane[:, None] + tl.arange(0, 8)[None, :]
    tl.store(at, low.to(tl.int32, bitcast=True))
    tl.store(at + 8, high.to(tl.int32, bitcast=True))


def keystream(secret: bytes, nonce: bytes, counters: list[int]) -> list[bytes]:
    """The 64 bytes of each of a power of two of blocks."""
    out = torch.zeros(len(counters), 16, dtype=torch.int32)
    packed = np.array(counters, "<u4").tobytes()
    tensors = [torch.from_numpy(np.frombuffer(data, "<i4").copy()) for data in (packed, secret, nonce)]
    _blocks[(1,)](out, *tensors, COUNT=len(counters))
    return [row.numpy().astype("<i4").tobytes() for row in out]


@triton.jit
def _quotients_and_roots(quotients, f, roots, w, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(quotients + at, quotient(tl.load(f + at)))
    tl.store(roots + at, root(tl.load(w + at)))


def quotients_and_roots(f: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f/(f + 2) and √w of as many float64 numbers each, a power of two of them, by the kernels."""
    quotients, roots = torch.zeros_like(f), torch.zeros_like(w)
    _quotients_and_roots[(1,)](quotients, f, roots, w, COUNT=len(f))
    return quotients, roots


def clip_and_sum(
    rows: torch.Tensor, width: int, origin: torch.Tensor | None, clip_norm: float, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum, signs, mask and squares of rows of so many entries, which may begin further apart."""
    total = torch.zeros(width, dtype=torch.int64)
    signs, squares, finite = add_clipped_on_gpu(rows[:, :width], origin, clip_norm, scale, total)
    return total, signs, finite, squares
