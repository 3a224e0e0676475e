"""Whole runs of devices that come when they can: the contract, resuming, late joiners, withdrawals."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.small_runs import client_for, linear_task, run_small, small_run

import fedmf
from fedmf.cohorts import CheckInCohorts
from fedmf.errors import ConfigError, ParticipationViolation
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.records import Admission, Ledger, Underway
from fedmf.rounds import RoundReport, run_in_process
from fedmf.runs import Run, Session

USERS, ROUNDS = 24, 12


def device_run(**given: object) -> Run:
    """24 users on 12 rounds of a day, whose updates are known; three users a round."""
    run = small_run(linear_task(USERS, 5), mechanism="bsr", bands=4)
    cohorts = {"rounds": ROUNDS, "size": 3, "rounds_per_day": 12, "zones": (0, 8, 16), **given}
    return dataclasses.replace(run, cohorts=CheckInCohorts(**cohorts))


def joined(path: Path) -> dict[str, list[int]]:
    """The rounds of each user, by the ledger."""
    rounds: dict[str, list[int]] = {}
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        for t, user in sorted(ledger.participations()):
            rounds.setdefault(user, []).append(t)
    return rounds


def stopped_after(path: Path, run: Run, rounds: int) -> None:
    class Stop(Exception):
        pass

    def stop(report: RoundReport, _row: object) -> None:
        if report.t + 1 == rounds:
            raise Stop

    with pytest.raises(Stop), fedmf.start(run, path) as session:
        run_on_grid(session, InProcessGrid(client_for(session)), stop)


def go_on(path: Path, run: Run) -> np.ndarray:
    with Session.resume(path, run) as session:
        run_on_grid(session, InProcessGrid(client_for(session)))
        return session.server.parameters.numpy().copy()


def test_a_run_keeps_the_forecast_contract_and_states_it(tmp_path: Path) -> None:
    run = device_run(drop_out=0.2)
    run_small(tmp_path / "run", run)
    cohorts = CheckInCohorts(rounds=ROUNDS, size=3, rounds_per_day=12, zones=(0, 8, 16), drop_out=0.2)
    forecast, rounds = cohorts.forecast(USERS), joined(tmp_path / "run")
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert run.participation == forecast.contract
    assert statement["min_separation"] == forecast.contract.min_separation
    assert statement["max_participations"] == forecast.contract.max_participations
    assert statement["realised_max_participations"] == max(map(len, rounds.values()))
    assert statement["realised_max_participations"] <= forecast.contract.max_participations
    assert statement["realised_min_separation"] >= forecast.contract.min_separation
    assert 0 < statement["epsilon_realised_quantiles"]["0.5"] <= statement["epsilon_realised"]
    assert statement["epsilon_realised"] <= statement["epsilon_planned"] == pytest.approx(8.0, rel=1e-6)
    assert statement["sampling"] == "none: check-in cohorts, no amplification claimed"
    taken = {
        "name": "check-ins planned with",
        "value": "public model of day and night",
        "source": "configuration",
    }
    assert taken in statement["public_inputs"]


@pytest.mark.parametrize("live", [False, True])
def test_the_server_takes_nobody_who_ignores_the_timer(
    live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All devices say they are ready whenever they are awake; live, nobody else keeps a timer at all."""
    own = {"live": True, "probability": 0.9} if live else {"impatient": 1.0, "rounds_per_day": 48}
    run = device_run(min_separation=4, max_participations=2, **own)
    run_small(tmp_path / "run", run)
    rounds = joined(tmp_path / "run")
    assert max(map(len, rounds.values())) == 2
    assert min(b - a for own in rounds.values() for a, b in itertools.pairwise(own)) == 4
    monkeypatch.setattr(Admission, "admit", lambda self, t, users: list(users))
    with pytest.raises(ParticipationViolation, match=r"b \(min_separation\) is 4"):
        run_small(tmp_path / "without", run)


def test_a_timer_off_by_one_on_the_server_is_stopped_by_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = device_run(min_separation=4, max_participations=3, impatient=1.0, rounds_per_day=48)

    def early(admission: Admission, t: int, users: list[str]) -> list[str]:
        return admission._ledger.admissible(t + 1, users)

    monkeypatch.setattr(Admission, "admit", early)
    with pytest.raises(ParticipationViolation, match=r"b \(min_separation\) is 4"):
        run_small(tmp_path / "run", run)


def test_who_is_admitted_follows_from_the_round_before_though_its_commit_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit begins after the next round might have been planned; all devices say they are ready."""
    own = {"rounds": ROUNDS, "size": 3, "zones": (0, 8, 16), "impatient": 1.0, "rounds_per_day": 48}
    cohorts = CheckInCohorts(min_separation=4, max_participations=3, **own)  # type: ignore[arg-type]
    run, do = dataclasses.replace(small_run(mechanism="identity"), cohorts=cohorts), Underway._do
    commits = list[str]()

    def late(self: Underway) -> None:
        commits.append(threading.current_thread().name)
        time.sleep(0.05)
        do(self)

    monkeypatch.setattr(Underway, "_do", late)
    with fedmf.start(run, tmp_path / "run") as session:
        run_in_process(session)
    assert set(commits) == {"fedmf-commit"}
    rounds = joined(tmp_path / "run")
    assert min(b - a for own in rounds.values() for a, b in itertools.pairwise(own)) == 4


@pytest.mark.parametrize("live", [False, True])
def test_a_resumed_run_takes_the_same_users_and_releases_the_same_models(live: bool, tmp_path: Path) -> None:
    run = device_run(live=live, impatient=0.3, drop_out=0.1, late=0.3, leaving=0.2)
    whole = run_small(tmp_path / "whole", run)
    stopped_after(tmp_path / "run", run, 5)
    assert np.array_equal(go_on(tmp_path / "run", run), whole)
    assert joined(tmp_path / "run") == joined(tmp_path / "whole")


def test_who_withdraws_is_never_asked_again_and_keeps_what_was_promised(tmp_path: Path) -> None:
    run = device_run(live=True, min_separation=2, max_participations=6, probability=1.0)
    stopped_after(tmp_path / "run", run, 5)
    before = joined(tmp_path / "run")
    gone = min(before)
    with Session.resume(tmp_path / "run", run) as session:
        roster = session.task.dataset.user_ids
        session.directory.admission.withdraw(gone, roster)
        with pytest.raises(ConfigError, match=r"user \(who withdraws\) must be one of the run; got 'bob'"):
            session.directory.admission.withdraw("bob", roster)
    go_on(tmp_path / "run", run)  # another process, which reads who withdrew
    after = joined(tmp_path / "run")
    assert after[gone] == before[gone]
    assert all(len(rounds) == 6 for user, rounds in after.items() if user != gone)
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["epsilon_realised"] <= statement["epsilon_planned"]
    assert (tmp_path / "run" / "withdrawn-users").stat().st_mode & 0o077 == 0


def test_who_withdraws_judges_no_model_either(tmp_path: Path) -> None:
    with fedmf.start(small_run(evaluation="private"), tmp_path / "run") as session:
        (index, gone), *_ = sorted(session.judges(0).items())
        session.directory.admission.withdraw(gone, session.task.dataset.user_ids)
        assert index not in session.judges(0)
        assert len(session.judges(0)) > 0


def test_the_withdrawal_of_one_user_changes_nobody_else(tmp_path: Path) -> None:
    """Two worlds: u000 stays, or withdraws before round 0."""
    run, found = device_run(live=True, probability=0.7, min_separation=3), []
    for name, withdrawn in (("stays", ()), ("goes", ("u000",))):
        with fedmf.start(run, tmp_path / name) as session:
            for user in withdrawn:
                session.directory.admission.withdraw(user, session.task.dataset.user_ids)
            run_on_grid(session, InProcessGrid(client_for(session)))
        found.append(joined(tmp_path / name))
    stays, goes = found
    assert "u000" in stays
    assert goes == {user: rounds for user, rounds in stays.items() if user != "u000"}


def test_withdrawals_leave_an_amplified_promise_as_it_is(tmp_path: Path) -> None:
    """Theorem 2: staying away is a zero contribution; the draws of everybody else go on."""
    run, found, models = small_run(schedule="balls-in-bins", amplified=True, mechanism="identity"), [], []
    for name, withdrawn in (("stays", 0), ("goes", 3)):
        with fedmf.start(run, tmp_path / name) as session:
            roster = session.task.dataset.user_ids
            for user in roster[:withdrawn]:
                session.directory.admission.withdraw(user, roster)
            run_on_grid(session, InProcessGrid(client_for(session)))
            found.append(session.statement().to_dict())
            models.append(joined(tmp_path / name))
    assert (
        found[0]["epsilon_planned"] == found[1]["epsilon_planned"] < found[1]["epsilon_planned_known_cohorts"]
    )
    assert found[0]["noise_std"] == found[1]["noise_std"]
    gone = set(models[0]) - set(models[1])
    assert len(gone) == 3
    assert models[1] == {user: rounds for user, rounds in models[0].items() if user not in gone}


def test_a_damaged_list_of_withdrawals_is_refused(tmp_path: Path) -> None:
    run = device_run()
    stopped_after(tmp_path / "run", run, 1)
    (tmp_path / "run" / "withdrawn-users").write_text('"u000"\n"u0')
    with pytest.raises(ConfigError, match=r"withdrawn-users must be as fedmf wrote it"):
        Session.resume(tmp_path / "run", run)


def test_another_trace_than_on_the_first_day_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{name},{3600 * hour}" for name in "abc" for hour in range(0, 24, 2)]
    trace.write_text("\n".join(["user,time", *lines]))
    run = device_run(trace=str(trace))
    stopped_after(tmp_path / "run", run, 2)
    trace.write_text("\n".join(["user,time", *lines[:-1]]))
    with pytest.raises(ConfigError, match=r"trace.csv must be what the run began with"):
        Session.resume(tmp_path / "run", run)


def test_amplification_and_shared_time_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cohorts must be sampled for an amplified run; got 'check-in'"):
        small_run(schedule="check-in", amplified=True)
    with pytest.raises(ConfigError, match=r"min_replies must be 0 with check-in cohorts; got 2\."):
        small_run(schedule="check-in", min_replies=2, messages="per-user")
