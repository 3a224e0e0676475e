"""From a configuration to the workloads its strategy matrices are made for."""

from __future__ import annotations

from fedmf.runs.config import Config
from fedmf.workload import (
    LearningRateSchedule,
    ToeplitzWorkload,
    exponential,
    iterates,
    parse_workload,
    window,
)

__all__ = ["run_workload", "second_workload", "server_schedule"]


def server_schedule(config: Config) -> LearningRateSchedule:
    """η_t of a configuration."""
    return LearningRateSchedule(
        config.server_schedule, config.server_learning_rate, config.rounds, config.server_warmup
    )


def run_workload(config: Config) -> ToeplitzWorkload:
    """A₁ of a run: the named one, or with "auto" what its optimizer and schedule release (`iterates`)."""
    if config.workload != "auto":
        return parse_workload(config.workload, config.rounds)
    plain = config.server_optimizer == "sgd"
    return iterates(
        server_schedule(config),
        config.server_momentum if plain else config.server_beta1,
        config.server_nesterov,
        config.server_weight_decay,
    )


def second_workload(config: Config) -> ToeplitzWorkload:
    """A₂ of a run: the named one, or with "auto" the exponential average of the optimizer, β₂."""
    if config.second_workload != "auto":
        return parse_workload(config.second_workload, config.rounds)
    beta2 = config.server_beta2
    return exponential(beta2, config.rounds) if beta2 > 0 else window(1, config.rounds)
