"""Folders with one file for each user: the same data as one table with a column of users."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest
import torch
from data.test_tables import USER_LIST, by_schema, check, examples, rows
from support.streams import BUDGET, releases

from fedmf.cli.app import run as command
from fedmf.data import InMemoryDataset, Table
from fedmf.data.user_files import UserFiles, open_rows
from fedmf.streaming import Settings, open_run

HEADER = "a,b,y,note"
#: In the order of their files.
SORTED = sorted(rows(), key=lambda row: row[0])


def user_files(folder: Path) -> Path:
    """A file for each user of `SORTED`: one packed, one as Parquet, the others plain."""
    folder.mkdir()
    for user in sorted(USER_LIST):
        lines = [",".join(row[1:]) for row in SORTED if row[0] == user]
        (folder / f"{user}.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    packed = folder / "u4.csv"
    (folder / "u4.csv.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    typed = folder / "u5.csv"
    parquet.write_table(arrow_csv.read_csv(typed), folder / "u5.parquet")
    typed.unlink()
    return folder


def both(place: Path) -> tuple[Table, Table]:
    """A table with a column of users, and the folder that holds the same rows."""
    one = by_schema(place, SORTED, users=8)
    folder = user_files(place / "folder")
    return one, replace(one, path=str(folder), user_from="filename")


def test_a_folder_loads_as_the_table_with_a_column(tmp_path: Path) -> None:
    one, several = both(tmp_path)
    expected = one.load()
    got = several.load()
    for name in ("features", "labels", "test_features", "test_labels"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    assert got.user_ids == expected.user_ids
    assert isinstance(got, InMemoryDataset)
    assert isinstance(expected, InMemoryDataset)
    for own, others in zip(got.owned, expected.owned, strict=True):
        assert np.array_equal(own, others)
    assert got.row_counts == expected.row_counts


def test_a_broken_file_is_its_users_zero_and_nobody_elses(tmp_path: Path) -> None:
    one, several = both(tmp_path)
    expected = one.load()
    user = next(user for user in ("u4", "u5") if user in expected.user_ids)
    (file,) = Path(several.path).glob(f"{user}.*")
    whole = file.read_bytes()
    for content in (whole[:-12], b""):
        file.write_bytes(content)
        got = several.load()
        assert got.row_counts is not None
        assert got.row_counts.left_out["file that cannot be read"] == 1
        owner = list(expected.user_ids).index(user)
        check(expected, got, owner, len(examples(expected, owner)[1]))


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("u1.csv", "a,b,y\n1,2,no\n", "columns must be the same in all files"),
        ("u1.parquet", "", "must have different names; got 'u1' twice"),
        ("x.jsonl", "{}\n", "must be CSV or Parquet"),
    ],
)
def test_a_fault_of_form_is_refused(tmp_path: Path, name: str, content: str, fault: str) -> None:
    _, several = both(tmp_path)
    (Path(several.path) / name).write_text(content)
    with pytest.raises(ValueError, match=fault):
        several.load()


def test_a_table_of_files_is_read_in_pieces(tmp_path: Path) -> None:
    folder = user_files(tmp_path / "folder")
    for most in (1, 4, 100):
        seen = []
        with open_rows(UserFiles(folder, "who")) as reader:
            reader.select(["who", "note"])
            for batch in reader.batches(most):
                assert 0 < batch.rows <= most
                seen += batch.columns["who"].to_pylist()
        assert seen == [row[0] for row in SORTED]
    with pytest.raises(ValueError, match="must be the name of the file"):
        open_rows(UserFiles(folder, "note")).__enter__()


def test_a_stream_of_a_folder_is_that_of_the_table(tmp_path: Path) -> None:
    one, several = both(tmp_path)
    settings = Settings(
        **BUDGET,
        columns=("a", "b"),
        user_column="who",
        max_participations=3,
        mechanisms=("identity",),
    )
    sources = {"one": Path(one.path), "several": UserFiles(Path(several.path), "who")}
    for name, source in sources.items():
        output = tmp_path / f"{name}.jsonl"
        with open_run(tmp_path / name, settings, source, output) as (stream, reader):
            stream.feed(reader, whole=True)
            stream.conclude()
    assert releases(tmp_path / "several.jsonl") == releases(tmp_path / "one.jsonl")


def test_a_draft_names_the_users_after_the_files(tmp_path: Path) -> None:
    folder = user_files(tmp_path / "folder")
    output = tmp_path / "draft.toml"
    arguments = ["schema", str(folder), "--user-from", "filename", "--output", str(output)]
    assert command(arguments) == 0
    assert output.read_text().count('kind = "user"\n') == 1
    assert '[columns.user]\nkind = "user"\n' in output.read_text()
