"""Runs and streams joined by user from their directories, refused where they cannot be, kept in a total."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import amplified_runs
from support.amplified_runs import keys
from support.small_runs import run_small, small_run
from support.streams import BUDGET, run_once, sample, write_rows

from fedmf.accounting import gaussian_epsilon, gaussian_sigma
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError
from fedmf.runs import Session, account, costs_of_run, within_total
from fedmf.runs.budget import read_budgets
from fedmf.statements import SampledGaussians, StatedCost, compose
from fedmf.statements.composed.loss_distribution import ComposedLosses
from fedmf.streaming import Settings, account_stream, stream_costs

DELTA = 1e-5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one without noise, one with a public seed, and streams, on the same 24 ids."""
    folder = tmp_path_factory.mktemp("composed")
    runs = {
        "a": {"epsilon": 4.0},
        "b": {"epsilon": 2.0, "mechanism": "bisr"},
        "open": {"private": False},
        "seeded": {"noise_seed": 7},
    }
    for name, changes in runs.items():
        run_small(folder / name, small_run(**{"noise_seed": -1, **changes}))
    shutil.copytree(folder / "a", folder / "copy of a")
    users = [f"user-{i % 26:02d}" for i in range(30)]  # two are in no run
    rows = write_rows(folder / "rows.csv", sample(), users)
    contract = {"user_column": "user", "max_participations": 2, "min_separation": 10, "seed": None}
    run_once(folder, Settings(**{**BUDGET, **contract, "user_namespace": "people"}), rows)
    (folder / "nameless").mkdir()
    run_once(folder / "nameless", Settings(**{**BUDGET, "seed": None, "columns": ("x0",)}), rows)
    return folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert command(arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    return said.err


def test_squares_of_mu_add_for_each_user(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [place / "a", place / "b", place / "state"]
    assert command(["account", *map(str, names), "--user-namespace", "people", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    squares: dict[str, float] = {}
    for one in (costs_of_run(names[0]), costs_of_run(names[1]), stream_costs(names[2])):
        for user, mu in zip(one.users, one.mu.tolist(), strict=True):
            squares[user] = squares.get(user, 0.0) + mu**2
    assert len(squares) == 26
    epsilons = sorted(gaussian_epsilon(1 / math.sqrt(square), DELTA) for square in squares.values())
    assert told["epsilon_realised"] == pytest.approx(epsilons[-1], rel=1e-8)
    assert told["epsilon_realised_median"] == pytest.approx(epsilons[12], rel=1e-8)
    assert told["users_by_directories"] == {"1": 2, "3": 24}
    alone = [account(place / "a").realised.epsilon, account(place / "b").realised.epsilon]
    alone.append(account_stream(place / "state")["epsilon_realised"])
    assert [part["epsilon_realised"] for part in told["composed"]] == pytest.approx(alone, rel=1e-8)
    assert max(alone) < told["epsilon_realised"] < told["epsilon_sum"] <= sum(alone) * (1 + 1e-8)
    assert told["epsilon_realised"] <= told["epsilon_planned"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], "user_namespace (what ids are ids of) must be named"),
        (["a", "open"], "adds no noise"),
        (["a", "b", "copy of a"], "noise keys must be different"),
        (["a", "nameless/state"], "names no users (--user-column)"),
        (["a", "a"], "must differ; got one of them twice"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_line(
    names: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asserted = [] if names == ["a", "b"] else ["--user-namespace", "people"]
    assert message in refused(["account", *(str(place / name) for name in names), *asserted], capsys)


def test_copies_of_one_run_are_still_branches(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copies = [str(place / name) for name in ("a", "copy of a")]
    assert command(["account", *copies]) == 0
    assert "2 branches of one run together" in capsys.readouterr().out
    assert "got branches of one" in refused(["account", *copies, "--user-namespace", "x"], capsys)
    assert "take several directories" in refused(["account", copies[0], "--delta", "1e-6"], capsys)


def test_public_noise_is_said_to_protect_nobody(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(place / name) for name in ("a", "seeded")]
    assert command(["account", *names, "--user-namespace", "people"]) == 0
    assert capsys.readouterr().out.startswith("Simulation only, no privacy (public noise seed)")


def test_nobody_spends_more_than_the_total(place: Path, tmp_path: Path) -> None:
    """A total that the contract of the next run would exceed: users are left out of rounds, each by what it
    spent before; the records of all three then say that the total was kept."""
    earlier = [costs_of_run(place / "a"), costs_of_run(place / "b")]
    asked = small_run(noise_seed=-1, epsilon=4.0, user_namespace="people")
    total, file = 5.5, tmp_path / "budgets.csv"
    run = within_total(asked, earlier, total, file)
    assert file.stat().st_mode & 0o777 == 0o600
    run_small(tmp_path / "next", run)
    costs = [*earlier, costs_of_run(tmp_path / "next")]
    worst = max(
        math.hypot(*(dict(zip(one.users, one.mu.tolist(), strict=True)).get(user, 0.0) for one in costs))
        for user in earlier[0].users
    )
    spent = gaussian_epsilon(1 / worst, DELTA)
    assert 0.9 * total < spent <= total
    unlimited = account(place / "a").realised  # the same contract and ε
    assert account(tmp_path / "next").realised.epsilon < unlimited.epsilon


def test_an_earlier_run_that_can_go_on_counts_whole(place: Path, tmp_path: Path) -> None:
    """Also for those of whom it has no record yet; one that was stopped is not finished."""
    asked, earlier = small_run(noise_seed=-1, user_namespace="people"), costs_of_run(place / "a")
    assert earlier.finished
    assert stream_costs(place / "state").finished
    going_on = replace(earlier, finished=False, users=[], mu=np.empty(0))
    for name, costs in (("finished", earlier), ("going on", going_on)):
        within_total(asked, [costs, costs_of_run(place / "b")], 6.0, tmp_path / f"{name}.csv")
    budgets = [read_budgets(tmp_path / f"{name}.csv") for name in ("finished", "going on")]
    assert all(budgets[1][user] <= left for user, left in budgets[0].items())
    alone = gaussian_epsilon(1 / earlier.planned_mu, DELTA)
    assert alone == pytest.approx(4.0)
    worst = math.hypot(earlier.planned_mu, 1 / gaussian_sigma(min(budgets[1].values()), DELTA))
    assert worst < 1 / gaussian_sigma(6.0, DELTA)
    with Session.start(tmp_path / "begun", asked):
        pass
    assert not costs_of_run(tmp_path / "begun").finished


def test_a_total_is_refused_where_it_cannot_hold(place: Path, tmp_path: Path) -> None:
    earlier, file = [costs_of_run(place / "a")], tmp_path / "budgets.csv"
    named = small_run(noise_seed=-1, user_namespace="people")
    for run, costs, total, message in (
        (named, earlier, 1.0, "must be at least what was spent"),
        (small_run(noise_seed=-1), earlier, 9.0, "user_namespace .what ids are ids of. must be named"),
        (
            small_run(noise_seed=-1, user_namespace="people", adjacency="replace-one"),
            earlier, 9.0, "must be those of earlier ones",
        ),
        (small_run(private=False), earlier, 9.0, "needs a run with noise"),
        (
            small_run(noise_seed=7, user_namespace="people"),
            [costs_of_run(place / "seeded")], 20.0, "noise_seed must be that of no earlier run",
        ),
    ):  # fmt: skip
        with pytest.raises((ConfigError, ValueError), match=message):
            within_total(run, costs, total, file)
        assert not file.exists()


def test_the_command_begins_a_run_within_a_total(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "next.toml").write_text(
        '[data]\nkind = "synthetic"\nusers = 24\nexamples-per-user = 4\n[cohorts]\nrounds = 6\nsize = 4\n'
        'min-separation = 3\n[privacy]\nepsilon = 3.0\nuser-namespace = "people"\n'
    )
    begin = ["simulate", str(tmp_path / "next.toml"), "--out", str(tmp_path / "next")]
    within = ["--with", str(place / "a"), "--with", str(place / "state"), "--total-epsilon", "9.5"]
    assert command([*begin, *within]) == 0
    capsys.readouterr()
    assert (tmp_path / "next.user-budgets.csv").is_file()
    together = [str(place / "a"), str(place / "state"), str(tmp_path / "next")]
    assert command(["account", *together, "--user-namespace", "people", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["epsilon_realised"] <= 9.5 < told["epsilon_planned"]
    assert "go together" in refused([*begin, "--total-epsilon", "9"], capsys)
    elsewhere = ["simulate", str(tmp_path / "next.toml"), "--out", str(tmp_path / "again"), *within]
    for wrong in (["--set", "local.learning-rate=-1"], ["--set", "model.initial=none.safetensors"]):
        refused([*elsewhere, *wrong], capsys)
        assert not [*tmp_path.glob("again*")]  # so that the command, mended, finds its places free


def test_a_stream_counts_each_user_by_how_often_it_took_part(place: Path) -> None:
    costs = stream_costs(place / "state")
    assert (costs.namespace, costs.exact, len(costs.users)) == ("people", False, 26)
    twice = np.array([user < "user-04" for user in costs.users])
    assert len(set(costs.mu[twice])) == 1
    assert len(set(costs.mu[~twice])) == 1
    assert costs.mu[twice][0] > costs.mu[~twice][0]
    assert costs.mu.max() <= costs.planned_mu


@pytest.mark.parametrize(
    ("sampler", "kind"), [("cyclic-poisson", SampledGaussians), ("balls-in-bins", StatedCost)]
)
def test_an_amplified_run_costs_what_it_promised(
    sampler: str, kind: type, place: Path, tmp_path: Path
) -> None:
    """Alone its ε is the one that was asked for; beside another run it costs everybody, recorded or not."""
    run_small(tmp_path / "run", small_run(**keys(sampler, noise_seed=-1)))
    costs = costs_of_run(tmp_path / "run")
    assert isinstance(costs.amplified, kind)
    alone = ComposedLosses([costs.amplified])
    assert alone.epsilon_with(0.0, amplified_runs.DELTA) == pytest.approx(amplified_runs.EPSILON, rel=0.01)
    together = compose([costs, costs_of_run(place / "a")], "people")
    assert together.delta == (1e-2 + DELTA if kind is StatedCost else DELTA)
    assert together.hidden is not None
    assert together.hidden[1.0] >= account(place / "a").realised.epsilon
    asked = small_run(noise_seed=-1, user_namespace="people", delta=1e-2)
    with pytest.raises(ConfigError, match="no filter covers amplified runs"):
        within_total(asked, [costs], 9.0, tmp_path / "budgets.csv")


def test_an_amplified_run_under_replace_one_adjacency_costs_its_stated_epsilon(tmp_path: Path) -> None:
    """Its claim is derived from that of zero-out: the sampled Gaussians themselves would cost too little."""
    given = keys("cyclic-poisson", noise_seed=-1, adjacency="replace-one")
    run_small(tmp_path / "run", small_run(**given))
    costs = costs_of_run(tmp_path / "run")
    assert isinstance(costs.amplified, StatedCost)
    alone = ComposedLosses([costs.amplified])
    assert alone.epsilon_with(0.0, amplified_runs.DELTA) >= amplified_runs.EPSILON * (1 - 1e-6)
