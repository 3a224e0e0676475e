"""Fields of a release: errors as over many runs, definite covariances, intervals, tables."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import parquet
from scipy import stats
from support.streams import BUDGET, releases, run_once, sample, write_rows

from fedmf import PrivateStream
from fedmf.cli.stream_screen import _clipped, _correlations
from fedmf.data import Schema
from fedmf.moments import MomentStream, fieller
from fedmf.noise.key import NoiseKey
from fedmf.streaming import Layout, PrivateRelease, Settings, StreamPlan
from fedmf.streaming.output import open_output
from fedmf.streaming.private_release import TOO_FEW, Renderer, visible_correlations
from fedmf.streaming.state import ReleaseBlock

N = 12
D = 3
FALSE_ALARM = 1e-6


def planned(layout: Layout, rounds: int = N, **more: Any) -> StreamPlan:
    settings = Settings(
        **{"clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-5, "rounds": rounds, **more}
    )
    return StreamPlan.of(settings, layout, rounds)


def released(plan: StreamPlan, x: np.ndarray, seed: int) -> ReleaseBlock:
    """Of a stream over these rows, all of them."""
    every = plan.every
    key = NoiseKey.from_seed(seed)
    stream = MomentStream(plan.mechanism, plan.second_moment, *plan.workloads, key=key)
    rows = torch.from_numpy(x)
    blocks = [stream.release_sum(rows[at : at + every]) for at in range(0, len(x), every)]
    numbers = torch.cat([torch.cat([b.first, b.second], dim=1) for b in blocks]).numpy()
    t = np.minimum(np.arange(every, len(x) + every, every), len(x))
    return ReleaseBlock(0, t, numbers)


@pytest.mark.parametrize(
    ("workload", "second", "every"),
    [
        ("average", "full", 1),
        ("prefix", "diagonal", 1),
        ("window:3", "full", 1),
        ("average", "full", 5),
    ],
)
def test_standard_errors_are_those_of_many_runs(workload: str, second: str, every: int) -> None:
    """200 keys: squared deviations from the truth over the variance stated, against χ²; σ/√2 is
    rejected. With 12 rows and R = 5 the last release has 2 rows more than the one before.

    A covariance's error is an estimate of its own: its mean square over runs is within a fifth.
    """
    plan = planned(
        Layout(("a", "b")), workloads=(workload,), second_moment=second, release_every=every
    )
    runs = 200
    x = np.tile([[0.6, -0.3]], (N, 1))
    found = [Renderer(plan, raw=True).fields(released(plan, x, seed)) for seed in range(runs)]
    t = found[0]["t"]
    sums = plan.row_sums(0, t)
    weights = plan.workloads[0].materialize() @ np.diff(t, prepend=0)
    np.testing.assert_allclose(sums, weights)
    square = np.outer(x[0], x[0]) if second == "full" else x[0] ** 2
    scale = (1 + np.eye(2)) / 2 if second == "full" else 1.0  # variances off the diagonal are half
    truth = {
        "sum": (np.multiply.outer(sums, x[0]), 1.0),
        "mean": (np.tile(x[0], (len(t), 1)), 1.0),
        "sum_of_squares": (np.multiply.outer(sums, square), scale),
    }
    alpha = FALSE_ALARM / 200
    for quantity, (true, share) in truth.items():
        total = sum((one[quantity] - true) ** 2 for one in found)
        error = found[0][f"{quantity}_standard_error"]
        error = error.reshape(-1, *(true.ndim - error.ndim) * [1], *error.shape[1:])
        ratio = total / (error**2 * share)
        assert (ratio > stats.chi2.ppf(alpha, runs)).all(), quantity
        assert (ratio < stats.chi2.isf(alpha, runs)).all(), quantity
        assert not (2 * ratio < stats.chi2.isf(alpha, runs)).all()
    spread = np.mean([one["covariance_raw"] ** 2 for one in found], axis=0)
    stated = np.mean([one["covariance_raw_standard_error"] ** 2 for one in found], axis=0)
    assert abs(np.mean(spread[-3:] / stated[-3:]) - 1) < 0.2


@pytest.mark.parametrize("workload", ["average", "exponential:0.7"])
def test_mean_and_raw_covariance_have_no_bias(workload: str) -> None:
    """2000 coordinates with the same course: their mean against the weighted moments of that
    course.
    """
    d = 2000
    n = 8
    course = np.linspace(0.2, 1.0, n)
    plan = planned(
        Layout(tuple(map(str, range(d)))),
        n,
        workloads=(workload,),
        second_moment="diagonal",
        clip_norm=1.01 * d**0.5,
        epsilon=5000.0,
    )
    fields = Renderer(plan, raw=True).fields(released(plan, np.tile(course[:, None], (1, d)), 1))
    A = plan.workloads[0].materialize()
    weights = A / A.sum(axis=1, keepdims=True)
    limit = stats.norm.ppf(1 - FALSE_ALARM / (4 * n))
    for t in range(n):
        mean = float(weights[t] @ course)
        variance = float(weights[t] @ course**2) - mean**2
        for found, expected in ((fields["mean"][t], mean), (fields["covariance_raw"][t], variance)):
            assert abs(found.mean() - expected) < limit * found.std(ddof=1) / d**0.5


@pytest.mark.parametrize(("spread", "weight", "epsilon"), [(0.02, 10.0, 20.0), (0.2, 1e4, 200.0)])
def test_errors_of_a_covariance_over_a_noisy_count(
    spread: float, weight: float, epsilon: float
) -> None:
    """Of 30 columns, each entry: 100 squared errors over the variance claimed, against χ².

    Nearly all of the error is that of the sums in the first case. In the second, with a common part
    in all columns, a third of the variance is that of the count. A standard error 1.5 times too
    large or 1.7 times too small is found.
    """
    d = 30
    n = 400
    runs = 100
    rng = np.random.default_rng(5)
    x = rng.normal(scale=0.05, size=(n, d)) + rng.normal(scale=spread, size=(n, 1))
    x[:, :3] += 0.1
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    number = {"kind": "number", "lower": -1, "upper": 1, "nullable": True}
    schema = Schema.from_dict({f"c{i}": number for i in range(d)})
    more: dict[str, Any] = {
        "schema": schema,
        "release_every": n,
        "epsilon": epsilon,
        "weight": weight,
    }
    layout = Layout((*(f"c{i}" for i in range(d)), "count"))
    plan = planned(layout, n, **more)
    rows = np.column_stack([x, np.full(n, plan.settings.count_weight)])
    renderer = Renderer(plan, raw=True)
    truth = np.cov(x.T, bias=True)
    total = np.zeros((d, d))
    for seed in range(runs):
        fields = renderer.fields(released(plan, rows, seed))
        error = fields["covariance_raw_standard_error"][0]
        total += ((fields["covariance_raw"][0] - truth) / error) ** 2
    alpha = FALSE_ALARM / d**2  # a false alarm in 10⁶ for all entries together
    assert total.max() < stats.chi2.isf(alpha, runs)
    assert total.min() > stats.chi2.ppf(alpha, runs)


RUNS = 600


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_intervals_hold_what_they_are_of(adjacency: str, counted: bool) -> None:
    """Of 600 streams over the same rows, means in 95 % of their intervals and variances,
    covariances and correlations in at least that; the covariance is definite always. Where valid
    rows are counted, a fifth of the rows are not.
    """
    rng = np.random.default_rng(3)
    n = 400
    x = np.clip(rng.multivariate_normal([0.3, 0.1], [[0.05, 0.03], [0.03, 0.04]], n), -0.7, 0.7)
    number = {"kind": "number", "lower": -1, "upper": 1, "nullable": True}
    more: dict[str, Any] = {"adjacency": adjacency, "release_every": n, "epsilon": 2.0}
    rows = x
    layout = Layout(("a", "b"))
    if counted:
        more |= {"schema": Schema.from_dict({"a": number, "b": number}), "clip_norm": 2**0.5}
        weight = Settings(1.0, 0.1, 2**0.5, schema=more["schema"]).count_weight
        valid = np.arange(n) % 5 > 0
        rows = np.column_stack([x, np.full(n, weight)]) * valid[:, None]
        layout = Layout(("a", "b", "count"))
        x = x[valid]
    plan = planned(layout, n, **more)
    renderer = Renderer(plan)
    mean = x.mean(axis=0)
    covariance = np.cov(x.T, bias=True)
    truth = {"mean": mean, "covariance": covariance, "correlation": np.corrcoef(x.T)}
    held = {name: np.zeros_like(value) for name, value in truth.items()}
    for seed in range(RUNS):
        fields = renderer.fields(released(plan, rows, seed))
        for name, value in truth.items():
            held[name] += (fields[f"{name}_low"][0] <= value) & (value <= fields[f"{name}_high"][0])
        assert np.linalg.eigvalsh(fields["covariance"][0]).min() > 0
    least = RUNS * 0.95 - 4.9 * (RUNS * 0.95 * 0.05) ** 0.5  # a false alarm in 10⁶
    assert all((count >= least).all() for count in held.values()), held
    assert (held["mean"] <= RUNS * 0.95 + 4.9 * (RUNS * 0.95 * 0.05) ** 0.5).all()


def test_of_many_correlations_none_is_named_for_its_noise() -> None:
    """At most 5 % of releases name one of 4,950 that are 0, and with little noise the true one."""
    d = 100
    n = 400
    runs = 20
    drawn = np.random.default_rng(0).normal(size=(n, d))
    rows, _ = np.linalg.qr(drawn - drawn.mean(axis=0))
    correlated = rows.copy()
    correlated[:, 7] += correlated[:, 3]
    layout = Layout(tuple(f"c{i}" for i in range(d)))
    more: dict[str, Any] = {"release_every": n, "clip_norm": 1.0}
    plan = planned(layout, n, **more)
    renderer = Renderer(plan)
    named = 0
    for seed in range(runs):
        (line,) = _correlations(plan, renderer.release(released(plan, rows, seed)))
        named += "the largest is" in line
    assert named <= stats.binom.isf(FALSE_ALARM, runs, 0.05)
    plan = planned(layout, n, **more, epsilon=1e5)
    release = Renderer(plan).release(released(plan, correlated, 0))
    (line,) = _correlations(plan, release)
    assert line.startswith("1 of 4,950 correlations differ from 0 beyond the noise")
    assert "the largest is c3, c7: 0.7" in line
    low, high = release.joint_correlation_interval()
    assert (low <= np.asarray(release.correlation_low)).all()
    assert (high >= np.asarray(release.correlation_high)).all()
    with pytest.raises(ValueError, match="not read from a line"):
        PrivateRelease.from_dict(release.to_dict()).joint_correlation_interval()


@pytest.mark.parametrize(
    ("common", "longest", "told"),
    [(0.0, 1.2, False), (0.0, 0.99, True), (0.7, 1.0, True), (0.7, 2.5, False)],
)
@pytest.mark.parametrize("epsilon", [8.0, 100.0])
def test_many_columns_are_no_sign_of_clipped_rows(
    common: float, longest: float, told: bool, epsilon: float
) -> None:
    """Of 60 columns, norms vary by 9 % without correlation: a root mean square norm of 83 % of ζ
    is that of rows of which none is clipped, and 96 % that of rows of which half are. With a common
    part in all columns norms vary as in one or two.
    """
    d = 60
    n = 2000
    rng = np.random.default_rng(2)
    x = (1 - common**2) ** 0.5 * rng.normal(size=(n, d)) + common * rng.normal(size=(n, 1))
    clip_norm = longest * d**0.5
    norms = np.linalg.norm(x, axis=1)
    assert (np.mean(norms > clip_norm) > 0.2) == told
    x *= np.minimum(1, clip_norm / norms)[:, None]
    layout = Layout(tuple(f"c{i}" for i in range(d)))
    plan = planned(layout, n, release_every=n, clip_norm=clip_norm, epsilon=epsilon, weight=0.1)
    release = Renderer(plan, raw=True).release(released(plan, x, 0))
    assert bool(_clipped(plan, release)) == told


def test_half_of_the_correlations_that_a_dry_run_calls_visible_are_seen() -> None:
    """Of 15 pairs in 20 releases with just that correlation, each interval by itself and all."""
    d = 30
    n = 400
    number = {"kind": "number", "lower": -8, "upper": 8, "scale": 1}
    schema = Schema.from_dict({f"c{i}": number for i in range(d)})
    layout = Layout(tuple(f"c{i}" for i in range(d)))
    more: dict[str, Any] = {"schema": schema, "release_every": n, "clip_norm": 10.0, "weight": 0.1}
    plan = planned(layout, n, **more)
    told = visible_correlations(plan)
    assert "for all 435 pairs" in told
    one, all_at_once = map(float, re.findall(r"±([0-9.]+)", told))
    drawn = np.random.default_rng(0).normal(size=(n, d))
    rows, _ = np.linalg.qr(drawn - drawn.mean(axis=0))
    for r, joint in ((one, False), (all_at_once, True)):
        x = rows * n**0.5
        x[:, 1::2] = r * x[:, ::2] + (1 - r**2) ** 0.5 * x[:, 1::2]
        seen = 0
        for seed in range(20):
            release = Renderer(plan).release(released(plan, x, seed))
            low = release.joint_correlation_interval()[0] if joint else release.correlation_low
            seen += int((np.asarray(low)[range(0, d, 2), range(1, d, 2)] > 0).sum())
        spread = 4.9 * (300 * 0.25) ** 0.5  # a false alarm in 10⁶
        assert abs(seen - 150) < spread + 0.05 * 300  # and 0.01, to which it is rounded


def test_valid_rows_are_counted_in_the_columns_own_units() -> None:
    """By definition: z = (x − 15)/10, c a row that counts, means c·Y/R mapped back."""
    number = {
        "kind": "number",
        "lower": 0,
        "upper": 40,
        "center": 15,
        "scale": 10,
        "nullable": True,
    }
    schema = Schema.from_dict({"speed": number, "load": {**number, "scale": 5}})
    settings = Settings(8.0, 1e-5, 3.0, rounds=N, schema=schema)
    c = settings.count_weight
    plan = planned(Layout(("speed", "load", "valid rows")), clip_norm=3.0, schema=schema)
    z = np.array([[0.5, -0.4, c]] * 9 + [[0, 0, 0]] * 3)
    given = released(plan, z, 4)
    told = Renderer(plan, raw=True).fields(given)
    Y = told["sum"][:, :2]
    R = told["sum"][:, 2]
    v = plan.variances(0, given.t)
    found = fieller(Y, R, v, c)
    scales = np.array([10, 5])
    centers = np.array([15, 15])
    np.testing.assert_allclose(told["mean"], centers + scales * found.mean)
    np.testing.assert_allclose(told["mean_low"], np.clip(centers + scales * found.low, 0, 40))
    np.testing.assert_allclose(told["mean_standard_error"], scales * found.error)
    np.testing.assert_allclose(told["valid_share"], R / c)
    few = 1.959964 * np.sqrt(v) >= R
    assert ((told["too_few"] == TOO_FEW) == few).all()
    m = c * Y / R[:, None]
    share = R / c
    at = ~few
    outer = m[:, :, None] * m[:, None, :]
    expected = told["sum_of_squares"][:, :2, :2] / share[:, None, None] - outer
    expected += (v / share**2)[:, None, None] * (np.eye(2) + outer / c**2)
    np.testing.assert_allclose(
        told["covariance_raw"][at], (expected * np.outer(scales, scales))[at]
    )
    assert np.isnan(told["covariance"][few]).all()
    assert (np.linalg.eigvalsh(told["covariance"][at]) > 0).all()


def test_the_files_say_the_same(tmp_path: Path) -> None:
    """JSON lines, CSV and Parquet; sums and the unbiased covariance where they are asked for."""
    settings = Settings(**BUDGET)
    source = write_rows(tmp_path / "rows.csv", 0.3 * sample(N, D))
    for raw in (False, True):
        folder = tmp_path / str(raw)
        folder.mkdir()
        for name in ("o.jsonl", "o.csv", "o.parquet"):
            (folder / name[2:]).mkdir()
            run_once(folder / name[2:], settings, source, name, raw=raw)
        last = releases(folder / "jsonl/o.jsonl")[-1]
        with (folder / "csv/o.csv").open(newline="") as file:
            wide = list(csv.DictReader(file))[-1]
        table = parquet.read_table(folder / "parquet/o.parquet").to_pylist()[-1]
        assert last.pop("columns") == ["x0", "x1", "x2"]
        assert table == last
        assert float(wide["mean_high:x1"]) == last["mean_high"][1]
        assert float(wide["covariance:x0:x2"]) == last["covariance"][0][2]
        assert wide["correlation:x0:x1"] == str(last["correlation"][0][1] or "")
        assert "correlation:x0:x0" not in wide
        assert ("sum" in last, "covariance_raw:x0:x1" in wide) == (raw, raw)
    with pytest.raises(ValueError, match="must not exist before"):
        open_output(folder / "csv/o.csv", fresh=True)
    for name in ("x.tsv", "x.csv.xz", "out.2024"):
        with pytest.raises(ValueError, match="must end in"):
            open_output(tmp_path / name, fresh=True)


def test_a_release_scores_rows_and_is_a_density(tmp_path: Path) -> None:
    with PrivateStream(tmp_path / "a", **BUDGET, columns=["a", "b"], rounds=9) as stream:
        release = stream.push_many(0.3 * sample(9, 2), [f"u{i}" for i in range(9)])[-1]
    line = json.loads(json.dumps(release.to_dict()))
    again = PrivateRelease.from_dict(line)
    assert release.covariance is not None
    x = np.array([[0.7, -0.4], [0.1, 0.1]])
    apart = x - release.mean
    distances = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(release.covariance), apart)
    np.testing.assert_allclose(release.score(x), distances, rtol=1e-9)
    assert release.score([1e308, -1e308]) == np.inf
    np.testing.assert_allclose(again.score(x), distances, rtol=1e-9)
    swapped = pd.DataFrame({"b": x[:, 1], "a": [0.7, np.nan]})
    np.testing.assert_allclose(again.score(swapped), [distances[0], np.nan], rtol=1e-9)
    by_name = {"b": x[0, 1], "a": x[0, 0]}
    np.testing.assert_allclose(again.score(by_name), distances[0], rtol=1e-9)
    for wrong in (swapped[["a"]], swapped.assign(c=1.0), x[:, :1], {"a": 0.1}):
        with pytest.raises(ValueError, match=r"x \(rows\) must have"):
            again.score(wrong)
    assert 0 < again.threshold(0.1) == release.threshold(0.1) < release.threshold(0.01)
    assert release.threshold(0.4, ordinary=x) == pytest.approx(distances.max(), rel=1e-9)
    with pytest.raises(AttributeError):
        release.nothing  # noqa: B018
    plain = {
        name: value
        for name, value in line.items()
        if not name.startswith(("sum", "covariance_raw"))
    }
    with pytest.raises(
        ValueError, match=r"for a threshold; got none\. Release with --raw \(raw=True"
    ):
        PrivateRelease.from_dict(plain).threshold()
    assert PrivateRelease.from_dict(plain).score(x).shape == (2,)
    with PrivateStream(
        tmp_path / "b", **BUDGET, dimension=2, rounds=4, second_moment="trace"
    ) as stream:
        other = stream.push([0.5, 0.1], user="ann")
    assert other.covariance is None
    assert other.sum_of_squares is not None
    with pytest.raises(ValueError, match="for a density"):
        other.score(x)
