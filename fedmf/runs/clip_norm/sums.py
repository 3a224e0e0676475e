"""What the workers of a run are: what trains its users, what clips and sums their updates."""

from __future__ import annotations

from fedmf.optim import ServerOptimizer
from fedmf.parts import Clipping
from fedmf.runs.run import Run
from fedmf.training import ClippedSums, IsolatedTrainer, LocalTrainer, Task, Trainer


def sums_for(optimizer: ServerOptimizer, dimension: int, clip_norm: float, clipping: Clipping) -> ClippedSums:
    """What to sum over users: updates; features where the optimizer needs them, signs where ζ does."""
    summed = optimizer.second_form == "per-user"
    moment = optimizer.second_moment if summed else None
    return ClippedSums(dimension, clip_norm, moment, clipping.adapts)


def clipped_sums(run: Run, task: Task) -> ClippedSums:
    """What the workers of a run clip and sum."""
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return sums_for(optimizer, task.model.dimension, run.privacy.clip_norm, run.clipping)


def local_trainer(run: Run, task: Task) -> Trainer:
    """What trains the users of a run, in this process or in others.

    Args:
        run: says how, and within which limits.
        task: built from it, on the device where users are trained.
    """
    limits = run.execution.user_limits
    if run.execution.isolation == "process":
        return IsolatedTrainer(task, run.task_source.build, run.local, limits)
    return LocalTrainer(task, run.local, limits=limits)
