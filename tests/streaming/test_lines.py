"""Lines of a pipe as they arrive, and signals while there are none."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import pytest

from fedmf.streaming.lines import Lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


class Noticed(Exception):
    pass


def test_a_signal_that_interrupts_no_wait_is_noticed(pipe: tuple[int, int]) -> None:
    """One that another thread gets, as one between two steps of Python, does not end the wait for rows."""

    def notice(number: int, frame: FrameType | None) -> None:
        raise Noticed

    def disturb() -> None:
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        if not noticed.wait(300):
            with suppress(OSError):
                os.write(pipe[1], b"late\n")  # the end of the wait: nothing was noticed before

    def waited() -> list[bytes]:
        disturbance.start()
        return list(Lines(pipe[0]).take(1))

    noticed = threading.Event()
    before = signal.signal(signal.SIGUSR1, notice)
    disturbance = threading.Thread(target=disturb, daemon=True)
    try:
        with pytest.raises(Noticed):
            waited()
    finally:
        noticed.set()
        disturbance.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_end_of_a_pipe_ends_the_wait(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"a\nb")
    os.close(pipe[1])
    lines = Lines(pipe[0])
    assert [*lines.take(5), *lines.take(5), *lines.take(5)] == [b"a", b"b"]
