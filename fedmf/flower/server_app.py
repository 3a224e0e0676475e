"""The server app that ``flwr run`` starts, on Flower's simulation engine or a deployment."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmf.errors import ConfigError
from fedmf.flower.screen import say, say_plan, say_round
from fedmf.flower.strategy import run_on_grid
from fedmf.runs import Execution, RoundRecord, Session, run_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or resume the run that the run config describes."""
    run = run_of(context.run_config)
    place: Execution = run.execution
    path = run_directory(place, context.run_id)
    opened = Session.resume(path, run) if place.resume else Session.start(path, run)
    with opened as session:
        say_plan(session)

        def told(record: RoundRecord) -> None:
            say_round(record.rounds, record.horizon, record.metrics)

        run_on_grid(session, grid, told)
        session.draw()
        for line in session.statement().render_text().splitlines():
            say(line)


def run_directory(place: Execution, run_id: int) -> Path:
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
