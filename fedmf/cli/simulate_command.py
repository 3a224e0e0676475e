"""``fedmf simulate``: run private federated training from a configuration file."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import typer

from fedmf.cli.interruption import continuable
from fedmf.cli.log import LogFormat, log
from fedmf.cli.shared_options import FULL, LOG_FORMAT, SETS, argument, flag, option

#: Final metrics that are one number.
_FINAL: Final = {"auc": "AUC", "r2": "R²"}

if TYPE_CHECKING:
    from fedmf.runs.loop import OnRound, RoundRecord
    from fedmf.runs.progress import RunProgress
    from fedmf.runs.session import Session


def simulate(
    config: Path | None = argument(
        None,
        "CONFIG.toml",
        "Configuration file, or one that ships with fedmf, such as configs/digits.toml.",
    ),
    assignments: list[str] = SETS,
    engine: Literal["inprocess", "ray"] = option(
        "inprocess", None, "inprocess: this process. ray: Flower's simulation engine."
    ),
    device: Literal["cpu", "cuda"] = option(
        "cpu", None, "Device of local training and aggregation."
    ),
    out: Path | None = option(
        None, "DIR", "Run directory to create.", show_default="runs/CONFIG-TIME"
    ),
    resume: Path | None = option(None, "DIR", "Continue the interrupted run in DIR."),
    full: bool = FULL,
    log_format: LogFormat = LOG_FORMAT,
    keep_releases: bool = flag(
        "--keep-releases",
        "Keep the released integers in DIR/released: anyone can check the statement.",
    ),
    dry_run: bool = flag("--dry-run", "Print epsilon, noise, memory and time without running."),
) -> None:
    """Train with user-level differential privacy and correlated noise.

    Writes a run directory with the configuration, metrics (Parquet), participation ledger,
    checkpoint, learning curve and privacy statement. --resume continues a run after any
    interruption, including kill -9: no round is repeated, and later rounds get fresh noise.

    Example: fedmf simulate configs/digits.toml --set mechanism.kind=cgd --set privacy.epsilon=2
    """
    from fedmf.errors import ConfigError
    from fedmf.runs.directory import recorded_run
    from fedmf.runs.progress import RunProgress
    from fedmf.runs.session import Session
    from fedmf.runs.tables.configuration import dotted_keys, load_run, parse_assignments, run_of

    log.use(log_format)
    overrides = parse_assignments(assignments)
    if keep_releases:
        overrides["execution.keep-releases"] = True
    if resume is not None and out is not None:
        raise ConfigError(
            "--out names a new run directory and --resume an existing one; use only one."
        )
    if config is not None:
        run = load_run(config, overrides)
    elif resume is not None:
        stored = recorded_run(resume)
        run = stored
        if overrides:
            run = run_of({**dotted_keys(stored), **overrides})
    else:
        raise ConfigError("simulate needs CONFIG.toml, or --resume DIR to continue a stopped run.")
    if dry_run:
        from fedmf.runs.cost_estimate import dry_run as estimate

        for name, value in estimate(run, device):
            typer.echo(f"{name:<22} {value}")
        return
    if engine == "ray":
        from fedmf.flower.apps import run_on_ray as train
        from fedmf.flower.apps import start_ray

        start_ray(run.execution)  # before the run directory is created
    else:
        from fedmf.runs.simulation import run_in_process as train
    directory = resume or out or Path(run.execution.output_dir or _default_directory(config))

    def how_to_continue() -> str:
        if not directory.is_dir():
            return ""
        return (
            "all finished rounds are kept; continue with: fedmf simulate --resume"
            f" {shlex.quote(str(directory))}"
        )

    with continuable(how_to_continue):
        if resume is None:
            session = Session.start(directory, run, device, simulated=True)
        else:
            session = Session.resume(directory, run, device)
        with session:
            view = RunProgress(session)
            _train(session, view, train)
            session.draw()
            _show_result(session, view, full)


def _train(
    session: Session, view: RunProgress, train: Callable[[Session, OnRound], object]
) -> None:
    """Train a session, with its rounds on the screen or in the log."""
    if log.as_json:
        train(session, RoundLog(session))
        return
    with view:
        train(session, view)


class RoundLog:
    """Writes rounds to the log as JSON objects; an `OnRound` that stops nothing.

    Args:
        session: just opened.
    """

    def __init__(self, session: Session) -> None:
        self._plan = session.plan
        directory = str(session.directory.path)
        log.write(run=directory, round=session.server.t, rounds=session.server.horizon)

    def __call__(self, record: RoundRecord) -> None:
        """Write a finished round, with the metrics of the model if it was evaluated."""
        facts = dict(record.metrics)
        facts["epsilon"] = self._plan.epsilon_after(record.rounds)
        if record.report is not None:
            facts["seconds"] = round(record.report.seconds, 3)
        log.write(round=record.rounds, rounds=record.horizon, **facts)


def _final(session: Session) -> str:
    """AUC or R², which are computed at the end alone, and their file."""
    from fedmf.runs.outputs import QUALITY

    figures = list[str]()
    for name, value in session.quality.items():
        label = _FINAL.get(name.removesuffix("_not_private"))
        if label is not None and value is not None:
            mark = " (not private)" if name.endswith("_not_private") else ""
            figures.append(f"{label}{mark} {value:.4g}")
    if not figures:
        return ""
    return f" {', '.join(figures)}; more in {session.directory.path / QUALITY}."


def _default_directory(config: Path | None) -> Path:
    name = "run"
    if config is not None:
        name = config.stem
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _show_result(session: Session, view: RunProgress, full: bool) -> None:
    """Print the guarantee and the quality of the model.

    The spent ε is left to ``fedmf account``, because it is not public.
    """
    from fedmf.data.row_counts import OPERATOR
    from fedmf.runs.directory import FAILURES

    statement = session.statement()
    path = session.directory.path
    text = statement.render_text()
    if not full:
        text, _, _ = text.partition("\n")
    typer.echo(text)
    quality = view.quality()
    if quality:
        typer.echo(f"Model: {quality}.{_final(session)}")
    typer.echo(
        f"Next: fedmf account {shlex.quote(str(path))} --full ({statement.counts()}); learning"
        f" curve in {path}"
    )
    typer.echo(f"Keep secret: noise.key, ledger.sqlite*, {FAILURES}, {OPERATOR}.")
    owner = session.task.dataset.test_owner
    if quality and session.run.is_private and owner != "nobody":
        typer.echo(
            f"Not protected: the test part belongs to {owner}, and loss and metrics on it have no"
            " noise. Do not publish them."
        )
