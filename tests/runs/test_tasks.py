"""From a configuration to data and model, the user's own included."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from fedmf.data.memory import InMemoryDataset
from fedmf.data.partition_plan import PARTITIONS
from fedmf.data.synthetic import SyntheticDataset
from fedmf.data.table import HOLD_OUTS
from fedmf.errors import ConfigError
from fedmf.models.architectures import MODELS
from fedmf.runs.config import Config
from fedmf.runs.tasks import DATASETS, task_of

CHOICES = {name: get_args(field.annotation) for name, field in Config.model_fields.items()}


def test_configurations_and_registries_name_the_same_things() -> None:
    assert set(CHOICES["dataset"]) == set(DATASETS)
    assert set(CHOICES["model"]) == set(MODELS)
    assert set(CHOICES["hold_out"]) == set(HOLD_OUTS)
    assert set(CHOICES["partition"]) == {*PARTITIONS, "natural"}


def configured(**keys: object) -> Config:
    values = {"users": 12, "cohort-size": 3, "rounds": 4, "mechanism": "identity"}
    return Config.from_mapping({**values, **{key.replace("_", "-"): value for key, value in keys.items()}})


@pytest.mark.parametrize(
    ("keys", "parameters", "shape"),
    [
        ({"hidden_units": "8,4"}, 65 * 8 + 9 * 4 + 5 * 10, (64,)),
        ({"model": "logistic"}, 650, (64,)),
        ({"model": "cnn", "input_shape": "1,8,8"}, 160 + 4640 + 129 * 32 + 330, (1, 8, 8)),
        ({"dataset": "prototypes", "model": "cnn", "hidden_units": 128}, 206_922, (1, 28, 28)),
        ({"dataset": "prototypes", "hidden_units": "128,64"}, 109_386, (1, 28, 28)),
        ({"dataset": "synthetic", "model": "logistic"}, 610, (60,)),
        ({"dataset": "synthetic", "features": 5, "classes": 3, "hidden_units": ""}, 18, (5,)),
    ],
)
def test_data_and_model_are_as_configured(
    keys: dict[str, object], parameters: int, shape: tuple[int, ...]
) -> None:
    task = task_of(configured(**keys))
    assert task.model.dimension == parameters
    assert tuple(task.dataset.test_features.shape[1:]) == shape
    assert task.dataset.users == 12
    assert 0 < task.evaluate(task.model.initial())["loss"] < 10


@pytest.mark.parametrize("partition", sorted(PARTITIONS))
def test_partitions_reach_the_data(partition: str) -> None:
    task = task_of(configured(partition=partition, dirichlet_alpha=0.1, size_exponent=1.1, shards_per_user=1))
    assert isinstance(task.dataset, InMemoryDataset)
    sizes = task.dataset.sizes(np.arange(12))
    assert sizes.sum() == 1438
    assert (sizes.max() - sizes.min() > 100) == (partition in {"power-law", "dirichlet-sizes"})


def test_keys_reach_the_synthetic_data() -> None:
    data = task_of(
        configured(
            dataset="synthetic", partition="power-law", size_exponent=1.5, examples_per_user=9, seed=3,
            clusters=3, synthetic_alpha=0.7, synthetic_beta=0.2,
        )
    ).dataset  # fmt: skip
    same = SyntheticDataset(12, 9, size_exponent=1.5, clusters=3, alpha=0.7, beta=0.2, seed=3)
    users = np.arange(12)
    for mine, theirs in zip(data.examples(users), same.examples(users), strict=True):
        assert torch.equal(mine, theirs)


def test_a_table_becomes_a_task(tmp_path: Path) -> None:
    rows = "".join(f"u{i % 4},{i},{-i},{i % 2}\n" for i in range(40))
    (tmp_path / "rows.csv").write_text("who,a,b,y\n" + rows)
    keys = {"dataset": "table", "data_path": str(tmp_path / "rows.csv"), "label_column": "y"}
    natural = configured(**keys, users=4, cohort_size=2, user_column="who", partition="natural")
    task = task_of(natural)
    assert list(task.dataset.user_ids) == ["u0", "u1", "u2", "u3"]
    assert task.model.dimension == 3 * 32 + 33 * 2
    spread = task_of(configured(**keys, feature_columns="b", partition="power-law"))
    assert (spread.dataset.users, spread.dataset.test_features.shape) == (12, (8, 1))


MODULE = """
from fedmf.data import PartitionPlan, prototypes
from fedmf.models import FlatModel, mlp
from fedmf.training import Task

def make(config):
    data = prototypes(PartitionPlan(config.users), 5, shape=(6,), classes=3, seed=config.seed)
    return Task(data, FlatModel(mlp(6, (), 3, config.seed)))

def wrong(config):
    return 3

def broken(config):
    raise OSError("disk on fire")
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_tasks_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "own_tasks_of_a_test", raising=False)
    return "own_tasks_of_a_test"


def test_an_own_task_is_found_in_the_current_folder(own_module: str) -> None:
    task = task_of(configured(task=f"{own_module}:make"))
    assert (task.model.dimension, task.dataset.users) == (21, 12)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "must return a fedmf.training.Task; got int"),
        ("broken", "failed: OSError: disk on fire"),
        ("absent", "failed: AttributeError: .*absent"),
    ],
)
def test_a_bad_own_task_is_one_line(own_module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        task_of(configured(task=f"{own_module}:{name}"))
    assert "\n" not in str(caught.value)


def test_a_module_that_is_nowhere_is_named() -> None:
    with pytest.raises(ConfigError, match=r"No module named 'no_such_module'.*searched on Python's path"):
        task_of(configured(task="no_such_module:make"))
