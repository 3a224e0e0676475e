"""Runs of a session on a grid or on Ray, and the workers of a simulation."""

from __future__ import annotations

import dataclasses
import heapq
import importlib.util
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecordValues, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fedmf.errors import ConfigError
from fedmf.flower.boundary import ServedUsers
from fedmf.flower.client_app import cached_trainer, make_client_app
from fedmf.flower.messages import ROSTER, RejectedReply, served_roster
from fedmf.flower.population import handshakes
from fedmf.flower.strategy import run_on_grid
from fedmf.runs import Execution, OnRound, Run, Scalar, Session, check_users_here, dotted_keys, roster_digest
from fedmf.training import example_counts


def run_on_ray(session: Session, on_round: OnRound | None = None) -> None:
    """Run a session on Flower's simulation engine: a cohort is cut into ``workers`` slices, one an actor.

    Every worker process builds the task from the configuration, so the session's task must be the one
    its configuration names. Ray leaves its own marks on the process (a signal handler, PYTHONPATH), so
    use one process for each run.

    Raises:
        ConfigError: the extra ``ray`` is not installed.
    """
    check_ray()
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        run_on_grid(session, grid, on_round, worker_pool(session))

    run_simulation(
        server_app,
        client_app_of(session.run),
        num_supernodes=session.run.execution.workers,
        backend_config=backend_config(session.run.execution),
    )


def check_ray() -> None:
    """Refuse to run on Ray where it is not installed.

    Raises:
        ConfigError: the extra ``ray`` is missing.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs the extra: pip install 'fedmf[ray]'.")


def backend_config(workers: Execution) -> dict[str, dict[str, ConfigRecordValues]]:
    """Where Ray runs and what each actor reserves there.

    A cluster brings its own resources. On this machine Ray is told that there are as many CPUs as the actors
    ask for, so that all slices of a round are at work at the same time. An actor whose process or machine is
    lost is started again where there is room: Flower goes on giving it a slice in every round.
    """
    init: dict[str, ConfigRecordValues] = {"logging_level": "ERROR", "log_to_driver": False}
    if workers.ray_address:
        init["address"] = workers.ray_address
    else:
        init["num_cpus"] = workers.workers
    return {
        "init_args": init,
        "client_resources": {
            "num_cpus": 1.0,
            "num_gpus": workers.worker_gpus,
            "max_restarts": -1,
        },
    }


def client_app_of(run: Run) -> ClientApp:
    """A client app that carries its configuration: small enough to be pickled with every message.

    Raises:
        ConfigError: task or optimizer were given as objects, which other processes cannot build.
    """
    for name, given in zip(("task", "optimizer"), run.given_objects, strict=True):
        if given is not None:
            raise ConfigError(
                f"{name} must be given by name to run on Ray; got an object of type {type(given).__name__}. "
                "Its workers are processes that build it themselves: name a function, or run in process."
            )
    items = worker_items(run)
    return make_client_app(lambda _: cached_trainer(items))


def worker_items(run: Run) -> tuple[tuple[str, Scalar], ...]:
    """The configuration of a run's workers: without C, which may be an object, since they add no noise."""
    return tuple(sorted(dotted_keys(dataclasses.replace(run, mechanism="identity")).items()))


def longest_first(sizes: NDArray[np.int64], workers: int) -> NDArray[np.int64]:
    """Spread tasks over equal workers: the largest first, each to the worker with the least work so far.

    Args:
        sizes: work of each task, shape (m,), non-negative.
        workers: W ≥ 1.

    Returns:
        The worker of each task, shape (m,). Ties go to the earlier task and the lower worker.

    Guarantees:
        The busiest worker has at most 4/3 − 1/(3W) times the work of the best possible spread.

    References:
        Graham (1969), "Bounds on Multiprocessing Timing Anomalies", Theorem 3.

    >>> longest_first(np.array([3, 3, 2, 2, 2]), workers=2).tolist()
    [0, 1, 0, 1, 0]
    """
    chosen = np.zeros(sizes.size, dtype=np.int64)
    if workers == 1:
        return chosen
    loads = [(0, worker) for worker in range(workers)]
    for task in np.argsort(-sizes, kind="stable").tolist():
        load, worker = loads[0]
        chosen[task] = worker
        heapq.heapreplace(loads, (load + int(sizes[task]), worker))
    return chosen


class WorkerPool(ServedUsers):
    """Workers that all built the same task from the same configuration.

    The handshake compares a digest of the user ids instead of exchanging them. Who trains whom changes from
    round to round and with the number of workers; the model does not, since clipped updates are summed in
    integers.

    Args:
        roster: the stable ids of all users.
        sizes: the public sizes of users by index: how much work each is.
        report: called with one line for the operator about anything odd.
        workers: W ≥ 0, how many there will be. Flower names them as they start: without waiting for all, the
            messages of the first rounds would tell how quickly they did.
    """

    #: Nor does a line: two runs of one seed say the same.
    tell_every: ClassVar[float] = math.inf

    def __init__(
        self,
        roster: Sequence[str],
        sizes: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        report: Callable[[str], None] = lambda _: None,
        workers: int = 0,
    ) -> None:
        super().__init__(roster, report)
        self._digest, self._sizes, self._workers = roster_digest(roster), sizes, workers
        self._handshakes = handshakes(ROSTER)
        self._fit: set[int] = set()
        self._alive: set[int] = set()

    def listen(self, grid: Grid) -> None:
        """See `ServedUsers.listen`."""
        self._alive = set(grid.get_node_ids())
        for node, reply in self._handshakes.answers(grid, self._alive):
            try:
                if served_roster(reply) == self._digest:
                    self._fit.add(node)
                else:
                    self.tell(f"worker {node} was built for other users; it will not be asked")
            except RejectedReply as reason:
                self.tell(f"worker {node} failed the handshake: {reason}")
                continue
            self._handshakes.known(node)

    def gather(self, grid: Grid, timeout: float, limit: float | None = None) -> None:
        """See `ServedUsers.gather`. Workers are the run's own: all are waited for, past any ``limit``."""
        super().gather(grid, timeout)

    def settle(self) -> None:
        """Nothing to decide: a worker that fits is asked."""

    @property
    def silent(self) -> int:
        """See `ServedUsers.silent`; a worker that is not named yet is silent too."""
        return self._handshakes.silent + max(0, self._workers - len(self._alive))

    @property
    def missing(self) -> int:
        """See `ServedUsers.missing`: no worker, no user."""
        return 0 if self._fit & self._alive else self.users

    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """See `ServedUsers.nodes_of`."""
        workers = sorted(self._fit & self._alive)
        if not workers:
            return [None] * users.size
        return [workers[place] for place in longest_first(self._sizes(users), len(workers)).tolist()]


_log = logging.getLogger("fedmf")


def worker_pool(session: Session) -> WorkerPool:
    """The workers of a simulation of this session: each can train any of its users.

    Raises:
        ConfigError: as `check_users_here`.
    """
    check_users_here(session)
    crew: Execution = session.run.execution
    dataset = session.task.dataset
    return WorkerPool(dataset.user_ids, partial(example_counts, dataset), _log.warning, crew.workers)
