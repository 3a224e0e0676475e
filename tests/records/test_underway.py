"""Work for the disk in a thread of its own, whatever interrupts who waits for it."""

from __future__ import annotations

import threading

import pytest

from fedmf.records import Underway


def test_work_whose_beginning_was_interrupted_is_done_once_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, found, start = list[str](), list[BaseException | None](), threading.Thread.start
    underway = Underway(lambda: done.append("written"))

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            underway.begin()
    waiting = threading.Thread(target=lambda: found.append(underway.end()), daemon=True)
    waiting.start()
    waiting.join(timeout=60)
    assert (found, done) == ([None], ["written"])
