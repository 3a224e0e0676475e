"""The list of users: what is read, what is refused, how many users it leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from fedmf.data import Table
from fedmf.data.rows.row_options import read_roster

NAMES = ("zoe", "10", "al", "9")


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def test_three_ways_to_write_one_roster(tmp_path: Path) -> None:
    text = written(tmp_path / "users.txt", "zoe\n10\n\n al \r\n9")
    table = written(tmp_path / "users.csv", "age,who\n" + "".join(f"3,{name}\n" for name in NAMES))
    parquet.write_table(arrow.table({"who": NAMES, "age": [1, 2, 3, 4]}), tmp_path / "users.parquet")
    for path in (text, table, tmp_path / "users.parquet"):
        assert read_roster(path, "who") == NAMES


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("users.txt", "al\nbo\nal\n", "roster must name each user once; got 'al' more than once"),
        ("users.txt", "\n", "roster must name each user once; got nobody"),
        ("users.txt", "\udcff\n", "roster must be a readable file of user ids"),
        ("users.csv", "who,x\nal,1\n,2\n", "roster must name a user in each row; got none in row 2"),
        (
            "users.csv",
            "x\n1\n",
            "user_column must name one column of .*; got 'who', which occurs 0",
        ),
        ("users.csv", "", "roster must be readable; got .*Empty CSV file"),
        ("users.parquet", "no", "roster must be readable; got "),
        ("none.txt", None, "roster must be a readable file of user ids"),
    ],
)
def test_a_bad_roster_is_one_line(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    path = tmp_path / name if text is None else written(tmp_path / name, text)
    with pytest.raises(ValueError, match=message) as caught:
        read_roster(path, "who")
    assert "\n" not in str(caught.value)


ROWS = "who,a,y\n" + "".join(f"{name},{i},{i % 2}\n" for i, name in enumerate(("al", "zoe", "9", "bo") * 5))


def options(folder: Path, **fields: object) -> Table:
    return Table(
        path=str(written(folder / "rows.csv", ROWS)),
        label_column="y",
        user_column="who",
        partition="natural",
        roster=str(written(folder / "users.txt", "\n".join(NAMES))),
        class_names=("0..1",),
        **fields,  # type: ignore[arg-type]
    )


def test_users_are_those_of_the_roster_in_its_order(tmp_path: Path) -> None:
    data = options(tmp_path, users=4, hold_out="examples").load()
    assert tuple(data.user_ids) == NAMES
    assert data.sizes(np.arange(4))[1] == 0
    assert data.examples(np.array([1]))[0].shape == (0, 1)
    total = int(data.sizes(np.arange(4)).sum()) + len(data.test_labels)
    assert total == 15
    assert [data.indices([name])[0] for name in NAMES] == [0, 1, 2, 3]


def test_the_number_of_users_is_declared_and_checked_before_rows_are_read(tmp_path: Path) -> None:
    declared = options(tmp_path, users=5, test_fraction=0.5)
    (tmp_path / "rows.csv").unlink()
    with pytest.raises(
        ValueError, match=r"U \(users\) must be 2 with this roster: it names 4, of whom 2 are held out; got 5"
    ):
        declared.load()
    with pytest.raises(ValueError, match=r"U .* must be 4 with this roster: it names 4, of whom 0 are held"):
        options(tmp_path, users=5, hold_out="examples").load()
