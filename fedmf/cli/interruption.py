"""What a command says when a signal stops it: how to continue."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Which signal stopped the command, and how to continue as far as the command knew."""

    number = 0
    how = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn SIGINT and SIGTERM into `KeyboardInterrupt`, and remember which came first."""
        self.number = 0
        self.how = ""
        may = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS if may}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def ending(self) -> tuple[str, int]:
        """What to say, in one line, and the exit code: 128 and the number of the signal, as of a
        shell.
        """
        stopped = signal.Signals(self.number or signal.SIGINT)
        how = self.how or "nothing was started: run the command again."
        return f"stopped by {stopped.name}; {how}", 128 + stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if not self.how:  # afterwards the command is ending already
            raise KeyboardInterrupt


#: Of the command that this process carries out.
interruption: Final = Interruption()


@contextmanager
def going_on(how: Callable[[], str]) -> Iterator[None]:
    """Within, a command that is stopped by a signal can be continued in the way that is then asked
    for.
    """
    try:
        yield
    except KeyboardInterrupt:
        interruption.how = interruption.how or how()
        raise
