"""Training and evaluation in processes of their own: a user's data end or hold up nothing but that user."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedmf.training.barrier import Failures, UserFailure, UserLimits, described
from fedmf.training.batches import shape_of, step_rows
from fedmf.training.clipping import ClippedRows, UpdateSum
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task
from fedmf.training.trial import preflight
from fedmf.training.workers import Workers

T = TypeVar("T")

#: What a process is asked for.
_UPDATE = "update"
#: What a process runs; it imports fedmf and nothing of the program that started it.
_PROGRAM = "import sys; from fedmf.training.isolated import serve; serve(int(sys.argv[1]))"


class IsolatedTrainer:
    """Trains users one by one in other processes, as many as torch uses threads.

    A process that dies, or takes longer for a user than ``limits.seconds``, makes that user's contribution
    the zero vector and is replaced. The clock runs for one user at a time, so nobody's work is counted as
    another's.

    Guarantees:
        Updates are those of `LocalTrainer.updates` for one user at a time: with engines "auto" and "loop" on
        a processor the same bits as there. Sums agree to rounding where `LocalTrainer.add_updates` has a
        compiled program.

    Args:
        task: what is learnt; users' examples are read in the other processes only.
        build: makes the same task there; it is pickled, so what it refers to must be importable.
        local: local SGD and its engine.
        limits: what one user may cost.
    """

    def __init__(
        self, task: Task, build: Callable[[], Task], local: LocalSGD, limits: UserLimits | None = None
    ) -> None:
        self.task, self.local, self.limits = task, local, limits or UserLimits()
        self.confined, self._build = False, build
        self._workers = Workers(lambda: _Helper(build, task.device.type, local, self.limits))

    def add_updates(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, total: UpdateSum
    ) -> list[UserFailure]:
        """See `LocalTrainer.add_updates`."""
        return self._train(parameters, user_ids, t, total, lambda _, update, into: into.add_updates(update))

    def clipped_rows(
        self, parameters: Tensor, user_ids: Sequence[str], t: int, clip_norm: float
    ) -> tuple[Tensor, list[UserFailure]]:
        """See `LocalTrainer.clipped_rows`."""
        rows = ClippedRows(len(user_ids), parameters.numel(), clip_norm)
        failures = self._train(
            parameters, user_ids, t, rows, lambda place, update, into: into.put([place], update)
        )
        return rows.block, failures

    def _train(
        self,
        parameters: Tensor,
        user_ids: Sequence[str],
        t: int,
        total: T,
        take: Callable[[int, Tensor, T], Tensor],
    ) -> list[UserFailure]:
        """Train users one by one; ``take`` hands an update on, zeros where there is none."""
        self.task.dataset.indices(user_ids)  # an unknown id is the asker's mistake, nobody's failure
        origin, failures = parameters.cpu(), Failures()

        def train(place: int, into: T) -> None:
            update, failed = self._workers.of_thread.update(origin, user_ids[place], t)
            if failed is not None:
                failures.note(place, failed.stage, failed.reason)
            row = torch.zeros_like(origin) if update is None else update
            if not take(place, row[None], into).all():
                failures.note(place, "update", "holds NaN or infinity")

        self._workers.each(train, range(len(user_ids)), total)
        return failures.named(user_ids)

    def reference(self) -> IsolatedTrainer:
        """See `Trainer.reference`."""
        return IsolatedTrainer(self.task, self._build, replace(self.local, engine="loop"), self.limits)


class _Helper:
    """The other end: a process that is started when it is needed, and anew after each end."""

    def __init__(self, build: Callable[[], Task], device: str, local: LocalSGD, limits: UserLimits) -> None:
        self._setting = pickle.dumps((build, device, local, limits))
        self._seconds = limits.seconds
        self._process: subprocess.Popen[bytes] | None = None

    def update(self, origin: Tensor, user: str, t: int) -> tuple[Tensor | None, UserFailure | None]:
        """One user's update, shape (d,), None where there is none; and the failure, if there was one."""
        return self.answer(user, (_UPDATE, origin.numpy(), user, t))

    def answer(self, user: str, job: tuple[Any, ...]) -> tuple[Tensor | None, UserFailure | None]:
        """What the process makes of a job about one user, and the failure, if there was one."""
        if self._process is None:
            self._start()
        try:
            self._connection.send(job)
            if not self._connection.poll(self._seconds):
                self._end()
                return None, UserFailure(user, "isolation", f"took longer than {self._seconds:g} s")
            update, failure = self._connection.recv()
        except (EOFError, OSError):
            return None, UserFailure(user, "isolation", f"its process ended with code {self._end()}")
        return (None if update is None else torch.from_numpy(update)), failure

    def _start(self) -> None:
        here, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = Connection(here.detach())
        self._connection.send_bytes(self._setting)
        try:
            problem = self._connection.recv()
        except (EOFError, OSError):
            problem = f"it ended with code {self._end()}"
        if problem is not None:
            self._end()
            raise RuntimeError(f"isolated training cannot begin: {problem}.")

    def _end(self) -> int | None:
        """Kill the process; its exit code."""
        if self._process is None:
            return None
        self._process.kill()
        code = self._process.wait()
        self._connection.close()
        self._process = None
        return code

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._end()


def serve(descriptor: int) -> None:
    """Train users for the process that started this one, until it goes away."""
    with contextlib.suppress(OSError):  # if memory runs out it should be this process that is ended
        Path("/proc/self/oom_score_adj").write_text("1000")
    torch.set_num_threads(1)
    connection = Connection(descriptor)
    try:
        build, device, local, limits = pickle.loads(connection.recv_bytes())
        trainer = LocalTrainer(build().to(device), local, limits=limits)
        _warm_up(trainer)
    except Exception as error:
        connection.send(described(error))
        return
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            _, origin, *about = connection.recv()
            connection.send(_trained(trainer, torch.from_numpy(origin), *about))


def _warm_up(trainer: LocalTrainer) -> None:
    """Load and compile what training needs, so that no user's clock runs for it."""
    preflight(trainer.task, trainer.local)
    step_rows(np.zeros(1, np.uint64), np.ones(1, np.int64), 1, 1, shape_of(1, 1, 1))


def _trained(trainer: LocalTrainer, origin: Tensor, user: str, t: int) -> tuple[Any, UserFailure | None]:
    failures = Failures()
    update = trainer.updates(origin, [user], t, failures)
    named = failures.named([user])
    return update[0].cpu().numpy(), named[0] if named else None
