"""The same app and configuration under ``flwr run``: the Simulation Engine, and a network on loopback."""

import json
import math
import pickle
import shutil
import tomllib
from pathlib import Path

import pytest
from support.flower_network import flower_environment, flwr_run, flwr_run_simulation, superlink, supernodes
from support.ledgers import last_state, participations
from support.small_runs import run_small, small_run

from fedmf.records.ledger import Ledger
from fedmf.runs import Run, dotted_keys

PROJECT = Path(__file__).parents[1]
#: Every process of a copy makes its own machine code, half a minute each with the engine that has most of it.
ENGINE = "loop"


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    """The files of the repository that make the Flower app; walking a whole checkout takes Flower seconds."""
    target = tmp_path / "app"
    target.mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(PROJECT / name, target / name)
    shutil.copytree(PROJECT / "fedmf", target / "fedmf", ignore=shutil.ignore_patterns("__pycache__"))
    return target


def config(run: Run) -> dict[str, str | int | float | bool]:
    """On a slow machine nodes take their time to say whom they serve."""
    return {**dotted_keys(run), "execution.handshake-timeout": 900.0}


def check_run(run_dir: Path, run: Run) -> None:
    """The ledger replays, the statement holds, nobody was counted twice."""
    statement = json.loads((run_dir / "statement.json").read_text())
    assert statement["rounds_released"] == run.cohorts.rounds
    assert statement["epsilon_spent"] <= statement["epsilon"]
    with Ledger.open(run_dir / "ledger.sqlite", read_only=True) as ledger:
        found = ledger.summary()
        pairs = participations(ledger)
    assert found.rounds == run.cohorts.rounds
    assert len(pairs) == len(set(pairs)) == run.cohorts.rounds * run.cohorts.users_per_round


def final_model(run_dir: Path):
    return last_state(run_dir)[0].numpy()


def test_the_listed_keys_equal_themselves_in_another_process() -> None:
    """Flower's Ray engine refuses a run config that has changed, as a NaN has once it was pickled."""
    listed = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert listed["privacy"]["epsilon"] == -math.inf
    assert pickle.loads(pickle.dumps(listed)) == listed


@pytest.mark.weekly
@pytest.mark.deployment
def test_flwr_run_on_the_simulation_engine(app_dir: Path, tmp_path: Path) -> None:
    run = small_run(
        mechanism="bisr", bands=4, rounds=4, output_dir=str(tmp_path / "run"), workers=2, round_timeout=900.0,
        local_engine=ENGINE,
    )  # fmt: skip
    env = flower_environment(tmp_path)
    done = flwr_run_simulation(app_dir, env, nodes=2, run_config=config(run), timeout=3000)
    assert done.ok, done.details + done.output[-3000:]
    check_run(tmp_path / "run", run)
    assert (tmp_path / "run" / "learning-curve.png").exists()
    same = run_small(tmp_path / "same", run)
    # Ray's workers may sum a user's training in another order; models have entries of size about 1.
    assert abs(final_model(tmp_path / "run") - same).max() <= 2e-6


@pytest.mark.weekly
@pytest.mark.deployment
def test_flwr_run_on_a_superlink_with_three_supernodes(app_dir: Path, tmp_path: Path) -> None:
    run = small_run(
        mechanism="bisr", bands=2, rounds=2, users=6, cohort_size=3, messages="per-user",
        output_dir=str(tmp_path / "run"), round_timeout=900.0, local_engine=ENGINE,
    )  # fmt: skip
    env = flower_environment(tmp_path)
    with superlink(env, tmp_path / "net") as link, supernodes(env, link, 3):
        done = flwr_run(app_dir, env, link.name, config(run), timeout=3000)
    assert done.ok, done.details + done.output[-3000:]
    check_run(tmp_path / "run", run)
    same = run_small(tmp_path / "same", run)
    assert abs(final_model(tmp_path / "run") - same).max() <= 2e-6
