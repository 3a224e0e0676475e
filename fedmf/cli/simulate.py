"""``fedmf simulate``: run private federated training from a configuration file."""

from __future__ import annotations

import shlex
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedmf.cli.interruption import going_on

if TYPE_CHECKING:
    from fedmf.runs import OnRound, Run, Session


class Engine(StrEnum):
    """Where client apps run."""

    inprocess = "inprocess"
    ray = "ray"


class Device(StrEnum):
    """Where tensors live."""

    cpu = "cpu"
    cuda = "cuda"


def simulate(
    config: Path | None = typer.Argument(
        None,
        metavar="CONFIG.toml",
        help="Run configuration (TOML tables; docs/configuration.md lists all keys). One that ships with "
        "fedmf is found by its name, such as configs/digits.toml.",
    ),
    assignments: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Override a key, e.g. --set privacy.epsilon=2. Repeatable."
    ),
    engine: Engine = typer.Option(
        Engine.inprocess, help="inprocess: this process. ray: Flower's simulation engine."
    ),
    device: Device = typer.Option(Device.cpu, help="Device of local training and aggregation."),
    out: Path | None = typer.Option(
        None,
        "--out",
        metavar="DIR",
        help="Run directory to create.",
        show_default="runs/CONFIG-TIME",
    ),
    resume: Path | None = typer.Option(
        None, "--resume", metavar="DIR", help="Continue the stopped run in DIR where its ledger ends."
    ),
    full: bool = typer.Option(
        False,
        "--full",
        help="End with the whole privacy statement, not its short form of at most twelve lines.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say epsilon, noise, memory and time a round; start nothing."
    ),
) -> None:
    """Train with user-level differential privacy and correlated noise.

    Writes a run directory with the configuration, metrics (Parquet), participation ledger, checkpoint,
    learning curve and privacy statement. A run that was stopped in any way, kill -9 included, goes on with
    --resume: what was released stays, no round is repeated, and later rounds get fresh noise.

    Example: fedmf simulate configs/digits.toml --set mechanism.kind=cgd --set privacy.epsilon=2
    """
    from fedmf.errors import ConfigError
    from fedmf.runs import Session, dotted_keys, load_run, parse_assignments, run_of
    from fedmf.runs.simulation import load

    overrides = parse_assignments(assignments)
    if resume is not None and out is not None:
        raise ConfigError("--out names a new run directory and --resume an existing one; give one of them.")
    if config is not None:
        run = load_run(config, overrides)
    elif resume is not None:
        stored = load(resume)
        run = run_of({**dotted_keys(stored), **overrides}) if overrides else stored
    else:
        raise ConfigError("simulate needs CONFIG.toml, or --resume DIR to continue a stopped run.")
    if dry_run:
        _show_plan(run, device.value)
        return
    if engine is Engine.ray:
        _check_ray()
    place = resume or out or _place(run.execution.output_dir, config)
    with going_on(lambda: _how(place)):
        if resume is None:
            session = Session.start(place, run, device.value)
        else:
            session = Session.resume(place, run, device.value)
        _carry_out(session, engine, full)


def _check_ray() -> None:
    """Refuse an engine that is not installed before anything is made.

    Raises:
        ConfigError: Flower or Ray is not there.
    """
    from fedmf.errors import ConfigError

    try:
        from fedmf.flower import check_ray
    except ImportError as error:
        raise ConfigError(f"--engine ray: {error}") from None
    check_ray()


def _carry_out(session: Session, engine: Engine, full: bool) -> None:
    from fedmf.cli.view import RunView

    with session:
        with RunView(session) as view:
            _run(session, engine, view.update)
        view.conclude(full)


def _how(place: Path) -> str:
    """How to go on with a run that was stopped."""
    if not place.is_dir():
        return "nothing was begun: give the command again."
    return f"every finished round is kept, go on with: fedmf simulate --resume {shlex.quote(str(place))}"


def _show_plan(run: Run, device: str) -> None:
    """What a run would promise and cost, without starting it."""
    from fedmf.runs import dry_run

    for name, value in dry_run(run, device).items():
        typer.echo(f"{name:<22} {value}")


def _place(configured: str, config: Path | None) -> Path:
    if configured:
        return Path(configured)
    stem = config.stem if config is not None else "run"
    return Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _run(session: Session, engine: Engine, on_round: OnRound) -> None:
    if engine is Engine.ray:
        from fedmf.flower import run_on_ray

        run_on_ray(session, on_round)
    else:
        from fedmf.runs import run_in_process

        run_in_process(session, on_round)
    session.draw()
