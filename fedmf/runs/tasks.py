"""From a configuration to the task it names."""

from __future__ import annotations

from fedmf.runs.config import Config
from fedmf.training import FlatModel, Task, digits, mlp

__all__ = ["task_of"]


def task_of(config: Config) -> Task:
    """Build the data set and model of a configuration; a pure function of it."""
    dataset = digits(
        config.users,
        partition=config.partition,
        dirichlet_alpha=config.dirichlet_alpha,
        test_fraction=config.test_fraction,
        seed=config.seed,
    )
    inputs = dataset.test_features[0].numel()
    return Task(dataset, FlatModel(mlp(inputs, (config.hidden_units,), dataset.classes, config.seed)))
