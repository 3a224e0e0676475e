"""Releases of flights by the week, next to releases after so many rows, at the same ε.

python simulations/moments/weekly_flights.py      # two minutes; writes docs/results
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmf.ledger.participations import Histories
from fedmf.matrices.arrays import Array
from fedmf.participation import Participation
from fedmf.streaming import Layout, Settings, StreamPlan, open_periods

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fetch_data import dated_flights

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
START = "2013-01-01"
WEEKS = 53
SHARED: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "clip_norm": 2.0,
    "user_column": "tailnum",
}
PAGE = """# Releases by the week

`python simulations/moments/weekly_flights.py`: {rows:,} flights of {users:,} aircraft in {weeks}
weeks, four columns in [-1, 1], ε = 1, δ = 1e-5, norm at most 2, zero-out, running averages.
Counted: rows, or means of an aircraft in a week. Noise: the standard error of a mean in the last
release. Shift: how far the means of what is counted are from the means of all flights. Error: both
together (root sum of squares). One-shot: the noise of a single release of what is counted, at the
same ε and k. Alone: the noise of a mean of one release by itself (`window:1`). Root mean squares
over columns.

| released | k | b | releases | counted | noise | one-shot | shift | error | alone |
|---|---|---|---|---|---|---|---|---|---|
{lines}

**Two worlds.** {worlds}
"""


def by_rows(rows: pd.DataFrame, k: int, b: int, every: int) -> str:
    """A stream that releases after so many rows."""
    users = Histories(Participation(len(rows), k, b))
    counted = np.zeros(len(rows), np.bool_)
    step = 0
    for i, user in enumerate(rows["tailnum"]):
        if users.admits(user, step + 1):
            step += 1
            users.record(user, step)
            counted[i] = True
    names = tuple(rows.columns[2:])
    contract = {"max_participations": k, "min_separation": b, "release_every": every}
    settings = Settings(**SHARED, **contract, columns=names, rounds=step)
    values = rows[list(names)].to_numpy()
    sizes = np.diff(np.append(np.arange(0, step, every), step))
    what = f"every {every:,} rows"
    return line(what, settings, step, values[counted].mean(axis=0), values.mean(axis=0), sizes)


def by_weeks(rows: pd.DataFrame, k: int, b: int) -> str:
    """A stream of weeks."""
    names = tuple(rows.columns[2:])
    week = (pd.to_datetime(rows["date"]) - pd.Timestamp(START)).dt.days // 7
    means = rows.groupby([week, "tailnum"], sort=True)[list(names)].mean()
    users = Histories(Participation(WEEKS, k, b))
    counted = []
    for at, user in means.index:
        admitted = users.admits(user, at)
        counted.append(admitted)
        if admitted:
            users.record(user, at)
    kept = means[counted]
    contract = {"max_participations": k, "min_separation": b, "release_every": "1w"}
    calendar = {"time_column": "date", "start": START, "rounds": WEEKS}
    settings = Settings(**SHARED, **contract, **calendar, columns=names)
    sizes = kept.groupby(level=0).size().to_numpy()
    exact = rows[list(names)].to_numpy().mean(axis=0)
    return line("every week", settings, WEEKS, kept.to_numpy().mean(axis=0), exact, sizes)


def line(what: str, settings: Settings, n: int, counted: Array, exact: Array, sizes: Array) -> str:
    """A line of the table."""
    plan = plan_of(settings, n)
    alone = plan_of(Settings(**{**fields(settings), "workloads": ("window:1",)}), n)
    c = settings.count_weight
    # Counting users with noise adds m²/c² to the variance of a mean m.
    growth = 1.0 if not c else float(np.sqrt(1 + np.mean(counted**2) / c**2))
    total = int(sizes.sum())
    times = np.array([n])
    weight = plan.row_sums(0, times)[0] * (total / n)
    noise = growth * float(np.sqrt(plan.variances(0, times)[0])) / weight
    once = growth * plan.one_shot_error(n) * n / total
    own = growth * float(np.sqrt(alone.variances(0, times)[0])) / float(np.median(sizes))
    shift = float(np.sqrt(np.mean((counted - exact) ** 2)))
    k = plan.participation.max_participations
    b = plan.participation.min_separation
    cells = [what, f"{k}", f"{b}", f"{len(sizes)}", f"{total:,}", f"{noise:.4f}", f"{once:.4f}"]
    cells += [f"{shift:.4f}", f"{np.hypot(noise, shift):.4f}", f"{own:.3f}"]
    text = "| " + " | ".join(cells) + " |"
    print(text, flush=True)
    return text


def fields(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def plan_of(settings: Settings, n: int) -> StreamPlan:
    columns = settings.columns or ()
    if settings.count_weight:
        columns = (*columns, "valid rows")
    return StreamPlan.of(settings, Layout(columns, "tailnum", time=settings.time_column), n)


def two_worlds(rows: pd.DataFrame) -> str:
    """The flights of one aircraft, and the same at other times with other values."""
    user = rows["tailnum"].value_counts().index[0]
    own = rows["tailnum"] == user
    other = rows.copy()
    rng = np.random.default_rng(0)
    years = rng.choice(["2013", "2012", "2099", "soon"], own.sum())
    other.loc[own, "date"] = [f"{year}-03-04" for year in years]
    other.loc[own, other.columns[2:]] = 1e30
    found = []
    names = tuple(rows.columns[2:])
    contract = {"max_participations": WEEKS, "release_every": "1w", "keep_releases": True}
    calendar = {"time_column": "date", "start": START, "rounds": WEEKS, "seed": 1}
    settings = Settings(**SHARED, **contract, **calendar, columns=names)
    for world in (rows, other):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            world.to_parquet(folder / "rows.parquet")
            places = (folder / "state", settings, folder / "rows.parquet", folder / "out.jsonl")
            with open_periods(*places) as (stream, reader):
                stream.collect(reader)
                stream.close_until(datetime(2014, 1, 7))
                stream.conclude()
            integers = np.fromfile(folder / "state/released/integers.bin", "<i8")
            told = [json.loads(text) for text in (folder / "out.jsonl").read_text().splitlines()]
            found.append((integers, [(each["t"], each["start"], each["end"]) for each in told]))
    (first, dates), (second, other_dates) = found
    moved = (first - second).reshape(len(dates), -1)[:, : len(names) + 1] * 2.0**-31
    lengths = np.linalg.norm(moved, axis=1)
    assert dates == other_dates
    assert len(dates) == WEEKS
    differ = np.count_nonzero(lengths)
    return (
        f"The {own.sum()} flights of {user} get dates in 2012, 2013 and 2099 or none, and values of"
        f" 10³⁰. With the same public seed there are {len(dates)} releases of the same dates in"
        f" both worlds; {differ} of them differ, by at most {lengths.max():.3f} clip norms."
    )


def main() -> None:
    rows = dated_flights()
    lines = [
        by_rows(rows, 50, 300, 3000),
        by_rows(rows, 50, 300, 6177),
        by_rows(rows, 200, 50, 6177),
        by_weeks(rows, 13, 4),
        by_weeks(rows, 26, 2),
        by_weeks(rows, 53, 1),
    ]
    worlds = two_worlds(rows)
    print(worlds)
    users = rows["tailnum"].nunique()
    text = PAGE.format(
        rows=len(rows), users=users, weeks=WEEKS, lines="\n".join(lines), worlds=worlds
    )
    (RESULTS / "weekly-flights.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
