"""A run on a terminal, in a notebook or in a log: its plan, a bar, and a table of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedmf.accounting.rounding import at_least, at_most
from fedmf.statements.privacy import UNITS
from fedmf.version import __version__

if TYPE_CHECKING:
    from fedmf.runs.cost_estimate import NoiseAndSignal
    from fedmf.runs.loop import RoundRecord
    from fedmf.runs.session import Session

#: Most columns of statistics in the table; the file of metrics has all of them.
_MOST_SHOWN: Final = 6
_WIDTH: Final = 15
#: Evaluations of a run up to which each is a line.
_MOST_LINES: Final = 20


@contextmanager
def bar(console: Console, label: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar on a terminal, and in a notebook with ipywidgets; nothing elsewhere.

    Args:
        console: where it is shown.
        label: the name of the steps.
    """
    columns = TextColumn(label), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()
    text = TextColumn("{task.description}", markup=False)
    visible = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    progress = Progress(*columns, text, console=console, disable=not visible, transient=True)
    with progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int | None, description: str) -> None:
            progress.update(task, completed=done, total=total, description=description)

        yield show


class RunProgress:
    """Shows a run in progress; an `OnRound` that stops nothing.

    Args:
        session: just opened.
        console: where to show it; default: standard error.
    """

    def __init__(self, session: Session, console: Console | None = None) -> None:
        from fedmf.runs.outputs import central  # a bar alone loads no framework

        self._session = session
        self._stack = ExitStack()
        self._console = console or Console(stderr=True)
        dataset = session.task.dataset
        self._shares = set[str]()
        self._quality_columns = [central("loss", dataset)]
        for metric in session.task.metrics:
            column = central(metric.name, dataset)
            self._quality_columns.append(column)
            if metric.is_share:
                self._shares.add(column)
        released = list[str]()
        for statistic in session.run.statistics:
            released += statistic.columns
        self._columns = ["epsilon", *self._quality_columns, *released[:_MOST_SHOWN]]

    def __enter__(self) -> Self:
        from fedmf.runs.cost_estimate import NoiseAndSignal

        server = self._session.server
        noise = NoiseAndSignal(self._session.plan, server.dimension)
        self._print(self._size())
        self._print(self._mechanism(noise))
        if self._session.run.is_private and noise.warning is not None:
            self._print(f"WARNING  {noise.warning}")
        if self._session.standing:
            self._print(self._session.standing)
        lost = server.lost
        if lost:
            self._print(
                f"Rounds {lost.start + 1} to {lost.stop} were released, but their model is lost:"
                f" round {lost.stop + 1} continues from the model after round {lost.start}"
            )
        self._print_row("   round", [_words(name) for name in self._columns])
        self._show = self._stack.enter_context(bar(self._console, "round"))
        self._show(server.t, server.horizon, "compiling where needed, then training")
        return self

    def _size(self) -> str:
        plan = self._session.plan
        most = plan.participation.max_participations
        rounds = "1 round" if most == 1 else f"{most} rounds"
        return (
            f"fedmf {__version__} · {self._session.directory.path} ·"
            f" {self._session.server.dimension:,} parameters ·"
            f" {plan.users:,} {UNITS[plan.unit].plural}, {plan.users_per_round:,} per round,"
            f" at most {rounds} each"
        )

    def _mechanism(self, noise: NoiseAndSignal) -> str:
        plan = self._session.plan
        mechanism = plan.mechanism
        text = f"Mechanism {mechanism.name}"
        for name, value in mechanism.params.items():
            text += f", {name} = {value:.4g}"
        inverse = mechanism.factorization.streaming_inverse()
        stored_vectors = inverse.memory_vectors + inverse.regenerated_vectors
        if mechanism.name != "identity" and not stored_vectors:
            text += ": independent noise, as one band has nothing to correlate"
        if not self._session.run.is_private:
            return f"{text}, no noise"
        multiplier = at_most(plan.noise_multiplier, 4)
        return f"{text}, noise multiplier {multiplier} → {noise.words}"

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _print_row(self, label: str, cells: Sequence[str]) -> None:
        line = label
        for name, cell in zip(self._columns, cells, strict=True):
            width = max(_WIDTH, len(_words(name)) + 2)
            line += f"{cell:>{width}}"
        self._print(line)

    def __call__(self, record: RoundRecord) -> None:
        """Show a finished round."""
        self._show(record.rounds, record.horizon, "")
        row = self._session.metrics.get(record.rounds)
        every = self._session.run.execution.evaluate_every
        if row is not None and _is_line(record.rounds, record.horizon, every):
            cells = [self._figure(name, row.get(name)) for name in self._columns]
            self._print_row(f"{record.rounds:>8}", cells)

    def _figure(self, name: str, value: float | None) -> str:
        if value is None:
            return "—"
        if name == "epsilon":
            return at_least(value, 4)
        if name in self._shares and 0 <= value <= 1:
            return f"{100 * value:.1f} %"
        return f"{value:.4g}"

    def quality(self) -> str:
        """Loss and metrics of the newest evaluated model, in words; empty without evaluation."""
        rounds, row = max(self._session.metrics.items())
        figures = list[str]()
        for name in self._quality_columns:
            if row.get(name) is not None:
                figures.append(f"{_words(name)} {self._figure(name, row[name])}")
        if not figures:
            return ""
        return f"{', '.join(figures)} after {rounds} of {self._session.server.horizon} rounds"


def _is_line(rounds: int, horizon: int, every: int) -> bool:
    """Whether an evaluation is a line: each of a few, else about one in a tenth of the run.

    >>> [rounds for rounds in range(10, 61, 10) if _is_line(rounds, 60, every=10)]
    [10, 20, 30, 40, 50, 60]
    >>> sum(_is_line(rounds, 240, every=1) for rounds in range(1, 241))
    10
    """
    evaluations = horizon // every
    step = every
    if evaluations > _MOST_LINES:
        step = every * (evaluations // 10)
    return rounds % step == 0 or rounds == horizon


def _words(column: str) -> str:
    """A column of the metrics table for people."""
    name = column.removesuffix("_not_private")
    known = {"epsilon": "ε spent", "loss": "test loss", "accuracy": "test accuracy"}
    words = known.get(name, name.replace("_", " "))
    if name != column:
        words += " (not private)"
    return words


def shown(session: Session, wanted: bool | None) -> RunProgress | None:
    """The display of a run: as requested, or by default on terminals and in notebooks alone."""
    console = Console(stderr=True)
    if wanted is None:
        wanted = console.is_terminal or console.is_jupyter
    if not wanted:
        return None
    if console.is_jupyter:
        console = Console()
    return RunProgress(session, console)


def both(*callbacks: Callable[[Any], bool | None] | None) -> Callable[[Any], bool]:
    """Join callbacks to one, which stops the run if one of them does."""
    present = [callback for callback in callbacks if callback is not None]

    def call_all(record: Any) -> bool:
        answers = [callback(record) for callback in present]
        return any(answer is True for answer in answers)

    return call_all
