"""What the workers of a run are: what trains its users, what clips and sums their updates."""

from __future__ import annotations

from collections.abc import Sequence

from fedmf.optim import ServerOptimizer
from fedmf.parts import Part
from fedmf.runs.execution import Confinement
from fedmf.runs.run import Run
from fedmf.training import ClippedSums, IsolatedTrainer, LocalTrainer, Task, Trainer


def sums_for(
    optimizer: ServerOptimizer, dimension: int, clip_norm: float, parts: Sequence[Part]
) -> ClippedSums:
    """What to sum over users: updates; features where the optimizer needs them, statistics where parts do."""
    summed = optimizer.second_form == "per-user"
    moment = optimizer.second_moment if summed else None
    statistics = dict.fromkeys(statistic for part in parts for statistic in part.statistics())
    return ClippedSums(dimension, clip_norm, moment, tuple(statistics))


def clipped_sums(run: Run, task: Task) -> ClippedSums:
    """What the workers of a run clip and sum."""
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return sums_for(optimizer, task.model.dimension, run.privacy.clip_norm, run.parts)


def local_trainer(run: Run, task: Task) -> Trainer:
    """What trains the users of a run, in this process or in others.

    Args:
        run: says how, and within which limits.
        task: built from it, on the device where users are trained.
    """
    confinement: Confinement = run.execution
    limits = confinement.user_limits
    if confinement.isolation == "process":
        return IsolatedTrainer(task, run.task_source.build, run.local, limits)
    return LocalTrainer(task, run.local, limits=limits)
