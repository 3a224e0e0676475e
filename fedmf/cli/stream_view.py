"""What `fedmf stream` shows beside its releases, and where its state lives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fedmf.moments import PrivateGaussian


def conclusion(
    statement: Mapping[str, Any],
    density: PrivateGaussian | None,
    names: tuple[str, ...],
    state: Path | None,
    full: bool,
) -> str:
    """What stands at the end of a stream: its guarantee and its last density; twelve lines unless `full`.

    Args:
        statement: of the stream.
        density: of the last release, where one was asked for.
        names: of the numbers of a row.
        state: the state directory, None without one.
        full: whether the whole statement is shown.
    """
    from fedmf.streaming import render_statement, summarise_stream

    where = "--full" if state is None else "--full, or statement.txt in the state directory"
    text = render_statement(statement) if full else summarise_stream(statement, where)
    return text if density is None else text + density.render_text(names)


def show_counts(counts: Mapping[str, int]) -> None:
    """Say on standard error what only the operator may know."""
    asides = {
        "clipped": "rows were longer than the norm bound and clipped",
        "zeroed": "rows could not be read and counted as zero vectors",
        "refused_users": "rows of users beyond (k, b) were refused",
        "refused_late": "rows beyond the horizon were refused",
    }
    for name, what in asides.items():
        if counts[name]:
            typer.echo(f"Not private, for the operator only: {counts[name]} {what}.", err=True)


def how_to_go_on(state: Path | None, rows: Path | None) -> str:
    """How to go on with a stream that was stopped."""
    if state is None:
        return "without --state a stream cannot go on: its key is gone, and what it released stays released."
    if rows is None:
        return (
            "every finished row is kept, go on with the same command and the same rows, or with --from-row "
            "and those that follow."
        )
    return "every finished row is kept, go on with the same command."


@contextmanager
def state_directory(state: Path | None) -> Iterator[Path]:
    """The state directory, or one that is gone afterwards."""
    if state is not None:
        yield state
        return
    from fedmf.records import scratch_directory

    with scratch_directory(Path(tempfile.gettempdir()), "fedmf-stream") as folder:
        yield folder / "state"


@contextmanager
def progress_view(unbounded: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False)
    columns = TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("", total=None)

        def show(steps: int, rounds: int) -> None:
            progress.update(bar, completed=steps, total=None if unbounded else rounds)

        yield show
