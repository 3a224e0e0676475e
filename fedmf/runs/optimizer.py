"""From a configuration to the server optimizer it names."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedmf.optim import LearningRateSchedule, Move, ServerOptimizer, ServerSGD
from fedmf.runs.config import Config
from fedmf.training import ClippedSums

__all__ = ["clipped_sums", "server_optimizer", "sums_for"]


def server_optimizer(config: Config, shapes: Sequence[Sequence[int]]) -> ServerOptimizer:
    """The server optimizer of a configuration.

    Args:
        config: the run's configuration.
        shapes: of the model's tensors in the order of the flat vector; blocks of second moments follow them.
    """
    schedule = LearningRateSchedule(
        config.server_schedule, config.server_learning_rate, config.rounds, config.server_warmup
    )
    return ServerSGD(Move(schedule), config.server_momentum, config.server_nesterov)


def sums_for(optimizer: ServerOptimizer, dimension: int, clip_norm: float) -> ClippedSums:
    """What to sum over users for an optimizer: updates, and the features of each where it needs them."""
    summed = optimizer.second_form == "per-user"
    return ClippedSums(dimension, clip_norm, optimizer.second_moment if summed else None)


def clipped_sums(config: Config, shapes: Sequence[Sequence[int]]) -> ClippedSums:
    """What the workers of a configuration clip and sum; `shapes` as for `server_optimizer`."""
    dimension = sum(math.prod(shape) for shape in shapes)
    return sums_for(server_optimizer(config, shapes), dimension, config.clip_norm)
