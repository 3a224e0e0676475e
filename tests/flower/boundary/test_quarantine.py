"""A node whose replies are useless is asked no more: that costs its user alone, and ends nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from support.small_runs import client_for, linear_task, run_small, schedule_of, small_run, tampering

from fedmf.rounds import Quarantine, RoundReport

pytestmark = pytest.mark.usefixtures("own_time")

TASK = linear_task(24, 50)


def _raise(request: Message, reply: Message) -> Message:
    raise RuntimeError("no")


def test_refusals_in_a_row_are_counted_for_each_user_of_a_node() -> None:
    quarantine = Quarantine(2)
    assert not quarantine.refused(7, ["ann"])
    quarantine.accepted(7, ["ann"])
    assert not quarantine.refused(7, ["ann", "bob"])
    (last,) = quarantine.refused(7, ["ann"])
    assert (last.user, last.stage) == ("ann", "quarantine")
    assert (7, "ann") in quarantine
    assert (7, "bob") not in quarantine
    assert (8, "ann") not in quarantine
    assert not quarantine.refused(7, ["ann"])  # said once


def test_one_refusal_of_a_reply_of_several_users_ends_none_of_them() -> None:
    """Else one user's reply decides whether others take part: condition (S) of docs/theory/check-in.md."""
    quarantine = Quarantine(1)
    assert not quarantine.refused(7, ["ann", "bob"])
    assert not any((7, user) in quarantine for user in ("ann", "bob"))
    assert all(quarantine.is_suspect(7, user) for user in ("ann", "bob"))
    assert [failure.user for failure in quarantine.refused(7, ["ann"])] == ["ann"]
    quarantine.accepted(7, ["bob"])
    assert (7, "ann") in quarantine
    assert not quarantine.is_suspect(7, "bob")


def test_zero_asks_for_ever() -> None:
    quarantine = Quarantine(0)
    assert not any(quarantine.refused(7, ["ann"]) for _ in range(100))
    assert (7, "ann") not in quarantine


def test_a_quarantined_user_is_absent_and_everybody_else_keeps_every_bit(tmp_path: Path) -> None:
    """Users share one node here: the refusals of one of them decide about that one alone."""
    victim, asked = "u003", list[str]()

    def tamper(request: Message, reply: Message) -> Message:
        (user,) = request.content.config_records["config"]["users"]  # type: ignore[misc]
        asked.append(str(user))
        return _raise(request, reply) if user == victim else reply

    reports: dict[int, list[RoundReport]] = {0: [], 2: []}
    models = {
        limit: run_small(
            tmp_path / str(limit),
            small_run(TASK, messages="per-user", users_per_message=1, refusals=limit),
            lambda s: tampering(client_for(s), tamper),
            reports[limit].append,
        )
        for limit in reports
    }
    assert np.array_equal(models[0], models[2])
    assert asked.count(victim) == 3 + 2
    cohorts = schedule_of(small_run(TASK, messages="per-user"))
    rounds = [t for t in range(12) if 3 in cohorts.cohort(t)]
    assert [report.present for report in reports[2]] == [6 - (t == rounds[2]) for t in range(12)]
    rows = [json.loads(line) for line in (tmp_path / "2" / "failures.jsonl").read_text().splitlines()]
    assert [(row["user"], row["stage"]) for row in rows] == [
        (victim, "reply"),
        (victim, "reply"),
        (victim, "quarantine"),
    ]


@pytest.mark.parametrize(
    ("refusals", "users_per_message", "asked_times"),
    [(1, 1, 1), (1, 6, 2), (2, 6, 2)],
    ids=["1-alone", "1-together", "2-together"],
)
def test_a_run_in_which_all_are_quarantined_goes_on_to_its_horizon(
    refusals: int, users_per_message: int, asked_times: int, tmp_path: Path
) -> None:
    """A user takes part in every fourth round. The refusal of a reply of many is the last of none of them,
    even with limit 1: each is asked once more, alone."""
    asked: list[int] = []

    def tamper(request: Message, reply: Message) -> Message:
        asked.append(len(request.content.config_records["config"]["users"]))  # type: ignore[arg-type]
        return _raise(request, reply)

    reports: list[RoundReport] = []
    keys = {"refusals": refusals, "users_per_message": users_per_message, "round_timeout": 5.0}
    run = small_run(TASK, messages="per-user", **keys)
    run_small(tmp_path / "run", run, lambda s: tampering(client_for(s), tamper), reports.append)
    assert [report.present for report in reports] == [6] * 4 * asked_times + [0] * (12 - 4 * asked_times)
    together = [users_per_message] * (24 // users_per_message)
    assert asked == together + [1] * 24 * (asked_times - 1)
