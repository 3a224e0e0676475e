"""Tasks that sweeps run: made in worker processes, some of which they break."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import Dataset
from fedmf.runs.tables.configuration import run_of
from fedmf.runs.tasks import FunctionTask
from fedmf.training import Task

from .wrapped_data import WrappedData

KEYS = {
    "data.kind": "synthetic",
    "data.users": 20,
    "data.examples-per-user": 4,
    "data.features": 6,
    "cohorts.users-per-round": 4,
}


class Held(WrappedData):
    """A run on it stays in the middle while its folder has a file "hold"; a file "held" says that
    it does.
    """

    def __init__(self, inner: Dataset) -> None:
        super().__init__(inner)
        self.asked = 0

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        self.asked += 1
        while self.asked > 8 and Path("hold").exists():
            Path("held").touch()
            time.sleep(0.05)
        return self.inner.examples(users)


def make(given: FunctionTask) -> Task:
    """A small task; "raise" and "die" do so for even seeds, and "hold" is held with seed 1."""
    if given.seed % 2 == 0 and given.options == "raise":
        raise RuntimeError("two lines\nof reasons")
    if given.seed % 2 == 0 and given.options == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    task = run_of({**KEYS, "data.seed": given.seed}).task_source.build()
    if given.options == "hold" and given.seed == 1:
        return dataclasses.replace(task, dataset=Held(task.dataset))
    return task
