"""Live cohorts: rounds by the clock, quiet hours that are released, nodes that come and go."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp
from support.small_runs import client_for, linear_task, small_run

import fedmf
from fedmf.cohorts import CheckInCohorts, CyclicCohorts
from fedmf.errors import ConfigError
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.rounds import RoundReport, Timetable
from fedmf.runs import Execution, Run

pytestmark = pytest.mark.usefixtures("own_time")

LIVE = CheckInCohorts(
    rounds=8, size=4, live=True, min_separation=3, max_participations=2, probability=0.8, rounds_per_day=24
)
PER_USER = Execution(messages="per-user", round_timeout=0.2)


def live_run() -> Run:
    run = small_run(linear_task(12, 3), messages="per-user", round_timeout=0.2, mechanism="identity")
    return dataclasses.replace(run, cohorts=LIVE)


class QuietHours(InProcessGrid):
    """Nobody answers in some rounds."""

    def __init__(self, client: ClientApp, quiet: Iterable[int]) -> None:
        super().__init__(client)
        self.quiet = set(quiet)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            if reply.metadata.message_type != "train" or int(reply.metadata.group_id) not in self.quiet:
                yield reply


def test_quiet_hours_are_released_and_cost_nobody_a_turn(tmp_path: Path) -> None:
    reports: list[RoundReport] = []
    with fedmf.start(live_run(), tmp_path / "run") as session:
        grid = QuietHours(client_for(session), quiet=(1, 2, 3, 6))
        before = session.server.parameters.numpy().copy()
        run_on_grid(session, grid, lambda report, _: reports.append(report))
        statement = session.statement().to_dict()
        assert not np.array_equal(before, session.server.parameters.numpy())
    assert [reports[t].present for t in (0, 1, 2, 5)] == [0, 0, 0, 0]
    assert min(reports[t].asked for t in (0, 1, 2)) > 0
    assert statement["rounds_released"] == 8
    assert statement["rounds_empty"] == sum(report.present == 0 for report in reports) < 8
    assert statement["realised_min_separation"] >= 3
    assert reports[3].present > 6  # nobody's timer ran while nobody came


@pytest.mark.parametrize("t", [0.0, 0.1, 3599.9, 3600.0, 7250.0])
def test_rounds_begin_at_multiples_of_the_period_whatever_the_last_one_took(t: float) -> None:
    now = [t]
    timetable, begun = Timetable.of(LIVE, PER_USER), []
    for lasted in (0.0, 1.0, 3599.0, 17.5):
        timetable.wait(clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
        begun.append(now[0])
        now[0] += lasted
    first = (t // 3600 + 1) * 3600
    assert begun == pytest.approx([first + 3600 * i for i in range(4)])


def test_a_sleep_that_ends_before_the_hour_begins_no_second_round_at_it() -> None:
    """The clock is slowed down, as by NTP; then somebody sets it back by a day."""
    now, slept = [3600.0 + 7], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds if len(slept) > 1 else 0.999 * seconds

    timetable = Timetable.of(LIVE, PER_USER)
    timetable.wait(clock=lambda: now[0], sleep=sleep)
    assert now[0] >= 2 * 3600
    assert slept == pytest.approx([3593.0, 3.593])
    times = iter([100_000.0, 100_000.0, 13_600.0])
    timetable.wait(clock=lambda: next(times), sleep=slept.append)
    assert sum(slept[2:]) <= 3600


def test_only_live_cohorts_wait_for_the_clock() -> None:
    def refused(seconds: float) -> None:
        raise AssertionError(seconds)

    for cohorts in (CyclicCohorts(), dataclasses.replace(LIVE, live=False)):
        Timetable.of(cohorts, PER_USER).wait(sleep=refused)


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        (Execution(messages="per-user", round_timeout=3600.0), r"must be below 3600 s.*; got 3600 s with"),
        (Execution(messages="slice", round_timeout=1.0), r"got inf s with messages 'slice'"),
    ],
)
def test_rounds_that_could_last_until_the_next_are_refused(execution: Execution, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Timetable.of(LIVE, execution)
