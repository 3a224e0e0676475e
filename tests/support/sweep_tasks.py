"""Tasks that sweeps run: made in worker processes, some of which they break."""

from __future__ import annotations

import os
import signal

from fedmf.runs import FunctionTask, run_of
from fedmf.training import Task

KEYS = {
    "data.kind": "synthetic",
    "data.users": 20,
    "data.examples-per-user": 4,
    "data.features": 6,
    "cohorts.size": 4,
}


def make(given: FunctionTask) -> Task:
    """A small task; "raise" and "die" do so for even seeds."""
    if given.task_seed % 2 == 0 and given.options == "raise":
        raise RuntimeError("two lines\nof reasons")
    if given.task_seed % 2 == 0 and given.options == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return run_of({**KEYS, "data.seed": given.task_seed}).task_source.build()
