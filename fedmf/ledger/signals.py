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
def raising_on_termination() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` if it would end the process without cleaning up."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _restore(number: int, handler: Any) -> None:
    if handler is not None:  # it was not set from Python otherwise
        signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
