"""From a configuration to the server optimizer it names."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedmf.optim import (
    Blocks,
    FedAdagrad,
    FedYogi,
    Move,
    ReleasedEnergies,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    SquaredRelease,
)
from fedmf.runs.config import Config
from fedmf.runs.workloads import server_schedule
from fedmf.training import ClippedSums

__all__ = ["clipped_sums", "server_optimizer", "sums_for"]


def server_optimizer(config: Config, shapes: Sequence[Sequence[int]]) -> ServerOptimizer:
    """The server optimizer of a configuration.

    Args:
        config: the run's configuration.
        shapes: of the model's tensors in the order of the flat vector; blocks of second moments follow them.
    """
    move = Move(server_schedule(config), config.server_weight_decay, config.server_update_clip or math.inf)
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


def sums_for(optimizer: ServerOptimizer, dimension: int, clip_norm: float) -> ClippedSums:
    """What to sum over users for an optimizer: updates, and the features of each where it needs them."""
    summed = optimizer.second_form == "per-user"
    return ClippedSums(dimension, clip_norm, optimizer.second_moment if summed else None)


def clipped_sums(config: Config, shapes: Sequence[Sequence[int]]) -> ClippedSums:
    """What the workers of a configuration clip and sum; `shapes` as for `server_optimizer`."""
    dimension = sum(math.prod(shape) for shape in shapes)
    return sums_for(server_optimizer(config, shapes), dimension, config.clip_norm)
