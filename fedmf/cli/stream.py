"""``fedmf stream``: private running means and covariances of a stream of rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedmf.cli.design import AdjacencyName, parse_parameters
from fedmf.cli.interruption import going_on

if TYPE_CHECKING:
    from fedmf.data import Schema
    from fedmf.moments import PrivateGaussian
    from fedmf.records import PrivacyStatement
    from fedmf.streaming import Settings


def conclusion(
    statement: PrivacyStatement,
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
    where = "--full" if state is None else "--full, or statement.txt in the state directory"
    text = statement.render_text(full, where)
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


class OutputFormat(StrEnum):
    """How releases are written."""

    json = "json"
    tidy = "tidy"
    wide = "wide"


class OnLong(StrEnum):
    """What happens to rows longer than the norm bound."""

    clip = "clip"
    refuse = "refuse"


def stream(
    source: str = typer.Option(..., "--input", metavar="FILE", help="Rows; - for standard input."),
    norm_bound: float | None = typer.Option(
        None,
        "--norm-bound",
        metavar="Z",
        help="ζ, the largest norm of a row; see --on-long for longer ones. Default with --schema: the "
        "largest that its bounds allow.",
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
        "--state",
        metavar="DIR",
        help="Where to keep key and position, so that the same command goes on after an interruption.",
    ),
    rounds: int | None = typer.Option(
        None,
        "--rounds",
        metavar="N",
        help="n, the most steps there will be; must be given for standard input. Default: the rows of FILE, "
        "whose number is then public.",
    ),
    workload: list[str] = typer.Option(
        ["average"],
        metavar="A",
        help="What is released: prefix, exponential:β, window:w, average or momentum:β; twice for the two "
        "moments.",
    ),
    method: str = typer.Option(
        "jme",
        metavar="M",
        help="How both moments are made private: jme (joint), ime (apart), cs (as one vector) or pp (squares "
        "of private rows).",
    ),
    second: str = typer.Option(
        "full",
        metavar="S",
        help="Second moment: full (d×d), diagonal, energy (one number), or sizes of blocks such as 2,3.",
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
    each_row_a_user: bool = typer.Option(
        False, "--each-row-a-user", help="No column says whose a row is: every row is another user's."
    ),
    user_namespace: str = typer.Option(
        "", "--user-namespace", metavar="NAME", help="What user ids are ids of, to join this with others."
    ),
    max_participations: int | None = typer.Option(
        None, "--max-participations", metavar="K", help="k, the most rows of one user that count. Default: 1."
    ),
    min_separation: int | None = typer.Option(
        None,
        "--min-separation",
        metavar="B",
        help="b, the least number of steps between two rows of one user. Default: n.",
    ),
    adjacency: AdjacencyName = typer.Option(
        AdjacencyName.zero_out, help="What one user's rows become in the other world."
    ),
    mechanism: list[str] = typer.Option(
        ["banded-toeplitz"],
        "--mechanism",
        metavar="NAME",
        help="C, a name that fedmf design lists; twice for the two moments.",
    ),
    bands: int | None = typer.Option(
        None, "--bands", metavar="P", help="p, number of bands of C. Default: b, 32 at most."
    ),
    param: list[str] = typer.Option([], "--param", metavar="KEY=VALUE", help="Another parameter of C."),
    weight: str | None = typer.Option(
        None,
        "--weight",
        metavar="L",
        help="How noise is divided between the moments: λ of jme, share α of ime, scale τ of cs; best: λ "
        "with the least error of what is released.",
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
        help="Column of times, hereby declared public: the text of a step's row stands in its release.",
    ),
    key: str | None = typer.Option(
        None,
        "--key",
        metavar="COLUMN",
        help="Column of the rows' keys, hereby declared public, likewise. Never ids of users.",
    ),
    input_format: InputFormat | None = typer.Option(
        None, "--input-format", help="Default: by the ending of FILE, else by its first byte."
    ),
    output_format: OutputFormat | None = typer.Option(
        None,
        "--format",
        help="Releases as JSON lines, or as CSV with the input's names and a standard error of each number: "
        "tidy (a row for each) or wide (a row a step). Default: wide for .csv, else json.",
    ),
    density: bool = typer.Option(
        False,
        "--density",
        help="Say with each release its Gaussian density (positive definite), 95 % intervals of mean, "
        "covariance and correlations, and what is too noisy to say.",
    ),
    on_long: OnLong = typer.Option(
        OnLong.clip, help="What happens to rows longer than ζ; refused ones count as unreadable."
    ),
    stop_at_bad_row: bool = typer.Option(
        False,
        "--stop-at-bad-row",
        help="Stop before the first unreadable row, which is not private; the statement says so. Default: it "
        "counts as a zero vector.",
    ),
    asked_counts: bool = typer.Option(
        False,
        "--show-counts",
        help="Say how many rows were clipped, zeroed and refused. Not private: for the operator alone.",
    ),
    every: int = typer.Option(
        1, "--every", metavar="R", help="Release steps R, 2R, … and n alone; the noise is the same."
    ),
    from_row: int = typer.Option(
        1, "--from-row", metavar="I", help="Which row of the stream the input begins with."
    ),
    plot: Path | None = typer.Option(
        None,
        "--plot",
        metavar="FILE",
        help="Draw the released means over time, and the density (needs matplotlib).",
    ),
    full: bool = typer.Option(False, "--full", help="Show the whole privacy statement at the end."),
    seed: int | None = typer.Option(
        None, "--seed", metavar="S", help="Public noise for tests: reproducible, NOT private."
    ),
) -> None:
    """Release private running means and covariances, a step for each row.

    With --state, a stream that was stopped in any way, kill -9 included, goes on with the same command: what
    was released stays, and later steps get fresh noise. The privacy statement is in that directory too. What
    depends on rows without noise, such as how many could not be read, is in its file operator.json alone.

    Example: fedmf stream --input rows.csv --schema schema.toml --epsilon 8 --delta 1e-5 --output m.csv
    """
    from fedmf.data import read_schema
    from fedmf.streaming import Settings, check_told

    if plot is not None:
        from fedmf.cli.plots import check_picture

        check_picture("--plot", plot)
    names = None if columns is None else tuple(columns.split(","))
    declared = None if schema is None else read_schema(schema)
    settings = Settings(
        norm_bound=_norm_bound(norm_bound, declared, names),
        schema=declared,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        user_column=user_column or (None if declared is None else declared.user),
        user_namespace=user_namespace,
        max_participations=max_participations,
        min_separation=min_separation,
        workloads=tuple(workload),
        method=method,
        mechanisms=tuple(mechanism),
        bands=bands,
        params=parse_parameters(param),
        second=second,
        weight=_weight(weight),
        adjacency=adjacency.value,
        columns=names,
        timestamp=timestamp,
        key=key,
        every=every,
        seed=seed,
    )
    rows = None if source == "-" else Path(source)
    options: dict[str, Any] = {
        "file_format": None if input_format is None else input_format.value,
        "first_row": from_row,
        "shape": None if output_format is None else output_format.value,
        "density": density,
        "remembered": state is not None,
        "admit": lambda layout: check_told(settings, layout, each_row_a_user),
    }
    handling = {"clip": on_long is OnLong.clip, "stop_at_faulty": stop_at_bad_row}
    with going_on(lambda: how_to_go_on(state, rows)), state_directory(state) as directory:
        statement, counts, last, names = _run(directory, settings, rows, output, options, handling, plot)
    typer.echo(conclusion(statement, last, names, state, full), nl=False, err=output is None)
    if asked_counts:
        show_counts(counts)


def _norm_bound(given: float | None, schema: Schema | None, columns: tuple[str, ...] | None) -> float:
    if given is None and schema is None:
        raise typer.BadParameter("--norm-bound Z must be given without --schema; got none.")
    if given is None:
        assert schema is not None
        return schema.encoding(columns).norm_bound
    return given


def _weight(text: str | None) -> float | str | None:
    if text is None or text == "best":
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"--weight must be a number or best; got {text!r}.") from None


def _run(
    directory: Path,
    settings: Settings,
    source: Path | None,
    output: Path | None,
    options: dict[str, Any],
    handling: dict[str, bool],
    plot: Path | None,
) -> tuple[PrivacyStatement, dict[str, int], PrivateGaussian | None, tuple[str, ...]]:
    """Statement, counts for the operator, the density of the last release if asked for, names of numbers."""
    from fedmf.streaming import Handling, first_lines, open_run

    with (
        progress_view() as show,
        open_run(
            directory, settings, source, output, handling=Handling(**handling), progress=show, **options
        ) as (run, reader),
    ):
        for line in first_lines(run.plan, reader.layout):
            typer.echo(line, err=output is None)
        show(run.position.step, run.plan.rounds)
        run.feed(reader, count_late=source is not None)
        statement = run.conclude()
        last = run.gaussian() if options["density"] else None
        if plot is not None:
            from fedmf.cli.plots import draw_stream

            draw_stream(run.means(), run.names, plot, last)
        return statement, run.position.counts(), last, run.names
