"""``fedmf simulate``: run private federated training from a configuration file."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fedmf.cli.progress import RunView
    from fedmf.runs import Session

__all__ = ["simulate"]


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
        help="Run configuration (flat TOML; docs/configuration.md lists all keys).",
    ),
    assignments: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Override a key, e.g. --set epsilon=2. Repeatable."
    ),
    engine: Engine = typer.Option(
        Engine.inprocess, help="inprocess: this process. ray: Flower's simulation engine."
    ),
    device: Device = typer.Option(Device.cpu, help="Device of local training and aggregation."),
    out: Path | None = typer.Option(
        None, "--out", metavar="DIR", help="Run directory to create [default: runs/CONFIG-TIME]."
    ),
    resume: Path | None = typer.Option(
        None, "--resume", metavar="DIR", help="Continue the stopped run in DIR where its ledger ends."
    ),
) -> None:
    """Train with user-level differential privacy and correlated noise.

    Writes a run directory with the configuration, metrics (Parquet), participation ledger, checkpoint,
    learning curve and privacy statement. A run that was stopped in any way, kill -9 included, continues
    with --resume and ends with the same model, bit for bit.

    Example: fedmf simulate configs/digits.toml --set mechanism=cgd --set epsilon=2
    """
    from fedmf.cli.progress import RunView
    from fedmf.errors import ConfigError
    from fedmf.runs import Session, load_config, parse_assignments, read_config

    if (config is None) == (resume is None) and config is None:
        raise ConfigError("simulate needs CONFIG.toml, or --resume DIR to continue a stopped run.")
    if resume is not None and out is not None:
        raise ConfigError("--out names a new run directory and --resume an existing one; give one of them.")
    overrides = parse_assignments(assignments)
    if config is not None:
        settings = load_config(config, overrides)
    else:
        assert resume is not None
        settings = type(read_config(resume)).from_mapping({**read_config(resume).to_flat(), **overrides})
    if resume is not None:
        session = Session.resume(resume, settings, device=device.value)
    else:
        session = Session.start(out or _place(settings.output_dir, config), settings, device=device.value)
    with session:
        with RunView(session) as view:
            _run(session, engine, view)
        view.conclude()


def _place(configured: str, config: Path | None) -> Path:
    if configured:
        return Path(configured)
    stem = config.stem if config is not None else "run"
    return Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _run(session: Session, engine: Engine, view: RunView) -> None:
    if engine is Engine.ray:
        from fedmf.flower import run_on_ray

        run_on_ray(session, view.update)
    else:
        from fedmf.flower import run_in_process

        run_in_process(session, view.update)
