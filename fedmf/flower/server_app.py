"""The server app that ``flwr run`` starts, on Flower's simulation engine or a deployment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmf.accounting import at_least
from fedmf.errors import ConfigError
from fedmf.flower.asking import Timetable
from fedmf.flower.rounds import RoundReport
from fedmf.flower.simulation import run_on_grid
from fedmf.runs import LocalCheck, Place, Session, run_of

app = ServerApp()

_log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or resume the run that the run config describes."""
    run = run_of(context.run_config)
    timetable = Timetable.of(run.cohorts, run.execution)
    place: Place = run.execution
    path = run_directory(place, context.run_id)
    restored = place.restored_from_backup
    opened = Session.resume(path, run, restored=restored) if place.resume else Session.start(path, run)
    with opened as session:
        _log.info("fedmf: run directory %s", path)
        for line in session.server.beforehand:
            _log.info("fedmf: %s", line)
        check = LocalCheck(session)

        def after_round(report: RoundReport, row: Mapping[str, Any] | None) -> None:
            _log_round(report, row)
            _warn(check.look())

        _warn(check.look())
        run_on_grid(session, grid, after_round, timetable=timetable)
        _warn(check.verdict())
        session.draw()
        for line in session.statement().render_text().splitlines():
            _log.info("%s", line)


def run_directory(place: Place, run_id: int) -> Path:
    """Where the run lives: ``output_dir``, absolute because Flower chooses the working directory.

    Raises:
        ConfigError: ``output_dir`` is relative, or ``resume`` is set without it.
    """
    if not place.output_dir:
        if place.resume:
            raise ConfigError("output_dir must name the run to resume; got an empty string.")
        return Path.home() / ".fedmf" / "runs" / f"flower-{run_id}"
    path = Path(place.output_dir).expanduser()
    if not path.is_absolute():
        raise ConfigError(f"output_dir must be absolute under flwr run; got {place.output_dir!r}.")
    return path


def _log_round(report: RoundReport, row: Mapping[str, Any] | None) -> None:
    if row is not None:
        shown = {name: f"{value:.4g}" for name, value in row.items() if value is not None}
        if row.get("epsilon") is not None:
            shown["epsilon"] = at_least(row["epsilon"], 4)
        numbers = ", ".join(f"{name} {text}" for name, text in shown.items())
        _log.info("fedmf: round %d, %s", report.t + 1, numbers)


def _warn(line: str | None) -> None:
    if line is not None:
        _log.warning("fedmf: %s", line)
