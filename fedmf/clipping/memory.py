"""Vectors as long as a model: their memory, and work on them on all processor cores.

Large vectors lie in large pages, and are filled without torch's own threads: a torch kernel on more
than 32,768 entries wakes threads that then spin for about a millisecond in case of another. In a
round of a few milliseconds that costs more than it saves.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")

#: Entries that a core deals with at once: what lies between two passes stays in its cache.
PART: Final = 1 << 17
_LINE: Final = 64
#: Freed vectors that are held for reuse: mean, model and velocity, and two that live longer.
_MOST_FREED: Final = 5


def parts_of(count: int) -> list[slice]:
    """Divide a vector of so many entries into parts of at most `PART` entries."""
    return [slice(begin, min(begin + PART, count)) for begin in range(0, count, PART)]


def empty_vector(count: int, dtype: torch.dtype) -> Tensor:
    """Return a vector on the processor that is not filled; it begins on a cache line.

    Torch's own vectors begin on one too. NumPy asks for pages of 2 MiB where an array has 4 MiB and
    more; torch never does.

    Args:
        count: number of entries.
        dtype: their type.
    """
    return _aligned(np.empty(count * dtype.itemsize + _LINE, np.uint8), dtype)


def zero_vector(count: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return a vector of zeros on any device; large memory is cleared when it is first touched.

    Args:
        count: number of entries.
        dtype: their type.
        device: of the vector; the processor by default.
    """
    if device is not None and device.type != "cpu":
        return torch.zeros(count, dtype=dtype, device=device)
    return _aligned(np.zeros(count * dtype.itemsize + _LINE, np.uint8), dtype)


class _Pool:
    """Memory of vectors that are no longer referenced, to be given out again.

    The system clears fresh pages. Where a round makes a new model and frees an old one, clearing
    took as long as everything else.
    """

    def __init__(self) -> None:
        self._freed: deque[NDArray[np.float32]] = deque(maxlen=_MOST_FREED)

    def empty(self, count: int) -> Tensor:
        """Return a float32 vector that is not filled and shares memory with no other one."""
        memory = self._freed_memory(count)
        if memory is None:
            memory = empty_vector(count, torch.float32).numpy()
        view = memory[:]  # lives as long as any tensor on it
        weakref.finalize(view, self._freed.append, memory).atexit = False
        return torch.from_numpy(view)

    def _freed_memory(self, count: int) -> NDArray[np.float32] | None:
        """Take freed memory of this size out of the pool, if it has any."""
        for _ in range(len(self._freed)):
            with suppress(IndexError):  # another thread took it
                memory = self._freed.popleft()
                if memory.size == count:
                    return memory
                self._freed.append(memory)
        return None


_POOL: Final = _Pool()


def new_vector(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a vector that is not filled, in reused memory where the processor has some.

    Args:
        count: number of entries.
        dtype: their type; only float32 is reused.
        device: of the vector.

    >>> first = new_vector(5, torch.float32, torch.device("cpu"))
    >>> place = first.data_ptr()
    >>> del first
    >>> second = new_vector(5, torch.float32, torch.device("cpu"))
    >>> second.data_ptr() == place, new_vector(5, torch.float32, second.device).data_ptr() == place
    (True, False)
    """
    if device.type != "cpu":
        return torch.empty(count, dtype=dtype, device=device)
    if dtype == torch.float32:
        return _POOL.empty(count)
    return empty_vector(count, dtype)


def in_parts(work: Callable[[slice], None], vector: Tensor) -> None:
    """Do elementwise work on a vector: on a processor in parts, on all cores.

    Args:
        work: called with the entries to work on.
        vector: the one whose length and device count.
    """
    if vector.device.type == "cpu":
        on_all_cores(work, parts_of(vector.numel()))
    else:
        work(slice(None))


def on_all_cores(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do work on each item, on as many threads as torch has, with kernels of one thread each.

    Returns:
        The results in the order of the items.

    Raises:
        Exception: the error of the first item that failed, once no thread works any more.
    """
    threads = min(torch.get_num_threads(), len(items))
    with single_threaded_kernels():
        if threads <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(threads, "fedmf-parts", torch.set_num_threads, (1,)) as pool:
            return list(pool.map(work, items))


@contextmanager
def single_threaded_kernels() -> Iterator[None]:
    """Limit torch's kernels to one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _aligned(memory: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """View memory from its first cache line on; it is one line longer than the vector."""
    begin = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[begin : memory.size - _LINE + begin]).view(dtype)
