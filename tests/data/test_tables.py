"""Tables as data sets: what is read, what is refused, who gets what, and that a row moves its owner
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch

from fedmf.data import Dataset, Table
from fedmf.data.cells import read_user_list

USERS = 10
ROWS = 60
USER_LIST = [f"u{u}" for u in (3, 1, 0, 2, 9, 4, 8, 6, 5, 7)]
SCHEMA = """
[columns.who]
kind = "user"
[columns.a]
kind = "number"
lower = 0
upper = 100
center = 40
scale = 20
[columns.b]
kind = "number"
lower = -50
upper = 50
[columns.y]
kind = "category"
categories = ["no", "yes"]
[columns.note]
kind = "ignore"
"""
PLAIN: dict[str, Any] = {
    "feature_columns": ("a", "b"),
    "label_column": "y",
    "class_names": ("no", "yes"),
    "input_shape": (2,),
}
#: With each partition the users' own names or made-up ones, and whose the test part is. By labels,
#: who owns what is a function of all of them, which `public_inputs` says.
SPREADS: dict[str, dict[str, Any]] = {
    "by user": {"partition": "by-user", "users": 8},
    "by example": {"partition": "by-user", "users": 10, "test_split": "examples"},
    "iid": {"partition": "iid", "users": 7},
    "dirichlet": {"partition": "dirichlet", "users": 7},
}


def rows() -> list[list[str]]:
    return [row(i) for i in range(ROWS)]


def row(i: int) -> list[str]:
    return [f"u{i % USERS}", f"{i}.5", str(-i % 50), ("no", "yes")[i % 2], "x"]


def table(folder: Path, lines: list[list[str]] | None = None, **options: Any) -> Table:
    """A table of such rows in a CSV file, with user list and schema beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "users.txt").write_text("\n".join(USER_LIST))
    if lines is None:
        lines = rows()
    text = "\n".join(["who,a,b,y,note", *map(",".join, lines)])
    (folder / "rows.csv").write_text(text + "\n", "utf-8", "surrogateescape")
    where = {
        "path": str(folder / "rows.csv"),
        "user_column": "who",
        "user_list": str(folder / "users.txt"),
    }
    return Table(**{**where, **PLAIN, **SPREADS["by user"], "seed": 1, **options})


def by_schema(folder: Path, lines: list[list[str]] | None = None, **options: Any) -> Table:
    plain: dict[str, Any] = {"feature_columns": (), "class_names": (), "input_shape": ()}
    return table(folder, lines, **{**plain, "schema": str(folder / "schema.toml"), **options})


def examples(data: Dataset, user: int) -> tuple[torch.Tensor, torch.Tensor]:
    return data.examples(np.array([user]))


def check(clean: Dataset, hostile: Dataset, user: int, gone: int) -> None:
    """All that does not belong to the user is the same to the bit; the user has lost so many
    rows.
    """
    assert list(clean.user_ids) == list(hostile.user_ids)
    assert (clean.classes, clean.structure, clean.test_owner) == (
        hostile.classes,
        hostile.structure,
        hostile.test_owner,
    )
    assert torch.equal(clean.test_features, hostile.test_features)
    assert torch.equal(clean.test_labels, hostile.test_labels)
    for other in range(clean.users):
        if other != user:
            assert all(map(torch.equal, examples(clean, other), examples(hostile, other)))
    assert len(examples(clean, user)[1]) - len(examples(hostile, user)[1]) == gone
    assert torch.isfinite(examples(hostile, user)[0]).all()


#: A row that is spoilt, and whether that makes it nobody's; whose row it is counts with people
#: only.
SPOILT: dict[str, tuple[Callable[[list[str]], list[str]], bool]] = {
    "no number": (lambda row: [row[0], "many", *row[2:]], True),
    "NaN": (lambda row: [row[0], "nan", *row[2:]], True),
    "too large for float32": (lambda row: [row[0], "1e39", *row[2:]], True),
    "missing": (lambda row: [row[0], "", *row[2:]], True),
    "not UTF-8": (lambda row: [row[0], "\udcff", *row[2:]], True),
    "a rare label": (lambda row: [*row[:3], "perhaps", "x"], True),
    "a field too many": (lambda row: [*row, "more"], True),
    "a quote that never ends": (lambda row: [row[0], '"' + row[1], *row[2:]], True),
    "a row in a cell": (lambda row: [*row[:4], '"x\nu0,1,1,yes,\n"'], False),
    "no user": (lambda row: ["", *row[1:]], False),
    "a user who is not UTF-8": (lambda row: ["\udcff", *row[1:]], False),
}


@pytest.mark.parametrize(("case", "spread"), [(case, i % 3) for i, case in enumerate(SPOILT)])
def test_a_spoilt_row_moves_its_owner_alone(tmp_path: Path, case: str, spread: int) -> None:
    name = [*SPREADS][spread]
    clean = table(tmp_path / "clean", **SPREADS[name]).load()
    user = int(np.argmax(clean.sizes(np.arange(clean.users))))
    row = int(clean.owned[user][len(clean.owned[user]) // 2])
    lines = rows()
    spoil, bad = SPOILT[case]
    lines[row] = spoil(lines[row])
    hostile = table(tmp_path / "hostile", lines, **SPREADS[name]).load()
    by_user = SPREADS[name]["partition"] == "by-user"
    check(clean, hostile, user, int(bad or (by_user and lines[row][0] != rows()[row][0])))


def test_spoilt_rows_are_left_out_by_a_schema_too(tmp_path: Path) -> None:
    clean = by_schema(tmp_path / "clean").load()
    row = int(clean.owned[0][2])
    for case, (spoil, bad) in SPOILT.items():
        lines = rows()
        lines[row] = spoil(lines[row])
        if bad:
            kept = int(case == "too large for float32")  # cut to the bound
            check(clean, by_schema(tmp_path / "hostile", lines).load(), 0, 1 - kept)


def test_who_is_held_out_depends_on_user_list_and_seed_alone(tmp_path: Path) -> None:
    """Another world: other rows, other sizes, users without rows."""
    for test_split, users in (("auto", 8), ("examples", 10)):
        one = table(tmp_path, test_split=test_split, users=users).load()
        fewer = [row for row in rows()[::3] if row[0] != "u3"]
        other = table(tmp_path, fewer, test_split=test_split, users=users).load()
        assert one.user_ids == other.user_ids
        assert list(one.user_ids) == [name for name in USER_LIST if name in one.user_ids]
        if test_split == "auto":
            assert one.test_owner == "held-out users"
        else:
            assert one.test_owner == "training users"
            assert other.sizes(np.arange(10))[one.index_of("u3")] == 0


@pytest.mark.parametrize("spread", SPREADS)
def test_every_row_is_held_out_or_owned_once(tmp_path: Path, spread: str) -> None:
    people = "by" in spread
    for test_split, listed in (("examples", 10), ("users", 8)):
        changes = {**SPREADS[spread], "test_split": test_split}
        if people:
            changes["users"] = listed
        data = table(tmp_path, **changes).load()
        features, labels = data.examples(np.arange(data.users))
        rows_of = [part[:, 0].int().tolist() for part in (features, data.test_features)]
        assert sorted(rows_of[0] + rows_of[1]) == list(range(ROWS))
        assert labels.tolist() == [i % 2 for i in rows_of[0]]
        for u, name in enumerate(data.user_ids):
            owners = {f"u{int(a) % USERS}" for a in examples(data, u)[0][:, 0]}
            assert not people or owners <= {name}
        if test_split == "users":
            assert not {i % USERS for i in rows_of[0]} & {i % USERS for i in rows_of[1]}


def test_a_public_test_file_holds_out_nobody_and_has_no_row_of_a_user(tmp_path: Path) -> None:
    public = tmp_path / "public.csv"
    public.write_text("y,b,who,a,note\nyes,-5,v1,40.5,x\nno,7,,2,x\n")
    options = by_schema(tmp_path, test_path=str(public), users=10)
    data = options.load()
    assert list(data.user_ids) == USER_LIST
    assert data.sizes(np.arange(10)).tolist() == 10 * [6]
    assert data.test_owner == "nobody"
    encoded = torch.tensor([[0.025, -0.1], [-1.9, 0.14]])
    torch.testing.assert_close(data.test_features, encoded)
    assert data.test_labels.tolist() == [1, 0]
    public.write_text("y,a,b,note\nyes,40.5,-5,x\nno,2,7,x\n")  # the user column may be absent
    assert torch.equal(options.load().test_features, data.test_features)
    folder = tmp_path / "persons"
    folder.mkdir()
    (folder / "v1.csv").write_text(public.read_text())
    files = replace(options, test_path=str(folder), user_from="filename")
    assert torch.equal(files.public_rows(USER_LIST).features, data.test_features)
    (folder / "v1.csv").rename(folder / "u3.csv")
    for place in (files, replace(options, test_path=options.path)):
        with pytest.raises(ValueError, match=r"test_path .* must not hold rows of users on the"):
            place.public_rows(USER_LIST)


def test_the_same_rows_in_every_format_and_in_parts(tmp_path: Path) -> None:
    """Columns are taken by name (FEDMF-2026-10)."""
    expected = table(tmp_path / "csv").load()
    columns = dict(zip(("who", "a", "b", "y", "note"), zip(*rows(), strict=True), strict=True))
    numbers = {
        **columns,
        "a": [float(a) for a in columns["a"]],
        "b": [int(b) for b in columns["b"]],
    }
    folder = tmp_path / "parts"
    folder.mkdir()
    whole = arrow.table(numbers)
    parquet.write_table(whole.slice(0, 20), folder / "1.parquet")
    lines = whole.slice(20, 20).to_pandas().to_json(orient="records", lines=True)
    spoilt = '{"who": ["u0"], "a": [1], "y": ["no"]}\n'  # whose lists are its own
    (folder / "2.jsonl").write_text(spoilt + lines)
    whole.slice(40).to_pandas()[["y", "note", "b", "who", "a"]].to_csv(
        folder / "3.csv.gz", index=False
    )
    (folder / "notes.txt").write_text("nothing")
    check(expected, table(tmp_path / "csv", path=str(folder)).load(), 0, 0)


def test_by_a_schema_features_are_coordinates_and_labels_categories(tmp_path: Path) -> None:
    data = by_schema(tmp_path).load()
    for u, name in enumerate(data.user_ids):
        mine = [row for row in rows() if row[0] == name]
        expected = [[(float(a) - 40) / 20, float(b) / 50] for _, a, b, *_ in mine]
        features, labels = examples(data, u)
        np.testing.assert_allclose(features.numpy(), expected, rtol=1e-6)
        assert labels.tolist() == [int(row[3] == "yes") for row in mine]
    assert data.classes == 2
    assert by_schema(tmp_path, feature_columns=("b",)).load().features.shape[1] == 1


def test_numbers_as_labels_are_scaled_by_the_schema(tmp_path: Path) -> None:
    lines = rows()
    lines[7][1] = "old"
    lines[8][2] = ""
    lines[9][3] = "perhaps"
    options: dict[str, Any] = {
        "label_column": ("b", "y"),
        "partition": "iid",
        "users": 5,
    }
    data = by_schema(tmp_path, lines, **options).load()
    good = [row for i, row in enumerate(lines) if i not in (7, 8, 9)]
    found = torch.cat(
        [
            torch.cat(data.examples(np.arange(5)), 1),
            torch.cat([data.test_features, data.test_labels], 1),
        ]
    )
    expected = [[(float(a) - 40) / 20, float(b) / 50, float(y == "yes")] for _, a, b, y, _ in good]
    np.testing.assert_allclose(sorted(found.tolist()), sorted(expected), rtol=1e-6)
    plain = {
        "class_names": (),
        "feature_columns": ("a",),
        "input_shape": (1,),
        **options,
        "label_column": "b",
    }
    regression = table(tmp_path, lines, **plain).load()
    assert (regression.classes, regression.labels.shape) == (0, (ROWS,))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no path": ({"path": ""}, "path .* must name what dataset 'table' reads; got none"),
    "no user column": (
        {"user_column": ""},
        "user_column and user_list must be named with a user list, partition 'by",
    ),
    "no user list": ({"user_list": ""}, "must be named with .* partition 'by-user'"),
    "nothing declared": (
        {"class_names": (), "feature_columns": (), "label_column": ()},
        "feature_columns and class_names .* must be declared; got none",
    ),
    "user list alone": (
        {"user_column": "", "partition": "iid", "test_split": "auto"},
        "user_column and user_list must be named with a user list",
    ),
    "several labels with classes": (
        {"label_column": ("b", "y"), "feature_columns": ("a",)},
        "label_column must be one column with classes; got b, y",
    ),
    "one class": ({"class_names": ("x",)}, "class_names must be two or more different labels"),
    "an empty range": (
        {"class_names": ("5..3", "x")},
        r"ranges of 1 to 1000000 numbers; got 5\.\.3",
    ),
    "texts and shape": ({"text_column": "note"}, "input_shape must be left out with text_column"),
    "a shape": ({"input_shape": (3,)}, "input-shape must multiply to the 2 entries of an example"),
    "users": (
        {"users": 9},
        "must be 8 with this user_list: it names 10, of whom 2 are held out; got 9",
    ),
    "no such column": ({"feature_columns": ("c",)}, "column 'c' is missing; .* has 'who', 'a'"),
    "the label": (
        {"feature_columns": ("a", "y")},
        "columns must have different names; got a, y, y, who",
    ),
    "no such file": ({"path": "nowhere.csv"}, "path must name a file .* that exists"),
}


def test_impossible_options_are_refused_in_one_line(tmp_path: Path) -> None:
    for changes, message in REFUSED.values():
        with pytest.raises(ValueError, match=message) as caught:
            table(tmp_path, **changes).load()
        assert "\n" not in str(caught.value)


BY_SCHEMA: dict[str, dict[str, Any]] = {
    "label_column must be a column that the schema declares as number or category; got 'note'": {
        "label_column": "note"
    },
    "partition must not be one by classes with numbers": {
        "label_column": "a",
        "partition": "dirichlet",
    },
    "got 'w', none of its columns": {"label_column": "w"},
    "user_column must be a column that the schema declares as user": {"user_column": "note"},
    "declares as number or category": {"feature_columns": ("note",)},
    "class_names must be left out with schema": {"class_names": ("yes", "no")},
}


def test_what_a_schema_declares_otherwise_is_refused_whatever_the_rows(tmp_path: Path) -> None:
    for message, changes in BY_SCHEMA.items():
        with pytest.raises(ValueError, match=message):
            by_schema(tmp_path, [["u0", "old", "", "?", ""]], **changes).load()


USER_LISTS: dict[str, tuple[str, bytes, str | None]] = {
    "lines": ("users.txt", b"zoe\n10\n\n al \r\n9", None),
    "a mark": ("users.txt", "\ufeffzoe\n10\nal\n9".encode(), None),
    "a table": ("users.csv", b"age,who\n3,zoe\n3,10\n3,al\n3,9\n", None),
    "floats": ("users.jsonl", b'{"who": "zoe"}\n{"who": 10.0}\n{"who": "al"}\n{"who": 9}\n', None),
    "twice": ("users.txt", b"al\nbo\nal\n", "must contain each user once; got 'al' more than once"),
    "twice by type": ("users.csv", b"who\n12\n12.0\n", "'12' more than once"),
    "nobody": ("users.txt", b"\n", "must contain each user once; got no ids"),
    "a gap": (
        "users.csv",
        b"who,x\nal,1\n,2\n",
        "must have a user id in each row; got none in row 2",
    ),
    "lost digits": ("users.txt", b"ann\n1e+300\n", "got none in row 2"),
}


def test_user_lists(tmp_path: Path) -> None:
    for name, content, message in USER_LISTS.values():
        (tmp_path / name).write_bytes(content)
        if message is None:
            assert read_user_list(tmp_path / name, "who") == ("zoe", "10", "al", "9")
        else:
            with pytest.raises(ValueError, match=message) as caught:
                read_user_list(tmp_path / name, "who")
            assert "\n" not in str(caught.value)


def test_rows_that_do_not_count_are_counted_by_reason_and_column(tmp_path: Path) -> None:
    lines = rows()
    for place, spoilt in enumerate(SPOILT):
        lines[place] = SPOILT[spoilt][0](lines[place])
    lines[20][3] = "Yes"
    lines[21] += ["", " "]  # as many rows end
    counts = by_schema(tmp_path, lines).load().row_counts
    assert counts is not None
    assert dict(counts.left_out) == {
        "a: not a finite number": 3,
        "a: missing": 1,
        "y: none of the classes": 2,
        "more fields than the header": 1,
        "quotes or line ends that are not CSV": 1,
        "who: no user id": 3,
    }
    assert (counts.rows, counts.users) == (ROWS, 8)
    assert counts.examples + counts.test_rows == ROWS - 10
    assert counts.columns == {"a": "number", "b": "number", "y": "category", "who": "user"}


def test_a_column_of_a_type_without_numbers_is_named(tmp_path: Path) -> None:
    given = by_schema(tmp_path)
    columns = {"who": ["u0"], "a": [[1.0]], "b": [1.0], "y": ["no"], "note": ["x"]}
    parquet.write_table(arrow.table(columns), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").unlink()
    with pytest.raises(ValueError, match="column 'a' must hold numbers; got list"):
        replace(given, path=str(tmp_path)).load()
