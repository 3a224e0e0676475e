"""Vectors as long as a model: in large pages where they are large, and filled without torch's pool.

A kernel of torch on more than 32,768 entries wakes threads that then spin for about a millisecond
in case of another. In a round of few milliseconds that costs more than it saves.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.workers import on_all_cores

#: Entries that a core deals with at once: what is between two passes stays in its cache.
PART: Final = 1 << 17
_LINE: Final = 64
#: Vectors that are kept to be given out again: mean, model and velocity, and what others held
#: longer.
_MOST_FREED: Final = 5


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


class _Pool:
    """Memory of vectors that are no longer referenced: no system has to clear fresh pages for the
    next.

    Where a round makes a new model and frees an old one, clearing took as long as everything else.
    """

    def __init__(self) -> None:
        self._freed: deque[NDArray[np.float32]] = deque(maxlen=_MOST_FREED)

    def empty(self, count: int) -> Tensor:
        """Return a float32 vector that is not yet filled and shares memory with no other one."""
        memory = self._taken(count)
        given = memory[:]  # lives as long as any tensor on it
        weakref.finalize(given, self._freed.append, memory).atexit = False
        return torch.from_numpy(given)

    def _taken(self, count: int) -> NDArray[np.float32]:
        for _ in range(len(self._freed)):
            with suppress(IndexError):  # another thread took it
                memory = self._freed.popleft()
                if memory.size == count:
                    return memory
                self._freed.append(memory)
        return empty_vector(count, torch.float32).numpy()


_POOL: Final = _Pool()


def new_vector(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a vector that is not yet filled; on a processor in memory that was used before, if
    there is any.

    >>> first = new_vector(5, torch.float32, torch.device("cpu"))
    >>> place = first.data_ptr()
    >>> del first
    >>> second = new_vector(5, torch.float32, torch.device("cpu"))
    >>> second.data_ptr() == place, new_vector(5, torch.float32, second.device).data_ptr() == place
    (True, False)
    """
    if device.type != "cpu":
        return torch.empty(count, dtype=dtype, device=device)
    return _POOL.empty(count) if dtype == torch.float32 else empty_vector(count, dtype)


def in_parts(work: Callable[[slice], None], vector: Tensor) -> None:
    """Do elementwise work on a vector: on a processor on all cores, in parts that fit their
    caches.
    """
    if vector.device.type == "cpu":
        on_all_cores(work, parts_of(vector.numel()))
    else:
        work(slice(None))


def copied_vector(vector: Tensor) -> Tensor:
    """A vector of its own with the same numbers."""
    if vector.device.type != "cpu" or vector.ndim != 1 or vector.dtype != torch.float32:
        return vector.clone()
    copied = empty_vector(vector.numel(), vector.dtype)
    source = vector.detach().numpy()
    target = copied.numpy()
    on_all_cores(lambda part: np.copyto(target[part], source[part]), parts_of(vector.numel()))
    return copied


def _view(memory: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    begin = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[begin : memory.size - _LINE + begin]).view(dtype)
