"""What a command says when a signal stops it: how to go on."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: Seconds after which a command that has not ended is interrupted again, and one that was in a destructor.
_PAUSE, _SOON = 2.0, 0.05


class _Stopped(KeyboardInterrupt):
    """A signal asks the command to stop; whatever passes on a key press passes it on."""


class Interruption:
    """Which signal stopped a command, and how to go on as far as the command knew.

    Args:
        how: said if the command does not know better.
    """

    def __init__(self, how: str) -> None:
        self.number, self.how, self._default = 0, "", how

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn SIGINT and SIGTERM into `KeyboardInterrupt` and remember which came first.

        One that comes just before the process waits for input would be noticed when input comes, and one in
        a destructor never, but for a traceback; so it is said again, until it was understood.
        """
        global _current
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in (*_SIGNALS, signal.SIGALRM)}
        outer, _current = _current, self
        unraisable = sys.unraisablehook

        def in_a_destructor(said: sys.UnraisableHookArgs) -> None:
            if issubclass(said.exc_type, _Stopped):
                signal.setitimer(signal.ITIMER_REAL, _SOON, _PAUSE)
            else:
                unraisable(said)

        sys.unraisablehook = in_a_destructor
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            sys.unraisablehook = unraisable
            _current = outer
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as a shell says it."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def message(self) -> str:
        """One line."""
        name = signal.Signals(self.number or signal.SIGINT).name
        return f"stopped by {name}; {self.how or self._default}"

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if number in _SIGNALS:
            self.number = self.number or number
            signal.setitimer(signal.ITIMER_REAL, _PAUSE, _PAUSE)
        if not self.how:
            raise _Stopped


_current: Interruption | None = None


@contextmanager
def going_on(how: Callable[[], str]) -> Iterator[None]:
    """Within, a command that is stopped by a signal can be gone on with in the way that is then asked for."""
    try:
        yield
    except KeyboardInterrupt:
        if _current is not None:
            _current.how = _current.how or how()
        raise
