"""Groups of users on all processor cores: one thread a core, each with single-threaded kernels.

The training engines divide their users by these threads. What they share with exact sums, vectors
and parts of vectors, is in `fedmf.clipping.memory`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from fedmf.clipping.memory import (
    empty_vector,
    on_all_cores,
    parts_of,
    single_threaded_kernels,
)

T = TypeVar("T")


class Workers(Generic[T]):
    """Threads that train groups, each with a tool of its own, such as a gradient.

    Kernels run on one thread each, in any number of workers, so their bits do not depend on that
    number. That is also faster than several threads in one small kernel. Torch decides how many
    there are (`torch.get_num_threads`, OMP_NUM_THREADS).

    Args:
        make: makes the tool of one thread.
        count: of threads; None for as many as torch has.
    """

    def __init__(self, make: Callable[[], T], count: int | None = None) -> None:
        self._make = make
        self._tools = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self.count = torch.get_num_threads() if count is None else count

    @property
    def of_thread(self) -> T:
        """The tool of the calling thread."""
        if not hasattr(self._tools, "made"):
            self._tools.made = self._make()
        return self._tools.made

    def each(self, work: Callable[[Any, Any], None], items: Iterable[Any], total: Any) -> None:
        """Do ``work(item, sum)`` for all items; ``total`` is one worker's sum, the others are
        merged into it.

        Items are drawn from their iterator as workers become free, so only a few exist at once.

        Raises:
            Exception: whatever the first item to fail raised; ``total`` then holds only a part.
        """
        with single_threaded_products():
            others = self._run(work, items, total)
        for part in others:
            total.merge(part)

    def _run(self, work: Callable[[Any, Any], None], items: Iterable[Any], total: Any) -> list[Any]:
        """Returns the sums of the workers but the first."""
        if self.count == 1:
            for item in items:
                work(item, total)
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.count, "fedmf-training", initializer=torch.set_num_threads, initargs=(1,)
            )
        others = [total.like() for _ in range(self.count - 1)]
        free = [*others, total]
        running: dict[Future[None], Any] = {}
        try:
            for item in items:
                if not free:
                    free += self._finished(running)
                into = free.pop()
                running[self._pool.submit(work, item, into)] = into
            while running:
                free += self._finished(running)
        finally:
            wait(running)
        return others

    @staticmethod
    def _finished(running: dict[Future[None], Any]) -> list[Any]:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()
        return [running.pop(future) for future in done]


@contextmanager
def single_threaded_products() -> Iterator[None]:
    """Limit torch's kernels, and the libraries that multiply matrices, to one thread each."""
    with single_threaded_kernels(), _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401 - which loads them

    return ThreadpoolController()


def copied_vector(vector: Tensor) -> Tensor:
    """Return a vector with the same numbers in memory of its own, copied on all cores."""
    if vector.device.type != "cpu" or vector.ndim != 1 or vector.dtype != torch.float32:
        return vector.clone()
    copied = empty_vector(vector.numel(), vector.dtype)
    source = vector.detach().numpy()
    target = copied.numpy()
    on_all_cores(lambda part: np.copyto(target[part], source[part]), parts_of(vector.numel()))
    return copied
