"""Runs on Flower's Ray engine: client apps in other processes, on this machine or several."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecordValues, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedmf.errors import ConfigError
from fedmf.flower.client_app import cached_trainer, make_client_app
from fedmf.flower.simulation import Observer, run_on_grid, worker_pool
from fedmf.runs import Config, Session

__all__ = ["backend_config", "run_on_ray"]


def run_on_ray(session: Session, observer: Observer = lambda _report, _row: None) -> None:
    """Run a session on Flower's simulation engine: a cohort is cut into ``workers`` slices, one an actor.

    Every worker process builds the task from the configuration, so the session's task must be the one
    its configuration names. Ray leaves its own marks on the process (a signal handler, PYTHONPATH), so
    use one process for each run.

    Raises:
        ConfigError: the extra ``ray`` is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs the extra: pip install 'fedmf[ray]'.")
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        run_on_grid(session, grid, observer, worker_pool(session))

    run_simulation(
        server_app,
        client_app_of(session.config.to_flat()),
        num_supernodes=session.config.workers,
        backend_config=backend_config(session.config),
    )
    session.draw()


def backend_config(config: Config) -> dict[str, dict[str, ConfigRecordValues]]:
    """Where Ray runs and what each actor reserves there.

    A cluster brings its own resources. On this machine Ray is told that there are as many CPUs as the actors
    ask for, so that all slices of a round are at work at the same time.
    """
    init: dict[str, ConfigRecordValues] = {"logging_level": "ERROR", "log_to_driver": False}
    if config.ray_address:
        init["address"] = config.ray_address
    else:
        init["num_cpus"] = math.ceil(config.workers * config.worker_cpus)
    return {
        "init_args": init,
        "client_resources": {"num_cpus": config.worker_cpus, "num_gpus": config.worker_gpus},
    }


def client_app_of(values: Mapping[str, Any]) -> ClientApp:
    """A client app that carries its configuration: small enough to be pickled with every message."""
    items = tuple(sorted(Config.from_mapping(values).to_flat().items()))
    return make_client_app(lambda _: cached_trainer(items))
