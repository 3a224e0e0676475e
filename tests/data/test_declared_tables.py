"""Training tables by a schema: scaled inside, and a bad row leaves its owner's other rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmf.data import Table

SCHEMA = """
[columns.who]
kind = "user"
[columns.age]
kind = "number"
lower = 0
upper = 100
center = 40
scale = 20
[columns.city]
kind = "category"
categories = ["Graz", "Linz"]
[columns.label]
kind = "category"
categories = ["no", "yes"]
[columns.note]
kind = "ignore"
"""
USERS, EACH = 10, 6


def lines() -> list[list[str]]:
    rng = np.random.default_rng(0)
    return [
        [
            f"u{i % USERS}",
            f"{rng.uniform(0, 100):.1f}",
            ("Graz", "Linz")[i % 3 == 0],
            ("no", "yes")[i % 2],
            "x",
        ]
        for i in range(USERS * EACH)
    ]


def loaded(folder: Path, rows: list[list[str]], **more: Any) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "users.txt").write_text("".join(f"u{u}\n" for u in range(USERS)))
    text = "\n".join(["who,age,city,label,note", *(",".join(row) for row in rows)]) + "\n"
    (folder / "rows.csv").write_text(text)
    options: dict[str, Any] = {
        "path": str(folder / "rows.csv"),
        "schema": str(folder / "schema.toml"),
        "partition": "natural",
        "user_column": "who",
        "roster": str(folder / "users.txt"),
        "users": 8,
        **more,
    }
    return Table(**options)


def test_features_are_the_schemas_coordinates(tmp_path: Path) -> None:
    options = loaded(tmp_path, lines())
    assert options.undeclared() == ()
    dataset = options.load()
    rows = lines()
    for name in dataset.user_ids:
        mine = [row for row in rows if row[0] == name]
        expected = [[(float(row[1]) - 40) / 20, row[2] == "Graz", row[2] == "Linz"] for row in mine]
        features, labels = dataset.examples(np.array([dataset.index_of(name)]))
        np.testing.assert_allclose(features.numpy(), expected, rtol=1e-6)
        assert labels.tolist() == [int(row[3] == "yes") for row in mine]
    assert dataset.classes == 2
    narrow = loaded(tmp_path, rows, feature_columns=("city",)).load()
    assert narrow.test_features.shape[1] == 2


BAD = {
    "missing": ["", "Graz", "no"],
    "no number": ["old", "Graz", "no"],
    "infinite": ["inf", "Graz", "no"],
    "another word": ["50", "Wien", "no"],
    "another label": ["50", "Graz", "perhaps"],
    "no label": ["50", "Graz", ""],
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_is_left_out_and_decides_nothing_else(tmp_path: Path, bad: str) -> None:
    clean = loaded(tmp_path / "clean", lines()).load()
    name = clean.user_ids[0]
    rows = lines()
    at = [i for i, row in enumerate(rows) if row[0] == name][2]
    rows[at] = [name, *BAD[bad], "x"]
    dataset = loaded(tmp_path / "bad", rows).load()
    assert dataset.user_ids == clean.user_ids
    assert torch.equal(dataset.test_features, clean.test_features)
    for user in range(clean.users):
        (x, y), (a, b) = (data.examples(np.array([user])) for data in (clean, dataset))
        if user:
            assert torch.equal(x, a)
            assert torch.equal(y, b)
        else:
            kept = torch.arange(EACH) != 2
            assert torch.equal(x[kept], a)
            assert torch.equal(y[kept], b)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"label_column": "age"}, "label_column must be a column that the schema declares as category"),
        ({"label_column": "weight"}, "got 'weight', none of its columns"),
        ({"user_column": "note"}, "user_column must be a column that the schema declares as user"),
        ({"feature_columns": ("age", "label")}, "label_column must be none of the feature columns"),
        ({"feature_columns": ("note",)}, "must be a column that the schema declares as number or category"),
    ],
)
def test_columns_of_other_kinds_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must") as found:
        loaded(tmp_path, lines(), **more).load()
    assert message in str(found.value)


def test_what_the_schema_does_not_declare_is_refused_by_the_header(tmp_path: Path) -> None:
    options = loaded(tmp_path, lines())
    file = tmp_path / "rows.csv"
    file.write_text("who,age,city,label,note,weight\n" + file.read_text().partition("\n")[2])
    with pytest.raises(ValueError, match="columns must all be declared in the schema; got 'weight'"):
        options.load()
    with pytest.raises(ValueError, match="class_names must be left out, or the categories of the label"):
        loaded(tmp_path, lines(), class_names=("yes", "no")).load()
    assert loaded(tmp_path, lines(), class_names=("no", "yes")).load().classes == 2


def test_labels_that_are_written_otherwise_are_named_and_not_the_fraction(tmp_path: Path) -> None:
    options = loaded(
        tmp_path,
        lines(),
        schema="",
        feature_columns=("age",),
        label_column="label",
        class_names=("No", "Yes"),
    )
    with pytest.raises(ValueError, match=r"label is one of class_names \(No, Yes\)"):
        options.load()


NUMBERS = """
[columns.who]
kind = "user"
[columns.age]
kind = "number"
lower = 0
upper = 100
center = 40
scale = 20
[columns.city]
kind = "category"
categories = ["Graz", "Linz"]
[columns.weight]
kind = "number"
lower = 40
upper = 140
[columns.ill]
kind = "category"
categories = ["no", "yes"]
"""


def numbers(folder: Path, rows: list[list[str]], header: str = "who,age,city,weight,ill", **more: Any) -> Any:
    """A number table of such rows, each user's tests its own."""
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(NUMBERS)
    (folder / "users.txt").write_text("".join(f"u{u}\n" for u in range(USERS)))
    (folder / "rows.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    options: dict[str, Any] = {
        "path": str(folder / "rows.csv"),
        "schema": str(folder / "schema.toml"),
        "label_columns": ("weight", "ill"),
        "partition": "natural",
        "hold_out": "examples",
        "user_column": "who",
        "roster": str(folder / "users.txt"),
        "users": USERS,
        **more,
    }
    return Table(**options)


def raw() -> list[list[str]]:
    rng = np.random.default_rng(1)
    return [
        [who, f"{rng.uniform(-10, 110):.1f}", city, f"{rng.uniform(30, 150):.2f}", label]
        for who, _, city, label, _ in lines()
    ]


def same(a: Any, b: Any) -> None:
    """Whether two data sets are equal to the bit."""
    assert a.user_ids == b.user_ids
    assert torch.equal(a.test_features, b.test_features)
    assert torch.equal(a.test_labels.float(), b.test_labels.float())
    for user in range(a.users):
        for x, y in zip(a.examples(np.array([user])), b.examples(np.array([user])), strict=True):
            assert torch.equal(x.float(), y.float())


def test_numbers_as_labels_are_scaled_by_the_schema(tmp_path: Path) -> None:
    """By definition, and equal to the bit to rows that somebody scaled by hand; bad rows are nobody's."""
    rows = raw()
    bad = {3: (1, "old"), 14: (2, "Wien"), 25: (3, ""), 36: (4, "perhaps"), 47: (1, "inf")}
    for i, (place, cell) in bad.items():
        rows[i][place] = cell
    dataset = numbers(tmp_path / "raw", rows).load()
    scaled = [
        [
            who,
            "nan" if i in bad else repr((min(max(float(age), 0.0), 100.0) - 40) / 20),
            str(int(city == "Graz")),
            str(int(city == "Linz")),
            "nan" if i in bad else repr((min(max(float(weight), 40.0), 140.0) - 90) / 50),
            str(int(ill == "yes")),
        ]
        for i, (who, age, city, weight, ill) in enumerate(rows)
    ]
    by_hand = numbers(
        tmp_path / "scaled",
        scaled,
        "who,age,graz,linz,weight,ill",
        schema="",
        feature_columns=("age", "graz", "linz"),
    ).load()
    same(dataset, by_hand)
    assert len(dataset.examples(np.arange(USERS))[0]) + len(dataset.test_labels) == len(rows) - len(bad)


def test_a_category_as_a_number_is_the_label_that_a_table_has(tmp_path: Path) -> None:
    rows = raw()
    rows[8][1] = "old"
    mine = numbers(tmp_path / "numbers", rows, label_columns=("ill",))
    table = Table(
        **{
            name: getattr(mine, name)
            for name in ("path", "schema", "partition", "hold_out", "user_column", "roster", "users")
        },
        label_column="ill",
    )
    same(mine.load(), table.load())
    assert [entry.source for entry in mine.example_inputs()] == 3 * [f"declared: schema {mine.schema}"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"label_columns": ("who",)}, "label_columns must be a column that the schema declares as number"),
        ({"feature_columns": ("age", "ill")}, "label_columns must be none of the feature columns; got 'ill'"),
        ({"user_column": "age", "hold_out": "auto"}, "user_column must be a column that the schema"),
    ],
)
def test_refusals_of_number_tables_hold_whatever_the_rows(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    said = set()
    for name, rows in (("good", raw()), ("bad", [["u0", "old", "Wien", "", "?"]])):
        if "user_column" in more:
            more = {**more, "roster": "", "partition": "iid", "hold_out": "users"}
        with pytest.raises(ValueError, match="must") as found:
            numbers(tmp_path / name, rows, **more).load()
        said.add(str(found.value).replace(name, ""))
    assert len(said) == 1
    assert message in said.pop()


def test_labels_of_0_or_1_are_so_by_the_schema_and_not_by_the_rows(tmp_path: Path) -> None:
    """Else a single number in the test part would decide whether there is a run."""
    from fedmf.models import Mlp
    from fedmf.runs.named_tasks import MultiLabel

    for rows in (raw(), [[*row[:3], "140", row[4]] for row in raw()]):
        with pytest.raises(ValueError, match=r"categories with two values for labels .*; got 'weight'"):
            MultiLabel(numbers(tmp_path / "rows", rows), Mlp()).build()
    rows = [[*row[:3], ("no", "yes")[i % 3 == 0], row[4]] for i, row in enumerate(raw())]
    two = NUMBERS.replace(
        'kind = "number"\nlower = 40\nupper = 140', 'kind = "category"\ncategories = ["no", "yes"]'
    )
    options = numbers(tmp_path / "two", rows)
    (tmp_path / "two" / "schema.toml").write_text(two)
    labels = MultiLabel(options, Mlp()).build().dataset.test_labels
    assert set(labels.unique().tolist()) == {0.0, 1.0}
