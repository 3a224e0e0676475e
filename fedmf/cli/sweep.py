"""``fedmf sweep``: many runs, tuned and compared."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedmf.cli.interruption import going_on

if TYPE_CHECKING:
    from fedmf.sweeps import Sweep, SweepResult


def sweep(
    file: Path = typer.Argument(
        ..., metavar="SWEEP.toml", help="What is compared, tuned and reported (docs/sweeps.md)."
    ),
    out: Path | None = typer.Option(
        None,
        "--out",
        metavar="DIR",
        help="Directory of the sweep: new, or one to go on with.",
        show_default="sweeps/SWEEP",
    ),
    processes: int = typer.Option(1, "--processes", metavar="P", min=1, help="Runs at once."),
    threads: int = typer.Option(1, "--threads", metavar="T", min=1, help="Threads of each run."),
    keep_runs: bool = typer.Option(
        False, "--keep-runs", help="Keep the run directories, with their models and ledgers."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print the cells and about how long they take; start nothing."
    ),
) -> None:
    """Compare configurations: a grid of keys, tuned on some seeds and reported on others.

    Writes a table (Markdown, LaTeX), a picture, results.json and runs.parquet, with intervals paired by seed
    against a baseline. However it was stopped, kill -9 included, the same command goes on with it and repeats
    no finished run; a larger sweep can go on with the directory of a smaller one.

    On private data a sweep is not covered by the epsilon of one run: what all its runs cost together is
    printed below the results.

    Example: fedmf sweep configs/sweeps/mechanisms.toml --out sweeps/mechanisms --processes 2
    """
    from fedmf.sweeps import load_sweep

    asked = load_sweep(file)
    if dry_run:
        _show_plan(asked, processes)
        return
    place = out if out is not None else Path("sweeps") / file.stem
    again = shlex.join(["fedmf", "sweep", str(file), "--out", str(place), "--processes", str(processes)])
    again += (f" --threads {threads}" if threads > 1 else "") + (" --keep-runs" if keep_runs else "")
    with going_on(lambda: f"every finished run is kept, go on with: {again}"):
        result = _carry_out(asked, place, processes, threads, keep_runs)
    _conclude(result)


def _carry_out(sweep: Sweep, place: Path, processes: int, threads: int, keep_runs: bool) -> SweepResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from fedmf.sweeps import Progress, carry_out

    console = Console(stderr=True, markup=False)
    columns = (TextColumn("runs"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task, shown = bar.add_task("", total=None), -1

        def show(progress: Progress) -> None:
            nonlocal shown
            done, total = progress.finished + progress.failed, max(progress.total, 1)
            bar.update(task, completed=done, total=total)
            if progress.line:
                console.print(progress.line, highlight=False, markup=False, soft_wrap=True)
            if not console.is_terminal and 10 * done // total > shown:
                shown = 10 * done // total
                console.print(f"runs {done}/{progress.total}", highlight=False)

        return carry_out(sweep, place, processes, threads, keep_runs, show)


def _conclude(result: SweepResult) -> None:
    from rich.console import Console

    from fedmf.sweeps import privacy_together, result_table

    table, console = result_table(result), Console(highlight=False, markup=False, soft_wrap=True)
    typer.echo(table.markdown())
    for line in result.warnings:
        console.print(f"note: {line}")
    for line in result.failures:
        console.print(f"failed: {line}")
    keys = ", ".join(result.sweep.seed_keys)
    console.print(f"A seed sets {keys}, where a cell has them.")
    console.print(f"Privacy of the whole sweep, tuning included: {privacy_together(result.sweep)}")
    console.print(f"Directory: {result.path}")
    if result.failures:
        raise typer.Exit(1)


def _show_plan(sweep: Sweep, processes: int) -> None:
    from fedmf.runs import seconds_of_a_round
    from fedmf.sweeps import described, privacy_together

    tuning = len(sweep.candidates) * len(sweep.tuning_seeds)
    seconds, by_variant = 0.0, {}
    for cell in sweep.cells:
        run = sweep.run(cell, sweep.candidates[0], sweep.seeds[0])
        if cell.variant not in by_variant:
            by_variant[cell.variant] = seconds_of_a_round(run)
        cost = by_variant[cell.variant] * run.cohorts.rounds
        seconds += cost * (tuning + len(sweep.seeds))
        typer.echo(f"{cell}: {tuning} tuning and {len(sweep.seeds)} reported runs of about {cost:,.1f} s")
    if sweep.tuned:
        typer.echo("tuned: " + "; ".join(described(candidate) for candidate in sweep.candidates))
    total = len(sweep.promises)
    typer.echo(
        f"{total} different runs, about {seconds / processes / 60:,.1f} minutes with --processes "
        f"{processes}; evaluation, commits and runs that cells share are left out of this."
    )
    typer.echo(f"Privacy of the whole sweep: {privacy_together(sweep)}")
