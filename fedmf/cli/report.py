"""``fedmf report``: one page about one or several runs."""

from __future__ import annotations

from pathlib import Path

import typer

from fedmf.cli.account import tell_verdict
from fedmf.errors import ConfigError


def report(
    run_dirs: list[Path] = typer.Argument(
        ..., metavar="RUN_DIR...", help="Directories of finished, running or stopped runs."
    ),
    output: Path = typer.Option(
        Path("report.html"), "--output", metavar="FILE.html", help="Where the page is written; a new file."
    ),
    publish: bool = typer.Option(
        False, "--publish", help="Leave out what must not leave: all that is marked as not private."
    ),
) -> None:
    """Write one page about runs: privacy in plain words, learning curves, ε, noise, who took part.

    The page loads nothing. Its figures are computed from the runs' ledgers, verified as `fedmf account` does;
    nothing is written into the run directories. It is for the operator (mode 0600) unless --publish is given.

    Example: fedmf report runs/a runs/b --output comparison.html
    """
    from fedmf.records import new_file, require_free
    from fedmf.report import read_run, render_report

    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--output (page) must end in .html; got {output.name!r}.")
    require_free(output)
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise ConfigError("run directories (of a report) must differ; got one of them twice.")
    runs = [read_run(path) for path in run_dirs]
    page = render_report(runs, publish)
    for path, run in zip(run_dirs, runs, strict=True):
        tell_verdict(path, run.statement.verdict)
    with new_file(output, 0o644 if publish else 0o600) as file:
        file.write(page.encode(errors="replace"))
    whose = "may be public" if publish else "for the operator: it holds figures that are not private"
    typer.echo(f"{output}: {whose}", err=True)
