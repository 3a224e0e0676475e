"""What a run of somebody's own Flower app learns, as far as records go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmf.runs import TaskElsewhere


@dataclass(frozen=True, eq=False)
class FlowerAppTask(TaskElsewhere):
    """The task of a Flower app, which its clients know and the server does not."""

    kind: ClassVar[str] = "flower-app"
    called: ClassVar[str] = "clients of a Flower app"
    users_from: ClassVar[str] = "argument num_users"
    model_from: ClassVar[str] = "argument initial_arrays"
    unknown: ClassVar[str] = "the task of a Flower app is its clients' own; continue it with CorrelatedNoise."
