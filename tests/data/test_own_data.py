"""Data frames and arrays of one's own: the user column, the list of users, the classes, hostile
cells.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedmf
from fedmf.data import Dataset, InMemoryDataset

FRAME = pd.DataFrame(
    {
        "who": ["bob", "ann", "bob", "ann", "cid"],
        "age": [30.0, 40.0, 50.0, 60.0, 70.0],
        "dose": [1, 2, 3, 4, 5],
        "ill": ["no", "yes", "yes", "no", "no"],
    }
)
PEOPLE = ["ann", "bob"]


def of_frame(frame: pd.DataFrame = FRAME, **options: Any) -> InMemoryDataset:
    return Dataset.from_frame(
        frame,
        **{"user": "who", "label": "ill", "user_list": PEOPLE, "classes": ["no", "yes"], **options},
    )


def owned(data: Dataset, name: str) -> tuple[list[Any], list[Any]]:
    features, labels = data.examples(data.indices([name]))
    return features.tolist(), labels.tolist()


def test_a_frame_gives_each_user_its_rows() -> None:
    data = of_frame(test=FRAME.iloc[4:])
    assert list(data.user_ids) == PEOPLE
    assert owned(data, "ann") == ([[40.0, 2.0], [60.0, 4.0]], [1, 0])
    assert owned(data, "bob") == ([[30.0, 1.0], [50.0, 3.0]], [0, 1])
    assert (data.test_features.tolist(), data.test_labels.tolist()) == ([[70.0, 5.0]], [0])
    assert (data.classes, data.features.dtype) == (2, torch.float32)
    assert list(of_frame(user_list="from-data").user_ids) == ["ann", "bob", "cid"]
    regression = of_frame(FRAME.drop(columns="ill"), label="age", classes=None)
    assert (regression.labels.tolist(), regression.classes) == (FRAME["age"].tolist(), 0)
    several = of_frame(FRAME.assign(x=0.5), label=["age", "dose"], features=["x"], classes=None)
    assert several.labels.shape == (5, 2)


class LargeTensors(TorchDispatchMode):
    """The operations that make a tensor of at least so many bytes."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least
        self.operations = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = isinstance(result, Tensor) and func._schema.returns[0].alias_info is None
        if is_new and result.nbytes >= self.least:
            self.operations.append(str(func))
        return result


def test_a_tensor_is_copied_once_and_checked_in_little_memory() -> None:
    x = torch.ones(4096, 1024, dtype=torch.float64)
    users = np.zeros(len(x), dtype=np.int64)
    with LargeTensors(x.numel()) as large:
        data = Dataset.from_arrays(x, users, users, user_list=[0], classes=2)
        tokens = {"x": data.features.int()}
        Dataset.from_arrays(tokens, users, users, user_list=[0], classes=2, vocabulary=2)
    copies = ["aten._to_copy.default", "aten._to_copy.default", "aten._to_copy.default"]
    assert large.operations == copies  # to float32, to int32 here, and of the tokens


def test_repr_shows_counts_and_no_row() -> None:
    assert repr(of_frame()) == (
        "InMemoryDataset(users=2, examples=4, features=(2,) float32, labels=() int64 below 2,"
        " tests=0)"
    )
    task = fedmf.classification(of_frame(), nn.Linear(2, 2))
    assert isinstance(task, fedmf.Task)
    assert "Tensor" not in repr(task.dataset)


#: Cells of a hostile row of ann's, which is left out and changes nothing else.
CELLS: dict[str, dict[str, Any]] = {
    "NaN": {"age": np.nan},
    "infinity": {"age": np.inf},
    "too large for float32": {"age": 1e39},
    "a huge integer": {"dose": 10**400},
    "a list": {"age": [1, 2]},
    "a rare label": {"ill": "perhaps"},
    "no user": {"who": None},
    "NaN for a user": {"who": np.nan},
    "a stranger": {"who": "eve"},
    "a list for a user": {"who": ["ann"]},
    "a dict for a label": {"ill": {}},
    "a complex number": {"age": 1j},
}


def test_a_hostile_cell_is_its_rows_fault_alone() -> None:
    clean = of_frame()
    for case, cell in CELLS.items():
        row = {**FRAME.iloc[1].to_dict(), **cell}
        data = of_frame(
            pd.DataFrame([FRAME.iloc[0].to_dict(), row, *FRAME.iloc[2:].to_dict("records")])
        )
        assert owned(data, "ann") == ([[60.0, 4.0]], [0]), case
        assert owned(data, "bob") == owned(clean, "bob"), case
        assert data.structure == clean.structure, case


#: Columns of other types that hold what `FRAME` holds.
TYPED: dict[str, dict[str, Any]] = {
    "nullable": {
        "dose": pd.array([1, 2, 3, 4, 5], dtype="Int64"),
        "age": FRAME["age"].astype("Float64"),
    },
    "categories": {name: FRAME[name].astype("category") for name in FRAME},
    "arrow": {
        "dose": FRAME["dose"].astype("int64[pyarrow]"),
        "who": FRAME["who"].astype("string[pyarrow]"),
    },
    "text": {"age": ["30", "40.0", " 50 ", "6e1", "70"]},
    "decimals": {"dose": [Decimal(dose) for dose in range(1, 6)]},
    "small": {"dose": FRAME["dose"].astype("uint8"), "age": FRAME["age"].astype("float16")},
}


def test_columns_of_any_type_hold_the_same_numbers_and_nothing_moves_them_later() -> None:
    clean = [owned(of_frame(), name) for name in PEOPLE]
    for case, columns in TYPED.items():
        assert [owned(of_frame(FRAME.assign(**columns)), name) for name in PEOPLE] == clean, case
    labels = pd.array([0, pd.NA, 1, 0, 0], dtype="Int64")
    assert owned(of_frame(FRAME.assign(ill=labels), classes=2), "ann") == ([[60.0, 4.0]], [0])
    x = torch.eye(2)
    data = Dataset.from_arrays(x, [0, 1], PEOPLE, user_list=PEOPLE, classes=2)
    x.zero_()
    assert owned(data, "ann") == ([[1.0, 0.0]], [0])


@pytest.mark.parametrize(
    "users",
    [
        [7, 12, 7, 12],
        [7.0, 12.0, 7.0, 12.0],
        ["7", "12", " 7", "12.0"],
        [7, "12", 7.0, np.int64(12)],
        np.array([7, 12, 7, 12], dtype=np.uint8),
        pd.Series([7, 12, 7, 12], dtype="category"),
        [b"7", "12", 7, "\ufeff12"],
    ],
    ids=str,
)
def test_a_user_is_one_however_the_id_is_typed(users: Any) -> None:
    data = Dataset.from_arrays(np.eye(4), [0, 1, 0, 1], users, user_list=[12, 7.0], classes=2)
    assert list(data.user_ids) == ["12", "7"]
    assert [part.tolist() for part in data.owned] == [[1, 3], [0, 2]]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no user list": (
        {"user_list": None},
        "user_list .* must be given.* all ids, .* or user_list='from-data'",
    ),
    "a user twice": (
        {"user_list": ["ann", " ann"]},
        "must contain each user once; got 'ann' more than once",
    ),
    "a gap on it": (
        {"user_list": ["ann", None]},
        "must have a user id in each row; got none in row 2",
    ),
    "classes untold": ({"classes": None}, "classes must be given unless labels are floating-point"),
    "a class twice": ({"classes": ["no", "no"]}, "classes must be at least two different names"),
    "classes by a word": (
        {"classes": "all"},
        "classes must be at least two different names; got 'all'",
    ),
    "the label as feature": (
        {"features": ["age", "ill"]},
        "column 'ill' must occur once in frame and be named once",
    ),
    "texts as features": (
        {"frame": FRAME.assign(city="x", job=list("vwxyz"), ill=[0, 1, 1, 0, 0]), "classes": 2},
        r"features must be columns of numbers; got no number in city, job\. .* with a schema",
    ),
    "times as features": (
        {"features": ["at"], "frame": FRAME.assign(at=pd.Timestamp("2026-01-01"))},
        "column 'at' must hold numbers; got timestamp",
    ),
    "duplicate columns": (
        {"frame": pd.concat([FRAME, FRAME[["age"]]], axis=1)},
        "column 'age' must occur once in frame",
    ),
    "a test part without a column": (
        {"test": FRAME.drop(columns="age")},
        "column 'age' must occur once in test and be named once; test has the columns who, ",
    ),
    "test rows of users": (
        {"test": FRAME},
        "test .* must not belong to users on the user list; got rows of some",
    ),
    "an empty frame": ({"frame": FRAME.iloc[:0]}, "must hold an example"),
}


def test_what_is_not_told_or_not_there_is_refused_in_one_line() -> None:
    for options, message in REFUSED.values():
        with pytest.raises(ValueError, match=message) as caught:
            of_frame(**options)
        assert "\n" not in str(caught.value)


def test_arrays_must_be_of_one_length_and_labels_in_range() -> None:
    with pytest.raises(
        ValueError, match=r"x, y and users must have the same length; got \[4, 3, 4\]"
    ):
        Dataset.from_arrays(np.eye(4), [0, 1, 0], list("abab"), user_list=["a"], classes=2)
    with pytest.raises(ValueError, match="labels must be one tensor; got several by name: p, q"):
        Dataset.from_arrays(np.eye(2), {"p": [0, 1], "q": [0, 1]}, list("ab"), user_list=["a"])
    data = Dataset.from_arrays(np.eye(4), [0, 2, -1, 1], list("aaaa"), user_list=["a"], classes=2)
    assert data.owned[0].tolist() == [0, 3]
    for labels in ([0.0, 0.5, np.nan, 1.0], torch.tensor([True, False, True, True])):
        data = Dataset.from_arrays(np.eye(4), labels, ["a", *"bb", "a"], user_list=["a"], classes=2)
        assert data.owned[0].tolist() == [0, 3]


def test_features_by_name_and_tokens() -> None:
    x = {"input_ids": torch.tensor([[1, 2], [3, 4]]), "mask": np.ones((2, 2))}
    data = Dataset.from_arrays(
        x, torch.tensor([[2, 3], [4, 0]]), ["a", "b"], user_list=["a", "b"], vocabulary=5
    )
    assert str(data.structure.features) == "input_ids (2,) int64 below 5, mask (2,) float32"
    assert str(data.structure.labels) == "(2,) int64 below 5"
    assert data.labels.dtype == torch.int64


@pytest.mark.parametrize("own_data", [False, True])
@pytest.mark.parametrize("own_model", [False, True])
def test_one_function_takes_what_is_ones_own_and_what_has_a_name(
    own_data: bool, own_model: bool
) -> None:
    data: Any = fedmf.Digits(users=10)
    entries = 64
    users = classes = 10
    if own_data:
        data = of_frame()
        entries = users = classes = 2
    model: Any = fedmf.Mlp(hidden_units=(4,))
    if own_model:
        model = nn.Linear(entries, classes)
    built = fedmf.classification(data, model)
    assert isinstance(built, fedmf.Task) == (own_data or own_model)
    if not isinstance(built, fedmf.Task):
        assert type(built).__name__ == "Classification"
        built = built.build()
    assert (built.dataset.users, built.dataset.classes) == (users, classes)


def test_what_is_no_data_or_model_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"data must be a fedmf\.Dataset .* or named data .*; got DataFrame"
    ):
        fedmf.classification(FRAME, fedmf.Mlp())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"model must be a torch module or a named model .*; got str"
    ):
        fedmf.classification(fedmf.Digits(), "mlp")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="data must suit task 'regression': real numbers as labels"
    ):
        fedmf.regression(of_frame(), nn.Linear(2, 1))
    with pytest.raises(ValueError, match="data must suit task 'next-token': tokens as features"):
        fedmf.next_token(of_frame(), nn.Linear(2, 1))


def test_integers_beyond_their_public_bound_are_left_out() -> None:
    x = {"codes": np.array([0, 3, 7, -1], np.int8), "z": np.zeros((4, 2))}
    of = {"users": ["a", "a", "b", "b"], "user_list": ["a", "b"], "classes": 2}
    for bound, left in ((4, [2, 0]), ({"codes": 300}, [2, 1])):
        data = Dataset.from_arrays(x, [0, 1, 1, 0], vocabulary=bound, **of)
        assert data.sizes(np.arange(2)).tolist() == left
    for bound, message in (
        (0, "must be given if there is no test part"),
        ({"z": 4}, "must have names of integers"),
    ):
        with pytest.raises(ValueError, match=message):
            Dataset.from_arrays(x, [0, 1, 1, 0], vocabulary=bound, **of)


def test_rows_that_do_not_count_are_counted_by_reason_for_the_operator() -> None:
    frame = FRAME.assign(dose=[1, "two", 3, np.inf, 5], ill=["no", "No", "yes", "no", "no"])
    counts = of_frame(frame).row_counts
    assert counts is not None
    assert (counts.rows, counts.examples, counts.users, counts.test_rows) == (5, 2, 2, 0)
    assert counts.left_out == {
        "y: none of the 2 classes": 1,
        "users: not on the user list": 1,
        "dose: missing or not a finite number": 2,
    }


def test_a_public_test_part_is_checked_aloud(caplog: pytest.LogCaptureFixture) -> None:
    x = np.arange(10.0)[:, None]
    given: dict[str, Any] = {"classes": 2, "user_list": ["ann"]}

    def tested(labels: list[int], **more: Any) -> int:
        part = (x[:4], labels)
        users = 10 * ["ann"]
        return len(
            Dataset.from_arrays(x, 5 * [0, 1], users, test=part, **given, **more).test_labels
        )

    assert tested([0, 1, 0, 1]) == 4
    assert caplog.text == ""
    assert tested([-1, 1, 0, 1]) == 3
    assert "3 of 4 rows count; left out: 1 (y: none of the 2 classes)" in caplog.text
    with pytest.raises(ValueError, match="at least half count; got 1 of 4"):
        tested([-1, 1, -1, -1])
    assert tested([-1, 1, -1, -1], test_owner="training users") == 1
    for owner in ("training_users", "somebody", None):
        with pytest.raises(ValueError, match=r"test_owner must be one of .*'training users'"):
            tested([0, 1, 0, 1], test_owner=owner)


def test_features_by_default_are_logged_and_no_saved_index(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = of_frame(FRAME.reset_index(names="Unnamed: 0"))
    assert data.features.shape == (5, 2)
    assert "'age', 'dose'; not taken, as saved indices: 'Unnamed: 0'" in caplog.text
