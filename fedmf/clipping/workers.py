"""Groups of users on all processor cores: one thread a core, each with single-threaded kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")


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


def on_all_cores(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``work`` of each item, in order; of several on as many threads as torch has, with kernels of
    one each.

    Raises:
        Exception: what the first item to fail raised; none is under way any more.
    """
    threads = min(torch.get_num_threads(), len(items))
    with single_threaded_kernels():
        if threads <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(threads, "fedmf-parts", torch.set_num_threads, (1,)) as pool:
            return list(pool.map(work, items))


@contextmanager
def single_threaded_kernels() -> Iterator[None]:
    """Torch's kernels use one thread within."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def single_threaded_products() -> Iterator[None]:
    """The same, and the libraries that multiply matrices for compiled loops."""
    with single_threaded_kernels(), _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401 - which loads them

    return ThreadpoolController()
