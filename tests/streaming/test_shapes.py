"""Releases as tidy and wide CSV: the numbers of the JSON lines, by name, with true standard errors."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from scipy import stats
from support.covariance import FALSE_ALARM
from support.streams import BUDGET, releases, run_once, sample, write_rows

from fedmf.noise import NoiseKey
from fedmf.streaming import Layout, Settings
from fedmf.streaming.outputs import Renderer, open_output, places
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.position import Releases

N, D = 12, 3


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("second", "size"), [("full", 3 + 6 + 3 + 6), ("diagonal", 3 + 3 + 3 + 3), ("1,2", 3 + 3 + 2)]
)
def test_both_shapes_hold_the_numbers_of_the_json_lines(tmp_path: Path, second: str, size: int) -> None:
    source = write_rows(tmp_path / "rows.csv", sample(N, D))
    for shape in ("json", "tidy", "wide"):
        (tmp_path / shape).mkdir()
        run_once(tmp_path / shape, Settings(**BUDGET, second=second), source, "out", shape=shape)
    plain = releases(tmp_path / "json/out")
    tidy, wide = table(tmp_path / "tidy/out"), table(tmp_path / "wide/out")
    assert (len(tidy), len(wide)) == (N * size, N)
    for release, row in zip(plain, wide, strict=True):
        assert float(row["mean:x1"]) == release["mean"][1]
        assert float(row["standard_error:first:x0"]) == release["standard_error"]
        if second == "full":
            assert float(row["covariance:x0:x2"]) == release["covariance"][0][2]
        if second == "1,2":
            assert float(row["second:block 2:block 2"]) == release["second"][1]
    for entry in tidy:
        names = [entry["quantity"], entry["column"], entry["column_2"]]
        name = ":".join(part for part in names if part)
        row = wide[int(entry["t"]) - 1]
        assert (entry["value"], entry["standard_error"]) == (row[name], row[f"standard_error:{name}"])


@pytest.mark.parametrize("shape", ["tidy", "wide"])
def test_a_table_goes_on_under_one_header(tmp_path: Path, shape: str) -> None:
    x = sample(N, D)
    source, settings = write_rows(tmp_path / "rows.csv", x), Settings(**BUDGET, rounds=N)
    run_once(tmp_path, settings, source, "whole.csv", shape=shape)
    (tmp_path / "again").mkdir()
    lines = source.read_text().splitlines(keepends=True)
    for stop in (1, 5, N):
        (tmp_path / "part.csv").write_text("".join(lines[: stop + 1]))
        run_once(tmp_path / "again", settings, tmp_path / "part.csv", "out.csv", shape=shape)
    assert (tmp_path / "again/out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    with pytest.raises(ValueError, match="must not exist before"):
        run_once(tmp_path / "again", settings, source, "out.csv", shape="json")
    with pytest.raises(ValueError, match="format must be json for Parquet"):
        run_once(tmp_path / "again", settings, source, "out.parquet", shape=shape)


def planned(dimension: int, second: str, **more: Any) -> StreamPlan:
    settings = Settings(norm_bound=1.0, epsilon=8.0, delta=1e-5, second=second, rounds=N, **more)
    return StreamPlan.of(settings, Layout((), True, dimension, None), N)


@pytest.mark.parametrize("workload", ["average", "prefix", "window:4"])
@pytest.mark.parametrize("second", ["full", "diagonal"])
def test_standard_errors_are_those_of_many_runs(workload: str, second: str) -> None:
    """400 keys: squared deviations from the truth over the variance stated, for the exact ones against χ².

    A covariance's error is an estimate of its own: its mean square over runs is within a fifth.
    """
    plan, runs = planned(2, second, workloads=(workload,)), 400
    x = torch.tensor([[0.6, -0.3]], dtype=torch.float64).repeat(N, 1)
    renderer, found, errors = Renderer(plan), [], []
    for seed in range(runs):
        block = plan.stream(NoiseKey.from_seed(seed)).extend(x)
        packed = torch.cat([block.first, block.second], dim=1).numpy()
        found.append(renderer.fields(Releases(0, packed)))
        errors.append(renderer.errors(found[-1]))
    sums = plan.row_sums(0, np.arange(1, N + 1))[:, None]
    row, square = x[0].numpy(), np.outer(x[0], x[0]) if second == "full" else x[0].numpy() ** 2
    truth = {
        "first": sums * row,
        "mean": np.ones((N, 1)) * row,
        "second": np.multiply.outer(sums[:, 0], square),
    }
    alpha = FALSE_ALARM / (2 * N * 10)
    for quantity, true in truth.items():
        shape = found[0][quantity].shape
        total = sum((one[quantity] - true) ** 2 for one in found)
        ratio = total / np.broadcast_to(errors[0][quantity], shape) ** 2
        assert (ratio > stats.chi2.ppf(alpha, runs)).all(), quantity
        assert (ratio < stats.chi2.isf(alpha, runs)).all(), quantity
        assert not (2 * ratio < stats.chi2.isf(alpha, runs)).all()
    spread = np.mean([one["covariance"] ** 2 for one in found], axis=0)
    stated = np.mean([one["covariance"] ** 2 for one in errors], axis=0)
    assert (np.abs(spread[3:] / stated[3:] - 1) < 0.5).all()
    assert abs(np.mean(spread[3:] / stated[3:]) - 1) < 0.2


def test_a_group_of_rows_of_a_table_has_one_row_where_that_is_all_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_GROUP_BYTES", 1)
    plan = planned(2, "diagonal")
    numbers = np.ones((N, plan.width))
    output = open_output(tmp_path / "out.parquet", fresh=True)
    output.finish(Renderer(plan), lambda start, stop: Releases(start, numbers[start:stop]), N)
    found = parquet.ParquetFile(tmp_path / "out.parquet").metadata
    assert [found.row_group(i).num_rows for i in range(found.num_row_groups)] == N * [1]
