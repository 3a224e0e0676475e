"""A piece of a test in a process of its own, which may be killed."""

import os
import signal
import sqlite3
from collections.abc import Callable
from itertools import count

from fedmf.records import ledger as ledger_module


def in_child(body: Callable[[], object]) -> int:
    """Run ``body`` in a forked process; its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_at_flush(number: int, flushed: bool) -> None:
    """Let this process be killed at its n-th flush of records, before it or after."""
    flush, numbers = ledger_module._flush, count(1)

    def dying(connection: sqlite3.Connection) -> None:
        last = next(numbers) == number
        if flushed or not last:
            flush(connection)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger_module._flush = dying
