"""Begin a stream or go on with one: reader, plan, key and state directory together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from fedmf.errors import LedgerError
from fedmf.noise import NoiseKey
from fedmf.records import Costs, PrivacyStatement
from fedmf.streaming.declared_rows import DeclaredRows, check_names, declared_cells, raw_layout
from fedmf.streaming.lines import Lines
from fedmf.streaming.outputs import Renderer, Returned, open_output, output_name, shape_of
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.rows import FORMATS, InputError, Layout, RowReader
from fedmf.streaming.run import Handling, StreamRun
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StreamState
from fedmf.streaming.statement import stream_spent, stream_statement
from fedmf.streaming.text_rows import CsvReader, JsonLinesReader


@contextmanager
def open_reader(
    source: Path | None,
    settings: Settings,
    file_format: str | None = None,
    layout: Layout | None = None,
    first_row: int = 1,
) -> Iterator[RowReader]:
    """The rows of a file, or of standard input for None.

    Args:
        source: where from.
        settings: which columns.
        file_format: "csv", "jsonl" or "parquet"; None guesses by the file's name, else by its first byte.
        layout: of an earlier part of the same input.
        first_row: number of the first row in it.

    Raises:
        InputError: it cannot be opened, has no rows, or lacks columns.
    """
    if file_format not in (None, *FORMATS):
        raise InputError(f"input format must be one of {', '.join(FORMATS)}; got {file_format!r}.")
    ending = "" if source is None else source.suffix.lower()
    guess = file_format or next((name for name, endings in FORMATS.items() if ending in endings), None)
    columns, user, labels = settings.columns, settings.user_column, tuple(settings.labels.values())
    check = None
    if (declared := settings.schema) is not None:
        columns, labels, layout = (), declared_cells(settings), raw_layout(settings)
        check = partial(check_names, declared, str(source or "the input"))
    try:
        descriptor = 0 if source is None else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"input {source} cannot be opened: {error.strerror}.") from None
    try:
        if source is not None and (guess == "parquet" or os.pread(descriptor, 4, 0) == b"PAR1"):
            from fedmf.streaming.parquet_rows import ParquetReader

            reader: RowReader = ParquetReader(source, columns, user, layout, first_row, labels, check)
        elif guess == "parquet":
            raise InputError("input must be a file for Parquet; standard input takes csv or jsonl.")
        else:
            lines = Lines(descriptor)
            if (guess or _guess(lines)) == "csv":
                reader = CsvReader(lines, columns, user, layout, first_row, labels, check)
            else:
                reader = JsonLinesReader(lines, columns, user, layout, first_row, labels)
        try:
            yield reader if declared is None else DeclaredRows(reader, settings)
        finally:
            reader.close()
    except IsADirectoryError:
        raise InputError(f"input must be a file; {source} is a directory.") from None
    finally:
        if source is not None:
            os.close(descriptor)


@contextmanager
def open_run(
    directory: Path,
    settings: Settings,
    source: Path | None,
    output: Path | None,
    file_format: str | None = None,
    first_row: int = 1,
    handling: Handling | None = None,
    progress: Callable[[int, int], None] | None = None,
    remembered: bool = True,
    shape: str | None = None,
    density: bool = False,
    admit: Callable[[Layout], None] | None = None,
) -> Iterator[tuple[StreamRun, RowReader]]:
    """The run of a state directory, begun if there is none, with the reader of its input.

    Args:
        directory: of the state.
        settings: must be those the stream was begun with.
        source: file of the rows; None for standard input.
        output: file for the releases; None for standard output.
        file_format: of the input, see `open_reader`.
        first_row: which row of the stream the input begins with.
        handling: of rows that do not fit.
        progress: called with (t, n) after each commit.
        remembered: whether this machine keeps a mark of the stream, once its directory is gone.
        shape: of the output where it is lines: "json", "tidy" or "wide"; None by its ending (`shape_of`).
        density: whether each release says its Gaussian density, with intervals.
        admit: may refuse the layout of the rows of a new stream, before anything is written.

    Raises:
        LedgerError: the directory belongs to other settings, to something else, is in use, or is behind what
            this machine has seen of its stream.
        ValueError: settings, input or output are unfit.
    """
    with ExitStack() as kept:
        if StreamState.exists(directory):
            state = kept.enter_context(_continued(directory, settings))
            reader = open_reader(source, settings, file_format, state.plan.layout, first_row)
            rows = kept.enter_context(reader)
        else:
            if first_row != 1:
                raise InputError(f"input must begin with row 1 for a new stream; got {first_row}.")
            if source is None and settings.rounds is None:
                raise InputError("n (rounds) must be given for standard input; got none. Say --rounds N.")
            open_output(output, True, shape or shape_of(output, ""), density)
            rows = kept.enter_context(open_reader(source, settings, file_format))
            if admit is not None:
                admit(rows.layout)
            plan = StreamPlan.of(settings, rows.layout, _horizon(settings, source, file_format))
            Renderer(plan, density)  # refuses what has none before anything is written
            state = kept.enter_context(_begun(directory, plan, remembered))
        shape = shape or shape_of(output, state.position.output)
        fresh = state.position.output not in ("", output_name(output, shape, density))
        place = open_output(output, fresh, shape, density)
        run = kept.enter_context(StreamRun(state, place, handling, progress))
        yield run, rows


@contextmanager
def open_pushed(
    directory: Path,
    settings: Settings,
    layout: Layout,
    handling: Handling | None = None,
) -> Iterator[StreamRun]:
    """The run of a state directory, begun if there is none, whose releases go to whoever gives the rows.

    Args:
        directory: of the state.
        settings: with the horizon; must be those the stream was begun with.
        layout: of the rows.
        handling: of rows that do not fit.

    Raises:
        LedgerError: as `open_run`, or the stream was begun with rows of another layout.
        ValueError: settings are unfit.
    """
    with ExitStack() as kept:
        if StreamState.exists(directory):
            state = kept.enter_context(_continued(directory, settings))
            if state.position.output not in ("", Returned.name):
                raise LedgerError(
                    f"the stream in {directory} must have been begun by pushing rows, and not gone on by "
                    "`fedmf stream`; it goes on with that command."
                )
            if state.plan.layout != layout:
                raise LedgerError(
                    f"d (dimension) must be {state.plan.layout.dimension} with the same columns as when the "
                    f"stream in {directory} began; got {layout.dimension}."
                )
        else:
            if settings.rounds is None:
                raise ValueError("n (rounds) must be given for rows that are pushed; got none.")
            plan = StreamPlan.of(settings, layout, settings.rounds)
            state = kept.enter_context(_begun(directory, plan))
        yield kept.enter_context(StreamRun(state, Returned(), handling))


def account_stream(directory: Path) -> PrivacyStatement:
    """The privacy statement of the stream in a state directory, computed again from what was committed.

    Raises:
        LedgerError, ValueError: not a state directory, damaged or altered, or in use by another process.
    """
    with StreamState.open(directory) as state:
        return stream_statement(state.plan, state.position, state.histories(), state.key)


def stream_costs(directory: Path) -> Costs:
    """What a stream cost each of its users, to be composed with other streams and runs.

    Raises:
        LedgerError, ValueError: as for `account_stream`.
    """
    with StreamState.open(directory) as state:
        plan, users = state.plan, state.histories()
        statement = stream_statement(plan, state.position, users, state.key)
        return Costs(str(directory), statement, stream_spent(plan, users))


def _begun(directory: Path, plan: StreamPlan, remembered: bool = True) -> StreamState:
    seed = plan.settings.seed
    key = NoiseKey.from_os() if seed is None else NoiseKey.from_seed(seed)
    return StreamState.create(directory, plan, key, remembered)


def _continued(directory: Path, settings: Settings) -> StreamState:
    state = StreamState.open(directory)
    try:
        _check_same(state.plan.settings, settings, directory)
    except BaseException:
        state.close()
        raise
    return state


def _horizon(settings: Settings, source: Path | None, file_format: str | None) -> int:
    if settings.rounds is not None:
        return settings.rounds
    total = 0
    with open_reader(source, settings, file_format) as reader:
        while passed := reader.skip(1 << 16):
            total += passed
    if not total:
        raise InputError("input must have rows; got an empty one.")
    return total


def _check_same(begun: Settings, asked: Settings, directory: Path) -> None:
    before, now = begun.to_dict(), asked.to_dict()
    if before.pop("schema") != now.pop("schema"):
        raise LedgerError(
            f"schema must say what it said when the stream in {directory} began; it does not. Give the "
            "same one, or another --state directory for another stream."
        )
    for name, value in before.items():
        if now[name] != value:
            raise LedgerError(
                f"{name} must be {value!r} as when the stream in {directory} began; got {now[name]!r}. "
                "Give the same settings, or another --state directory for another stream."
            )


def _guess(lines: Lines) -> str:
    first = (lines.peek() or b"").lstrip()
    return "jsonl" if first.startswith((b"{", b"[")) else "csv"
