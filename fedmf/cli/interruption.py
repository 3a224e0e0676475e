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
    """Which signal stopped a command, and how to continue as far as the command knew."""

    number, how = 0, ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn SIGINT and SIGTERM into `KeyboardInterrupt`, and remember which came first."""
        global _current
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        outer, _current = _current, self
        try:
            yield
        finally:
            _current = outer
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as a shell says it."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def message(self) -> str:
        """One line."""
        name = signal.Signals(self.number or signal.SIGINT).name
        return f"stopped by {name}; {self.how or 'nothing was begun: give the command again.'}"

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if not self.how:  # afterwards the command is ending already
            raise KeyboardInterrupt


_current = Interruption()


@contextmanager
def going_on(how: Callable[[], str]) -> Iterator[None]:
    """Within, a command that is stopped by a signal can be continued in the way that is then asked for."""
    try:
        yield
    except KeyboardInterrupt:
        _current.how = _current.how or how()
        raise
