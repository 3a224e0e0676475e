"""``fedmf stream``: private running means and covariances of a stream of rows.

The options become `fedmf.streaming.Settings`; `open_run` starts or continues the stream, and
`fedmf.cli.stream_screen` writes the text for the screen.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from fedmf.cli.interruption import continuable
from fedmf.cli.log import LogFormat, log
from fedmf.cli.shared_options import (
    FULL,
    LOG_FORMAT,
    PLOT,
    adjacency_option,
    bands_option,
    flag,
    option,
    params_option,
)
from fedmf.errors import HorizonExceededError, LedgerError
from fedmf.participation import Adjacency

if TYPE_CHECKING:
    from fedmf.data.user_files import RowFiles
    from fedmf.streaming import Alarms, PrivateRelease, Settings, StreamPlan, StreamRun
    from fedmf.streaming.stream_rows import Reader, RowBlock

#: The second panel of the help.
_ADVANCED: Final = "Advanced"
_advanced_option = partial(option, rich_help_panel=_ADVANCED)
_advanced_flag = partial(flag, rich_help_panel=_ADVANCED)


def stream(
    source: str = option(..., "FILE", "Input file, or - for standard input.", "--input"),
    user_from: Literal["column", "filename"] = option(
        "column", None, "filename: --input is a folder with a CSV or Parquet file for each user."
    ),
    schema: Path | None = option(
        None, "FILE", "Ranges of the columns (see fedmf schema); releases are in their units."
    ),
    epsilon: float = option(..., "E", "Privacy budget ε."),
    delta: float = option(..., "D", "Privacy budget δ."),
    user_column: str | None = option(None, "NAME", "Column of user ids. Default: from --schema."),
    row_level: bool = flag("--row-level", "Treat every row as a different user (no user column)."),
    rows_per_user: int = option(1, "K", "Largest number of rows of one user that count, k."),
    rounds: int | None = option(
        None,
        "N",
        "Largest number of rows that count, n (of periods with --time-column). Default: counted in"
        " FILE, and public.",
    ),
    output: Path | None = option(
        None,
        "FILE",
        "Output file: .csv, .parquet or .jsonl. Default: JSON lines on standard output.",
    ),
    state: Path | None = option(
        None,
        "DIR",
        "Stores noise key and position, so that the same command continues.",
        "--state-dir",
    ),
    dry_run: bool = flag("--dry-run", "Show how large the noise would be, and release nothing."),
    clip_norm: float | None = option(
        None,
        "Z",
        "Clip norm ζ: longer rows are scaled down to this L2 norm. Default: from --schema.",
    ),
    columns: str | None = option(
        None, "A,B", "Columns of numbers. Default: from --schema; rows that are arrays need none."
    ),
    release_every: str = option(
        "1",
        "R",
        "Release only after R, 2R, … and n rows; fewer releases need less noise. With --time-column"
        " a time such as 1w, 12h or 1d.",
    ),
    time_column: str | None = option(
        None, "NAME", "Column of times, which are private: a release for each week, day or hour."
    ),
    start: str | None = option(None, "TIME", "Beginning of the first period, such as 2026-01-05."),
    until: str | None = option(
        None,
        "TIME",
        "Release all periods that ended by then, and spend ε on them for good. Default: now, so a"
        " first run on old data releases many at once.",
    ),
    users_per_period: int | None = option(
        None,
        "M",
        "With --dry-run and --time-column: the expected number of users in a period, for the noise"
        " that it shows. Default: 1000.",
        min=1,
    ),
    workload: list[str] = option(
        ["average"],
        "A",
        "average, prefix, exponential:β, window:w or momentum:β; give two for two moments. With"
        " --time-column, window:1 is each period alone.",
    ),
    timestamp: str | None = option(
        None, "COLUMN", "Column of times to publish: each release has the value of its last row."
    ),
    alarms: Path | None = option(
        None,
        "FILE",
        "CSV of unusual rows, numbered from 1 below the header; not private, for the operator.",
    ),
    plot: Path | None = PLOT,
    full: bool = FULL,
    log_format: LogFormat = LOG_FORMAT,
    min_separation: int | None = _advanced_option(
        None,
        "B",
        "Smallest distance of two rows of one user, b; larger needs less noise. Default: 1.",
    ),
    second_moment: str = _advanced_option(
        "full",
        "S",
        "full (d×d), diagonal, trace (one number), or sizes of blocks such as 2,3. With"
        " --time-column: full or diagonal.",
    ),
    method: Literal["joint", "independent", "concatenated", "post-processing"] = _advanced_option(
        "joint",
        "NAME",
        "How both moments are made private: joint, independent, concatenated or post-processing,"
        " which squares private rows.",
    ),
    weight: str | None = _advanced_option(
        None,
        "L",
        "λ, α or τ of the method, or the goal of joint: mean, covariance or density (no goal with"
        " --time-column).",
    ),
    mechanism: list[str] = _advanced_option(
        ["auto"],
        "NAME",
        "Mechanism, as in fedmf design; give two for two moments. Default: smallest error.",
    ),
    objective: str | None = _advanced_option(
        None,
        "ERROR",
        "Error that C minimizes: rmse, max or last. Default: relative to a single release.",
    ),
    bands: int | None = bands_option(_ADVANCED),
    param: list[str] = params_option(_ADVANCED),
    adjacency: Adjacency = adjacency_option(_ADVANCED),
    input_format: Literal["csv", "jsonl", "parquet"] | None = _advanced_option(
        None, None, "Default: from the suffix of FILE, or from its first byte."
    ),
    from_row: int = _advanced_option(1, "I", "Number in the stream of the first row of the input."),
    row_id: str | None = _advanced_option(
        None, "COLUMN", "Column of row ids to publish in the same way; never user ids."
    ),
    scored: Path | None = _advanced_option(
        None, "FILE", "With --alarms: score the rows of this file with the last release.", "--score"
    ),
    false_alarms: float = _advanced_option(
        0.01, "RATE", "Expected share of ordinary rows in --alarms."
    ),
    raw: bool = _advanced_flag(
        "--raw", "Also release weighted sums and the unprojected covariance."
    ),
    keep_releases: bool = _advanced_flag(
        "--keep-releases",
        "Keep the released integers in DIR/released: anyone can check the statement.",
    ),
    seed: int | None = _advanced_option(
        None, "S", "Public noise seed for tests: reproducible, NOT private."
    ),
) -> None:
    """Release private running means and covariances of rows.

    With --state-dir, the same command continues a stream after any interruption, including kill -9,
    with fresh noise. The directory also contains the privacy statement, and operator.json with
    exact counts, which must not be published.

    Example: fedmf stream --input rows.csv --schema schema.toml --epsilon 8 --delta 1e-5 --output
    m.csv
    """
    from fedmf.cli.stream_screen import (
        answer,
        check_user_option,
        dry_run_lines,
        first_lines,
        first_warnings,
        warnings_of,
    )
    from fedmf.data import read_schema
    from fedmf.streaming import Alarms, Settings
    from fedmf.streaming.stream_rows import open_scored
    from fedmf.values import parse_parameters

    log.use(log_format)
    _check_companions(alarms, scored, state, keep_releases, time_column)
    _check_expected_users(users_per_period, dry_run, time_column)
    settings = Settings(
        clip_norm=math.nan if clip_norm is None else clip_norm,
        schema=None if schema is None else read_schema(schema),
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        user_column=user_column,
        max_participations=rows_per_user,
        min_separation=min_separation,
        workloads=tuple(workload),
        method=method,
        mechanisms=tuple(mechanism),
        bands=bands,
        objective=objective,
        params=parse_parameters(param),
        second_moment=second_moment,
        weight=_number_or_goal(weight),
        adjacency=adjacency,
        columns=None if columns is None else tuple(columns.split(",")),
        timestamp=timestamp,
        row_id=row_id,
        release_every=int(release_every) if release_every.isdecimal() else release_every,
        time_column=time_column,
        start=start,
        keep_releases=keep_releases,
        seed=seed,
    )
    check_user_option(settings, row_level)
    closing_time = _closing_time(until, settings)
    if output == Path("-"):
        output = None
    if dry_run:  # which leaves no file
        state = output = alarms = scored = None
    rows_file = _rows_of(source, user_from, settings)
    alarm_file = None if alarms is None else Alarms(alarms, settings, false_alarms)
    to_stderr = output is None and not dry_run  # the releases go to standard output

    with ExitStack() as stack:
        directory = state or _temporary_directory(stack)
        stack.enter_context(continuable(partial(_how_to_continue, state, rows_file)))
        stack.enter_context(_delivering())
        show = stack.enter_context(_progress(epsilon))
        opened = _opening(settings, from_row)(
            directory,
            settings,
            rows_file,
            output,
            file_format=input_format,
            progress=lambda step, n: show(step, n, ""),
            remembered=state is not None,
            raw=raw,
        )
        run, reader = stack.enter_context(opened)

        # Both files are opened before any row is released.
        scored_rows = None
        if scored is not None:
            scored_rows = stack.enter_context(open_scored(scored, settings, run.plan.layout))
        if alarm_file is not None:
            stack.enter_context(alarm_file)

        _say("\n".join(first_lines(run.plan)), to_stderr, first_warnings(run.plan))
        if dry_run:
            typer.echo(dry_run_lines(run.plan, users_per_period), nl=False)
            _show_counts(rows_file, run, reader)
            return

        show(run.position.step, run.plan.rounds, "")
        _take(
            run, reader, closing_time, rows_file is not None, _watch(alarm_file, scored_rows, run)
        )
        statement = run.conclude()
        last = run.last()

        text = answer(run.plan, run.ahead, last, run.waiting)
        if alarm_file is not None and scored_rows is not None:
            alarm_file.score(last, scored_rows)
        if alarm_file is not None:
            text += f"Not private, for the operator only: {alarm_file}; see {alarms}.\n"
        if plot is not None:
            _draw(run, last, plot)
    _say(text, to_stderr, warnings_of(run.plan, last))
    _say(statement.render_text(full, _more(state)), to_stderr)
    if run.full:
        raise HorizonExceededError(_end_of(run.plan))


def _draw(run: StreamRun, last: PrivateRelease | None, plot: Path) -> None:
    """Draw the releases of a run."""
    from fedmf.cli.plots import draw_stream

    draw_stream(run.renderer, run.state.releases, run.position.records, plot, last)


def _end_of(plan: StreamPlan) -> str:
    """Return that a stream takes no more rows, and what does."""
    if plan.settings.calendar is not None:
        return (
            f"all {plan.rounds:,} periods of this stream were released before, so rows of the input"
            " are in no further release. To release later rows, start another stream with a later"
            " --start, which has its own epsilon."
        )
    return (
        f"all {plan.rounds:,} rows of this stream were received; further rows of the input are in"
        " no release. To leave room for later rows, start a stream with a larger --rounds."
    )


def _say(text: str, to_stderr: bool, warnings: Sequence[str] = ()) -> None:
    """Show text and then warnings: on standard output, unless that has the releases.

    A JSON log has each warning as an object.
    """
    lines = [text.removesuffix("\n")]
    if log.as_json:
        for warning in warnings:
            log.write(warning=warning)
    else:
        lines += [f"WARNING: {warning}" for warning in warnings]
    show = log.say if to_stderr else typer.echo
    show("\n".join(lines))


@contextmanager
def _progress(epsilon: float) -> Iterator[Callable[[int, int | None, str], None]]:
    """Return a function that shows the steps after a commit, on the screen or in the log."""
    if not log.as_json:
        from rich.console import Console

        from fedmf.runs.progress import bar

        with bar(Console(stderr=True, markup=False), "step") as show:
            yield show
        return
    began = time.perf_counter()

    def write(step: int, steps: int | None, _: str) -> None:
        seconds = round(time.perf_counter() - began, 3)
        log.write(step=step, steps=steps, epsilon=epsilon, seconds=seconds)

    yield write


@contextmanager
def _delivering() -> Iterator[None]:
    """Turn the error of a pipe that nobody reads any more into a message.

    Raises:
        LedgerError: releases were not delivered.
    """
    try:
        yield
    except BrokenPipeError as error:
        sys.stdout = io.StringIO()  # Python flushes it at the end
        raise LedgerError(
            "standard output was closed by its reader, so releases were not delivered; with"
            " --state-dir they are kept, and the same command delivers them."
        ) from error


def _opening(settings: Settings, from_row: int) -> Callable[..., Any]:
    """Return the function that opens a stream of these settings."""
    from fedmf.streaming import open_periods, open_run

    if settings.calendar is not None:
        return open_periods
    return partial(open_run, first_row=from_row)


def _take(
    run: StreamRun,
    reader: Reader,
    closing_time: datetime,
    whole: bool,
    watch: Callable[[RowBlock, int], None] | None,
) -> None:
    """Take the rows of an input; a stream of periods then releases those that have ended."""
    from fedmf.streaming import PeriodRun

    if isinstance(run, PeriodRun):
        run.collect(reader)
        run.close_until(closing_time)
    else:
        run.feed(reader, whole, watch)


def _check_companions(
    alarms: Path | None,
    scored: Path | None,
    state: Path | None,
    keep_releases: bool,
    time_column: str | None,
) -> None:
    """Reject options that have no effect without another one."""
    if time_column is not None and alarms is not None and scored is None:
        raise typer.BadParameter("--alarms needs --score FILE with --time-column.")
    if scored is not None and alarms is None:
        raise typer.BadParameter(f"--score needs --alarms FILE for its result; got {scored} alone.")
    if scored is not None and not scored.exists():
        raise typer.BadParameter(f"--score must be a file that exists; got {scored}.")
    if alarms is not None and not alarms.parent.is_dir():
        raise typer.BadParameter(f"--alarms must lie in a folder that exists; got {alarms}.")
    if keep_releases and state is None:
        raise typer.BadParameter("--keep-releases needs --state-dir DIR, in which they are kept.")


def _check_expected_users(
    users_per_period: int | None, dry_run: bool, time_column: str | None
) -> None:
    """Reject a number of users that would have no effect."""
    if users_per_period is not None and not (dry_run and time_column is not None):
        raise typer.BadParameter(
            "--users-per-period needs --dry-run and --time-column, as it changes no release; got"
            f" {users_per_period} alone."
        )


def _rows_of(source: str, user_from: str, settings: Settings) -> RowFiles | None:
    """Return the files of the rows; None for standard input."""
    from fedmf.data.user_files import UserFiles

    if user_from == "filename":
        if settings.user_column is None:
            raise typer.BadParameter(
                "--user-from filename needs --user-column NAME or a schema with a column of users,"
                " which the names of the files become."
            )
        return UserFiles(Path(source), settings.user_column)
    if source == "-":
        return None
    return Path(source)


def _closing_time(until: str | None, settings: Settings) -> datetime:
    """Return the time up to which periods are closed, by default now."""
    from fedmf.data.schema import time_of

    now = datetime.now(UTC)
    if until is None:
        return now
    if settings.calendar is None:
        raise typer.BadParameter(f"--until needs --time-column; got {until} alone.")
    at = time_of(until)
    if at is None:
        raise typer.BadParameter(f"--until must be a time such as 2026-01-31; got {until!r}.")
    at = at.replace(tzinfo=at.tzinfo or settings.calendar.zone)
    if at > now:
        raise typer.BadParameter(
            f"--until must not be later than the clock; got {until}, which would permanently close"
            " periods that have not ended. Leave it out to release those that have."
        )
    return at


def _show_counts(rows_file: RowFiles | None, run: StreamRun, reader: Reader) -> None:
    """Print the operator's counts of a file, all of which is read; nothing for a pipe."""
    from fedmf.streaming.input_counts import lines_for_operator

    if rows_file is not None:
        for line in lines_for_operator(run, reader):
            typer.echo(line)


def _temporary_directory(stack: ExitStack) -> Path:
    """Return a state directory that is removed when the stack is closed."""
    folder = stack.enter_context(TemporaryDirectory(prefix="fedmf-stream-"))
    return Path(folder) / "state"


def _watch(
    alarm_file: Alarms | None, scored_rows: Reader | None, run: StreamRun
) -> Callable[[RowBlock, int], None] | None:
    """Return the function that scores each row of the stream with the last release before it."""
    if alarm_file is None or scored_rows is not None:
        return None
    return lambda rows, first: alarm_file.watch(run.last(), rows, first)


def _more(state: Path | None) -> str:
    """Return where the whole statement is."""
    if state is None:
        return "--full"
    return "--full, or statement.txt in the state directory"


def _how_to_continue(state: Path | None, rows_file: RowFiles | None) -> str:
    """Return how to continue a stream that was stopped."""
    if state is None:
        return (
            "without --state-dir the key is lost and the stream cannot continue; its releases stay"
            " public."
        )
    if rows_file is None:
        return (
            "all finished rows are kept; continue with the same command and the same rows, or with"
            " --from-row and the rows that follow."
        )
    return "all finished rows are kept; continue with the same command."


def _number_or_goal(weight: str | None) -> float | str | None:
    if weight is None:
        return None
    try:
        return float(weight)
    except ValueError:
        return weight
