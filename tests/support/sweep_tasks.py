"""Tasks that sweeps run: made in worker processes, some of which they break."""

from __future__ import annotations

import dataclasses
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


def make(source: FunctionTask) -> Task:
    """A small task."""
    return run_of({**KEYS, "data.seed": source.seed}).task_source.build()


def raising(source: FunctionTask) -> Task:
    """A small task that fails for even seeds."""
    if source.seed % 2 == 0:
        raise RuntimeError("two lines\nof reasons")
    return make(source)


def held(source: FunctionTask) -> Task:
    """A small task that is held with seed 1."""
    task = make(source)
    if source.seed == 1:
        return dataclasses.replace(task, dataset=Held(task.dataset))
    return task
