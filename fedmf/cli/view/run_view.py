"""The view of a run while it goes on: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live

from fedmf.accounting import at_least, at_most
from fedmf.cli.view.live_table import Column, LiveTable
from fedmf.runs import LocalCheck, NotPrivateEvaluation, central, not_private, private_columns

if TYPE_CHECKING:
    from fedmf.flower import RoundReport
    from fedmf.runs import Session
    from fedmf.training import Metric, UserFailure

__all__ = ["RunView"]


class RunView:
    """Shows rounds, loss, the task's metrics and ε so far while a session runs, and a summary after it.

    Args:
        session: just opened.
        console: where to show it; by default standard error.
    """

    def __init__(self, session: Session, console: Console | None = None) -> None:
        self._session = session
        self._console = console or Console(stderr=True)
        self._horizon = session.server.horizon
        self._check = LocalCheck(session)
        begun, size = session.server.t, session.run.cohorts.size
        self._table = LiveTable(list(self._columns()), self._horizon, begun, size)
        self._live = Live(self._table, console=self._console, refresh_per_second=4)
        self._row: Mapping[str, Any] | None = None
        self._failures: list[UserFailure] = []

    def __enter__(self) -> Self:
        plan = self._session.plan
        self._console.print(
            f"[bold]{plan.mechanism.name}[/] {_brief(plan.mechanism.params)}: sensitivity "
            f"{at_least(plan.sensitivity.value, 4)} ({plan.sensitivity.kind.replace('_', ' ')}), "
            f"noise multiplier {at_most(plan.noise_multiplier, 4)}; "
            f"run directory {self._session.directory.path}",
            highlight=False,
        )
        lost = self._session.server.lost
        if lost:
            self._console.print(
                f"rounds {lost.start + 1} to {lost.stop} were released and their model was not kept: going "
                f"on with round {lost.stop + 1} from the model after round {lost.start}",
                highlight=False,
            )
        self._warn(self._check.look())
        self._table.add(
            self._session.server.t, self._session.metrics.get(self._session.server.t), self._clipped
        )
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
        self._table.add(rounds, row, self._clipped)
        if row is not None:
            self._row = row
        every = max(1, self._horizon // 10)
        if not self._console.is_terminal and (rounds % every == 0 or rounds == self._horizon):
            text = "" if self._row is None else self._describe(self._row)
            self._console.print(f"round {rounds}/{self._horizon}  {text}", highlight=False)

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

    def conclude(self) -> None:
        """Print the privacy statement in a few lines and where the reports are.

        That users failed is said of a run without privacy only: elsewhere it would tell about their data.
        """
        from fedmf.runs import FAILURES

        session = self._session
        row = session.metrics[max(session.metrics)]
        print(f"Test {self._describe(row, epsilon=False)} after {session.server.t} rounds.\n")
        if self._test_owned:
            print("The test part belongs to users that were trained on: these metrics are not private.\n")
        print(session.statement().render_text())
        self._warn(self._check.verdict())
        if self._failures and not session.run.is_private:
            first = self._failures[0]
            self._console.print(
                f"{len(self._failures)} contributions failed and counted as zeros; the first, of "
                f"{first.user or 'nobody'} at {first.stage}: {first.reason}",
                highlight=False,
                markup=False,
            )
        print(f"Run directory: {session.directory.path} (which users failed, if any: {FAILURES}, secret)")

    @property
    def _test_owned(self) -> bool:
        """Whether users that are trained on own the central test part."""
        return central("loss", self._session.task.dataset) != "loss"

    def _columns(self) -> Iterator[Column]:
        """Loss and metrics by name, exact and noised figures of users' own examples, and ε so far."""
        task, run = self._session.task, self._session.run
        owned = self._test_owned
        yield Column("loss", _number(central("loss", task.dataset), "{:.4f}".format), owned)
        for metric in task.metrics:
            column = central(metric.name, task.dataset)
            yield Column(metric.name.replace("_", " "), _number(column, _of(metric)), owned)
        if isinstance(run.evaluation, NotPrivateEvaluation):
            for metric in task.metrics[:1]:
                yield Column(
                    f"users' own {metric.name}", _number(not_private(metric.name), _of(metric)), True
                )
        for metric in task.metrics[:1] if self._session.evaluator is not None else ():
            value, spread = private_columns(metric.name)
            yield Column(f"users' own {metric.name}", _estimate(value, spread, metric))
        yield Column(
            "ε so far", lambda row: "none" if row["epsilon"] is None else at_least(row["epsilon"], 4)
        )

    def _describe(self, row: Mapping[str, Any], epsilon: bool = True) -> str:
        """Loss and metrics by name, shares in percent, and ε so far."""
        dataset, metrics = self._session.task.dataset, self._session.task.metrics
        many = self._session.run.privacy.unit.plural
        texts = [f"loss {row[central('loss', dataset)]:.4f}"]
        texts += [_shown(metric, row[central(metric.name, dataset)]) for metric in metrics]
        if self._test_owned:
            texts.append("(not private)")
        texts += [
            f"{many}' own {_shown(metric, row[value])} ± {_spread(metric, row[spread])}"
            for metric in metrics[:1]
            for value, spread in [private_columns(metric.name)]
            if value in row
        ]
        if epsilon:
            texts.append(
                "no privacy" if row["epsilon"] is None else f"ε so far {at_least(row['epsilon'], 4)}"
            )
        return "  ".join(texts)


def _number(column: str, text: Callable[[float], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "" if row.get(column) is None else text(row[column])


def _estimate(value: str, spread: str, metric: Metric) -> Callable[[Mapping[str, Any]], str]:
    shown = _of(metric)
    return lambda row: f"{shown(row[value])} ± {_spread(metric, row[spread])}" if value in row else ""


def _of(metric: Metric) -> Callable[[float], str]:
    return lambda value: f"{100 * value:.1f} %" if metric.is_share else f"{value:.4g}"


def _shown(metric: Metric, value: float) -> str:
    return f"{metric.name.replace('_', ' ')} {_of(metric)(value)}"


def _spread(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.is_share else f"{value:.2g}"


def _brief(params: Mapping[str, float | int]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in params.items())
