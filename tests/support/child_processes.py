"""A piece of a test in a process of its own, which may be killed."""

import os
from collections.abc import Callable


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
