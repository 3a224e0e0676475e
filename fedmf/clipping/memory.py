"""Vectors as long as a model: in large pages where they are large, and filled without torch's pool.

A kernel of torch on more than 32,768 entries wakes threads that then spin for about a millisecond in case of
another. In a round of few milliseconds that costs more than it saves.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.workers import on_all_cores

#: Entries that a core deals with at once: what is between two passes stays in its cache.
PART: Final = 1 << 17
_LINE: Final = 64


def parts_of(count: int) -> list[slice]:
    """A vector of so many entries in parts."""
    return [slice(begin, min(begin + PART, count)) for begin in range(0, count, PART)]


def empty_vector(count: int, dtype: torch.dtype) -> Tensor:
    """Not yet filled, on a processor; it begins on a cache line, as torch's own do.

    NumPy asks for pages of 2 MiB where an array has 4 MiB and more; torch never does.

    Args:
        count: of entries.
        dtype: of them.
    """
    return _view(np.empty(count * dtype.itemsize + _LINE, np.uint8), dtype)


def zero_vector(count: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The same of zeros, on any device; large memory is cleared when it is first touched."""
    if device is not None and device.type != "cpu":
        return torch.zeros(count, dtype=dtype, device=device)
    return _view(np.zeros(count * dtype.itemsize + _LINE, np.uint8), dtype)


def copied_vector(vector: Tensor) -> Tensor:
    """A vector of its own with the same numbers."""
    if vector.device.type != "cpu" or vector.ndim != 1 or vector.dtype != torch.float32:
        return vector.clone()
    copied = empty_vector(vector.numel(), vector.dtype)
    source, target = vector.detach().numpy(), copied.numpy()
    on_all_cores(lambda part: np.copyto(target[part], source[part]), parts_of(vector.numel()))
    return copied


def _view(memory: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    begin = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[begin : memory.size - _LINE + begin]).view(dtype)
