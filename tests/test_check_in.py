"""Check-ins, devices and forecasts: a plain model of every device, files, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.cohorts import CheckInCohorts, CheckIns, DeviceRule, DiurnalModel, forecast, read_check_ins
from fedmf.cohorts.check_in.check_ins import uniform
from fedmf.errors import ConfigError
from fedmf.participation import Participation

FALSE_ALARM_Z = 5.0  # two-sided false alarm below 6e-7
laws = settings(derandomize=True, max_examples=60, deadline=None, database=None)
DEVICES = CheckIns.of_rounds(40, [range(40)] * 24)


def written(path: Path, *rows: str, columns: str = "user,time") -> Path:
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


def test_a_trace_is_read_by_user_and_hour(tmp_path: Path) -> None:
    """Seconds, ISO with and without a zone; twice in an hour is once; the last day is a whole one."""
    rows = ["bob,3600", "ann,1970-01-01T01:59:59", "ann,3601.5", "eve,1970-01-02T02:30:00+02:00"]
    found = read_check_ins(written(tmp_path / "a.csv", *rows), rounds_per_day=24)
    assert (found.users, found.recorded_rounds) == (3, 48)
    present = {t: found.at(t).tolist() for t in range(48) if found.at(t).size}
    assert present == {1: [0, 1], 24: [2]}
    swapped = [",".join(row.split(",")[::-1]) for row in rows]
    again = read_check_ins(written(tmp_path / "b.csv", *swapped, columns="time,user"), 24)
    assert {t: again.at(t).tolist() for t in range(48) if again.at(t).size} == present
    assert read_check_ins(written(tmp_path / "c.csv", "a,1e9"), 2).at(0).tolist() == [0]  # 01:46 of its day


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user,when\nann,1\n", r"must have the columns user, time; got user, when\.$"),
        ("", r"must have the columns user, time; got none\.$"),
        ("user,time\n", r"must have at least one row"),
        ("user,time\nann,soon\n", r"time \(of a check-in\) must be .*; got 'soon' in line 2 of "),
        ("user,time\nann,nan\n", r"got 'nan' in line 2"),
        ("user,time\n,1\n", r"must name user and time; line 2 has not"),
        ("user,time\nann\n", r"must name user and time; line 2 has not"),
        ("user,time\nann,0\nann,1e9\n", r"must span at most 4000 days; they span 11575"),
        ('user,time\n"ann', r"must name user and time|cannot read"),
    ],
)
def test_a_trace_that_cannot_be_read_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_check_ins(path, 24)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_there_or_not_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read check-ins .*: No such file"):
        read_check_ins(tmp_path / "none.csv", 24)
    for place in (Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match=r"must be a file; got something else"):
            read_check_ins(place, 24)
    (tmp_path / "bytes.csv").write_bytes(b"user,time\n\xff\xfe,1\n")
    with pytest.raises(ConfigError, match=r"cannot read check-ins"):
        read_check_ins(tmp_path / "bytes.csv", 24)


@pytest.mark.parametrize("users", [1, 2, 3, 5, 9])
def test_devices_are_lent_to_more_or_fewer_users(users: int) -> None:
    seen = CheckIns.of_rounds(3, [[2, 0], [], [1]])
    lent = seen.lent_to(users)
    for t in range(6):
        assert lent.at(t).tolist() == [u for u in range(users) if u % 3 in seen.at(t)]


@laws
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([0.0, 0.4]),
    st.integers(0, 2**62),
)
def test_every_device_follows_its_own_rule(
    rounds: list[list[int]], n: int, b: int, k: int, q: float, drop_out: float, seed: int
) -> None:
    """Against a loop over one device at a time, which sees nothing of the others."""
    contract = Participation(n, min(k, Participation.as_many_as_fit(n, b).max_participations), b)
    check_ins = CheckIns.of_rounds(6, rounds)
    came = DeviceRule(contract, q, drop_out, seed=seed).participations(check_ins)
    for user in range(6):
        one = np.array([user])
        ready, turns, arrived = int(uniform(seed, 3, 0, one)[0] * b), 0, []
        for t in range(n):
            if user not in rounds[t % len(rounds)] or t < ready or turns == contract.max_participations:
                continue
            if uniform(seed, 0, t, one)[0] < q:
                ready, turns = t + b, turns + 1
                if uniform(seed, 1, t, one)[0] >= drop_out:
                    arrived.append(t)
        assert [t for t in range(n) if user in came.cohorts[t]] == arrived
        assert came.counts[user] == len(arrived)
    gaps = [t - s for u in range(6) for s, t in _pairs(came.cohorts, u)]
    assert came.min_separation == (min(gaps) if gaps else None)
    assert came.max_participations == came.counts.max() <= contract.max_participations
    assert came.sizes.tolist() == [cohort.size for cohort in came.cohorts]


def _pairs(cohorts: tuple[np.ndarray, ...], user: int) -> list[tuple[int, int]]:
    own = [t for t, cohort in enumerate(cohorts) if user in cohort]
    return list(itertools.pairwise(own))


def test_coins_are_fair_and_independent_over_users_times_and_purposes() -> None:
    users = np.arange(40_000)
    draws = [
        uniform(seed, purpose, t, users) for seed, purpose, t in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    assert all(draw.min() >= 0 and draw.max() < 1 for draw in draws)
    error = FALSE_ALARM_Z / np.sqrt(12 * users.size)
    assert all(abs(draw.mean() - 0.5) < error for draw in draws)
    correlations = np.asarray(np.corrcoef(draws))[np.triu_indices(4, 1)]
    shifted = [float(np.corrcoef(draw[1:], draw[:-1])[0][1]) for draw in draws]
    assert np.abs([*correlations, *shifted]).max() < FALSE_ALARM_Z / np.sqrt(users.size)


def test_devices_come_by_night_where_they_are() -> None:
    """Awake in 7 of 24 rounds, in a share of nights; the same lives an ocean further, an ocean earlier."""
    model = DiurnalModel(4000, 240, 24, (0,), presence=0.8, away=0.25, seed=2)
    here = model.check_ins()
    at = np.array([here.at(t).size for t in range(240)])
    assert at[[t for t in range(240) if 9 <= t % 24 <= 19]].sum() == 0
    expected = 4000 * 0.8 * 0.75 * 7 / 24
    assert at[24:].mean() == pytest.approx(expected, rel=0.05)  # nights of a device count 7 rounds together
    there = DiurnalModel(4000, 240, 24, (8,), presence=0.8, away=0.25, seed=2).check_ins()
    assert all(np.array_equal(here.at(t), there.at(t - 8)) for t in range(32, 240))


def test_a_device_lives_its_own_life() -> None:
    """Its check-ins are the same among ten devices and among a thousand."""
    few, many = (
        DiurnalModel(u, 72, 24, (0, 8), late=0.3, leaving=0.3, seed=4).check_ins() for u in (10, 1000)
    )
    assert all(few.at(t).tolist() == [u for u in many.at(t).tolist() if u < 10] for t in range(72))


def test_some_join_late_and_some_never_come_again() -> None:
    rounds = 480
    plain, moving = (
        DiurnalModel(3000, rounds, 24, (0,), away=0.0, late=share, leaving=share, seed=1).check_ins()
        for share in (0.0, 0.5)
    )
    first, last = ({}, {})
    for t in range(rounds):
        first |= {u: t for u in moving.at(t).tolist() if u not in first}
        last |= dict.fromkeys(moving.at(t).tolist(), t)
        assert set(moving.at(t).tolist()) <= set(plain.at(t).tolist())
    late = sum(t > rounds // 2 for t in first.values())
    gone = sum(t < rounds // 2 for t in last.values())
    assert 0.15 * 3000 < late < 0.35 * 3000
    assert 0.15 * 3000 < gone < 0.35 * 3000


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_a_forecast_is_the_longest_timer_with_which_enough_come(margin: float) -> None:
    check_ins = DiurnalModel(600, 120, 24, (0, 8, 16), seed=3).check_ins()
    found, size = forecast(check_ins, 120, 12, margin), 12

    def mean(b: int) -> float:
        contract = Participation.as_many_as_fit(120, b)
        return float(DeviceRule(contract).participations(check_ins).sizes.mean())

    b = found.contract.min_separation
    assert found.shortest <= b <= found.longest
    for timer, missing in ((found.longest, 0.0), (b, margin), (found.shortest, 2 * margin)):
        assert (1 - missing) * mean(timer) >= size > (1 - missing) * mean(timer + 1)
    came = DeviceRule(found.contract, found.probability).participations(check_ins)
    assert came.sizes.mean() == pytest.approx(size / (1 - margin), rel=0.02)
    assert found.arrivals == (came.sizes.mean(), came.sizes.min(), came.sizes.max())


@pytest.mark.parametrize("q", [0.2, 0.5, 1.0])
def test_no_device_of_the_trace_needs_more_turns_than_forecast(q: float) -> None:
    """k leaves room for everybody who keeps the timer, whatever the coins; one less would refuse somebody."""
    check_ins = DiurnalModel(400, 240, 24, (0, 8, 16), seed=3).check_ins()
    contract = forecast(check_ins, 240, 4, min_separation=20).contract
    loose = Participation.as_many_as_fit(240, 20)
    assert contract.max_participations < loose.max_participations  # by day nobody comes
    came = DeviceRule(loose, q).participations(check_ins)
    assert came.max_participations <= contract.max_participations
    if q == 1:
        assert came.max_participations == contract.max_participations


def test_forecasts_that_cannot_be_made() -> None:
    with pytest.raises(ValueError, match=r"m \(size\) must be at most the 40 users that come .*; got 41\."):
        forecast(DEVICES, 24, 41)
    with pytest.raises(
        ValueError, match=r"margin \(share that may be missing\) must lie in \[0, 0\.5\); got 0\.5"
    ):
        forecast(DEVICES, 24, 4, margin=0.5)
    assert forecast(DEVICES, 24, 41, min_separation=3).probability == 1.0


def test_what_was_forecast_is_written_into_the_value(tmp_path: Path) -> None:
    """So that a record needs neither the trace nor the replay; another trace of that name is refused."""
    trace = written(tmp_path / "a.csv", *(f"{u},{3600 * t}" for u in "abcd" for t in range(24)))
    cohorts = CheckInCohorts(rounds=48, size=8, trace=str(trace))
    settled = cohorts.settled(40)
    assert settled.participation(40) == cohorts.forecast(40).contract
    assert settled.probability == cohorts.forecast(40).probability
    assert settled.settled(40) is settled
    planned = [settled.schedule(40, settled.participation(40), 0).cohort(t).tolist() for t in range(48)]
    assert max(map(len, planned)) > 0
    trace.write_text("user,time\na,0\n")
    assert settled.participation(40).rounds == 48  # does not look
    with pytest.raises(
        ConfigError, match=rf"must be what the run began with, SHA-256 {settled.trace_digest}"
    ):
        settled.schedule(40, settled.participation(40), 0)
    with pytest.raises(ConfigError, match=r"cannot read check-ins .*none\.csv"):
        CheckInCohorts(trace=str(tmp_path / "none.csv")).settled(40)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zones": ()}, r"zones must be hours east in 0\.\.23, at least one; got \(\)"),
        ({"zones": (24,)}, r"zones must be .*got \(24,\)"),
        ({"presence": 1.2}, r"presence \(share\) must lie in \[0, 1\]; got 1\.2"),
        ({"drop_out": -0.1}, r"drop_out \(share\)"),
        ({"margin": 0.5}, r"margin \(share that may be missing\)"),
        ({"probability": 0.0}, r"probability \(q\) must lie in \(0, 1\]; got 0\.0"),
        ({"rounds_per_day": 0}, r"rounds_per_day must be a whole number"),
        ({"seed": -1}, r"seed \(of the check-ins\)"),
    ],
)
def test_values_out_of_range_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CheckInCohorts(**given)  # type: ignore[arg-type]
