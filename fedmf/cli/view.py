"""The view of a run while it goes on: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmf.accounting import at_least, at_most
from fedmf.cli.account import MOST_SHOWN, released
from fedmf.runs import (
    FAILURES,
    STATEMENT_TEXT,
    Learning,
    LocalCheck,
    NoiseAndSignal,
    central,
    judge_learning,
    private_columns,
)
from fedmf.statements import summarise

if TYPE_CHECKING:
    from fedmf.rounds import RoundReport
    from fedmf.runs import Session
    from fedmf.training import Metric, UserFailure


_ROWS: Final = 8
_BAR: Final = 40


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Args:
        title: above it.
        text: of a row of the metrics table; empty where the row has it not.
        private: whether its numbers come from users' own examples without noise.
    """

    title: str
    text: Callable[[Mapping[str, Any]], str]
    private: bool = False


class LiveTable:
    """What stands on the terminal.

    Args:
        columns: beside the round and the share of clipped updates.
        horizon: n.
        begun: rounds released before.
        cohort_size: users that a round is planned with.
        clock: seconds.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        horizon: int,
        begun: int,
        cohort_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._columns, self._horizon, self._cohort_size = columns, horizon, cohort_size
        self._begun, self._rounds, self._clock = begun, begun, clock
        self._start = clock()
        self._shown: deque[tuple[int, Mapping[str, Any], str]] = deque(maxlen=_ROWS)
        self._learning = ""

    def add(self, rounds: int, row: Mapping[str, Any] | None, clipped: str, learning: str = "") -> None:
        """A round was released.

        Args:
            rounds: how many are.
            row: of the metrics table, if the model was evaluated.
            clipped: how many stand-ins' updates are clipped, in words.
            learning: whether the run is learning, in words.
        """
        self._rounds, self._learning = rounds, learning
        if row is not None:
            self._shown.append((rounds, row, clipped))

    def __rich__(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("round", justify="right", no_wrap=True)
        for column in self._columns:
            title = f"{column.title} †" if column.private else column.title
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("clipped *", justify="right", no_wrap=True)
        for rounds, row, clipped in tuple(self._shown):
            table.add_row(str(rounds), *(column.text(row) for column in self._columns), clipped)
        notes = ["* of stand-in users made of the public test part; real users' updates are not told"]
        if any(column.private for column in self._columns):
            notes.append("† not private: from users' own examples, without noise")
        status = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._horizon, completed=self._rounds, width=_BAR)
        status.add_row(bar, f"round {self._rounds}/{self._horizon}", *self._pace())
        learning = [Text(self._learning)] if self._learning else []
        return Group(table, *(Text(note, style="dim") for note in notes), *learning, status)

    def _pace(self) -> list[str]:
        done, seconds = self._rounds - self._begun, self._clock() - self._start
        if not done or seconds <= 0:
            return []
        left = timedelta(seconds=round(seconds / done * (self._horizon - self._rounds)))
        return [f"{done * self._cohort_size / seconds:,.0f} users/s", f"{left} left"]


class RunView:
    """Shows rounds, loss, metrics, ε so far and whether a run learns while it goes on; then what it is worth.

    Args:
        session: just opened.
        console: where to show it; by default standard error.
    """

    def __init__(self, session: Session, console: Console | None = None) -> None:
        self._session = session
        self._console = console or Console(stderr=True)
        self._horizon = session.server.horizon
        self._check = LocalCheck(session)
        self._of_parts = [column for part in session.run.parts for column in part.columns]
        begun, size = session.server.t, session.run.cohorts.size
        self._table = LiveTable(list(self._columns()), self._horizon, begun, size)
        self._live = Live(self._table, console=self._console, refresh_per_second=4)
        self._row: Mapping[str, Any] | None = None
        self._learning = judge_learning(session)
        self._failures: list[UserFailure] = []

    def __enter__(self) -> Self:
        plan = self._session.plan
        plain = (
            f" {_brief(plan.mechanism.params)}: sensitivity "
            f"{at_least(plan.sensitivity.value, 4)} ({plan.sensitivity.kind.replace('_', ' ')}), "
            f"noise multiplier {at_most(plan.noise_multiplier, 4)}; "
            f"run directory {self._session.directory.path}"
        )
        self._console.print(Text.assemble((plan.mechanism.name, "bold"), plain), highlight=False)
        server = self._session.server
        if plan.noise_std > 0:
            against = NoiseAndSignal.of(plan, server.dimension)
            self._console.print(f"noise: {against.words}", highlight=False)
            self._warn(against.warning)
        for line in server.beforehand:
            self._console.print(line, highlight=False)
        lost = server.lost
        if lost:
            self._console.print(
                f"rounds {lost.start + 1} to {lost.stop} were released and their model was not kept: going "
                f"on with round {lost.stop + 1} from the model after round {lost.start}",
                highlight=False,
            )
        self._warn(self._check.look())
        t = self._session.server.t
        self._table.add(t, self._session.metrics.get(t), self._clipped, self._trend)
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, report: RoundReport, row: Mapping[str, Any] | None) -> None:
        """Show a finished round."""
        rounds = report.t + 1
        self._note(report)
        self._warn(self._check.look())
        if row is not None:
            self._row = row
        due = rounds % max(1, self._horizon // 10) == 0 or rounds == self._horizon
        if due:
            self._learning = judge_learning(self._session)
        self._table.add(rounds, row, self._clipped, self._trend)
        if due and not self._console.is_terminal:
            text = "" if self._row is None else f"{self._describe(self._row)}  {self._learning.verdict}"
            self._console.print(f"round {rounds}/{self._horizon}  {text}", highlight=False, markup=False)

    @property
    def _trend(self) -> str:
        return f"trend: {_said(self._learning)}"

    def _note(self, report: RoundReport) -> None:
        """Remember who failed; in a run without privacy say so the first time that it is more than half."""
        before = len(self._failures)
        self._failures += report.failures
        failed = len(report.failures)
        if self._session.run.is_private or before or 2 * failed <= report.asked:
            return
        first = report.failures[0]
        self._warn(
            f"{failed} of {report.asked} contributions to round {report.t + 1} failed and counted as zeros; "
            f"the first at {first.stage}: {first.reason}"
        )

    def _warn(self, line: str | None) -> None:
        if line is not None:
            self._console.print(f"warning: {line}", highlight=False, markup=False, soft_wrap=True)

    @property
    def _clipped(self) -> str:
        outcome = self._check.outcome
        return "" if outcome is None else f"{100 * outcome.clipped / outcome.stand_ins:.0f} %"

    def conclude(self, full: bool = False) -> None:
        """Print what the run is worth and where the rest is.

        That users failed is said of a run without privacy only: elsewhere it would tell about their data.

        Args:
            full: whether the whole privacy statement is printed.
        """
        session, path = self._session, self._session.directory.path
        row, after = (
            session.metrics[max(session.metrics)],
            f"after {session.server.t} of {self._horizon} rounds",
        )
        quality, beside = ("  ".join(texts) for texts in (self._quality(row), released(self._of_parts, row)))
        said = {
            name: f"{text}  {after}" for name, text in (("quality", quality), ("released", beside)) if text
        }
        if full:
            print(*said.values(), "", session.statement().render_text(), sep="\n")
            print(f"Run directory: {path} (which users failed, if any: {FAILURES}, secret)")
        else:
            rest = f"--full, or {STATEMENT_TEXT} there"
            model = [*said.items(), ("trend", _said(judge_learning(session)))]
            place = (
                f"{path}: metrics, learning curve, statement; the key, the ledger and {FAILURES} are secret"
            )
            print(summarise(session.statement().to_dict(), rest, model, place), end="")
        self._warn(self._check.verdict())
        if self._failures and not session.run.is_private:
            first = self._failures[0]
            self._console.print(
                f"{len(self._failures)} contributions failed and counted as zeros; the first, of "
                f"{first.user or 'nobody'} at {first.stage}: {first.reason}",
                highlight=False,
                markup=False,
            )

    @property
    def _test_owned(self) -> bool:
        """Whether users that are trained on own the central test part."""
        return central("loss", self._session.task.dataset) != "loss"

    def _columns(self) -> Iterator[Column]:
        """Loss and metrics by name, exact and noised figures of users' own examples, what parts released (the
        first few of many figures), and ε so far."""
        task, run = self._session.task, self._session.run
        owned = self._test_owned
        yield Column("loss", _number(central("loss", task.dataset), "{:.4f}".format), owned)
        for metric in task.metrics:
            column = central(metric.name, task.dataset)
            yield Column(metric.name.replace("_", " "), _number(column, _of(metric)), owned)
        for metric in task.metrics[:1]:
            for value, *spread in filter(None, [run.evaluation.columns(metric.name)]):
                shown, exact = _estimate(value, spread, metric), run.evaluation.without_noise
                yield Column(f"users' own {metric.name}", shown, exact)
        for column in self._of_parts[:MOST_SHOWN]:
            yield Column(column.replace("_", " "), _number(column, "{:.4g}".format))
        yield Column(
            "ε so far", lambda row: "none" if row["epsilon"] is None else at_least(row["epsilon"], 4)
        )

    def _describe(self, row: Mapping[str, Any]) -> str:
        """Loss and metrics by name, shares in percent, what parts released, and ε so far."""
        spent = "no privacy" if row["epsilon"] is None else f"ε so far {at_least(row['epsilon'], 4)}"
        return "  ".join([*self._quality(row), *released(self._of_parts, row), spent])

    def _quality(self, row: Mapping[str, Any]) -> list[str]:
        """Loss and metrics by name, shares in percent."""
        dataset, metrics = self._session.task.dataset, self._session.task.metrics
        many = self._session.run.privacy.unit.plural
        judged = central("loss", dataset) in row  # without tests nothing is
        texts = [f"loss {row[central('loss', dataset)]:.4f}"] if judged else []
        texts += [_shown(metric, row[central(metric.name, dataset)]) for metric in metrics if judged]
        if judged and self._test_owned:
            texts.append("(not private)")
        return texts + [
            f"{many}' own {_shown(metric, row[value])} ± {_spread(metric, row[spread])}"
            for metric in metrics[:1]
            for value, spread in [private_columns(metric.name)]
            if value in row
        ]


def _said(learning: Learning) -> str:
    return f"{learning.verdict}: {learning.reason}"


def _number(column: str, text: Callable[[float], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "" if row.get(column) is None else text(row[column])


def _estimate(value: str, spread: Sequence[str], metric: Metric) -> Callable[[Mapping[str, Any]], str]:
    """A figure and what its error is, each by its column."""
    number = _number(value, _of(metric))
    return lambda row: " ± ".join(
        filter(None, (number(row), *(_spread(metric, row[column]) for column in spread if value in row)))
    )


def _of(metric: Metric) -> Callable[[float], str]:
    return lambda value: f"{100 * value:.1f} %" if metric.is_share else f"{value:.4g}"


def _shown(metric: Metric, value: float) -> str:
    return f"{metric.name.replace('_', ' ')} {_of(metric)(value)}"


def _spread(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.is_share else f"{value:.2g}"


def _brief(params: Mapping[str, float | int]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in params.items())
