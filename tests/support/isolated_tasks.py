"""Tasks whose users end, hold up or fill a process; other processes import them by name."""

import dataclasses
import os
import signal
import time

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import InMemoryDataset
from fedmf.runs import FunctionTask
from fedmf.training import Task

from .small_runs import linear_task
from .wrapped_data import WrappedData

#: Who does what under "all".
ALL = {1: "killed", 2: "exits", 3: "raises"}
VICTIM = 2


class Hostile(WrappedData):
    """A data set in which users do something when their examples are read: one of them, or several."""

    def __init__(self, inner: InMemoryDataset, behaviour: str) -> None:
        super().__init__(inner)
        self.behaviours = ALL if behaviour == "all" else {VICTIM: behaviour}

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        for user in self.behaviours.keys() & set(users.tolist()):
            behaviour = self.behaviours[user]
            if behaviour == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if behaviour == "exits":
                os._exit(3)
            if behaviour == "sleeps":
                time.sleep(3600.0)
            if behaviour == "raises":
                raise OSError("cannot be decoded")
        return self.inner.examples(users)


def hostile(source: FunctionTask) -> Task:
    """Linear users, one of whom behaves as the options say; "well" is nobody."""
    task = linear_task(source.users, 10)
    assert isinstance(task.dataset, InMemoryDataset)
    return dataclasses.replace(task, dataset=Hostile(task.dataset, source.options))
