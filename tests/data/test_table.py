"""CSV and Parquet with a user column: what is read, what is refused, who gets what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.data import Table, TableColumns, TableRows, read_table
from fedmf.data.partitions import hold_out_examples, hold_out_users

laws = settings(derandomize=True, max_examples=40, deadline=None, database=None)

CSV = """who,a,b,label
zoe,1,2.5,cat
al,3,4,dog
zoe,5,6,cat
al,-7,8e-3,10
bo,9,10,dog
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "t.csv", CSV), TableColumns("label", user="who"))
    assert table.features.tolist() == [[1, 2.5], [3, 4], [5, 6], [-7, np.float32(8e-3)], [9, 10]]
    assert table.features.dtype == np.float32
    assert table.classes == ("10", "cat", "dog")
    assert table.labels.tolist() == [1, 2, 1, 0, 2]
    assert table.users == ("al", "bo", "zoe")
    assert table.owner.tolist() == [2, 0, 2, 0, 1]


def test_columns_are_taken_in_the_order_asked(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "t.csv", CSV), TableColumns("label", ("b",)))
    assert table.features.tolist() == [[2.5], [4], [6], [np.float32(8e-3)], [10]]
    assert table.users == ("",)
    swapped = read_table(tmp_path / "t.csv", TableColumns("label", ("b", "a"), "who"))
    assert swapped.features[1].tolist() == [4, 3]


def test_whole_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "t.csv", "x,label\n1,10\n2,9\n3,-1\n"), TableColumns("label"))
    assert table.classes == ("-1", "9", "10")
    assert table.labels.tolist() == [2, 1, 0]


def test_parquet_equals_csv_and_folders_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    columns = {"who": ["zoe", "al"], "a": [1, 3], "b": [2.5, 4.0], "label": ["cat", "dog"]}
    parquet.write_table(arrow.table(columns), folder / "1.parquet")
    written(folder / "2.csv", CSV.replace("zoe,1,2.5,cat\nal,3,4,dog\n", ""))
    written(folder / "notes.txt", "nothing")
    both, one = (
        read_table(folder, TableColumns("label", user="who")),
        read_table(written(tmp_path / "t.csv", CSV), TableColumns("label", user="who")),
    )
    assert (both.classes, both.users) == (one.classes, one.users)
    for name in ("features", "labels", "owner"):
        assert np.array_equal(getattr(both, name), getattr(one, name))


@pytest.mark.parametrize("kind", [arrow.list_(arrow.float32()), arrow.list_(arrow.float32(), 3)])
def test_a_column_of_lists_holds_all_features(tmp_path: Path, kind: arrow.DataType) -> None:
    pixels = arrow.array([[1, 2, 3], [4, 5, 6]], kind)
    parquet.write_table(arrow.table({"pixels": pixels, "label": [3, 1]}), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", TableColumns("label", ("pixels",)))
    assert table.features.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert table.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CSV.replace("who", "user"),
            "user_column must name one column of .*; got 'who', which occurs 0 times",
        ),
        (CSV.replace("label", "y"), "label_column must name one column of .*; got 'label', which occurs 0"),
        (
            CSV.replace("who,a,b", "who,a,a"),
            "feature_columns must name one column .* 'a', which occurs 2 times",
        ),
        ("who,label\nal,1\n", "feature_columns must be others than label and user; got none"),
        ("who,a,label\n", "must hold at least one row; got none"),
        ("", "must be readable; got .*Empty CSV"),
    ],
)
def test_another_shape_of_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_table(written(tmp_path / "t.csv", text), TableColumns("label", user="who"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": ["a", "b"], "label": [0, 1]}, "must hold numbers; got column 'x' of type string"),
        (
            {"x": [1, 2], "label": [0.5, 1.5]},
            "column 'label' of .* must hold text or whole numbers; got double",
        ),
        (
            {"x": [[1.0], [2.0]], "y": [1, 2], "label": [0, 1]},
            "one column of lists; got lists in 'x'",
        ),
        ({"x": [[], []], "label": [0, 1]}, "must hold numbers; got column 'x' of type null"),
    ],
)
def test_bad_parquet_is_one_line(tmp_path: Path, columns: dict[str, list[object]], message: str) -> None:
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=message) as caught:
        read_table(tmp_path / "t.parquet", TableColumns("label"))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_or_not_a_table_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "t.parquet", "not parquet")
    with pytest.raises(ValueError, match="path must be readable"):
        read_table(tmp_path / "t.parquet", TableColumns("label"))
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none.csv", tmp_path / "empty", written(tmp_path / "t.txt", CSV)):
        with pytest.raises(ValueError, match=r"path must name a \.csv or \.parquet file that exists"):
            read_table(path, TableColumns("label"))


@laws
@given(st.lists(st.integers(0, 9), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0, 99))
def test_holding_out_leaves_every_owner_something_or_nothing(
    owners: list[int], fraction: float, seed: int
) -> None:
    owner = np.unique(owners, return_inverse=True)[1].astype(np.int64)
    users, rng = int(owner.max()) + 1, np.random.default_rng(seed)
    if 1 <= round(fraction * owner.size) <= owner.size - users:
        mask = hold_out_examples(owner, fraction, rng)
        assert mask.sum() == round(fraction * owner.size)
        assert set(owner[~mask]) == set(range(users))
    else:
        with pytest.raises(ValueError, match="test_fraction must hold out between 1 and"):
            hold_out_examples(owner, fraction, rng)
    if 1 <= round(fraction * users) < users:
        held = hold_out_users(users, fraction, rng)
        assert len(set(held.tolist())) == held.size == round(fraction * users)
        assert set(held.tolist()) <= set(range(users))
    else:
        with pytest.raises(ValueError, match="test_fraction must hold out between 1 and"):
            hold_out_users(users, fraction, rng)


def example_table(rows: int = 40, users: int = 8) -> TableRows:
    rng = np.random.default_rng(0)
    owner = np.concatenate([np.arange(users), rng.integers(users, size=rows - users)])
    names = tuple(f"name {u}" for u in range(users))
    return TableRows(
        np.arange(rows, dtype=np.float32)[:, None], np.arange(rows) % 3, ("x", "y", "z"), owner, names
    )


@pytest.mark.parametrize("hold_out", ["auto", "examples", "users"])
@pytest.mark.parametrize(("users", "partition"), [(1, "natural"), (5, "iid"), (3, "shards")])
def test_every_row_is_held_out_or_owned_once(hold_out: str, users: int, partition: str) -> None:
    table = example_table()
    data = Table(
        users,
        partition,  # type: ignore[arg-type]
        path="rows",
        user_column="who",
        hold_out=hold_out,  # type: ignore[arg-type]
        test_fraction=0.25,
    ).dataset_of(table, table.labels)
    features, labels = data.examples(np.arange(data.users))
    rows = np.concatenate([features[:, 0].numpy(), data.test_features[:, 0].numpy()]).astype(int)
    assert sorted(rows.tolist()) == list(range(40))
    both = np.concatenate([labels.numpy(), data.test_labels.numpy()])
    assert np.array_equal(both, table.labels[rows])
    assert data.classes == 3
    if partition == "natural":
        for u, name in enumerate(data.user_ids):
            mine = data.examples(np.array([u]))[0][:, 0].numpy().astype(int)
            assert {table.users[o] for o in table.owner[mine]} == {name}
        assert data.users == (8 if hold_out == "examples" else 6)
        assert data.test_owner == ("training users" if hold_out == "examples" else "held-out users")
    else:
        assert data.test_owner == "nobody"
    if hold_out == "users" or (hold_out == "auto" and partition == "natural"):
        tested = data.test_features[:, 0].numpy().astype(int)
        assert not set(table.owner[tested]) & set(table.owner[np.setdiff1d(np.arange(40), tested)])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": ""}, "path .* must name what dataset 'table' reads; got none"),
        ({"partition": "natural"}, "user_column must be named with partition 'natural'"),
        ({"hold_out": "users"}, "user_column must be named with hold_out 'users'"),
        ({"hold_out": "rows"}, "hold_out must be one of auto, users, examples; got 'rows'"),
        ({"feature_columns": ("a", "a")}, "feature_columns must be a tuple of different names"),
        ({"label_columns": ("y",)}, "feature_columns .* must be named with label_columns; got none"),
        ({"label_columns": ("y",), "label_column": "z"}, "label_columns must be left out with"),
        ({"class_names": ("x",)}, "class_names must be at least two labels; got 'x' alone"),
        ({"class_names": ("0..3", "2")}, r"class_names must be different; got 0\.\.3, 2"),
        ({"class_names": ("5..3",)}, r"ranges of 1 to 1000000 numbers; got 5\.\.3"),
        ({"class_names": ("x,y", "z")}, "class_names must list values without commas"),
        ({"roster": "users.txt"}, "user_column must be named with a roster; got none"),
        ({"input_shape": (2, -1)}, "input_shape must be an integer in 1"),
    ],
)
def test_impossible_options_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table(**{"path": "rows", **fields})  # type: ignore[arg-type]


def test_a_single_label_is_refused() -> None:
    rows = replace(example_table(), labels=np.zeros(40, dtype=np.int64), classes=("x",))
    with pytest.raises(ValueError, match="label_column must hold at least two labels; got x"):
        Table(path="rows").dataset_of(rows, rows.labels)


def test_images_are_reshaped_rows() -> None:
    options = Table(8, path="rows", input_shape=(1, 1, 1))
    rows = example_table()
    data = options.dataset_of(rows, rows.labels)
    assert data.examples(np.array([0]))[0].shape[1:] == (1, 1, 1)
    for shape in ((2, 1), (), (0,), (-1, -1)):
        with pytest.raises(ValueError, match="input-shape must multiply to the 1 entries of an example"):
            data.reshaped(shape)
