"""The live view of a run: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedmf.accounting import at_least, at_most
from fedmf.runs import central, private_columns

if TYPE_CHECKING:
    from fedmf.flower import RoundReport
    from fedmf.runs import Session
    from fedmf.training import Metric, UserFailure

__all__ = ["RunView"]


class RunView:
    """Shows rounds, loss, the task's metrics and ε so far while a session runs, and a summary after it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._horizon = session.server.horizon
        self._bar = self._progress.add_task("", total=self._horizon, completed=session.server.t)
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
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, report: RoundReport, row: Mapping[str, Any] | None) -> None:
        """Show a finished round."""
        self._failures += report.failures
        if row is not None:
            self._row = row
        text = "" if self._row is None else self._describe(self._row)
        self._progress.update(self._bar, completed=report.t + 1, description=text)
        every = max(1, self._horizon // 10)
        if not self._console.is_terminal and ((report.t + 1) % every == 0 or report.t + 1 == self._horizon):
            self._console.print(f"round {report.t + 1}/{self._horizon}  {text}", highlight=False)

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


def _shown(metric: Metric, value: float) -> str:
    name = metric.name.replace("_", " ")
    return f"{name} {100 * value:.1f} %" if metric.is_share else f"{name} {value:.4g}"


def _spread(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.is_share else f"{value:.2g}"


def _brief(params: Mapping[str, float | int]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in params.items())
