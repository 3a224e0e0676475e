"""Calls of a client app with generators of their own, in this process or in several."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import queue
import random
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

from fedmf.errors import UnsoundSumError
from fedmf.flower.compat import error_reason
from fedmf.flower.local_run.grid import ClientCalls, ClientFailure


def seeded_generators(words: Sequence[int]) -> None:
    """Seed all of them, each with bits of its own, from non-negative integers.

    >>> with generators_kept():
    ...     seeded_generators([1, 2])
    ...     first = random.random()
    ...     seeded_generators([1, 2])
    ...     first == random.random()
    True
    """
    python, numpy, pytorch = np.random.SeedSequence(list(words)).generate_state(3, np.uint64).tolist()
    random.seed(python)
    np.random.seed(numpy & 0xFFFFFFFF)  # noqa: NPY002, as apps draw from it
    if torch.backends.cuda.is_built() and torch.cuda.device_count():
        torch.manual_seed(pytorch)
    else:  # the same without writing down, for a GPU, from where it was called
        torch.default_generator.manual_seed(pytorch)


def fresh_generators() -> None:
    """Seed all of them from the operating system, as a new process should."""
    seeded_generators([random.SystemRandom().getrandbits(128)])


@contextmanager
def generators_kept() -> Iterator[None]:
    """All of them as they were, when the block ends."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(pytorch)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)


Packet = tuple[bytes, list[pickle.PickleBuffer]]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Array and type(obj.data) is bytes:
            return _array, (obj.dtype, obj.shape, obj.stype, pickle.PickleBuffer(obj.data))
        return NotImplemented


def _array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    return Array(dtype, tuple(shape), stype, data)


def packed(value: Any) -> Packet:
    """A value as the pickle and the buffers that it leaves out; anything that fails, fails here."""
    head, buffers = io.BytesIO(), []
    _Pickler(head, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(value)
    return head.getvalue(), buffers


def send(connection: Connection, packet: Packet) -> None:
    """Send what `packed` gave."""
    head, buffers = packet
    connection.send_bytes(len(buffers).to_bytes(4, "little") + head)
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def receive(connection: Connection) -> Any:
    """The next value.

    Raises:
        EOFError, OSError: the other end is gone.
    """
    first = connection.recv_bytes()
    buffers = [connection.recv_bytes() for _ in range(int.from_bytes(first[:4], "little"))]
    return pickle.loads(memoryview(first)[4:], buffers=buffers)


#: Seconds that a process gets to end by itself.
_GRACE = 2.0


@dataclass(frozen=True, eq=False)
class SeededClient:
    """A client app, and what its calls draw from the global generators.

    Args:
        app: the app.
        seed: if given, the generators of a call follow from (seed, node's partition, number of the message)
            alone.
    """

    app: ClientApp
    seed: int | None

    def __call__(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """The reply and the context after it; see `ClientCalls.call`."""
        if self.seed is not None:
            seeded_generators([self.seed, 1, int(context.node_config["partition-id"]), number])
        return self.app(request, context), context


class CallsInTurn(ClientCalls):
    """Calls in this process, one after another, on one thread of PyTorch.

    Args:
        client: what to call. If it is seeded, the generators are for the server as if no client had drawn.
    """

    def __init__(self, client: SeededClient) -> None:
        self._client = client

    def call(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """See `ClientCalls.call`."""
        kept = contextlib.nullcontext() if self._client.seed is None else generators_kept()
        with _one_thread(), kept:
            return self._client(request, context, number)


class CallsInProcesses(ClientCalls):
    """Calls in copies of this process, each with one thread of PyTorch.

    A copy (fork) has the client app with all that it refers to, so nothing must be picklable but messages and
    contexts, which are. What a call changes elsewhere, such as a global variable, stays in its copy.

    Args:
        client: what to call.
        workers: how many processes, at least 1.

    Guarantees:
        A process that dies costs the message that it was at work on, which fails; another takes its place.
    """

    def __init__(self, client: SeededClient, workers: int) -> None:
        self._client, self.workers = client, workers
        self._lock = threading.Lock()
        self._closed = False
        self._all: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(workers):
            self._start_worker()

    def call(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """See `ClientCalls.call`."""
        question = packed((request, context, number))
        worker = self._idle.get()
        try:
            send(worker.connection, question)
            outcome = receive(worker.connection)
        except (EOFError, OSError):
            code = worker.end(_GRACE)
            self._start_worker(instead_of=worker)
            reason = f"the client's process ended (exit code {code})"
            raise ClientFailure(reason, reason, "") from None
        except BaseException:  # an answer that cannot be read, of a process that waits for the next message
            self._idle.put(worker)
            raise
        self._idle.put(worker)
        if isinstance(outcome, ClientFailure | UnsoundSumError):
            raise outcome
        return outcome

    def close(self) -> None:
        """End the processes; calls that are under way fail."""
        with self._lock:
            self._closed = True
            for worker in self._all:
                worker.process.kill()
            for worker in self._all:
                worker.process.join()

    def _start_worker(self, instead_of: _Worker | None = None) -> None:
        # One at a time: a copy that held the pipe of another would hide the other's end.
        with self._lock:
            if instead_of is not None:
                self._all.remove(instead_of)
            if self._closed:
                return
            here, there = multiprocessing.Pipe()
            inherited = [here, *(worker.connection for worker in self._all)]
            process = multiprocessing.get_context("fork").Process(
                target=_serve, args=(self._client, there, inherited)
            )
            with warnings.catch_warnings():  # Python 3.12 warns of threads; copies use none of them
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            there.close()
            worker = _Worker(process, here)
            self._all.append(worker)
            self._idle.put(worker)


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection

    def end(self, grace: float) -> int | None:
        """Wait some seconds, then kill; returns the exit code."""
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode


def _serve(client: SeededClient, connection: Connection, inherited: list[Connection]) -> None:
    """Answer messages until the other process ends."""
    for other in inherited:  # so that every copy notices when this process's parent ends
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends its copies
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    fresh_generators()
    with contextlib.suppress(EOFError, OSError):
        while True:
            question = receive(connection)
            try:
                answer = packed(client(*question))
            except UnsoundSumError as error:
                answer = packed(error)
            except BaseException as error:  # an interrupt is the parent's to see
                trace = traceback.format_exc()
                failure = ClientFailure(error_reason(error), f"{type(error).__name__}: {error}", trace)
                answer = packed(failure)
            send(connection, answer)
    os._exit(0)  # nothing of the parent's is to be tidied away here


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
