"""From a configuration to the task it names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fedmf.data import (
    FederatedDataset,
    HubColumns,
    InMemoryDataset,
    PartitionPlan,
    SyntheticDataset,
    digits,
    load_hub,
    prototypes,
    read_table,
    table_dataset,
)
from fedmf.errors import ConfigError
from fedmf.models import FlatModel, build_model
from fedmf.runs.config import Config
from fedmf.runs.keys import parse_counts, parse_names
from fedmf.training import Task

__all__ = ["DATASETS", "dataset_of", "task_of"]


def task_of(config: Config) -> Task:
    """Build the data set and model of a configuration; a pure function of it.

    Raises:
        ConfigError: the configuration's own ``task`` cannot be imported or fails.
        ValueError: the data cannot be read or do not suit partition or model.
    """
    if config.task:
        return _own_task(config)
    dataset = dataset_of(config)
    shape = tuple(dataset.test_features.shape[1:])
    hidden = parse_counts("hidden-units", config.hidden_units)
    return Task(dataset, FlatModel(build_model(config.model, shape, hidden, dataset.classes, config.seed)))


def dataset_of(config: Config) -> FederatedDataset:
    """The data set that a configuration names."""
    return DATASETS[config.dataset](config)


def _digits(config: Config) -> FederatedDataset:
    return _shaped(
        config,
        digits(
            config.users,
            partition=config.partition,
            dirichlet_alpha=config.dirichlet_alpha,
            size_exponent=config.size_exponent,
            shards_per_user=config.shards_per_user,
            test_fraction=config.test_fraction,
            seed=config.seed,
        ),
    )


def _synthetic(config: Config) -> FederatedDataset:
    return SyntheticDataset(
        config.users,
        config.examples_per_user,
        size_exponent=config.size_exponent if config.partition == "power-law" else float("inf"),
        features=config.features,
        classes=config.classes,
        clusters=config.clusters,
        alpha=config.synthetic_alpha,
        beta=config.synthetic_beta,
        test_fraction=config.test_fraction,
        seed=config.seed,
    )


def _prototypes(config: Config) -> FederatedDataset:
    return prototypes(
        _plan(config),
        config.examples_per_user,
        shape=parse_counts("input-shape", config.input_shape) or (1, 28, 28),
        classes=config.classes,
        test_fraction=config.test_fraction,
        seed=config.seed,
    )


def _table(config: Config) -> FederatedDataset:
    path, columns = Path(config.data_path).expanduser(), parse_names(config.feature_columns)
    return _shaped(
        config,
        table_dataset(
            read_table(path, config.label_column, columns, config.user_column),
            None if config.partition == "natural" else _plan(config),
            hold_out=config.hold_out,
            test_fraction=config.test_fraction,
            seed=config.seed,
        ),
    )


def _hub(config: Config) -> FederatedDataset:
    columns = parse_names(config.feature_columns) or ("image",)
    if len(columns) != 1 or config.input_shape:
        raise ConfigError(
            "feature-columns must name one column and input-shape be empty with dataset 'hub'; got "
            f"{config.feature_columns!r} and {config.input_shape!r}."
        )
    return load_hub(
        config.data_path,
        None if config.partition == "natural" else _plan(config),
        HubColumns(columns[0], config.label_column, config.user_column),
        test_fraction=config.test_fraction,
        seed=config.seed,
    )


#: By name, as in configurations.
DATASETS: Final[dict[str, Callable[[Config], FederatedDataset]]] = {
    "digits": _digits,
    "synthetic": _synthetic,
    "prototypes": _prototypes,
    "table": _table,
    "hub": _hub,
}


def _plan(config: Config) -> PartitionPlan:
    return PartitionPlan(
        config.users, config.partition, config.dirichlet_alpha, config.size_exponent, config.shards_per_user
    )


def _shaped(config: Config, dataset: InMemoryDataset) -> InMemoryDataset:
    shape = parse_counts("input-shape", config.input_shape)
    return dataset.reshaped(shape) if shape else dataset


def _own_task(config: Config) -> Task:
    """Call the function that the key ``task`` names, ``package.module:function``, with the configuration."""
    module_name, _, name = config.task.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        # A console script does not search the current folder; python -m, Ray and Flower do.
        sys.path.append(here)
    try:
        factory = getattr(importlib.import_module(module_name), name)
        task = factory(config)
    except Exception as error:
        raise ConfigError(
            f"task {config.task!r} failed: {type(error).__name__}: {error} "
            f"(modules are searched on Python's path and in {here})"
        ) from error
    if not isinstance(task, Task):
        raise ConfigError(
            f"task {config.task!r} must return a fedmf.training.Task; got {type(task).__name__}."
        )
    return task
