"""``fedmf stream``: private running means and covariances of a stream of rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedmf.cli.interruption import going_on
from fedmf.participation import Adjacency

if TYPE_CHECKING:
    from fedmf.data import Schema


def how_to_go_on(state: Path | None, rows: Path | None) -> str:
    """How to go on with a stream that was stopped."""
    if state is None:
        return (
            "without --state-dir a stream cannot go on: its key is gone, and what it released stays released."
        )
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
    with tempfile.TemporaryDirectory(prefix="fedmf-stream-") as folder:
        yield Path(folder) / "state"


@contextmanager
def progress_view() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False)
    columns = TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("", total=None)

        def show(steps: int, rounds: int) -> None:
            progress.update(bar, completed=steps, total=rounds)

        yield show


class InputFormat(StrEnum):
    """How rows are written."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


class MethodName(StrEnum):
    """How both moments are made private."""

    joint = "joint"
    independent = "independent"
    concatenated = "concatenated"
    post_processing = "post-processing"


def stream(
    source: str = typer.Option(..., "--input", metavar="FILE", help="Rows; - for standard input."),
    clip_norm: float | None = typer.Option(
        None,
        "--clip-norm",
        metavar="Z",
        help="ζ, the largest norm of a row; longer ones are scaled to it. Default with --schema: the largest "
        "that its bounds allow.",
    ),
    epsilon: float = typer.Option(..., "--epsilon", metavar="E", help="Privacy budget ε."),
    delta: float = typer.Option(..., "--delta", metavar="D", help="Privacy budget δ."),
    output: Path | None = typer.Option(
        None,
        "--output",
        metavar="FILE",
        help="Releases, by its ending: .csv, .parquet, or .jsonl for JSON lines. Default: JSON on standard "
        "output.",
    ),
    state: Path | None = typer.Option(
        None,
        "--state-dir",
        metavar="DIR",
        help="Where to keep key and position, so that the same command continues after an interruption.",
    ),
    rounds: int | None = typer.Option(
        None,
        "--rounds",
        metavar="N",
        help="n, the most rows that will count; must be given for standard input. Default: the rows of FILE, "
        "whose number is then public.",
    ),
    release_every: int = typer.Option(
        1,
        "--release-every",
        metavar="R",
        help="Release after R, 2R, … and n rows alone. Rows are summed in between, and noise is drawn for "
        "releases alone: the fewer there are, the less noise.",
    ),
    workload: list[str] = typer.Option(
        ["average"],
        metavar="A",
        help="What is released: average, prefix, exponential:β, window:w or momentum:β, over releases; twice "
        "for the two moments.",
    ),
    method: MethodName = typer.Option(
        MethodName.joint, help="How both moments are made private (post-processing squares private rows)."
    ),
    second_moment: str = typer.Option(
        "full",
        "--second-moment",
        metavar="S",
        help="full (d×d), diagonal, trace (one number), or sizes of blocks such as 2,3.",
    ),
    schema: Path | None = typer.Option(
        None,
        "--schema",
        metavar="FILE",
        help="What the columns may hold (fedmf schema drafts it): numbers are scaled by it, categories "
        "coded, releases said in the columns' own units.",
    ),
    user_column: str | None = typer.Option(
        None, "--user-column", metavar="NAME", help="Column of user ids. Default: that of --schema."
    ),
    row_level: bool = typer.Option(
        False, "--row-level", help="No column says whose a row is: every row is another user's."
    ),
    rows_per_user: int = typer.Option(
        1, "--rows-per-user", metavar="K", help="k, the most rows of one user that count."
    ),
    min_separation: int | None = typer.Option(
        None,
        "--min-separation",
        metavar="B",
        help="b, the least number of rows between two of one user: with K > 1, the larger the less noise. "
        "Default: 1, or n for K = 1.",
    ),
    adjacency: Adjacency = typer.Option("zero-out", help="What one user's rows become in the other world."),
    mechanism: list[str] = typer.Option(
        ["auto"],
        "--mechanism",
        metavar="NAME",
        help="C, a name that fedmf design lists; twice for the two moments. Default: that of least error.",
    ),
    bands: int | None = typer.Option(
        None, "--bands", metavar="P", help="p, number of bands of C (banded-toeplitz by default)."
    ),
    objective: str | None = typer.Option(
        None,
        metavar="ERROR",
        help="What C minimises: rmse, max or last. Default for averages: the error relative to a single "
        "release of the same rows, later ones more.",
    ),
    param: list[str] = typer.Option([], "--param", metavar="KEY=VALUE", help="Another parameter of C."),
    weight: str | None = typer.Option(
        None,
        "--weight",
        metavar="L",
        help="How noise is divided between the moments: λ of joint, share α of independent, scale τ of "
        "concatenated; or of joint what the last release is to tell: mean, covariance or density.",
    ),
    columns: str | None = typer.Option(
        None,
        "--columns",
        metavar="A,B",
        help="Columns of numbers. Default: those of --schema, else all that no option names.",
    ),
    timestamp: str | None = typer.Option(
        None,
        "--timestamp",
        metavar="COLUMN",
        help="Column of times, hereby declared public: the text of a release's last row stands in it.",
    ),
    row_id: str | None = typer.Option(
        None,
        "--row-id",
        metavar="COLUMN",
        help="Column of ids of rows, hereby declared public, likewise. Never ids of users.",
    ),
    input_format: InputFormat | None = typer.Option(
        None, "--input-format", help="Default: by the ending of FILE, else by its first byte."
    ),
    raw: bool = typer.Option(
        False, "--raw", help="Release the weighted sums too, and the covariance before it is made definite."
    ),
    alarms: Path | None = typer.Option(
        None,
        "--alarms",
        metavar="FILE",
        help="CSV of the rows that the release before them finds strange; not private, for the operator.",
    ),
    scored: Path | None = typer.Option(
        None,
        "--score",
        metavar="FILE",
        help="Rows that the last release scores for --alarms, not the input's.",
    ),
    false_alarms: float = typer.Option(
        0.01, "--false-alarms", metavar="RATE", help="Share of ordinary rows that --alarms may name."
    ),
    from_row: int = typer.Option(
        1, "--from-row", metavar="I", help="Which row of the stream the input begins with."
    ),
    plot: Path | None = typer.Option(
        None,
        "--plot",
        metavar="FILE",
        help="Draw the released means over time, and the last covariance (needs matplotlib).",
    ),
    full: bool = typer.Option(False, "--full", help="Show the whole privacy statement at the end."),
    seed: int | None = typer.Option(
        None, "--seed", metavar="S", help="Public noise for tests: reproducible, NOT private."
    ),
) -> None:
    """Release private running means and covariances of rows.

    With --state-dir, a stream that was stopped in any way, kill -9 included, continues with the same command:
    what was released stays, and later releases get fresh noise. The privacy statement is in that directory
    too. What depends on rows without noise, such as how many were invalid, is in its operator.json alone.

    Example: fedmf stream --input rows.csv --schema schema.toml --epsilon 8 --delta 1e-5 --output m.csv
    """
    from fedmf.cli.stream_screen import answer, check_told, first_lines
    from fedmf.data import read_schema
    from fedmf.streaming import Alarms, Settings, open_run
    from fedmf.streaming.reader import open_reader
    from fedmf.values import parse_parameters

    if scored is not None and alarms is None:
        raise typer.BadParameter(f"--score needs --alarms FILE for its result; got {scored} alone.")
    if plot is not None:
        from fedmf.cli.plots import check_picture

        check_picture("--plot", plot)
    names = None if columns is None else tuple(columns.split(","))
    declared = None if schema is None else read_schema(schema)
    settings = Settings(
        clip_norm=_clip_norm(clip_norm, declared, names),
        schema=declared,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        user_column=user_column or (None if declared is None else declared.user),
        max_participations=rows_per_user,
        min_separation=min_separation,
        workloads=tuple(workload),
        method=method.value,
        mechanisms=tuple(mechanism),
        bands=bands,
        objective=objective,
        params=parse_parameters(param),
        second_moment=second_moment,
        weight=_weight(weight),
        adjacency=adjacency,
        columns=names,
        timestamp=timestamp,
        row_id=row_id,
        release_every=release_every,
        seed=seed,
    )
    rows, err = None if source == "-" else Path(source), output is None
    with (
        ExitStack() as kept,
        going_on(lambda: how_to_go_on(state, rows)),
        state_directory(state) as directory,
        progress_view() as show,
        open_run(
            directory,
            settings,
            rows,
            output,
            file_format=None if input_format is None else input_format.value,
            first_row=from_row,
            progress=show,
            remembered=state is not None,
            raw=raw,
            admit=lambda layout: check_told(settings, layout, row_level),
        ) as (run, reader),
    ):
        for line in first_lines(run.plan):
            typer.echo(line, err=err)
        show(run.position.step, run.plan.rounds)
        strange = None if alarms is None else kept.enter_context(Alarms(alarms, settings, false_alarms))
        live = None if strange is None or scored is not None else strange
        run.feed(reader, rounds is None, live and (lambda rows, first: live.watch(run.last(), rows, first)))
        statement, last = run.conclude(), run.last()
        said = answer(run.plan, run.position, last, run.waiting)
        if strange is not None and scored is not None:
            strange.score(last, kept.enter_context(open_reader(scored, settings)))
        if strange is not None:
            said += f"Not private, for the operator only: {strange}; see {alarms}.\n"
        if plot is not None:
            from fedmf.cli.plots import draw_stream

            draw_stream(run.renderer, run.state.releases, run.position.records, plot, last)
    rest = "--full" if state is None else "--full, or statement.txt in the state directory"
    typer.echo(said + statement.render_text(full, rest), nl=False, err=err)


def _clip_norm(given: float | None, schema: Schema | None, columns: tuple[str, ...] | None) -> float:
    if given is not None:
        return given
    if schema is None:
        raise typer.BadParameter("--clip-norm Z must be given without --schema; got none.")
    return schema.encoding(columns).norm_bound


def _weight(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
