"""Processes that carry out runs side by side; the end of one costs the run it was at."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Self

from fedmf.errors import one_line

_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Crew:
    """A number of processes of their own, made when there is work for them.

    Args:
        count: most at once.
        threads: of each.

    Guarantees:
        Leaving the context, and the death of this process, end them.
    """

    def __init__(self, count: int, threads: int) -> None:
        self._count, self._threads = count, threads
        self._idle: list[tuple[BaseProcess, Connection]] = []
        self._busy: dict[Connection, tuple[BaseProcess, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        busy = [(process, link) for link, (process, _) in self._busy.items()]
        for process, link in [*self._idle, *busy]:
            process.kill()
            link.close()
            process.join()

    @property
    def free(self) -> int:
        """How many runs could be begun."""
        return self._count - len(self._busy)

    def begin(self, name: str, work: tuple[Any, ...]) -> None:
        """Let a free process carry out a run.

        Args:
            name: by which `finished` tells it.
            work: arguments of `carry_out_run`.
        """
        process, connection = self._idle.pop() if self._idle else self._member()
        self._busy[connection] = (process, name)
        with contextlib.suppress(OSError):  # of a process that is gone, as `finished` will say
            connection.send(work)

    def finished(self) -> Iterator[tuple[str, str | None]]:
        """Wait until runs are finished: their names, and in a line what went wrong if anything did."""
        ready = wait([*self._busy])
        for connection in [other for other in self._busy if other in ready]:
            process, name = self._busy.pop(connection)
            try:
                error = connection.recv()
            except (EOFError, OSError):
                process.join()
                connection.close()
                code = process.exitcode or 0
                ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                yield name, f"its process ended with {ended}"
                continue
            self._idle.append((process, connection))
            yield name, error

    def _member(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        resource_tracker.ensure_running()  # which lets interruptions through again when it starts
        process = context.Process(target=_work, args=(theirs, self._threads), name="fedmf-sweep")
        with _threads_of_children(self._threads), _no_interruption():
            process.start()
        theirs.close()
        return process, mine


@contextlib.contextmanager
def _threads_of_children(threads: int) -> Iterator[None]:
    """Libraries read these when they are loaded, which is in the child before any line of ours."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_interruption() -> Iterator[None]:
    """A key press reaches all processes of a terminal; children inherit that they do not hear it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, threads: int) -> None:
    """Carry out runs until there are no more, or whoever asks for them is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    from fedmf.sweeps.one_run import carry_out_run

    torch.set_num_threads(threads)
    while True:
        try:
            work = connection.recv()
        except (EOFError, ConnectionError):  # nobody asks any more
            return
        error = None
        try:
            carry_out_run(*work)
        except Exception as reason:
            error = one_line(str(reason)) or type(reason).__name__
        try:
            connection.send(error)
        except ConnectionError:
            return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
