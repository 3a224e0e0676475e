"""``fedmf stream``: private running means and covariances of a stream of rows."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import typer

from fedmf.cli.interruption import going_on
from fedmf.cli.shared_options import ADJACENCY, BANDS, FULL, PARAMS, PLOT, flag, option
from fedmf.participation import Adjacency


def stream(
    source: str = option(..., "FILE", "Input file, or - for standard input.", "--input"),
    clip_norm: float | None = option(
        None,
        "Z",
        "Clip norm ζ: longer rows are scaled down to this L2 norm. Default: from --schema.",
    ),
    epsilon: float = option(..., "E", "Privacy budget ε."),
    delta: float = option(..., "D", "Privacy budget δ."),
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
    rounds: int | None = option(
        None, "N", "Largest number of rows that count, n. Default: counted in FILE, and public."
    ),
    release_every: int = option(
        1, "R", "Release only after R, 2R, … and n rows; fewer releases need less noise."
    ),
    workload: list[str] = option(
        ["average"],
        "A",
        "average, prefix, exponential:β, window:w or momentum:β; give two for two moments.",
    ),
    method: Literal["joint", "independent", "concatenated", "post-processing"] = option(
        "joint", None, "How both moments are made private (post-processing squares private rows)."
    ),
    second_moment: str = option(
        "full", "S", "full (d×d), diagonal, trace (one number), or sizes of blocks such as 2,3."
    ),
    schema: Path | None = option(
        None, "FILE", "Ranges of the columns (see fedmf schema); releases are in their units."
    ),
    user_column: str | None = option(None, "NAME", "Column of user ids. Default: from --schema."),
    row_level: bool = flag("--row-level", "Treat every row as a different user (no user column)."),
    rows_per_user: int = option(1, "K", "Largest number of rows of one user that count, k."),
    min_separation: int | None = option(
        None,
        "B",
        "Smallest distance of two rows of one user, b; larger needs less noise. Default: 1.",
    ),
    adjacency: Adjacency = ADJACENCY,
    mechanism: list[str] = option(
        ["auto"],
        "NAME",
        "Mechanism, as in fedmf design; give two for two moments. Default: smallest error.",
    ),
    bands: int | None = BANDS,
    objective: str | None = option(
        None,
        "ERROR",
        "Error that C minimises: rmse, max or last. Default: relative to a single release.",
    ),
    param: list[str] = PARAMS,
    weight: str | None = option(
        None, "L", "λ, α or τ of the method, or the goal of joint: mean, covariance or density."
    ),
    columns: str | None = option(
        None, "A,B", "Columns of numbers. Default: from --schema; rows that are arrays need none."
    ),
    timestamp: str | None = option(
        None, "COLUMN", "Column of times to publish: each release has the value of its last row."
    ),
    row_id: str | None = option(
        None, "COLUMN", "Column of row ids to publish in the same way; never user ids."
    ),
    input_format: Literal["csv", "jsonl", "parquet"] | None = option(
        None, None, "Default: from the suffix of FILE, or from its first byte."
    ),
    raw: bool = flag("--raw", "Also release weighted sums and the unprojected covariance."),
    keep_releases: bool = flag(
        "--keep-releases",
        "Keep the released integers in DIR/released: anyone can check the statement.",
    ),
    alarms: Path | None = option(
        None,
        "FILE",
        "CSV of unusual rows, numbered from 1 below the header; not private, for the operator.",
    ),
    scored: Path | None = option(
        None, "FILE", "With --alarms: score the rows of this file with the last release.", "--score"
    ),
    false_alarms: float = option(0.01, "RATE", "Expected share of ordinary rows in --alarms."),
    from_row: int = option(1, "I", "Number in the stream of the first row of the input."),
    plot: Path | None = PLOT,
    dry_run: bool = flag("--dry-run", "Show how large the noise would be, and release nothing."),
    full: bool = FULL,
    seed: int | None = option(None, "S", "Public noise seed for tests: reproducible, NOT private."),
) -> None:
    """Release private running means and covariances of rows.

    With --state-dir, the same command continues a stream after any interruption, including kill -9,
    with fresh noise. The directory also contains the privacy statement, and operator.json with
    exact counts, which must not be published.

    Example: fedmf stream --input rows.csv --schema schema.toml --epsilon 8 --delta 1e-5 --output
    m.csv
    """
    from rich.console import Console

    from fedmf.cli.stream_screen import answer, check_told, expected, first_lines
    from fedmf.data import read_schema
    from fedmf.runs.progress import bar
    from fedmf.streaming import Alarms, Settings, open_run
    from fedmf.streaming.stream_rows import open_scored
    from fedmf.values import parse_parameters

    if scored is not None and alarms is None:
        raise typer.BadParameter(f"--score needs --alarms FILE for its result; got {scored} alone.")
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
        weight=_weight(weight),
        adjacency=adjacency,
        columns=None if columns is None else tuple(columns.split(",")),
        timestamp=timestamp,
        row_id=row_id,
        release_every=release_every,
        keep_releases=keep_releases,
        seed=seed,
    )
    check_told(settings, row_level)
    if keep_releases and state is None:
        raise typer.BadParameter("--keep-releases needs --state-dir DIR, in which they are kept.")
    output = None if output == Path("-") else output
    if dry_run:
        state = output = alarms = scored = None
    rows = None if source == "-" else Path(source)
    err = output is None and not dry_run
    with (
        ExitStack() as kept,
        going_on(lambda: _how(state, rows)),
        bar(Console(stderr=True, markup=False), "step") as show,
        open_run(
            state or Path(kept.enter_context(TemporaryDirectory(prefix="fedmf-stream-"))) / "state",
            settings,
            rows,
            output,
            file_format=input_format,
            first_row=from_row,
            progress=lambda steps, n: show(steps, n, ""),
            remembered=state is not None,
            raw=raw,
        ) as (run, reader),
    ):
        # Before any row is released, and before there is a file of alarms.
        others = scored and kept.enter_context(open_scored(scored, settings, run.plan.layout))
        strange = (
            None if alarms is None else kept.enter_context(Alarms(alarms, settings, false_alarms))
        )
        for line in first_lines(run.plan):
            typer.echo(line, err=err)
        if dry_run:
            typer.echo(expected(run.plan), nl=False)
            return
        show(run.position.step, run.plan.rounds, "")
        live = None if strange is None or others is not None else strange
        run.feed(
            reader,
            rounds is None,
            live and (lambda rows, first: live.watch(run.last(), rows, first)),
        )
        statement = run.conclude()
        last = run.last()
        said = answer(run.plan, run.ahead, last, run.waiting)
        if run.full:
            said += (
                f"WARNING: all {run.plan.rounds:,} rows of this stream have come; further rows of"
                " the input are in no release. --rounds at its start leaves room for later rows.\n"
            )
        if strange is not None:
            if others is not None:
                strange.score(last, others)
            said += f"Not private, for the operator only: {strange}; see {alarms}.\n"
        if plot is not None:
            from fedmf.cli.plots import draw_stream

            draw_stream(run.renderer, run.state.releases, run.position.records, plot, last)
    rest = "--full" if state is None else "--full, or statement.txt in the state directory"
    typer.echo(said + statement.render_text(full, rest), nl=False, err=err)


def _how(state: Path | None, rows: Path | None) -> str:
    """How to continue a stream that was stopped."""
    if state is None:
        return (
            "without --state-dir the key is lost and the stream cannot continue; its releases stay"
            " public."
        )
    other = "" if rows else " and the same rows, or with --from-row and the rows that follow"
    return f"all finished rows are kept; continue with the same command{other}."


def _weight(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
