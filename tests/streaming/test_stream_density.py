"""`--density`: the same density from the command, its files, Python and a line read back."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from support.command_line import one_line
from support.streams import BUDGET, releases, run_once, sample, write_rows

from fedmf import PrivateStream
from fedmf.cli.app import run as run_command
from fedmf.moments import PrivateGaussian, gaussian_estimate
from fedmf.streaming import PrivateRelease, Settings, open_run

N, D = 12, 3


def rows() -> np.ndarray:
    return 0.3 * sample(N, D)


@pytest.mark.parametrize("workload", ["average", "prefix", "exponential:0.8", "window:3"])
def test_every_way_to_the_density_is_one(tmp_path: Path, workload: str) -> None:
    """JSON, Parquet, the run, a pushed row and a line read back give the same numbers."""
    x = rows()
    settings = Settings(**BUDGET, rounds=N, workloads=(workload,))
    source = write_rows(tmp_path / "rows.csv", x)
    for name in ("plain", "json", "parquet"):
        (tmp_path / name).mkdir()
    run_once(tmp_path / "plain", settings, source)
    with open_run(tmp_path / "json/state", settings, source, tmp_path / "json/out", density=True) as (
        run,
        rd,
    ):
        run.feed(rd)
        run.conclude()
        last = run.gaussian()
    run_once(tmp_path / "parquet", settings, source, "out.parquet", density=True)
    plain, told = releases(tmp_path / "plain/out.jsonl"), releases(tmp_path / "json/out")
    table = parquet.read_table(tmp_path / "parquet/out.parquet").to_pylist()
    with PrivateStream(
        tmp_path / "pushed", **BUDGET, dimension=D, rounds=N, workloads=workload, max_participations=1
    ) as stream:
        pushed = stream.push_many(x, users=[f"u{i}" for i in range(N)])
    for before, line, row, release in zip(plain, told, table, pushed, strict=True):
        assert before.items() <= {name: line[name] for name in before}.items()
        assert set(line) - set(before) == {
            "density_mean", "density_covariance", "shrinkage", "mean_low", "mean_high", "covariance_low",
            "covariance_high", "correlation", "correlation_low", "correlation_high", "too_noisy",
        }  # fmt: skip
        density = release.gaussian()
        for again in (PrivateRelease.from_dict(before, 1.0), PrivateRelease.from_dict(row, 1.0)):
            np.testing.assert_array_equal(again.gaussian().covariance, density.covariance)
        np.testing.assert_allclose(line["density_covariance"], density.covariance, rtol=1e-12)
        np.testing.assert_allclose(line["density_mean"], density.mean, rtol=1e-15)
        np.testing.assert_allclose(line["shrinkage"], density.shrinkage, rtol=1e-12)
        for name, ends in (("mean", density.mean_interval()), ("covariance", density.covariance_interval())):
            np.testing.assert_allclose([line[f"{name}_low"], line[f"{name}_high"]], ends, rtol=1e-12)
        value, low, _ = density.correlations()
        np.testing.assert_allclose(np.array(line["correlation"], dtype=float), value, rtol=1e-12)
        np.testing.assert_allclose(row["correlation_low"], low, rtol=1e-12)
        assert line["too_noisy"] == row["too_noisy"] == density.too_noisy
        np.testing.assert_array_equal(release.covariance_standard_error, density.raw.covariance_errors())
        np.linalg.cholesky(density.covariance)
    np.testing.assert_array_equal(last.covariance, density.covariance)


@pytest.mark.parametrize("shape", ["tidy", "wide"])
def test_tables_have_intervals_beside_values(tmp_path: Path, shape: str) -> None:
    source = write_rows(tmp_path / "rows.csv", rows())
    for name in ("json", shape):
        (tmp_path / name).mkdir()
        run_once(tmp_path / name, Settings(**BUDGET), source, "out", shape=name, density=True)
    lines = releases(tmp_path / "json/out")
    with (tmp_path / shape / "out").open(newline="") as file:
        table = list(csv.DictReader(file))
    last = lines[-1]
    if shape == "wide":
        row = table[-1]
        assert float(row["low:covariance:x0:x1"]) == last["covariance_low"][0][1]
        assert float(row["density_covariance:x2:x2"]) == last["density_covariance"][2][2]
        assert "standard_error:density_mean:x0" not in row
        assert "low:first:x0" not in row
        correlation = row["correlation:x0:x1"]
    else:
        cells = {
            (row["quantity"], row["column"], row["column_2"]): row for row in table if row["t"] == str(N)
        }
        assert float(cells["mean", "x1", ""]["high"]) == last["mean_high"][1]
        assert cells["first", "x1", ""]["high"] == cells["density_mean", "x1", ""]["standard_error"] == ""
        assert float(cells["density_covariance", "x0", "x2"]["value"]) == last["density_covariance"][0][2]
        assert ("correlation", "x0", "x0") not in cells
        correlation = cells["correlation", "x0", "x1"]["value"]
    told = last["correlation"][0][1]
    assert correlation == ("" if told is None else str(told))


def command(folder: Path, *more: str) -> int:
    budget = ["--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5", "--seed", "3"]
    header = (folder / "rows.csv").read_text().partition("\n")[0].removeprefix("at,")
    told = ["--each-row-a-user", "--columns", header]
    return run_command(["stream", "--input", str(folder / "rows.csv"), *budget, *told, *more])


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_command_says_and_draws_it_on_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], d: int
) -> None:
    write_rows(tmp_path / "rows.csv", 0.3 * sample(40, d))
    picture, out = str(tmp_path / "density.png"), str(tmp_path / "out.csv")
    assert command(tmp_path, "--density", "--output", out, "--plot", picture) == 0
    shown = capsys.readouterr().out
    assert len(shown[shown.index("Simulation only") :].splitlines()) <= 12
    assert "standard deviation [95 %]" in shown
    assert "--full" in shown
    assert (tmp_path / "density.png").read_bytes().startswith(b"\x89PNG")
    assert command(tmp_path, "--full", "--output", str(tmp_path / "other.csv")) == 0
    whole = capsys.readouterr().out
    assert "Does not cover:" in whole
    assert "[95 %]" not in whole


@pytest.mark.parametrize(
    "more",
    [["--method", "pp"], ["--second", "energy"], ["--workload", "prefix", "--workload", "average"]],
)
def test_what_has_no_density_is_refused_in_one_line(
    tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows.csv", rows())
    assert command(tmp_path, "--density", "--state", str(tmp_path / "state"), *more) == 2
    assert "for a density" in one_line(capsys)
    assert not (tmp_path / "state").exists()


def test_a_release_feeds_the_density_functions(tmp_path: Path) -> None:
    with PrivateStream(tmp_path / "a", **BUDGET, dimension=2, rounds=4) as stream:
        release = stream.push([0.5, 0.1], user="ann")
    density = release.gaussian()
    assert isinstance(density, PrivateGaussian)
    estimate = gaussian_estimate(release, release.mean_standard_error**2)
    torch.testing.assert_close(estimate.covariance, torch.from_numpy(np.array(release.covariance)))
    with PrivateStream(tmp_path / "b", **BUDGET, dimension=2, rounds=4, second="energy") as stream:
        other = stream.push([0.5, 0.1], user="ann")
    with pytest.raises(ValueError, match="for a density"):
        other.gaussian()
