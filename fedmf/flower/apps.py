"""fedmf's own Flower apps, which ``flwr run`` starts, and the same apps on Ray.

The client app serves the users of one node: it reports them, trains them and replies. The server
app runs a session on the grid, see `fedmf.flower.clients`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedmf.clipping.clipped_sum import SumSpec
from fedmf.data import OnNodes
from fedmf.errors import ConfigError, one_line
from fedmf.flower.clients import run_on_grid
from fedmf.flower.handshake import served_reply
from fedmf.flower.messages import answer_reply, read_request
from fedmf.flower.screen import say, say_round
from fedmf.flower.served_users import ServedUsers
from fedmf.runs.directory import LEDGER
from fedmf.runs.loop import OnRound, RoundRecord
from fedmf.runs.run import Execution, Run
from fedmf.runs.run_plan import clipped_sums
from fedmf.runs.session import Session, check_users_here
from fedmf.runs.statistics import table_of
from fedmf.runs.tables.configuration import Scalar, dotted_keys, run_of
from fedmf.runs.tasks import NamedTask
from fedmf.training import LocalTrainer, example_counts

_log = logging.getLogger("fedmf")
#: Seconds in which a cluster of Ray must answer.
_SECONDS_TO_REACH: Final = 5.0


def served_by(context: Context, users: Sequence[str]) -> Sequence[str]:
    """Return those users of a node's task that the node serves.

    A node with data of its own serves all of them. Otherwise it serves the users with an index
    equal to ``partition-id`` modulo ``num-partitions``.
    """
    if context.run_config.get("data.kind") == OnNodes.kind:
        return users
    part = int(context.node_config["partition-id"])
    parts = int(context.node_config["num-partitions"])
    return users[part::parts]


def make_client_app(trainer_of: Callable[[Context], tuple[LocalTrainer, SumSpec]]) -> ClientApp:
    """Return a client app for any task, which reports the users of its node and trains them.

    Args:
        trainer_of: from a Flower context to the node's local trainer, and to how updates are
            clipped and summed.
    """
    client_app = ClientApp()

    @client_app.query()
    def query(message: Message, context: Context) -> Message:
        trainer, _ = trainer_of(context)
        return served_reply(message, served_by(context, trainer.task.dataset.user_ids))

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        trainer, sums = trainer_of(context)
        request = read_request(message)
        return answer_reply(message, request.t, request.trained(trainer, sums))

    return client_app


@lru_cache(maxsize=2)
def cached_trainer(
    items: tuple[tuple[str, Scalar], ...], path: str = "", user_list: str = "", schema: str = ""
) -> tuple[LocalTrainer, SumSpec]:
    """Return trainer and sums of a configuration, which are built once in each worker process.

    Args:
        items: the sorted items of the run config.
        path: the data of this node, if they stay there; see `OnNodes.here`.
        user_list: the users that this node may serve.
        schema: the schema on this node.
    """
    run = run_of(dict(items))
    source = run.task_source
    if isinstance(source, NamedTask) and isinstance(source.data, OnNodes):
        dataset = source.data.here(path, user_list, schema)
        task = source.task(dataset, source.module(dataset, source.model))
    elif path or user_list or schema:
        raise ConfigError(
            "data-path, data-user-list and data-schema (of the node config) must be left out"
            f" unless [data] kind is {OnNodes.kind!r}; got {path or user_list or schema!r}."
        )
    else:
        task = source.build()
    device = "cpu"
    if run.execution.worker_gpus > 0:
        device = "cuda"  # Ray shows an actor only the GPU that it reserved, so it is the first
    task = task.to(device)
    trainer = LocalTrainer(task, run.client, users=run.users_in_a_call)
    return trainer, clipped_sums(run, task)


def _trainer_from_configs(context: Context) -> tuple[LocalTrainer, SumSpec]:
    node = context.node_config
    return cached_trainer(
        tuple(sorted(context.run_config.items())),
        str(node.get("data-path", "")),
        str(node.get("data-user-list", "")),
        str(node.get("data-schema", "")),
    )


#: The client app and the server app that pyproject.toml names.
client = make_client_app(_trainer_from_configs)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Start the run that the run config describes, or continue it if its directory holds it."""
    run = run_of(context.run_config)
    path = run_directory(run.execution, context.run_id)
    if (path / LEDGER).is_file():
        session = Session.resume(path, run)
    else:
        session = Session.start(path, run)
    with session:
        run_on_grid(session, grid, _say_record)
        session.draw()
        for line in session.statement().public().render_text().splitlines():
            say(line)


def _say_record(record: RoundRecord) -> None:
    say_round(record.rounds, record.horizon, record.metrics)


def run_directory(execution: Execution, run_id: int) -> Path:
    """Return the directory of the run: ``output_dir``, or a new one in the home directory.

    Raises:
        ConfigError: ``output_dir`` is relative, but Flower chooses the working directory.
    """
    if not execution.output_dir:
        return Path.home() / ".fedmf" / "runs" / f"flower-{run_id}"
    path = Path(execution.output_dir).expanduser()
    if not path.is_absolute():
        raise ConfigError(
            f"output_dir must be absolute under flwr run; got {execution.output_dir!r}."
        )
    return path


def run_on_ray(session: Session, on_round: OnRound | None = None) -> None:
    """Run a session on Flower's simulation engine, each cohort split over ``workers`` actors.

    Every worker process builds the task from the configuration, so the session's task must be the
    one its configuration names. Ray changes the process (a signal handler, PYTHONPATH), so use one
    process for each run.

    Raises:
        ConfigError: as `start_ray`.
    """
    start_ray(session.run.execution)
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        run_on_grid(session, grid, on_round, WorkerPool(session))

    run_simulation(
        server_app,
        client_app_of(session.run),
        num_supernodes=session.run.execution.workers,
        backend_config=backend_config(session.run.execution),
    )


def start_ray(execution: Execution) -> None:
    """Start Ray, or connect to its cluster, before Flower does, which would wait without end.

    Raises:
        ConfigError: the extra ``ray`` is missing, there is no cluster at RAY_ADDRESS, or Ray does
            not start.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs the extra: pip install 'fedmf[ray]'.")
    import ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS", "")
    advice = "Start Ray there (ray start --head), or unset RAY_ADDRESS to use this machine alone."
    if not address:
        advice = "See the logs in /tmp/ray, or use --engine inprocess."
    try:
        _reach(address)
        # The workers import what this process can import.
        ray.init(
            include_dashboard=False,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
            **backend_config(execution)["init_args"],
        )
    except Exception as error:  # Ray raises errors of many kinds
        raise ConfigError(
            f"Ray (RAY_ADDRESS={address!r}) must be running; it cannot be reached:"
            f" {one_line(str(error)).rstrip('.')}. {advice}"
        ) from None


def _reach(address: str) -> None:
    """Connect to the address of a cluster, for which Ray itself would wait for minutes.

    Raises:
        OSError: nothing answers.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():  # otherwise it is empty or "auto"
        socket.create_connection((host, int(port)), _SECONDS_TO_REACH).close()


def backend_config(execution: Execution) -> dict[str, dict[str, Any]]:
    """Return the resources of Ray and of each actor, in the form of Flower's simulation engine.

    A cluster, which Ray finds by RAY_ADDRESS, brings its own resources. On this machine, Ray gets
    as many CPUs as there are actors, so that all slices of a round are computed at the same time.
    An actor that loses its process or machine is started again where there is room, because Flower
    continues to give it a slice in every round.
    """
    init: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if not os.environ.get("RAY_ADDRESS"):
        init["num_cpus"] = execution.workers
    resources = {"num_cpus": 1.0, "num_gpus": execution.worker_gpus, "max_restarts": -1}
    return {"init_args": init, "client_resources": resources}


def client_app_of(run: Run) -> ClientApp:
    """Return a client app that carries its configuration, which is pickled with every message.

    Raises:
        ConfigError: task or optimizer were given as objects, which other processes cannot build.
    """
    for name, given in zip(("task", "optimizer"), run.given_objects, strict=True):
        if given is not None:
            raise ConfigError(
                f"{name} must be given by name to run on Ray; got an object of type"
                f" {type(given).__name__}. Its workers are processes that build it themselves: name"
                " a function, or run in process."
            )
    tables = [table_of(each) for each in run.extra_releases]
    if len(set(tables)) < len(tables):
        raise ConfigError(
            f"extra_releases must hold one of a kind to run on Ray; got {len(tables)}. Its workers"
            " read the run from a configuration, which has one table of each: run in process."
        )
    # Workers add no noise, so the mechanism, which may be an object, is left out.
    items = tuple(sorted(dotted_keys(dataclasses.replace(run, mechanism="identity")).items()))
    return make_client_app(lambda _: cached_trainer(items))


class WorkerPool(ServedUsers):
    """Workers of a simulation, each of which built the whole task and can train any of its users.

    The assignment of users to workers changes from round to round and with the number of workers.
    The model does not depend on it, since clipped updates are summed in integers.

    All workers are waited for, because Flower lists its workers as they start: otherwise the
    messages of the first rounds would depend on how quickly they did.

    Args:
        session: the session of the run.

    Raises:
        ConfigError: as `check_users_here`.
    """

    def __init__(self, session: Session) -> None:
        check_users_here(session.run, session.task)
        self._dataset = session.task.dataset
        self._workers = session.run.execution.workers
        super().__init__(self._dataset.user_ids, _log.warning)
        self._alive = list[int]()

    def listen(self, grid: Grid) -> None:
        self._alive = sorted(grid.get_node_ids())

    def gather(
        self, grid: Grid, timeout: float, limit: float | None = None, least: int = 1
    ) -> None:
        # The workers are the run's own, so no limit ends the wait.
        super().gather(grid, timeout, least=least)

    @property
    def silent(self) -> int:
        """Number of workers that Flower has not listed yet."""
        return max(0, self._workers - len(self._alive))

    @property
    def missing(self) -> int:
        """All users as long as there is no worker, and none afterwards."""
        if self._alive:
            return 0
        return self.users

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        """Deal the users to the workers in turn, users with the most examples first."""
        ids = list(users.values())
        sizes = example_counts(self._dataset, np.array(list(users), dtype=np.int64))
        largest_first = np.argsort(-sizes, kind="stable")
        served = dict[str, int]()
        for index, worker in zip(largest_first, itertools.cycle(self._alive), strict=False):
            served[ids[index]] = worker
        return served
