"""Configurations, tables, streams of rows and hub folders that are nearly right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import ODD_SCALARS, altered, damaged, fuzzed, judged

from fedmf.data import Table
from fedmf.data.table import Rows
from fedmf.data.table_reader import InputError
from fedmf.errors import ConfigError
from fedmf.runs.run import Run
from fedmf.runs.tables.configuration import known_keys, load_run, parse_assignments
from fedmf.streaming.settings import Settings
from fedmf.streaming.stream_rows import label_of, open_reader

CONFIG: dict[str, Any] = {
    "data": {"kind": "synthetic", "users": 24, "seed": 1},
    "model": {"kind": "mlp", "hidden-units": "8,4"},
    "cohorts": {"kind": "cyclic", "rounds": 12, "users-per-round": 6, "min-separation": 4},
    "privacy": {"kind": "user-level", "epsilon": 4.0, "delta": 1e-5, "clip-norm": 0.5},
    "mechanism": {"kind": "banded-toeplitz", "bands": 4},
    "server": {"kind": "sgd", "learning-rate": 0.2, "momentum": 0.9},
    "client": {"epochs": 1, "batch-size": 8, "learning-rate": 0.5},
    "execution": {"workers": 2},
}
TEXT = tomli_w.dumps(CONFIG).encode()
ROWS = b"who,a,b,y\n" + b"".join(b"u%d,%d.5,-1e-3,%d\n" % (i % 3, i, i % 2) for i in range(8))
LINES = b"".join(b'{"user": "u%d", "x": [%d, 0.5]}\n' % (i, i) for i in range(6))


@fuzzed(150)
@given(st.one_of(damaged(TEXT), altered(CONFIG, ODD_SCALARS.filter(lambda v: v is not None))))
def test_configurations(
    tmp_path_factory: pytest.TempPathFactory, given_as: bytes | dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    try:
        content = given_as if isinstance(given_as, bytes) else tomli_w.dumps(given_as).encode()
    except UnicodeEncodeError:
        return
    path.write_bytes(content)
    assert isinstance(judged(lambda: load_run(path), ConfigError), Run | None)


@fuzzed(150)
@given(
    st.sampled_from(sorted(known_keys())),
    st.sampled_from(
        [
            "0",
            "-1",
            "1e400",
            "nan",
            "inf",
            "[]",
            "'x'",
            "true",
            "99999999999999999999",
            "",
            "{",
            "1.0",
        ]
    ),
)
def test_overrides(tmp_path_factory: pytest.TempPathFactory, key: str, value: str) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.toml"
    path.write_bytes(TEXT)
    run = judged(lambda: load_run(path, parse_assignments([f"{key}={value}"])), ConfigError)
    assert isinstance(run, Run | None)


def table_file(folder: Path, suffix: str) -> Path:
    path = folder / f"rows.{suffix}"
    if suffix == "csv":
        path.write_bytes(ROWS)
    elif suffix == "jsonl":
        path.write_bytes(LINES)
    else:
        users = [f"u{i % 3}" for i in range(8)]
        numbers = [float(i) for i in range(8)]
        parquet.write_table(
            arrow.table({"who": users, "a": numbers, "b": numbers, "y": [0, 1] * 4}), path
        )
    return path


@pytest.mark.weekly
@pytest.mark.parametrize(("suffix", "examples"), [("csv", 300), ("parquet", 150)])
def test_tables(suffix: str, examples: int, tmp_path: Path) -> None:
    path = table_file(tmp_path, suffix)
    clean = path.read_bytes()

    @fuzzed(examples)
    @given(damaged(clean), st.sampled_from([("a", "b"), ("a",)]))
    def read(content: bytes, columns: tuple[str, ...]) -> None:
        path.write_bytes(content)
        named = {"label_column": "y", "user_column": "who", "class_names": ("0", "1")}
        table = Table(path=str(path), feature_columns=columns, **named)
        rows = judged(lambda: table.read(table.batches()), ValueError)
        assert isinstance(rows, Rows | None)
        head, _, rest = content.partition(b"\n")
        if (
            suffix == "csv"
            and head == b"who,a,b,y"
            and any(line.strip() for line in rest.split(b"\n"))
        ):
            assert rows is not None  # no value of a row refuses a table
        if rows is not None:
            features = rows.features.numpy()
            assert np.isnan(features[~np.isfinite(features).all(axis=1)]).all()

    read()


@pytest.mark.weekly
@pytest.mark.parametrize(("suffix", "examples"), [("csv", 300), ("jsonl", 300), ("parquet", 100)])
@pytest.mark.parametrize("user", [None, "who"], ids=["no user", "user"])
def test_rows_of_streams(suffix: str, examples: int, user: str | None, tmp_path: Path) -> None:
    path = table_file(tmp_path, suffix)
    clean = path.read_bytes()
    name = "user" if user and suffix == "jsonl" else user
    numbers = {"csv": ("a", "b"), "parquet": ("a", "b"), "jsonl": ("x",)}[suffix]
    label = "y" if user and suffix != "jsonl" else None
    settings = Settings(1.0, 1e-5, 1.0, user_column=name, columns=numbers, timestamp=label)

    @fuzzed(examples)
    @given(damaged(clean))
    def read(content: bytes) -> None:
        path.write_bytes(content)

        def whole() -> int:
            total = 0
            with open_reader(path, settings) as reader:
                while (block := reader.read(3)) is not None:
                    assert block.values.shape == (len(block), reader.layout.dimension)
                    assert np.isfinite(block.values).all()
                    assert block.users is None or len(block.users) == len(block)
                    assert len(block.labels) == (len(block) if label else 0)
                    assert all(text == label_of(text) for (text,) in block.labels)
                    total += len(block)
            with open_reader(path, settings) as reader:
                skipped = 0
                while passed := reader.skip(2):
                    skipped += passed
            assert skipped == total or suffix == "parquet"  # whose footer may lie about its rows
            return total

        judged(whole, InputError)

    read()
