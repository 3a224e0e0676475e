"""How far a run is: replies so far and their rate, on a terminal only."""

from __future__ import annotations

import threading
from typing import Self

from flwr.app import Context, Message
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedmf.flower.local_run.grid import ClientCalls


class WatchedCalls(ClientCalls):
    """Calls that are counted on the terminal; elsewhere nothing is shown.

    Args:
        calls: what really calls.
    """

    def __init__(self, calls: ClientCalls) -> None:
        self._calls, self.workers = calls, calls.workers
        console = Console(stderr=True, markup=False)
        self._lock = threading.Lock()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:,.0f} replies"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def call(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """See `ClientCalls.call`."""
        group = request.metadata.group_id
        try:
            return self._calls.call(request, context, number)
        finally:
            with self._lock:
                self._progress.update(self._bar, advance=1, description=f"group {group}" if group else "")
