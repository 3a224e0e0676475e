"""Streams of periods: a user moves them no further than one row does, and closes none of them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from guarantees.small import bisr, covariance_fits
from scipy import optimize
from support.streams import releases

import fedmf
from fedmf.cli.app import run
from fedmf.data import Schema
from fedmf.errors import HorizonExceededError
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.noise.key import NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.release.private_stream import PrivateRows
from fedmf.statements.letter import PrivacyLetter
from fedmf.streaming import Layout, Settings, StreamPlan, open_periods, period_run
from fedmf.streaming.private_release import expected_noise, noise_of_one_period

START = datetime(2026, 1, 5)
DAY = timedelta(days=1)
END = START + timedelta(weeks=4)
WEEKLY: dict[str, Any] = {
    "clip_norm": 1.0,
    "epsilon": 8.0,
    "delta": 1e-5,
    "columns": ("a", "b"),
    "user_column": "who",
    "time_column": "date",
    "release_every": "1w",
    "start": "2026-01-05",
    "rounds": 4,
    "max_participations": 4,
    "mechanisms": ("bisr",),
    "seed": 5,
}


def table(seed: int = 0, users: int = 6) -> pd.DataFrame:
    """Rows of some users in every week, in no order of time."""
    rng = np.random.default_rng(seed)
    rows = {
        "who": [f"u{i % users}" for i in range(40)],
        "date": [(START + x * DAY).isoformat() for x in rng.uniform(0, 28, 40)],
        "a": rng.uniform(-0.6, 0.6, 40),
        "b": rng.uniform(-0.6, 0.6, 40),
    }
    return pd.DataFrame(rows).astype({"a": object, "b": object})


def released(folder: Path, rows: pd.DataFrame, until: datetime = END, **changes: Any) -> Any:
    """The statement after all periods that ended by a time."""
    folder.mkdir(exist_ok=True)
    rows.to_csv(folder / "rows.csv", index=False)
    settings = Settings(**{**WEEKLY, **changes})
    opened = open_periods(
        folder / "state", settings, folder / "rows.csv", folder / "out.jsonl", raw=True
    )
    with opened as (stream, reader):
        stream.collect(reader)
        stream.close_until(until)
        return stream.conclude()


def integers(folder: Path) -> np.ndarray:
    """o of each release, shape (releases, size)."""
    return np.fromfile(folder / "state/released/integers.bin", "<i8").reshape(
        len(releases(folder / "out.jsonl")), -1
    )


# One user moves the sums no further than the noise covers


@pytest.mark.parametrize("k", [1, 2, 3])
def test_many_rows_of_a_period_move_a_pair_no_further_than_stated(k: int) -> None:
    """Maximized over the rows and the periods of a user, three rows in each of at most k."""
    mechanism = Toeplitz([1.0, 0.6, 0.3], 3)
    small = {"rounds": 3, "max_participations": k, "mechanisms": (mechanism,)}
    settings = Settings(**{**WEEKLY, **small})
    plan = StreamPlan.of(settings, Layout(("a", "b", "c"), "who", time="date"), 3)
    made = plan.mechanism
    rows = PrivateRows(made.rows(plan.second_moment), NoiseKey.from_seed(1))
    C = made.first.materialize()
    ratio = made.second_noise[1] / made.first_std
    rng = np.random.default_rng(0)
    largest = 0.0
    for periods in itertools.combinations(range(3), k):

        def moved(x: np.ndarray, periods: tuple[int, ...] = periods) -> float:
            first = np.zeros((3, 3))
            second = np.zeros((3, plan.second_moment.size))
            for period, own in zip(periods, x.reshape(k, 3, 3), strict=True):
                own = own / np.maximum(np.linalg.norm(own, axis=1), 1e-9)[:, None]
                own = own * settings.vector_norm * 1.5  # which the only door into sums clips
                means = period_run._means(own, np.zeros(3, np.int64), plan.second_moment)
                sums, count = rows.clip_and_add_means(means)
                assert count == 1
                first[period] = sums[0].numpy() * rows.plan.units[0]
                second[period] = sums[1].numpy() * rows.plan.units[1]
            return -float(np.hypot(np.linalg.norm(C @ first), np.linalg.norm(C @ second) / ratio))

        for _ in range(2):
            found = optimize.minimize(moved, rng.normal(size=9 * k), options={"maxiter": 15})
            largest = max(largest, -found.fun)
        same = np.tile(rng.normal(size=3), 3 * k)
        largest = max(largest, -moved(same))
    assert 0.999 < largest / plan.sensitivity.value <= 1 + 1e-9


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_noise_of_periods_has_the_stated_covariance(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of periods without rows. σ × 1.1 is seen."""
    right = NoiseStream.__init__

    def wrong(self: NoiseStream, *given: Any) -> None:
        right(self, *given[:-1], given[-1] * factor)

    monkeypatch.setattr(NoiseStream, "__init__", wrong)
    weeks = 6
    d = 3000
    rng = np.random.default_rng(2)
    weeks_of_rows = rng.integers(0, weeks - 1, 12)
    x = rng.uniform(-1, 1, (12, d)) / d
    names = [f"x{i}" for i in range(d)]
    weekly = {"release_every": "1w", "start": "2026-01-05", "rounds": weeks, "seed": 3}
    more = {"mechanisms": "bisr", "workloads": "prefix", "second_moment": "diagonal"}
    budget = {"epsilon": 8.0, "delta": 1e-5, "clip_norm": 1.0, "columns": names}
    sums = []
    with fedmf.PrivateStream(tmp_path / "state", **budget, **weekly, **more) as stream:
        times = [START + 7 * week * DAY for week in weeks_of_rows.tolist()]
        stream.add(x, [f"u{i}" for i in range(12)], times)
        while stream.period is not None:
            sums.append(np.asarray(stream.close_period().sum)[:-1])
        said = stream.statement()
    exact = np.stack([x[weeks_of_rows == week].sum(axis=0) for week in range(weeks)])
    noise = np.diff(np.stack(sums), axis=0, prepend=0.0) - exact
    C = bisr(weeks, said["params"].get("bands", weeks))
    fits = covariance_fits(noise, C, said["noise_multiplier"] * said["sensitivity"])
    assert fits == (factor == 1.0)


# Two worlds


HARMLESS: Mapping[str, list[tuple[object, object, object]]] = {
    "far future": [("2099-01-01", 0.5, 0.5)],
    "before the start": [("2026-01-04T23:59:59", 0.5, 0.5)],
    "the end": [("2026-02-02", 0.5, 0.5)],
    "no time": [("", 0.5, 0.5), ("soon", 0.1, 0.2), ("17", 0.1, 0.2), ("2026-13-01", 1, 1)],
    "no number": [("2026-01-06", "many", 0.5), ("2026-01-06", float("nan"), 1)],
    "infinite": [("2026-01-06", 1e999, 0.5), ("9999-12-31T23:59:59+00:00", 0, 0)],
}


@pytest.mark.parametrize("fault", HARMLESS)
def test_bad_rows_of_a_user_are_as_no_rows(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """To the bit, and in all that is shown; the operator's counts alone tell."""
    told = []
    rows = table()
    bad = pd.DataFrame([("eve", *row) for row in HARMLESS[fault]], columns=rows.columns)
    worlds = {"without": rows, "with": pd.concat([bad, rows, bad])}
    for name, world in worlds.items():
        folder = tmp_path / name
        folder.mkdir()
        world.to_csv(folder / "rows.csv", index=False)
        words = "--columns a,b --user-column who --clip-norm 1 --epsilon 8 --delta 1e-5 --seed 5"
        weekly = "--release-every 1w --time-column date --start 2026-01-05 --rounds 4"
        place = f"--input {folder}/rows.csv --state-dir {folder}/s --output {folder}/out.jsonl"
        assert run(f"stream {place} {words} {weekly} --until 2026-01-28".split()) == 0
        seen = capfd.readouterr()
        told.append((seen.out.replace(str(folder), ""), releases(folder / "out.jsonl")))
    assert told[0] == told[1]
    assert len(told[0][1]) == 3
    counts = [json.loads((tmp_path / name / "s/operator.json").read_text()) for name in worlds]
    assert counts[0] != counts[1]


def test_a_finished_calendar_takes_no_run_whatever_its_rows_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A time in the future closes nothing; the run after the last period ends with code 3."""
    rows = table()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.assign(date="2030-01-01").to_csv(tmp_path / "late.csv", index=False)
    words = "--columns a,b --user-column who --clip-norm 1 --epsilon 8 --delta 1e-5 --seed 5"
    weekly = "--release-every 1w --time-column date --start 2026-01-05 --rounds 4"
    place = f"--state-dir {tmp_path}/s --output {tmp_path}/out.jsonl --log-format json"
    command = f"stream {place} {words} {weekly}"
    tomorrow = (datetime.now(UTC) + DAY).replace(tzinfo=None).isoformat()
    assert run(f"{command} --input {tmp_path}/rows.csv --until {tomorrow}".split()) == 2
    assert "--until must not be later than the clock" in capfd.readouterr().err
    assert not (tmp_path / "s").exists()
    assert run(f"{command} --input {tmp_path}/rows.csv --until 2026-01-12".split()) == 0
    assert "a single release of one period at the same epsilon" in capfd.readouterr().out
    assert run(f"{command} --input {tmp_path}/rows.csv".split()) == 0
    told = []
    for name in ("rows", "late"):
        capfd.readouterr()
        assert run(f"{command} --input {tmp_path}/{name}.csv --until 2026-02-01".split()) == 0
        assert run(f"{command} --input {tmp_path}/{name}.csv --until 2026-02-02".split()) == 3
        line = json.loads(capfd.readouterr().err.splitlines()[-1])
        told.append((line["error"], line["exit_code"]))
    assert told[0] == told[1]
    assert told[0][0].startswith("all 4 periods of this stream were released before")
    assert len(releases(tmp_path / "out.jsonl")) == 4
    assert run(["account", f"{tmp_path}/s"]) == 0
    assert "in full for every user" in capfd.readouterr().out


def test_times_and_values_of_a_user_move_that_user_alone(tmp_path: Path) -> None:
    """As many releases of the same dates; integers differ by at most one clipped mean a period."""
    rows = table()
    own = (rows["who"] == "u2").to_numpy()
    other = rows.copy()
    rng = np.random.default_rng(3)
    other.loc[own, "date"] = [(START + x * DAY).isoformat() for x in rng.uniform(-9, 40, own.sum())]
    other.loc[own, "a"] = 50.0
    worlds = {"one": rows, "two": other, "none": rows[~own]}
    for name, world in worlds.items():
        released(tmp_path / name, world, keep_releases=True, max_participations=2)
    dates = [
        [
            (line["t"], line["start"], line["end"])
            for line in releases(tmp_path / name / "out.jsonl")
        ]
        for name in worlds
    ]
    assert dates[0] == dates[1] == dates[2]
    public = [json.loads((tmp_path / name / "state/statement.json").read_text()) for name in worlds]
    for statement in public:  # the digest of releases is a function of them
        del statement["released_files"]["integers.bin"]
    assert public[0] == public[1] == public[2]
    for name in ("one", "two"):
        moved = integers(tmp_path / name) - integers(tmp_path / "none")
        lengths = np.linalg.norm(moved[:, :3].astype(float), axis=1)
        assert (lengths <= 2.0**31).all()
        assert 0 < np.count_nonzero(lengths) <= 2  # k periods


def test_the_integers_that_leave_have_the_noise_of_the_output(tmp_path: Path) -> None:
    """Sums of a prefix workload are running sums of the integers, which would not be kept before
    their noise.
    """
    said = released(tmp_path, table(), keep_releases=True, workloads=("prefix",))
    unit = said["clip_norm"] * 2.0 ** -said["unit_bits"][0]
    sums = unit * np.cumsum(integers(tmp_path)[:, :3], axis=0)
    found = [line["sum"] for line in releases(tmp_path / "out.jsonl")]
    np.testing.assert_allclose(found, sums, rtol=1e-12)


def test_a_user_within_a_period_is_one_mean(tmp_path: Path) -> None:
    """Sums of a prefix workload with hardly any noise, by hand."""
    rows = table()
    loud = {"epsilon": 1e9, "workloads": ("prefix",), "max_participations": 4}
    released(tmp_path, rows, **loud)
    x = rows.assign(week=(pd.to_datetime(rows["date"]) - START).dt.days // 7)
    x = x.astype({"a": float, "b": float})
    means = x.groupby(["week", "who"])[["a", "b"]].mean()
    for week, line in enumerate(releases(tmp_path / "out.jsonl")):
        until = means[means.index.get_level_values("week") <= week]
        np.testing.assert_allclose(line["sum"][:2], until.sum(), atol=1e-3)
        assert line["users_per_release"] == pytest.approx(len(until) / (week + 1), abs=1e-2)


def test_rows_are_not_taken_as_periods(tmp_path: Path) -> None:
    """`feed` and `take` are those of a stream of rows: they would release each row as a period."""
    rows = tmp_path / "rows.csv"
    table().to_csv(rows, index=False)
    opened = open_periods(tmp_path / "state", Settings(**WEEKLY), rows, tmp_path / "out.jsonl")
    with opened as (stream, reader):
        with pytest.raises(ValueError, match=r"must be fed by collect, .* and close_until"):
            stream.feed(reader)
        block = reader.read(40)
        assert block is not None
        with pytest.raises(ValueError, match=r"must be fed by collect, .* and close_until"):
            stream.take(block)
        assert stream.position.step == 0
        assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_the_operators_counts_survive_a_run_without_a_release(tmp_path: Path) -> None:
    counts = []
    for days in (7, 7, 9, 14):
        released(tmp_path, table(), START + days * DAY, clip_norm=0.1)
        counts.append(json.loads((tmp_path / "state/operator.json").read_text()))
    assert counts[0]["clipped"] > 0
    assert counts[0]["waiting rows"] > 0
    assert counts[1].pop("latest run with a release") == counts[0]
    assert counts[2].pop("latest run with a release") == counts[0]
    assert "latest run with a release" not in counts[3]
    assert counts[3]["periods"] == 2


def test_times_of_another_form_are_noticed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dry run counts the rows; later, what is shown depends on the noisy number of users."""
    table().assign(date=1768000000).to_csv(tmp_path / "rows.csv", index=False)
    words = "--columns a,b --user-column who --clip-norm 1 --epsilon 8 --delta 1e-5 --seed 5"
    weekly = "--release-every 1w --time-column date --start 2026-01-05 --rounds 4"
    place = f"--input {tmp_path}/rows.csv --output {tmp_path}/out.jsonl"
    command = f"stream {place} {words} {weekly} --until 2026-01-12"
    form = "'date' must be ISO 8601, such as 2026-01-31T12:00 (Unix seconds are not), from 2026-01"
    assert run(f"{command} --dry-run".split()) == 0
    assert f"WARNING: no row is in a period. Times in column {form}" in capfd.readouterr().out
    assert run(command.split()) == 0
    shown = capfd.readouterr().out
    assert f"Or few rows are in a period: Times in column {form}" in shown
    assert "1 of 4 periods of 1w" in shown
    assert "Rows of later periods are not stored, so pass them again" in shown


def test_bounds_and_clip_norm_of_a_schema_are_public_inputs(tmp_path: Path) -> None:
    number = {"kind": "number", "lower": 0.0, "upper": 10.0}
    category = {"kind": "category", "categories": ["x", "y"]}
    columns = {"who": {"kind": "user"}, "date": {"kind": "text"}, "a": number, "b": category}
    schema = Schema.from_dict(columns)
    rows = table().assign(a=5.0, b="x")
    changes = {"schema": schema, "columns": None, "clip_norm": 0.75}
    said = released(tmp_path, rows, **changes).public()
    inputs = {entry["name"]: entry for entry in said["public_inputs"]}
    assert inputs["normalization"]["source"] == f"declared: schema {schema.digest}"
    told = "a is clipped into 0..10, then (x − 5)/5; b is 1 or 0 for each of its 2 categories"
    assert inputs["normalization"]["value"] == told
    assert inputs["clip norm"]["value"].startswith("0.75 for the columns")
    letter = PrivacyLetter.of({**said, "noise_key_public": False}, date(2026, 11, 28))
    assert "how numbers were scaled; how much a single entry can count" in letter.to_markdown()


def test_row_level_counts_every_row(tmp_path: Path) -> None:
    loud = {"epsilon": 1e9, "user_column": None, "max_participations": 1, "workloads": ("prefix",)}
    released(tmp_path, table(), **loud)
    last = releases(tmp_path / "out.jsonl")[-1]
    assert last["users_per_release"] == pytest.approx(10, abs=1e-2)
    np.testing.assert_allclose(last["sum"][:2], table()[["a", "b"]].sum().astype(float), atol=1e-3)


# Once, and durably


def test_a_stream_continues_in_the_middle_of_a_period(tmp_path: Path) -> None:
    """The same bits, in several runs; rows of periods that were released change nothing."""
    released(tmp_path / "whole", table())
    for days in (-3, 3, 10, 10, 24, 90):
        released(tmp_path / "parts", table(), START + days * DAY)
        shown = releases(tmp_path / "parts" / "out.jsonl")
        assert len(shown) == min(4, max(0, days // 7))
    released(tmp_path / "parts", table(seed=9))
    assert releases(tmp_path / "parts/out.jsonl") == releases(tmp_path / "whole/out.jsonl")


def test_pushed_rows_are_released_like_those_of_a_file(tmp_path: Path) -> None:
    released(tmp_path, table())
    budget = {**WEEKLY, "release_every": timedelta(weeks=1)}
    del budget["user_column"]
    rows = table()
    found = []
    with fedmf.PrivateStream(tmp_path / "pushed", **budget) as stream:
        stream.add(rows.assign(more="ignored"), users="who")
        assert stream.period == (START, START + 7 * DAY)
        found.append(stream.close_period())
    with fedmf.PrivateStream(tmp_path / "pushed", **budget) as stream:
        times = [datetime.fromisoformat(date) for date in rows["date"]]
        stream.add(rows[["a", "b"]].to_numpy(), rows["who"], times)  # rows of week 1 are late
        assert "1 of 4 periods of 1w from 2026-01-05, epsilon 8" in repr(stream)
        while stream.period is not None:
            found.append(stream.close_period())
        with pytest.raises(HorizonExceededError, match="all were released"):
            stream.close_period()
        with pytest.raises(HorizonExceededError, match="all were closed"):
            stream.add(rows, users="who")
        with pytest.raises(ValueError, match="Use add and close_period"):
            stream.push([0.1, 0.2], user="eve")
        assert stream.release(2).to_dict() == found[1].to_dict()
    wanted = releases(tmp_path / "out.jsonl")
    assert [json.loads(json.dumps(release.to_dict())) for release in found] == wanted


def test_the_noise_is_known_before_a_stream_begins(tmp_path: Path) -> None:
    dry = {name: value for name, value in WEEKLY.items() if name not in ("user_column", "seed")}
    noise = fedmf.PrivateStream.dry_run(**dry)
    released(tmp_path, table())
    last = releases(tmp_path / "out.jsonl")[-1]
    error = last["sum_standard_error"] / 1000
    assert noise.loc["a", "mean after period 4 (±)"] == pytest.approx(1.96 * error)


def test_a_dry_run_says_how_many_users_one_period_needs(capfd: pytest.CaptureFixture[str]) -> None:
    settings = Settings(**WEEKLY)
    layout = Layout(("a", "b", "valid rows"), "who", time="date")
    plan = StreamPlan.of(settings, layout, 4)
    told = noise_of_one_period(plan, 2)
    assert "too noisy for 'a', 'b'" in told
    needed = int(re.findall(r"about ([\d,]+) users", told)[0].replace(",", ""))
    noise = expected_noise(plan, needed).loc["a", "mean after period 1 (±)"]
    assert noise == pytest.approx(0.1 * 2 * settings.clip_norm, rel=2 / needed)
    assert noise_of_one_period(plan, needed - 1)
    assert not noise_of_one_period(plan, needed)
    words = "--columns a,b --user-column who --clip-norm 1 --epsilon 8 --delta 1e-5"
    weekly = "--release-every 1w --time-column date --start 2026-01-05 --rounds 4"
    wrong = f"stream --input rows.csv {words} {weekly} --users-per-period 9".split()
    assert run(wrong) == 2
    assert "--users-per-period needs --dry-run" in capfd.readouterr().err


def test_statement_and_letter_of_periods_tell_columns_and_dates(tmp_path: Path) -> None:
    said = released(tmp_path, table())
    text = said.render_text()
    assert "d = 2 and a count of users" in text
    assert "each is 1w, from 2026-01-05 to before 2026-02-02" in text
    secret = {**said.public(), "noise_key_public": False}
    letter = PrivacyLetter.of(secret, date(2026, 11, 28)).to_markdown()
    assert "4 weeks, from 5 January 2026 to before 2 February 2026" in letter
    assert "averages of “a” and “b”" in letter
    assert " row" not in letter


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release_every": 7}, "release_every .* must be a number and s, min, h, d or w"),
        ({"release_every": "1m"}, r"release_every .* must be a number and s, min"),
        ({"start": None}, r"start \(of the first period\) must be a time"),
        ({"rounds": None}, "must be given with a time column"),
        ({"rounds": 10**6}, "before the year 10000"),
        ({"adjacency": "replace-one"}, "adjacency must be zero-out with a time column"),
        ({"method": "post-processing"}, "must add noise to both moments"),
        ({"timestamp": "day"}, "timestamp and row_id must be left out"),
        ({"weight": "covariance"}, "weight must be a number"),
        ({"second_moment": "trace"}, "second moment must be full or diagonal"),
        ({"columns": None}, "columns .* must be given with a time column"),
        ({"time_column": None}, "must be a number of rows without a time column"),
    ],
)
def test_settings_that_periods_cannot_have_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**{**WEEKLY, **changes})


def test_a_server_takes_no_more_means_than_users(tmp_path: Path) -> None:
    """And none under replace-one, for which a user's periods would have to be public."""
    settings = replace(Settings(**WEEKLY), max_participations=1)
    rows = tmp_path / "rows.csv"
    table().to_csv(rows, index=False)
    with open_periods(tmp_path / "state", settings, rows, tmp_path / "o.jsonl") as (stream, _):
        one_block = [(torch.zeros(2, 3), torch.zeros(2, 6))]
        two_blocks = 2 * [(torch.zeros(1, 3), torch.zeros(1, 6))]
        for two in (one_block, two_blocks):
            with pytest.raises(ValueError, match="means must be at most 1, one a user; got 2"):
                stream._server.release_means(["ann"], two, {})
        assert stream._server.step == 0
