"""Tables by round: numbers, and nothing where a row has none."""

from __future__ import annotations

import io
import math

import pandas as pd
import pyarrow.parquet as parquet
import pytest

from fedmf.runs.outputs import table_of_rounds


@pytest.mark.parametrize("rounds", [0, 9])
def test_what_is_written_is_read(rounds: int) -> None:
    rows = {t: {"loss": 0.5 * t, **({"accuracy": 1 / (t + 1)} if t % 3 else {})} for t in range(rounds)}
    content = table_of_rounds(dict(reversed(rows.items())), ["accuracy", "loss", "epsilon"])
    found = parquet.read_table(io.BytesIO(content)).to_pylist()
    assert [row["round"] for row in found] == list(range(rounds))
    assert [row["loss"] for row in found] == [row["loss"] for row in rows.values()]
    assert [row["accuracy"] for row in found] == [row.get("accuracy") for row in rows.values()]
    assert {row["epsilon"] for row in found} <= {None}
    frame = pd.read_parquet(io.BytesIO(content))
    assert [str(kind) for kind in frame.dtypes] == ["int64", "float64", "float64", "float64"]


def test_none_and_nan_are_no_number_and_infinity_is_one() -> None:
    rows = {0: {"x": None}, 1: {"x": math.nan}, 2: {"x": math.inf}, 3: {"x": 2}}
    found = parquet.read_table(io.BytesIO(table_of_rounds(rows, ["x"]))).to_pylist()
    assert [row["x"] for row in found] == [None, None, math.inf, 2.0]
