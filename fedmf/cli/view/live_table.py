"""A table on a terminal that follows a run: its last evaluations, how fast it goes, how long it will take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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
