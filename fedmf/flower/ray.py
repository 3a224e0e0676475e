"""Runs on Flower's Ray engine: client apps in other processes of this machine."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedmf.flower.client_app import cached_trainer, make_client_app
from fedmf.flower.simulation import Observer, run_on_grid, worker_pool
from fedmf.runs.config import Config, ConfigError
from fedmf.runs.session import Session

__all__ = ["run_on_ray"]


def run_on_ray(session: Session, observer: Observer = lambda _report, _row: None) -> None:
    """Run a session with ``workers`` virtual nodes on Flower's simulation engine.

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

    workers = session.config.workers
    run_simulation(
        server_app,
        client_app_of(session.config.to_flat()),
        num_supernodes=workers,
        backend_config={
            "init_args": {"num_cpus": workers, "logging_level": "ERROR", "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    session.draw()


def client_app_of(values: Mapping[str, Any]) -> ClientApp:
    """A client app that carries its configuration: small enough to be pickled with every message."""
    items = tuple(sorted(Config.from_mapping(values).to_flat().items()))
    return make_client_app(lambda _: cached_trainer(items))
