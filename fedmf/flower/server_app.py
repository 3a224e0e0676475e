"""The server app that ``flwr run`` starts, on Flower's simulation engine or a deployment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmf.errors import ConfigError
from fedmf.flower.simulation import run_on_grid
from fedmf.flower.strategy import RoundReport
from fedmf.runs import Config, Session

__all__ = ["app", "run_directory"]

app = ServerApp()

_log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or resume the run that the run config describes."""
    config = Config.from_mapping(context.run_config)
    path = run_directory(config, context.run_id)
    opened = Session.resume(path, config) if config.resume else Session.start(path, config)
    with opened as session:
        _log.info("fedmf: run directory %s", path)
        run_on_grid(session, grid, _log_round)
        session.draw()
        for line in session.statement().render_text().splitlines():
            _log.info("%s", line)


def run_directory(config: Config, run_id: int) -> Path:
    """Where the run lives: ``output-dir``, absolute because Flower chooses the working directory.

    Raises:
        ConfigError: ``output-dir`` is relative, or ``resume`` is set without it.
    """
    if not config.output_dir:
        if config.resume:
            raise ConfigError("output-dir must name the run to resume; got an empty string.")
        return Path.home() / ".fedmf" / "runs" / f"flower-{run_id}"
    path = Path(config.output_dir).expanduser()
    if not path.is_absolute():
        raise ConfigError(f"output-dir must be absolute under flwr run; got {config.output_dir!r}.")
    return path


def _log_round(report: RoundReport, row: Mapping[str, Any] | None) -> None:
    if row is not None:
        _log.info(
            "fedmf: round %d, loss %.4f, accuracy %.3f, epsilon so far %s",
            report.t + 1,
            row["loss"],
            row["accuracy"],
            row["epsilon"],
        )
