"""Runs on Flower's Ray engine: client apps in other processes, on this machine or several."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math

from flwr.app import ConfigRecordValues, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedmf.errors import ConfigError
from fedmf.flower.client_app import cached_trainer, make_client_app
from fedmf.flower.simulation import run_on_grid, worker_pool
from fedmf.rounds import Observer, unseen
from fedmf.runs import Run, Scalar, Session, Workers, dotted_keys


def run_on_ray(session: Session, observer: Observer = unseen) -> None:
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
        run_on_grid(session, grid, observer, worker_pool(session))

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


def backend_config(workers: Workers) -> dict[str, dict[str, ConfigRecordValues]]:
    """Where Ray runs and what each actor reserves there.

    A cluster brings its own resources. On this machine Ray is told that there are as many CPUs as the actors
    ask for, so that all slices of a round are at work at the same time. An actor whose process or machine is
    lost is started again where there is room: Flower goes on giving it a slice in every round.
    """
    init: dict[str, ConfigRecordValues] = {"logging_level": "ERROR", "log_to_driver": False}
    if workers.ray_address:
        init["address"] = workers.ray_address
    else:
        init["num_cpus"] = math.ceil(workers.workers * workers.worker_cpus)
    return {
        "init_args": init,
        "client_resources": {
            "num_cpus": workers.worker_cpus,
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
