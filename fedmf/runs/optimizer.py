"""From a configuration to the server optimizer it names."""

from __future__ import annotations

from collections.abc import Sequence

from fedmf.optim import LearningRateSchedule, Move, ServerOptimizer, ServerSGD
from fedmf.runs.config import Config

__all__ = ["server_optimizer"]


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
