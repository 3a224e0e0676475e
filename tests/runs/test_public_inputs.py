"""What is public about the data is declared before they are read."""

from __future__ import annotations

from typing import Any

import pytest

from fedmf.data import Digits, Hub, Synthetic, Table
from fedmf.runs.tasks import Classification

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
    "classes",
    "shape of an example",
    "normalization",
    "partition",
    "test part",
]


@pytest.mark.parametrize("kind", [Table, Hub])
@pytest.mark.parametrize("missing", ["class_names", "user_list", "input_shape"])
def test_what_is_public_must_be_declared(kind: type[Table], missing: str) -> None:
    given = {**BY_USER, missing: "" if missing == "user_list" else ()}
    if kind is Table and missing == "input_shape":
        assert kind(**given).shape == (1,)  # that of the columns
        return
    with pytest.raises(ValueError, match=rf"{missing} .*must be .*; got none") as caught:
        kind(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        Digits(30),
        Synthetic(30),
        Table(**BY_USER),
        Hub(**BY_USER),
        Table(**{**BY_USER, "partition": "dirichlet"}),
        Hub(**{**BY_USER, "test_split": "examples"}),
        Table(path="nowhere", feature_columns=("x",), class_names=("a", "b")),
    ],
    ids=lambda data: f"{data.kind}-{data.partition}-{getattr(data, 'test_split', '')}",
)
def test_every_kind_lists_its_public_inputs_without_reading(data: Any) -> None:
    inputs = data.public_inputs()
    sizes = "sizes of users"  # of real users, they decide a user's own update only
    assert [given.name for given in inputs if given.name != sizes] == NAMES
    assert (sizes in [given.name for given in inputs]) == (data.partition != "by-user")
    assert all(
        type(text) is str and text for given in inputs for text in (given.value, given.source)
    )
    listed = {given.name: given for given in inputs}
    assert listed["users"].value == str(data.users)
    assert Classification(data).public_inputs() == inputs
