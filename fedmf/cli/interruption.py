"""The message of a command that a signal stops: how to continue it.

`fedmf.cli.app` turns signals into `KeyboardInterrupt` and prints the message; a command says with
`continuable` how its run can be continued.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """The signal that stopped the command, and the advice how to continue.

    Attributes:
        number: the number of the first signal, 0 before one.
        advice: one sentence, empty before the command has given one.
    """

    number = 0
    advice = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn SIGINT and SIGTERM into `KeyboardInterrupt`, and record the first of them."""
        self.number = 0
        self.advice = ""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python allows handlers only in the main thread
            return
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def message_and_code(self) -> tuple[str, int]:
        """The message in one line, and the exit code of a shell: 128 plus the signal's number."""
        stopped = signal.Signals(self.number or signal.SIGINT)
        advice = self.advice or "nothing was started: run the command again."
        return f"stopped by {stopped.name}; {advice}", 128 + stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if not self.advice:  # otherwise the command is ending already
            raise KeyboardInterrupt


#: The interruption of the command that this process runs.
interruption: Final = Interruption()


@contextmanager
def continuable(advice: Callable[[], str]) -> Iterator[None]:
    """Record how to continue if a signal stops the block.

    Args:
        advice: called when the signal comes; returns one sentence, or "" if nothing has started.
    """
    try:
        yield
    except KeyboardInterrupt:
        interruption.advice = interruption.advice or advice()
        raise
