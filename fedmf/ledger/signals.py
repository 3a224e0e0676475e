"""Signals that stop a process, SIGINT and SIGTERM: they never cut a release in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def held_back() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block has ended.

    Python calls handlers in the main thread alone, so other threads need no protection.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    on_interrupt = signal.getsignal(signal.SIGINT)
    on_termination = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGINT, note)
        signal.signal(signal.SIGTERM, note)
        yield
    finally:
        try:
            _restore(signal.SIGTERM, on_termination)
        finally:
            _restore(signal.SIGINT, on_interrupt)
        if waiting:
            signal.raise_signal(waiting[0])


@contextmanager
def stopping() -> Iterator[None]:
    """Let what a signal's handler raises arrive as `KeyboardInterrupt`, and raise it afterwards.

    A handler's `SystemExit` in the middle of local training would count as an error of the user
    that is trained. SIGTERM without a handler raises `SystemExit`, so that the process cleans up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: list[BaseException] = []
    on_interrupt = signal.getsignal(signal.SIGINT)
    on_termination = signal.getsignal(signal.SIGTERM)
    try:
        _replace(signal.SIGINT, on_interrupt, raised)
        _replace(signal.SIGTERM, on_termination, raised)
        yield
    except KeyboardInterrupt:
        if raised:
            raise raised[0] from None
        raise
    finally:
        try:
            _restore(signal.SIGTERM, on_termination)
        finally:
            _restore(signal.SIGINT, on_interrupt)


def _replace(number: int, handler: Any, raised: list[BaseException]) -> None:
    """Handle a signal as before, but keep what the handler raises and raise an interrupt."""
    if handler is signal.SIG_DFL:
        handler = _exit
    if not callable(handler):  # the signal is ignored, or handled outside of Python
        return

    def interrupting(received: int, frame: FrameType | None) -> None:
        try:
            handler(received, frame)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raised.append(error)
            raise KeyboardInterrupt from error

    signal.signal(number, interrupting)


def _restore(number: int, handler: Any) -> None:
    if handler is not None:  # it was not set from Python otherwise
        signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
