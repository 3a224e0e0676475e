"""The view of a run while it goes on: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedmf.accounting import at_least, at_most
from fedmf.cli.account import released
from fedmf.runs import FAILURES, STATEMENT_TEXT, NoiseAndSignal, central

if TYPE_CHECKING:
    from fedmf.runs import RoundRecord, Session
    from fedmf.training import Metric


class RunView:
    """Shows rounds, loss, metrics and ε so far while a run goes on; then what it is worth.

    Args:
        session: just opened.
        console: where to show it; by default standard error.
    """

    def __init__(self, session: Session, console: Console | None = None) -> None:
        self._session = session
        self._console = console or Console(stderr=True)
        self._horizon = session.server.horizon
        self._of_parts = [column for one in session.run.statistics for column in one.columns]
        self._row: Mapping[str, Any] | None = None
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        plan, server = self._session.plan, self._session.server
        plain = (
            f" {_brief(plan.mechanism.params)}: sensitivity "
            f"{at_least(plan.sensitivity.value, 4)} ({plan.sensitivity.kind.replace('_', ' ')}), "
            f"noise multiplier {at_most(plan.noise_multiplier, 4)}; "
            f"run directory {self._session.directory.path}"
        )
        head = Text.assemble((plan.mechanism.name, "bold"), plain)
        self._console.print(head, highlight=False, soft_wrap=True)
        if plan.noise_std > 0:
            against = NoiseAndSignal.of(plan, server.dimension)
            self._print(f"noise: {against.words}")
            if against.warning is not None:
                self._print(f"warning: {against.warning}")
        if lost := server.lost:
            self._print(
                f"rounds {lost.start + 1} to {lost.stop} were released and their model was not kept: going "
                f"on with round {lost.stop + 1} from the model after round {lost.start}"
            )
        self._task = self._bar.add_task("", total=self._horizon, completed=server.t)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def update(self, record: RoundRecord) -> None:
        """Show a finished round."""
        rounds = record.rounds
        self._row = self._session.metrics.get(rounds) or self._row
        text = "" if self._row is None else self._describe(self._row)
        self._bar.update(self._task, completed=rounds, description=text)
        due = rounds % max(1, self._horizon // 10) == 0 or rounds == self._horizon
        if due and not self._console.is_terminal:
            self._print(f"round {rounds}/{self._horizon}  {text}")

    def conclude(self, full: bool = False) -> None:
        """Print what the run is worth and where the rest is.

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
            place = (
                f"{path}: metrics, learning curve, statement; the key, the ledger and {FAILURES} are secret"
            )
            print(session.statement().render_text(False, rest, [*said.items()], place), end="")

    @property
    def _test_owned(self) -> bool:
        """Whether users that are trained on own the central test part."""
        return central("loss", self._session.task.dataset) != "loss"

    def _describe(self, row: Mapping[str, Any]) -> str:
        """Loss and metrics by name, shares in percent, what parts released, and ε so far."""
        spent = "no privacy" if row["epsilon"] is None else f"ε so far {at_least(row['epsilon'], 4)}"
        return "  ".join([*self._quality(row), *released(self._of_parts, row), spent])

    def _quality(self, row: Mapping[str, Any]) -> list[str]:
        """Loss and metrics by name, shares in percent."""
        dataset, metrics = self._session.task.dataset, self._session.task.metrics
        judged = central("loss", dataset) in row  # without tests nothing is
        texts = [f"loss {row[central('loss', dataset)]:.4f}"] if judged else []
        texts += [_shown(metric, row[central(metric.name, dataset)]) for metric in metrics if judged]
        if judged and self._test_owned:
            texts.append("(not private)")
        return texts


def _shown(metric: Metric, value: float) -> str:
    figure = f"{100 * value:.1f} %" if metric.is_share else f"{value:.4g}"
    return f"{metric.name.replace('_', ' ')} {figure}"


def _brief(params: Mapping[str, float | int]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in params.items())
