"""Schemas that are nearly right, and rows that nearly keep to one."""

from __future__ import annotations

import json
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

from fedmf.data import Schema, read_schema
from fedmf.data.table_reader import InputError
from fedmf.streaming.settings import Settings
from fedmf.streaming.stream_run import open_reader

DECLARED: dict[str, Any] = {
    "columns": {
        "who": {"kind": "user"},
        "a": {"kind": "number", "lower": -5, "upper": 5.5, "nullable": True},
        "b": {"kind": "number", "lower": 0, "upper": 9, "center": 2, "scale": 3, "fill": 1.5},
        "y": {"kind": "category", "categories": ["no", "yes"]},
        "at": {"kind": "time", "start": "2026-01-01", "end": "2026-02-01", "step": "1 h"},
        "note": {"kind": "text"},
        "row": {"kind": "ignore"},
    }
}
TEXT = tomli_w.dumps(DECLARED).encode()
HEADER = b"who,a,b,y,at,note,row\n"
ROWS = HEADER + b"".join(
    b"u%d,%d.5,,yes,2026-01-0%dT07:00,x,%d\n" % (i, i, 1 + i, i) for i in range(8)
)


@fuzzed(150)
@given(st.one_of(damaged(TEXT), altered(DECLARED, ODD_SCALARS.filter(lambda v: v is not None))))
def test_schemas(
    tmp_path_factory: pytest.TempPathFactory, given_as: bytes | dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "schema.toml"
    try:
        content = given_as if isinstance(given_as, bytes) else tomli_w.dumps(given_as).encode()
    except UnicodeEncodeError:
        return
    path.write_bytes(content)
    declared = judged(lambda: read_schema(path), ValueError)
    if declared is not None:
        assert Schema.from_dict(declared.to_dict()) == declared


@pytest.mark.parametrize(("suffix", "examples"), [("csv", 150), ("jsonl", 100), ("parquet", 50)])
def test_rows_by_a_schema(suffix: str, examples: int, tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_bytes(TEXT)
    declared = read_schema(tmp_path / "schema.toml")
    path = tmp_path / f"rows.{suffix}"
    names = list(DECLARED["columns"])
    rows = [
        dict(zip(names, line.decode().split(","), strict=True)) for line in ROWS.splitlines()[1:]
    ]
    if suffix == "csv":
        path.write_bytes(ROWS)
    elif suffix == "jsonl":
        path.write_bytes(b"".join(json_line(row) for row in rows))
    else:
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    clean = path.read_bytes()
    settings = Settings(
        1.0,
        1e-5,
        declared.encoding().norm_bound,
        user_column="who",
        timestamp="at",
        schema=declared,
    )

    @fuzzed(examples)
    @given(damaged(clean))
    def read(content: bytes) -> None:
        path.write_bytes(content)

        def whole() -> int:
            total = 0
            with open_reader(path, settings) as reader:
                while (block := reader.read(3)) is not None:
                    total += len(block)
                    assert block.values.shape == (len(block), 5)
                    norms = np.linalg.norm(block.values[:, :-1], axis=1)
                    assert (norms <= settings.clip_norm * (1 + 1e-12)).all()
                    assert set(block.values[:, -1]) <= {0.0, settings.count_weight}
                    assert not block.values[block.invalid].any()
                    assert all(
                        text == "" or text.startswith("2026-01-") for (text,) in block.labels
                    )
            return total

        total = judged(whole, InputError)
        if suffix == "csv" and content.startswith(HEADER) and content[len(HEADER) :].strip():
            assert total is not None  # no value of a row refuses a stream

    read()


def json_line(row: dict[str, str]) -> bytes:
    return json.dumps(row).encode() + b"\n"
