"""What is public about the data is declared before they are read, or a private run is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fedmf import CyclicCohorts, NoPrivacy, Run
from fedmf.data import Digits, Hub, Synthetic, Table
from fedmf.errors import ConfigError
from fedmf.runs.named_tasks import Classification

COHORTS = CyclicCohorts(rounds=8, users_per_round=4)
BY_USER: dict[str, Any] = {
    "users": 40,
    "partition": "by-user",
    "path": "nowhere",
    "user_column": "who",
    "class_names": ("a", "b"),
    "input_shape": (3,),
    "feature_columns": ("x",),
    "user_list": "users.txt",
}
NAMES = [
    "users",
    "user ids",
    "sizes of users",
    "classes",
    "shape of an example",
    "normalisation",
    "partition",
    "test part",
]


@pytest.mark.parametrize("kind", [Table, Hub])
@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ({"class_names": ()}, "class_names"),
        ({"input_shape": ()}, "input_shape"),
        ({"user_list": ""}, "user_list"),
        ({"user_list": "", "test_split": "examples"}, "user_list"),
        ({"user_list": "", "partition": "iid", "test_split": "users"}, "user_list"),
        ({"class_names": (), "input_shape": (), "user_list": ""}, "class_names, input_shape, user_list"),
    ],
)
def test_a_private_run_must_declare_and_another_need_not(
    kind: type[Table], missing: dict[str, Any], names: str
) -> None:
    data = kind(**{**BY_USER, **missing})
    assert ", ".join(data.undeclared()) == names
    message = rf"^{names} \(of the data\) must be declared for a private run"
    with pytest.raises(ConfigError, match=message) as caught:
        Run(task=Classification(data), cohorts=COHORTS)
    assert "\n" not in str(caught.value)
    assert Run(task=Classification(data), cohorts=COHORTS, privacy=NoPrivacy()).task_source.users == 40


@pytest.mark.parametrize(
    "data",
    [
        Digits(30),
        Synthetic(30),
        Table(**BY_USER),
        Hub(**BY_USER),
        Table(**{**BY_USER, "partition": "dirichlet"}),
        Hub(**{**BY_USER, "test_split": "examples"}),
        Table(path="nowhere"),
    ],
    ids=lambda data: f"{data.kind}-{data.partition}-{getattr(data, 'test_split', '')}",
)
def test_every_kind_lists_its_public_inputs_without_reading(data: Any) -> None:
    inputs = data.public_inputs()
    assert [given.name for given in inputs] == NAMES
    assert all(type(text) is str and text for given in inputs for text in (given.value, given.source))
    listed = {given.name: given for given in inputs}
    assert listed["users"].value == str(data.users)
    assert Classification(data).public_inputs() == inputs
    unread = [given.name for given in inputs if "not for private runs" in given.source]
    assert bool(unread) == bool({"class_names", "input_shape", "user_list"} & {*data.undeclared()})
