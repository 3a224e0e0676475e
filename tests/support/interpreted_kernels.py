"""What `triton_worker` runs in Triton's interpreter: the passes, keystream, quotients and roots."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numba import vectorize
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from fedmf.loops import fma
from fedmf.noise import gpu_kernels

words = gpu_kernels._keystream
add_row = gpu_kernels.add_row
quotient, root = gpu_kernels.quotient, gpu_kernels.root


@vectorize("float64(float64, float64, float64)")
def _fused(x, y, z):
    return fma(x, y, z)


def _create_fma(self, x, y, z):
    return TensorHandle(_fused(x.data, y.data, z.data), x.dtype.scalar)


InterpreterBuilder.create_fma = _create_fma  # Triton's own rounds twice; a GPU does not


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
