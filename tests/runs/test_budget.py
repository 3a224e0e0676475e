"""Budgets: a run ends before max-epsilon is exceeded, and no user spends more than its own budget."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.small_runs import client_for, linear_task, run_small, small_run

import fedmf
from fedmf.accounting import NoPrivacy, realised_privacy
from fedmf.errors import ConfigError
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.records.ledger import Ledger
from fedmf.runs import Run
from fedmf.runs.budget import read_budgets
from fedmf.runs.server import BudgetExhaustedError
from fedmf.runs.session import Session


@pytest.mark.parametrize("mechanism", ["identity", "bsr", "cgd"])
@pytest.mark.parametrize("limit", [4.5, 5.0, 7.9])
def test_a_run_ends_before_the_round_that_would_exceed_max_epsilon(
    mechanism: str, limit: float, tmp_path: Path
) -> None:
    run = small_run(mechanism=mechanism, max_epsilon=limit, evaluate_every=5)
    plan = fedmf.plan(run)
    run_small(tmp_path / "run", run)
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    released = statement["rounds_released"]
    assert 0 < released == plan.allowed_rounds < run.cohorts.rounds
    assert statement["epsilon_realised"] <= statement["epsilon_planned_so_far"] <= limit
    assert plan.epsilon_after(released + 1) > limit
    with Session.resume(tmp_path / "run", run) as session:
        assert released in session.metrics
        run_on_grid(session, InProcessGrid(client_for(session)))
        assert session.server.t == released
        with pytest.raises(BudgetExhaustedError, match=rf"must be below {released} to keep max_epsilon"):
            session.server.release(session.server.new_sum(), [])
        assert session.directory.ledger.last_round() == released - 1


def test_a_limit_above_the_plan_changes_nothing_and_one_below_a_round_is_refused() -> None:
    assert fedmf.plan(small_run(max_epsilon=8.1)).allowed_rounds == 12
    assert fedmf.plan(small_run()).allowed_rounds == 12
    with pytest.raises(ConfigError, match=r"max_epsilon must allow at least one round; got 0\.1"):
        fedmf.plan(small_run(max_epsilon=0.1))
    for key, value in (("max_epsilon", 1.0), ("user_budgets", "x.csv")):
        named = key.replace("_", "-")
        with pytest.raises(ConfigError, match=rf"{named} is a key of user-level, not of kind 'none'"):
            small_run(private=False, **{key: value})
        with pytest.raises(TypeError, match=key):
            NoPrivacy(**{key: value})  # type: ignore[arg-type]


def spent(path: Path, run: Run) -> dict[str, float]:
    """ε of every recorded user, each from its own rounds."""
    with Session.resume(path, run) as session:
        plan, privacy = session.plan, run.privacy
        history: defaultdict[str, list[int]] = defaultdict(list)
        for t, user in session.directory.ledger.participations():
            history[user].append(t)
        noise, released = plan.noise_std / privacy.clip_norm, session.server.t
    return {
        user: realised_privacy(
            {tuple(rounds): 1}, plan.release, noise, privacy.delta, released, privacy.adjacency
        ).epsilon
        for user, rounds in history.items()
    }


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_no_user_exceeds_its_budget_and_the_others_go_on(suffix: str, adjacency: str, tmp_path: Path) -> None:
    """Budgets of 0, between one and two participations, of the whole plan, and none."""
    users = linear_task(24, 5).dataset.user_ids
    budgets = {users[0]: 0.0, users[1]: 4.6, users[2]: 6.0, users[3]: 8.1, users[4]: float("inf")}
    table = pd.DataFrame({"user": list(budgets), "epsilon": list(budgets.values())})
    path = tmp_path / f"budgets.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    run = small_run(linear_task(24, 5), mechanism="cgd", adjacency=adjacency, user_budgets=str(path))
    run_small(tmp_path / "run", run)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        joined = [user for _, user in ledger.participations()]
    assert joined.count(users[0]) == 0
    assert 0 < joined.count(users[1]) < 3
    assert {joined.count(user) for user in users[3:]} == {3}
    path.unlink()  # the run keeps its own copy
    for user, epsilon in spent(tmp_path / "run", run).items():
        assert epsilon <= budgets.get(user, 8.0) * (1 + 1e-9)


def test_a_resumed_run_leaves_out_the_same_users(tmp_path: Path) -> None:
    task = linear_task(24, 5)
    path = tmp_path / "budgets.csv"
    path.write_text("user,epsilon\n" + "".join(f"{user},5.0\n" for user in task.dataset.user_ids[::2]))
    run = small_run(task, mechanism="cgd", user_budgets=str(path))
    whole = run_small(tmp_path / "whole", run)

    class Stop(Exception):
        pass

    def stop(report, _row) -> None:
        if report.t == 6:
            raise Stop

    with pytest.raises(Stop), Session.start(tmp_path / "run", run) as session:
        run_on_grid(session, InProcessGrid(client_for(session)), stop)
    path.write_text("user,epsilon\n")
    with Session.resume(tmp_path / "run", run) as session:
        run_on_grid(session, InProcessGrid(client_for(session)))
        assert np.array_equal(session.server.parameters.numpy(), whole)
        found = list(session.directory.ledger.participations())
    with Ledger.open(tmp_path / "whole" / "ledger.sqlite", read_only=True) as ledger:
        assert list(ledger.participations()) == found
    assert len(found) < 12 * 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user,eps\na,1\n", "must have the columns user, epsilon; got user, eps"),
        ("user,epsilon\na,-1\n", "must be a number of at least 0; got -1"),
        ("user,epsilon\na,\n", "must be a number of at least 0; got ''"),
        ("user,epsilon\na,nan\n", "must be a number of at least 0"),
        ("user,epsilon\na,1\na,2\n", "user 'a' must have one budget"),
        ("", "cannot read user budgets"),
        ("PAR1 but not really", "cannot read user budgets"),
    ],
)
def test_bad_budgets_are_one_line_errors(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "budgets"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_budgets(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read user budgets"):
        read_budgets(tmp_path / "absent")


def test_a_budget_of_a_stranger_is_refused(tmp_path: Path) -> None:
    """A mistyped id would leave the user who was meant without a budget."""
    task, path = linear_task(24, 5), tmp_path / "budgets.csv"
    path.write_text("user,epsilon\nu001,1\nu01,1\nu002 ,1\n")
    with pytest.raises(ConfigError, match=r"must name users of the run; got 'u002 ' and 1 others"):
        Session.start(tmp_path / "run", small_run(task, user_budgets=str(path)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mechanism", ["identity", "bsr", "cgd", "banded-toeplitz"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_limit_equal_to_the_plan_allows_all_of_it(mechanism: str, adjacency: str) -> None:
    """Rounding must not cost the last round, nor make the plan's own ε exceed what was asked for."""
    for epsilon, delta in ((8.0, 1e-5), (0.1, 1e-8), (1 / 3, 1e-6)):
        run = small_run(
            mechanism=mechanism, adjacency=adjacency, epsilon=epsilon, delta=delta, max_epsilon=epsilon
        )
        plan = fedmf.plan(run)
        assert plan.allowed_rounds == run.cohorts.rounds
        assert plan.epsilon_after(run.cohorts.rounds) <= epsilon


def test_ids_that_look_like_numbers_stay_ids(tmp_path: Path) -> None:
    path = tmp_path / "budgets.csv"
    path.write_text("user,epsilon\n007,1\nNA,2.5\n")
    assert read_budgets(path) == {"007": 1.0, "NA": 2.5}
