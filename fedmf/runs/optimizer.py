"""From a configuration to the server optimizer it names."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedmf.optim import (
    Blocks,
    FedAdagrad,
    FedYogi,
    LearningRateSchedule,
    Move,
    ReleasedEnergies,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    SquaredRelease,
)
from fedmf.runs.config import Config
from fedmf.workload import ToeplitzWorkload, iterates, parse_workload

__all__ = ["run_workload", "server_optimizer"]


def server_optimizer(config: Config, shapes: Sequence[Sequence[int]]) -> ServerOptimizer:
    """The server optimizer of a configuration.

    Args:
        config: the run's configuration.
        shapes: of the model's tensors in the order of the flat vector; blocks of second moments follow them.
    """
    move = Move(_schedule(config), config.server_weight_decay, config.server_update_clip or math.inf)
    if config.server_optimizer == "sgd":
        return ServerSGD(move, config.server_momentum, config.server_nesterov)
    blocks = Blocks.of(shapes, config.second_moment_blocks)
    beta1, beta2, epsilon = config.server_beta1, config.server_beta2, config.server_epsilon
    if config.server_optimizer == "fedadagrad":
        return FedAdagrad(move, SquaredRelease(blocks, debias=False), beta1, epsilon)
    if config.server_optimizer == "fedyogi":
        return FedYogi(move, SquaredRelease(blocks, debias=False), beta1, epsilon, beta2)
    energies = {
        "adam": SquaredRelease(blocks, debias=False),
        "adam-debiased": SquaredRelease(blocks),
        "jme-adam": ReleasedEnergies(blocks, config.second_moment),
    }[config.server_optimizer]
    return ServerAdam(move, energies, beta1, beta2, epsilon, config.server_relative_epsilon)


def run_workload(config: Config) -> ToeplitzWorkload:
    """A₁ of a run: the named one, or with "auto" what its optimizer and schedule release (`iterates`)."""
    if config.workload != "auto":
        return parse_workload(config.workload, config.rounds)
    plain = config.server_optimizer == "sgd"
    return iterates(
        _schedule(config),
        config.server_momentum if plain else config.server_beta1,
        config.server_nesterov,
        config.server_weight_decay,
    )


def _schedule(config: Config) -> LearningRateSchedule:
    return LearningRateSchedule(
        config.server_schedule, config.server_learning_rate, config.rounds, config.server_warmup
    )
