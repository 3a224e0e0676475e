"""A run on a terminal, in a notebook or in a log: its plan, a bar, and a table of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedmf.accounting.rounding import at_least, at_most
from fedmf.statements.privacy import UNITS
from fedmf.version import __version__

if TYPE_CHECKING:
    from fedmf.runs.loop import RoundRecord
    from fedmf.runs.session import Session

#: Columns of statistics in the table; a file has all of them.
_MOST_SHOWN: Final = 6
_WIDTH: Final = 15


@contextmanager
def bar(console: Console, label: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar on a terminal, and in a notebook with ipywidgets; nothing elsewhere.

    Args:
        console: where.
        label: the name of the steps.
    """
    columns = TextColumn(label), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()
    shown = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    text = TextColumn("{task.description}", markup=False)
    with Progress(*columns, text, console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int | None, said: str) -> None:
            progress.update(task, completed=done, total=total, description=said)

        yield show


class RunProgress:
    """Shows a run in progress; an `OnRound` that stops nothing.

    Args:
        session: just opened.
        console: where to show it; default: standard error.
    """

    def __init__(self, session: Session, console: Console | None = None) -> None:
        from fedmf.runs.outputs import central  # who only wants a bar loads no framework

        self._session, self._stack = session, ExitStack()
        self._console = console or Console(stderr=True)
        dataset = session.task.dataset
        metrics = session.task.metrics
        self._shares = {central(metric.name, dataset) for metric in metrics if metric.is_share}
        released = [column for one in session.run.statistics for column in one.columns]
        judged = [central(name, dataset) for name in ("loss", *(metric.name for metric in metrics))]
        self._columns = ["epsilon", *judged, *released[:_MOST_SHOWN]]

    def __enter__(self) -> Self:
        from fedmf.runs.cost_estimate import NoiseAndSignal

        plan = self._session.plan
        server = self._session.server
        run = self._session.run
        contract = plan.participation
        self._print(
            f"fedmf {__version__} · {self._session.directory.path} · {server.dimension:,}"
            f" parameters · {plan.users:,} {UNITS[plan.unit].plural},"
            f" {run.cohorts.users_per_round:,} per round, at most {contract.max_participations}"
            " rounds each"
        )
        params = "".join(f", {name} = {value:.4g}" for name, value in plan.mechanism.params.items())
        inverse = plan.mechanism.factorization.streaming_inverse()
        if (
            plan.mechanism.name != "identity"
            and not inverse.memory_vectors + inverse.regenerated_vectors
        ):
            params += ": independent noise, as one band has nothing to correlate"
        against = NoiseAndSignal(plan, server.dimension)
        noise = f"noise multiplier {at_most(plan.noise_multiplier, 4)} → {against.words}"
        self._print(
            f"Mechanism {plan.mechanism.name}{params}, {noise if run.is_private else 'no noise'}"
        )
        if run.is_private and against.warning is not None:
            self._print(f"WARNING  {against.warning}")
        if self._session.standing:
            self._print(self._session.standing)
        if lost := server.lost:
            self._print(
                f"Rounds {lost.start + 1} to {lost.stop} were released, but their model is lost:"
                f" round {lost.stop + 1} continues from the model after round {lost.start}"
            )
        self._print("".join(["   round", *(f"{_words(name):>{_WIDTH}}" for name in self._columns)]))
        self._show = self._stack.enter_context(bar(self._console, "round"))
        self._show(server.t, server.horizon, "compiling where needed, then training")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, record: RoundRecord) -> None:
        """Show a finished round."""
        self._show(record.rounds, record.horizon, "")
        row = self._session.metrics.get(record.rounds)
        due = record.rounds % max(1, record.horizon // 10) == 0 or record.rounds == record.horizon
        if due and row is not None:
            shown = (f"{self._figure(name, row.get(name)):>{_WIDTH}}" for name in self._columns)
            self._print("".join([f"{record.rounds:>8}", *shown]))

    def _figure(self, name: str, value: float | None) -> str:
        if value is None:
            return "—"
        if name == "epsilon":
            return at_least(value, 4)
        return f"{100 * value:.1f} %" if name in self._shares else f"{value:.4g}"

    def quality(self) -> str:
        """Loss and metrics of the newest evaluated model, in words; empty where nothing is
        evaluated.
        """
        rounds, row = max(self._session.metrics.items())
        released = {column for one in self._session.run.statistics for column in one.columns}
        said = [
            f"{_words(name)} {self._figure(name, row[name])}"
            for name in self._columns[1:]
            if name not in released and row.get(name) is not None
        ]
        return (
            f"{', '.join(said)} after {rounds} of {self._session.server.horizon} rounds"
            if said
            else ""
        )


def _words(column: str) -> str:
    """A column of the metrics table for people."""
    name = column.removesuffix("_not_private")
    known = {"epsilon": "ε spent", "loss": "test loss", "accuracy": "test accuracy"}
    words = known.get(name, name.replace("_", " "))
    return words if name == column else f"{words} (not private)"


def shown(session: Session, wanted: bool | None) -> RunProgress | None:
    """What shows a run: as asked for, or by default on terminals and in notebooks alone."""
    console = Console(stderr=True)
    if wanted is None:
        wanted = console.is_terminal or console.is_jupyter
    return RunProgress(session, Console() if console.is_jupyter else console) if wanted else None


def both(*callbacks: Callable[[Any], bool | None] | None) -> Callable[[Any], bool]:
    """One callback of several, which stops if one of them does."""

    def called(record: Any) -> bool:
        answers = [callback(record) for callback in callbacks if callback is not None]
        return any(answer is True for answer in answers)

    return called
