"""Training tables by a data contract: scaled inside, and a bad row leaves its owner's other rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmf.data import NumberTable, Table

CONTRACT = """
[columns.who]
kind = "user"
[columns.age]
kind = "number"
lower = 0
upper = 100
centre = 40
unit = 20
[columns.city]
kind = "category"
words = ["Graz", "Linz"]
[columns.label]
kind = "category"
words = ["no", "yes"]
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
    (folder / "contract.toml").write_text(CONTRACT)
    (folder / "users.txt").write_text("".join(f"u{u}\n" for u in range(USERS)))
    text = "\n".join(["who,age,city,label,note", *(",".join(row) for row in rows)]) + "\n"
    (folder / "rows.csv").write_text(text)
    options: dict[str, Any] = {
        "path": str(folder / "rows.csv"),
        "contract": str(folder / "contract.toml"),
        "partition": "natural",
        "user_column": "who",
        "roster": str(folder / "users.txt"),
        "users": 8,
        **more,
    }
    return Table(**options)


def test_features_are_the_contracts_coordinates(tmp_path: Path) -> None:
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
        ({"label_column": "age"}, "label_column must be a column that the contract declares as category"),
        ({"label_column": "weight"}, "got 'weight', none of its columns"),
        ({"user_column": "note"}, "user_column must be a column that the contract declares as user"),
        ({"feature_columns": ("age", "label")}, "label_column must be none of the feature columns"),
        ({"feature_columns": ("note",)}, "must be a column that the contract declares as number or category"),
    ],
)
def test_columns_of_other_kinds_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must") as found:
        loaded(tmp_path, lines(), **more).load()
    assert message in str(found.value)


def test_what_the_contract_does_not_declare_is_refused_by_the_header(tmp_path: Path) -> None:
    options = loaded(tmp_path, lines())
    file = tmp_path / "rows.csv"
    file.write_text("who,age,city,label,note,weight\n" + file.read_text().partition("\n")[2])
    with pytest.raises(ValueError, match="columns must all be declared in the contract; got 'weight'"):
        options.load()
    with pytest.raises(ValueError, match="class_names must be left out, or the words of the label column"):
        loaded(tmp_path, lines(), class_names=("yes", "no")).load()
    assert loaded(tmp_path, lines(), class_names=("no", "yes")).load().classes == 2


def test_labels_that_are_written_otherwise_are_named_and_not_the_fraction(tmp_path: Path) -> None:
    options = loaded(
        tmp_path,
        lines(),
        contract="",
        feature_columns=("age",),
        label_column="label",
        class_names=("No", "Yes"),
    )
    with pytest.raises(ValueError, match=r"label is one of class_names \(No, Yes\)"):
        options.load()


def test_a_row_of_numbers_is_left_out_too(tmp_path: Path) -> None:
    rows = [f"{i},{i / 7:.3f}" for i in range(40)]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["x,y", *rows]) + "\n")
    wanted: dict[str, Any] = {
        "path": str(file),
        "feature_columns": ("x",),
        "label_columns": ("y",),
        "users": 6,
    }
    before = NumberTable(**wanted).load()
    rows[7] = "many,1"
    file.write_text("\n".join(["x,y", *rows]) + "\n")
    after = NumberTable(**wanted).load()
    assert torch.isfinite(after.examples(np.arange(6))[0]).all()
    lost = len(before.examples(np.arange(6))[0]) + len(before.test_labels)
    assert lost - len(after.examples(np.arange(6))[0]) - len(after.test_labels) == 1


def test_owners_as_a_dict_are_refused() -> None:
    from fedmf.data import InMemoryDataset

    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    owned: Any = {"ann": np.array([0, 1]), "bob": np.array([2, 3])}
    with pytest.raises(ValueError, match=r"owned .* must be a sequence in the order of user_ids; got a dict"):
        InMemoryDataset(x, y, owned, ["ann", "bob"], x, y, 2)
