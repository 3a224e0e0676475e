"""``fedmf sweep``: many runs, tuned and compared."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedmf.cli.interruption import continuable
from fedmf.cli.shared_options import SETS, argument, flag, option

if TYPE_CHECKING:
    from fedmf.sweeps import Sweep


def sweep(
    file: Path = argument(
        ..., "SWEEP.toml", "Configurations to compare and tune (docs/simulations.md)."
    ),
    assignments: list[str] = SETS,
    only: list[str] = option(
        [],
        "NAME",
        "Run only this variant and the baseline; repeatable.",
        "--variant",
        show_default=False,
    ),
    out: Path | None = option(
        None, "DIR", "Directory, new or of this sweep.", show_default="sweeps/SWEEP"
    ),
    processes: int = option(1, "P", "Number of concurrent runs.", min=1),
    threads: int = option(1, "T", "Threads of each run.", min=1),
    keep_runs: bool = flag(
        "--keep-runs", "Keep the run directories, with their models and ledgers."
    ),
    dry_run: bool = flag("--dry-run", "Print the cells and their estimated time without running."),
) -> None:
    """Compare configurations: a grid of keys, tuned on some seeds and reported on others.

    Writes a Markdown table, a figure and runs.parquet, with paired intervals against a baseline. If
    it is interrupted, run the same command again to continue it.

    Use public data: the noise comes from public seeds, so on private data a sweep gives no privacy.
    The epsilon that all runs would have together with secret keys is printed below the results.

    If --set names a key of the grid or a tuned key, only this value is used.

    Example: fedmf sweep configs/sweeps/mechanisms.toml --out sweeps/mechanisms --processes 2
    """
    from rich.console import Console

    from fedmf.runs.progress import bar
    from fedmf.runs.tables.configuration import parse_assignments
    from fedmf.sweeps import Sweep, run_sweep

    plan = Sweep.from_config(file, parse_assignments(assignments), only)
    if dry_run:
        _show_plan(plan, processes)
        return
    directory = out or Path("sweeps") / file.stem
    command = ["fedmf", "sweep", str(file)]
    for assignment in assignments:
        command += ["--set", assignment]
    for name in only:
        command += ["--variant", name]
    command += ["--out", str(directory), "--processes", str(processes)]
    if keep_runs:
        command.append("--keep-runs")
    advice = f"all finished runs are kept; continue with: {shlex.join(command)}"
    console = Console(stderr=True, markup=False, highlight=False)
    with continuable(lambda: advice), bar(console, "runs") as show:

        def report(done: int, total: int, line: str) -> None:
            show(done, total, "")
            if line:
                console.print(line, soft_wrap=True)

        result = run_sweep(plan, directory, processes, threads, keep_runs, report)
    typer.echo(result.text())
    typer.echo(f"Directory: {result.path}")
    if result.failures:
        raise typer.Exit(1)


def _show_plan(sweep: Sweep, processes: int) -> None:
    from fedmf.runs.cost_estimate import seconds_of_a_round
    from fedmf.sweeps import described, privacy_together

    tuning = len(sweep.candidates) * len(sweep.tuning_seeds)
    seconds = 0.0
    by_variant = {}
    for cell in sweep.cells:
        run = sweep.run(cell, sweep.candidates[0], sweep.seeds[0])
        if cell.variant not in by_variant:
            by_variant[cell.variant] = seconds_of_a_round(run)
        cost = by_variant[cell.variant] * run.cohorts.rounds
        seconds += cost * (tuning + len(sweep.seeds))
        typer.echo(
            f"{cell}: {tuning} tuning and {len(sweep.seeds)} reported runs of about {cost:,.1f} s"
        )
    if sweep.tuned:
        candidates = [described(candidate) for candidate in sweep.candidates]
        typer.echo(f"tuned: {'; '.join(candidates)}")
    typer.echo(
        f"{len(sweep.promises)} different runs, about {seconds / processes / 60:,.1f} minutes with "
        f"--processes {processes}, not counting evaluation, commits and runs that cells share."
    )
    typer.echo(f"Privacy of the whole sweep: {privacy_together(sweep)}")
