"""``fedmf data``: the table and the picture of a partition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedmf.cli.app import run
from fedmf.cli.data import _draw
from fedmf.data import Table
from fedmf.data.digit_images import Digits
from fedmf.data.summary import summarise


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text('[data]\nusers = 40\npartition = "dirichlet"\n\n[cohorts]\nsize = 4\nrounds = 8\n')
    return str(path)


def test_numbers_are_those_of_the_data(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", config, "--set", "data.dirichlet-alpha=0.05", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    data = Digits(40, partition="dirichlet", dirichlet_alpha=0.05).load()
    shares = [np.bincount(data.labels[part], minlength=10) / len(part) for part in data.owned]
    entropies = [-sum(p * np.log2(p) for p in share if p > 0) for share in shares]
    assert row["entropy_of_users"] == pytest.approx(np.mean(entropies))
    assert row["entropy_of_users"] < 2 < 3.3 < row["entropy_of_all"] <= np.log2(10)
    assert (row["users"], row["examples"], row["test_examples"]) == (40, 1438, 359)
    assert (row["sizes"]["min"], row["sizes"]["max"]) == (35, 36)
    assert (row["example_shape"], row["classes"], row["model_parameters"]) == ([64], 10, 2410)


def test_the_table_and_the_picture(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "partition.png"
    assert run(["data", config, "--output", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "training examples  1,438" in printed
    assert "min 35, 5% 36, median 36, 95% 36, max 36" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_classes_are_called_as_the_schema_calls_them(tmp_path: Path) -> None:
    people = [f"p{i}" for i in range(40)]
    (tmp_path / "users.txt").write_text("\n".join(people))
    rows = [f"{user},{i % 7},{['calm', 'angry'][i % 2]}\n" for i, user in enumerate(people)]
    (tmp_path / "rows.csv").write_text("user,x,mood\n" + "".join(rows))
    (tmp_path / "schema.toml").write_text(
        '[columns.user]\nkind = "user"\n[columns.x]\nkind = "number"\nlower = 0\nupper = 7\n'
        '[columns.mood]\nkind = "category"\ncategories = ["calm", "angry"]\n'
    )
    (tmp_path / "run.toml").write_text(
        f"""[data]\nkind = "table"\npath = "{tmp_path}/rows.csv"\nroster = "{tmp_path}/users.txt"
        users = 32\npartition = "natural"\nuser-column = "user"\nlabel-column = "mood"
        schema = "{tmp_path}/schema.toml"
        [cohorts]\nsize = 4\nrounds = 8\n"""
    )
    for suffix in ("svg", "pdf"):
        assert run(["data", str(tmp_path / "run.toml"), "--output", str(tmp_path / f"a.{suffix}")]) == 0
    svg = (tmp_path / "a.svg").read_text()
    assert all(f"<!-- {words} -->" in svg for words in ("calm", "angry", "class", "examples"))
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "picture.txt"], "--output (file) must end in"),
        (["--output", "nowhere/picture.png"], "--output (file) must lie in a folder"),
        (["--set", "data.users=99999"], "number of training examples"),
        (["--set", "data.kind=cifar"], "[data] kind must be one of digits, "),
        (["--set", "model.kind=cnn"], "model cnn needs examples of shape"),
    ],
)
def test_bad_requests_are_one_line(
    config: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", config, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_labels_of_some_users_stand_for_all() -> None:
    summary = summarise(Digits(50).load(), most_users=7)
    assert summary.label_counts.shape == (7, 10)
    assert summary.sizes.sum() == 1438


def test_tokens_and_numbers_are_summarised(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for user in range(9):
        (tmp_path / "notes" / f"{user}.txt").write_text(f"{user} of nine users has written this, and more")
    notes = Table(path=str(tmp_path / "notes"), text_column="*.txt", partition="natural", users=7, length=16)
    tokens = summarise(notes.load())
    assert tokens.label_counts.shape == (7, 257)
    assert 3.0 < tokens.row()["entropy_of_users"] < 8.0
    (tmp_path / "rows.csv").write_text("a,y\n" + "1,2\n" * 30)
    table = Table(users=4, path=str(tmp_path / "rows.csv"), feature_columns=("a",), label_columns=("y",))
    numbers = summarise(table.load())
    assert (numbers.row()["classes"], numbers.row()["entropy_of_users"]) == (0, 0.0)
    _draw(numbers, [], tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")
